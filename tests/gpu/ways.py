"""What can be done with the blocks that a prompt has filled: hooks of the engines of serve.py and
batch.py."""

import kit
from kit import MS, Waived
from kvcache_client.errors import DeadlineError, KvcacheError


def make(way, engine, socket, name, gpu=0):
    """The hook of a way; Waived when it cannot be had."""
    return {
        "none": lambda: None,
        "own": lambda: None,
        "kvcached": lambda: Kvcached(engine, socket, name, "worker", gpu),
        "kvcached daemon": lambda: Kvcached(engine, socket, name, "daemon", gpu),
        "packed": lambda: Torch(True),
        "each": lambda: Torch(False),
    }[way]()


class Kvcached:
    """Saves what a step completed, on the compute stream."""

    def __init__(self, engine, socket, name, copy, gpu=0):
        from kvcache_client import Client, Copy, Namespace

        where = {} if kit.REHEARSE else {"gpu": gpu}
        self.by_daemon = copy == "daemon"
        self.client = Client(
            socket, connect_ms=MS, lookup_ms=MS, load_ms=MS, save_ms=MS if kit.REHEARSE else 0,
            **where)
        try:
            self.part = self.client.register_tensors(
                Namespace(model=name), engine.model.cache, block_axis=1, block_tokens=16,
                copy=Copy.DAEMON if self.by_daemon else Copy.WORKER,
                memories=self._memories(engine.model))
        except KvcacheError as why:
            self.client.close()
            raise Waived(f"kvcached {copy}: {why}") from None
        self.dropped, self.saves = 0, {}
        self.side = None if kit.REHEARSE else engine.torch.cuda.Stream()
        self.loaded = [0, 0]  # blocks, of the GPU tier and of the host tier

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
        # Its row's blocks may still be read by the daemon.
        for save in self.saves.pop(s.row, []):
            save.wait(MS)

    # Of requests that come and go (batch.py).

    def admitted(self, engine, s, own, n):
        """What the engine's own cache does not have is loaded: before the forward pass when all of
        it is in the GPU tier, else beside it."""
        s.saves = []
        if n <= own:
            return
        lease = self.client.lookup(self.part, s.keys[: n * 16])
        if lease.blocks <= own:
            lease.release()
            return
        beside = lease.gpu < lease.blocks
        if beside and self.side is not None:
            self.side.wait_stream(engine.torch.cuda.current_stream())
        load = self.client.load(
            lease, self.part, s.ids[own : lease.blocks], first=own,
            stream=self.side if beside else None)
        lease.release()
        count = lease.blocks - own
        s.host = min(lease.blocks - lease.gpu, count)
        s.gpu = count - s.host
        self.loaded[0] += s.gpu
        self.loaded[1] += s.host
        if beside:
            s.loading = load
        else:
            s.judge, s.computed = load, lease.blocks * 16

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
        try:
            save = self.client.save(
                self.part, s.keys[first * 16 : end * 16], engine.blocks_of(s, first, end))
        except KvcacheError:
            self.dropped += 1
            return
        if self.by_daemon:
            (s.saves if hasattr(s, "saves") else self.saves.setdefault(s.row, [])).append(save)


class Torch:
    """The two ways of the predecessor; what it made is kept for a while. template: blocks that it
    has already."""

    def __init__(self, packed, template=16):
        self.template = template
        self.packed, self.kept = packed, []

    def close(self):
        pass

    def arrived(self, engine, s):
        pass

    def computed(self, engine, s, first, end, last):
        if not last:
            return
        torch, blocks = engine.torch, engine.blocks_of(s, self.template, end)
        cache = engine.model.cache
        made = []
        for at in range(0, len(blocks), 64):
            some = blocks[at : at + 64]
            if self.packed:
                index = torch.tensor(some, device=kit.DEVICE)
                rows = torch.cat([c.index_select(1, index).transpose(0, 1).flatten(1)
                                  for c in cache], 1)
                made += [row.clone() for row in rows]
            else:
                made += [[c[:, b].clone() for c in cache] for b in some]
        kit.sync(torch)
        self.kept = [*self.kept[-3:], made]
