"""What can be done with the blocks that a prompt has filled: hooks of the engines of serve.py and
batch.py."""

import functools
import time

import kit
import serve
from kit import MS, Waived
from kvcache_client import SaveEntry
from kvcache_client.errors import DeadlineError, KvcacheError
from kvcache_client.vllm.breakeven import STEP_TOKENS, BreakEven, LoadCost
from kvcache_client.vllm.layers import LayerLoads
from kvcache_client.vllm.spill import skipped
from kvcache_client.vllm.streams import NoStreams, TorchStreams
from snapshots import Snapshots

PASSES = 32  # forward passes whose time is taken
PINGS = 9
SLOW = ("packed", "each")  # the predecessor's, which are run less often
SAVES = ("tiers.gpu.bytes_saved", "tiers.host.bytes_saved")
MOVES = ("demotions", "promotions")


def turn(ways, r):
    """The ways of round r, in the order A B B A; the predecessor's are in the first two only."""
    some = [w for w in ways if r < 2 or w not in SLOW]
    return some if r % 2 == 0 else some[::-1]


def make(way, engine, socket, name, gpu=0, room=(0, 0), **how):
    """The hook of a way; Waived when it cannot be had. room: blocks that the predecessor's ways
    keep on the GPU and on the host; how: of Kvcached."""
    return {
        "none": lambda: None,
        "own": lambda: None,
        "kvcached": lambda: Kvcached(engine, socket, name, "worker", gpu, **how),
        "kvcached layers": lambda: Kvcached(engine, socket, name, "worker", gpu, True, **how),
        "kvcached daemon": lambda: Kvcached(engine, socket, name, "daemon", gpu, **how),
        "packed": lambda: Snapshots(engine, True, *room),
        "each": lambda: Snapshots(engine, False, *room),
    }[way]()


@functools.lru_cache
def streams(gpu):
    return NoStreams() if kit.REHEARSE else TorchStreams(gpu)


@functools.lru_cache
def copy_seconds(gpu):
    return streams(gpu).copy_seconds()


class Kvcached:
    """Saves what a step completed, on the compute stream, and what the GPU tier has no room for beside
    it. layers: what comes from the host tier is
    loaded while layers before it run. min_tokens: what is shorter is not loaded; None: what is
    computed sooner than loaded, as the connector for vLLM measures it. save_ms: 0 is the library's
    bound, behind which a save is given up."""

    def __init__(self, engine, socket, name, copy, gpu=0, layers=False, min_tokens=None, save_ms=0):
        from kvcache_client import Client, Copy, Namespace

        where = {} if kit.REHEARSE else {"gpu": gpu}
        self.by_daemon = copy == "daemon"
        self.client = Client(
            socket, connect_ms=MS, lookup_ms=MS, load_ms=MS,
            save_ms=MS if kit.REHEARSE else save_ms, **where)
        try:
            self.part = self.client.register_tensors(
                Namespace(model=name), engine.model.cache, block_axis=1, block_tokens=16,
                copy=Copy.DAEMON if self.by_daemon else Copy.WORKER,
                memories=self._memories(engine.model))
        except KvcacheError as why:
            self.client.close()
            raise Waived(f"kvcached {copy}: {why}") from None
        tiers = self.client.statistics()
        self.spills = all(tiers[f"tiers.{tier}.bytes"] > 0 for tier in ("gpu", "host"))
        self.dropped, self.saves = 0, {}
        self.declined = 0
        self.block = engine.model.shape.block_bytes
        self.layers = self._layers(engine) if layers else None
        self.streams, self.timing, self.timed, self.passes = streams(gpu), None, [], 0
        self.saving = self.streams.another()  # as in the connector
        self.break_even = BreakEven(min_tokens)
        self.break_even.ranks([self._cost(engine, gpu)])

    def _layers(self, engine):
        """Those of each piece of a pass, as slices of the part: keys and values are one each."""
        engine.cut()
        found = []
        for i in range(serve.PIECES):
            first, end = engine.piece(i)
            if first < end:
                found.append((f"piece.{i}.", 2 * first, 2 * (end - first)))
        return found

    def _cost(self, engine, gpu):
        took = []
        for _ in range(PINGS):
            at = time.perf_counter()
            self.client.ping()
            took.append(time.perf_counter() - at)
        a_token = engine.model.shape.block_bytes / engine.size
        near, far = copy_seconds(gpu)
        return LoadCost(3 * kit.median(took), near * a_token, far * a_token)

    def _memories(self, model):
        """Of a rehearsal, for a daemon that copies."""
        if not self.by_daemon or model.shared is None:
            return ()
        from kvcache_client import Memory

        fd, mapping = model.shared
        return [Memory(fd, model.cache[0].data_ptr(), len(mapping))]

    def close(self):
        self.client.close()

    def arrived(self, engine, s):
        """A cold prompt is asked for, as by any engine, and is not there."""
        # Its row's blocks may still be read by the daemon.
        for save in self.saves.pop(s.row, []):
            save.wait(MS)
        self.client.lookup(self.part, s.keys[: (s.prompt - 1) // engine.size * 16]).release()

    def starts(self, engine, s, n):
        """A forward pass of n tokens is about to be enqueued."""
        while self.timed and self.timed[0][1].seconds() is not None:
            tokens, timer = self.timed.pop(0)
            self.break_even.computed([(tokens, timer.seconds())])
        if n >= STEP_TOKENS and self.passes < PASSES:
            self.passes += 1
            self.timing = n, self.streams.timer()
            self.timing[1].begin()

    def _passed(self):
        if self.timing is not None:
            self.timing[1].end()
            self.timed.append(self.timing)
            self.timing = None

    def figures(self):
        return {"declined": self.declined, "dropped": self.dropped, **self.break_even.figures()}

    def moved(self):
        """Bytes saved, and bytes between the tiers, since the daemon's start."""
        counted = self.client.statistics()
        return sum(counted[k] for k in SAVES), sum(counted[k] for k in MOVES) * self.block

    # Of requests that come and go (batch.py).

    def admitted(self, engine, s, own, n):
        """What the engine's own cache does not have is loaded: on the compute stream when all of
        it is in the GPU tier; else beside it, and the request's forward pass is behind the load if
        that will not take long, else some steps later."""
        s.saves = []
        if n <= own:
            return
        lease = self.client.lookup(self.part, s.keys[: n * 16])
        if lease.blocks <= own:
            lease.release()
            return
        count = lease.blocks - own
        host = min(lease.blocks - lease.gpu, count)
        if not self.break_even.pays((count - host) * engine.size, host * engine.size):
            self.declined += 1
            lease.release()
            return
        s.gpu, s.host = count - host, host
        beside = lease.gpu < lease.blocks
        hidden = host * engine.size * self.break_even.cost.host <= engine.hides
        ids = s.ids[own : lease.blocks]
        if beside and hidden and self.layers:
            s.judge = self.client.load_slices(lease, self.part, ids, first=own)
            s.layers = LayerLoads([self.layers], self.streams)
            s.layers.start([(0, s.judge)])
            lease.release()
            s.computed = lease.blocks * 16
            return
        if beside:
            self.streams.after_compute()
        load = self.client.load(lease, self.part, ids, first=own,
                                stream=self.streams.side() if beside else None)
        lease.release()
        if beside and not hidden:
            s.loading = load
            return
        s.judge, s.computed = load, lease.blocks * 16
        s.behind = self.streams.mark() if beside else None

    def before(self, engine, s):
        """Its first forward pass is about to be enqueued."""
        if s.behind is not None:
            self.streams.compute_after(s.behind)
            s.behind = None

    def arrived_at(self, engine, s):
        """Whether what is loaded beside the steps is there."""
        try:
            assert s.loading.wait(0) == []
        except DeadlineError:
            return False
        s.loading, s.computed = None, (s.own + s.gpu + s.host) * 16
        return True

    def judged(self, engine, s):
        assert s.judge.wait(MS) == []

    def reads(self, s):
        """Whether saves still read its blocks."""
        for save in list(s.saves):
            try:
                save.wait(0)
            except DeadlineError:
                return True
            s.saves.remove(save)
        return False

    def computed(self, engine, s, first, end, last):
        self._passed()
        some = SaveEntry(
            self.part, s.keys[first * 16 : end * 16], engine.blocks_of(s, first, end))
        reading = []
        try:
            save = self.client.save_entries([some], no_wait=not self.by_daemon)
            if self.by_daemon:
                reading = [save]
            elif self.spills:
                reading = self._spill(skipped([some], save.raw_states))
        except KvcacheError:
            self.dropped += 1
        if reading:
            (s.saves if hasattr(s, "saves") else self.saves.setdefault(s.row, [])).extend(reading)

    def _spill(self, entries):
        """What the GPU tier has no room for goes to the host tier, beside the steps."""
        if not entries:
            return []
        self.saving.after_compute()
        return [self.client.save_entries(entries, stream=self.saving.side(), to_host=True)]
