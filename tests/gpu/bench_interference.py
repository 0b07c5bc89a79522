#!/usr/bin/env python3
"""What saving and loading cost a decode loop that runs meanwhile.

The victim is a process with a model (batch 8, context 2048) whose decoding step is a CUDA graph, or
a loop of 100 plain kernels; its steps are timed by events around each on its stream. Meanwhile
chunks of 12 to 16 MiB are saved and loaded in turn, at a steady rate:

    worker     by the victim's own client, on another stream of the victim
    daemon     the same, of memory that is lent to the daemon, which copies (where it can)
    demotion   nothing is saved; the daemon copies blocks from the GPU tier to the host tier, as
               fast as it does

    bench_interference.py [0.5B] [8B] [loop] [worker] [daemon] [demotion] [--rounds N] [--mib N]

--mib: so much a copy instead. From 257 blocks on (48 MiB at 0.5B) it is more than one launch, which
run into each other.

Rates take turns, round by round; p50, p95 and p99 are of all rounds' steps, the change is against
the steps without any copies of the same run. Copies begin by the clock, at any time of a step. The
interval is from one step's beginning to the next one's: what a copy holds up between steps shows
there and not in the steps. A second table tells steps apart by how many copies began during each.
"""

import argparse
import time

import kit
from kit import MS, Daemon, Remote, Waived, fresh_keys

BATCH, CONTEXT = 8, 2048
RATES = (0, 1, 5, 20)  # GB/s
CHUNK_MIB = 12
UNIT = 1e6 if kit.REHEARSE else 1e9  # bytes a second
KEPT = 16  # chunks that loads take turns with


class Victim:
    def __init__(self, name, socket, copy, mib=CHUNK_MIB):
        self.torch = torch = kit.need_gpus()
        import model

        shapes = {"0.5B": model.SMALL, "8B": model.LARGE, "tiny": model.TINY}
        shape = shapes.get(name, model.TINY if kit.REHEARSE else model.SMALL)
        context = 64 if kit.REHEARSE else CONTEXT
        each = context // model.TOKENS + 1
        self.chunk = max(1, min(1024, (mib << 20) // shape.block_bytes))
        if kit.REHEARSE:
            self.chunk = 4
        self.model = model.Model(shape, BATCH * each + 2 * self.chunk, kit.DEVICE)
        self.bytes = self.chunk * shape.block_bytes
        self._connect(name, socket, copy)
        if not kit.REHEARSE:
            torch.cuda.set_stream(torch.cuda.Stream())
            self.side = torch.cuda.Stream()
        self._step(name, context, each)
        free = BATCH * each
        self.source = list(range(free, free + self.chunk))
        self.target = list(range(free + self.chunk, free + 2 * self.chunk))
        for cache in self.model.cache:
            cache[:, free : free + self.chunk].normal_()
        kit.sync(torch)

    def _connect(self, name, socket, copy):
        from kvcache_client import Client, Copy, KvcacheError, Namespace

        where = {} if kit.REHEARSE else {"gpu": 0}
        self.client = Client(
            socket, connect_ms=MS, lookup_ms=1000, save_ms=1000, load_ms=MS, **where
        )
        self.error = KvcacheError
        self.by_daemon = copy == "daemon"
        try:
            self.part = self.client.register_tensors(
                Namespace(model=name), self.model.cache, block_axis=1, block_tokens=16,
                copy=Copy.DAEMON if self.by_daemon else Copy.WORKER,
            )
        except KvcacheError as error:
            raise Waived(f"copy = {copy}: {error}") from None

    def close(self):
        self.client.close()

    def _step(self, name, context, each):
        torch = self.torch
        if name == "loop":
            work = torch.zeros(1 << 10 if kit.REHEARSE else 28 << 20, device=kit.DEVICE)

            def step():
                for _ in range(100):
                    work.add_(1)

            self.step = step
            return
        tokens = torch.zeros(BATCH, dtype=torch.long, device=kit.DEVICE)
        tables = torch.arange(BATCH * each, device=kit.DEVICE).view(BATCH, each)
        lengths = torch.full((BATCH,), context, device=kit.DEVICE)

        def step():
            logits = self.model.logits(self.model.decode(tokens, tables, lengths, context))
            tokens.copy_(logits.argmax(-1))

        with torch.inference_mode():
            step()
            if kit.REHEARSE:
                self.step = step
                return
            step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        self.step = graph.replay

    def keep(self):
        """Chunks that are there to be loaded."""
        self.keys = [fresh_keys(self.chunk) for _ in range(2 if kit.REHEARSE else KEPT)]
        for keys in self.keys:
            assert self._save(keys).wait(MS).status == 0
        self.leases = [self.client.lookup(self.part, k, ms=600000) for k in self.keys]
        assert all(lease.blocks == self.chunk for lease in self.leases)
        self.turn, self.loads, self.saves = 0, [], []

    def fill(self, size):
        """Saves so many bytes; what was there before is dropped."""
        self.client.flush(self.part)
        for _ in range(size // self.bytes):
            self._save(fresh_keys(self.chunk)).wait(MS)

    def _save(self, keys):
        return self.client.save(self.part, keys, self.source, stream=self._side())

    def _side(self):
        return None if kit.REHEARSE else self.side

    def _copy(self):
        """One chunk, saved or loaded."""
        self.turn += 1
        if self.turn % 2:
            self.saves.append(self._save(fresh_keys(self.chunk)))
            if len(self.saves) > 4:
                self.saves.pop(0).wait(MS)
            return
        lease = self.leases[self.turn // 2 % len(self.leases)]
        self.loads.append(self.client.load(lease, self.part, self.target, stream=self._side()))
        if len(self.loads) > 4:
            assert self.loads.pop(0).wait(MS) == []

    def steps(self, n, rate=0, until=None):
        """Of each step: ms, when it began (of the machine's clock), copies begun; GB/s reached."""
        torch, times, begins, copies = self.torch, [], [], []
        moved, at = 0, time.perf_counter()
        events = None
        if not kit.REHEARSE:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        while len(times) < n or (until and time.monotonic() < until):
            begins.append(time.monotonic())
            copies.append(0)
            if events:
                events[0].record()
            self.step()
            if events:
                events[1].record()
            while True:
                if rate and moved + self.bytes <= rate * UNIT * (time.perf_counter() - at):
                    self._copy()
                    copies[-1] += 1
                    moved += self.bytes
                elif not events or events[1].query():
                    break
                elif copies[-1] > 20:  # it cannot be that fast
                    events[1].synchronize()
            if events:
                times.append(events[0].elapsed_time(events[1]))
            else:
                times.append((time.monotonic() - begins[-1]) * 1000)
        reached = moved / (time.perf_counter() - at) / 1e9
        return times, begins, copies, reached


class Seen:
    """The steps at one rate, of all rounds."""

    def __init__(self):
        self.times, self.intervals, self.copies, self.reached = [], [], [], []

    def add(self, times, begins, copies, reached):
        self.times += times
        self.copies += copies
        self.intervals += [(b - a) * 1000 for a, b in zip(begins, begins[1:])]
        self.reached.append(reached)

    def by_copies(self):
        """{copies begun during a step: ms of those steps}"""
        found = {}
        for ms, n in zip(self.times, self.copies):
            found.setdefault(min(n, 4), []).append(ms)
        return found


def by_rate(victim, n, rounds):
    """{rate: Seen}"""
    found = {rate: Seen() for rate in RATES}
    victim.call("keep")
    for rate in RATES:
        victim.call("steps", n // 4, rate)
    for r in range(rounds):
        for rate in RATES if r % 2 == 0 else reversed(RATES):
            found[rate].add(*victim.call("steps", n, rate))
    return found


def demotion(name, rounds):
    """The steps without demotion and while the daemon demotes, and its GB/s."""
    size, fill = ("2M", 1 << 20) if kit.REHEARSE else ("12G", 11 << 30)
    inside, outside, rates = Seen(), Seen(), []
    from kvcache_client import Client

    arguments = ("--gpu-bytes", size, "--host-bytes", size, "--clean-low", "0%",
                 "--clean-high", "0%")
    with Daemon(*arguments) as d, Remote(Victim, name, d.socket, "worker") as victim:
        d.wait_for("memory is populated")
        with Client(d.socket, role="operator", connect_ms=MS) as operator:
            for _ in range(rounds):
                d.configure("clean-low", "0%")
                d.configure("clean-high", "0%")
                victim.call("fill", fill)
                outside.add(*victim.call("steps", 5 if kit.REHEARSE else 100))
                before = operator.statistics()
                victim.begin("steps", 1, 0, time.monotonic() + (0.5 if kit.REHEARSE else 1.5))
                time.sleep(0.3)
                d.configure("clean-high", "95%")
                begin = time.monotonic()
                d.configure("clean-low", "90%")
                end, seen = begin, before["demotions"]
                while time.monotonic() < begin + (0.2 if kit.REHEARSE else 1.0):
                    figures = operator.statistics()
                    if figures["demotions"] > seen:
                        seen, end = figures["demotions"], time.monotonic()
                    time.sleep(0.002)
                steps = [
                    s for s in zip(*victim.end()[:3]) if begin < s[1] and s[1] + s[0] / 1000 < end
                ]
                if steps:
                    inside.add(*zip(*steps), 0)
                used = figures["tiers.host.used_bytes"] - before["tiers.host.used_bytes"]
                rates.append(used / max(end - begin, 1e-6) / 1e9)
    return outside, inside, rates


def row(name, what, asked, reached, seen, base):
    if not seen.times:
        return [name, what, asked, reached] + ["-"] * 7 + ["0"]
    cells = [f"{kit.quantile(seen.times, q):.3f}" for q in (0.5, 0.95, 0.99)]
    change = [
        f"{(kit.quantile(seen.times, q) / kit.quantile(base.times, q) - 1) * 100:+.1f} %"
        for q in (0.5, 0.99)
    ]
    between = kit.median(seen.intervals) / kit.median(base.intervals) - 1
    mean = sum(seen.intervals) / len(seen.intervals)
    change += [f"{mean:.3f}", f"{between * 100:+.1f} %"]
    return [name, what, asked, reached, *cells, *change, len(seen.times)]


def measure(name, copy, rounds, mib, rows, details):
    n = 20 if kit.REHEARSE else 1000 if name == "0.5B" else 200
    room = "64M" if kit.REHEARSE else "8G"
    with Daemon("--gpu-bytes", room, "--host-bytes", "0") as d:
        with Remote(Victim, name, d.socket, copy, mib) as victim:
            found = by_rate(victim, n, rounds)
    for rate, seen in found.items():
        rows.append(row(name, copy, rate, f"{kit.median(seen.reached):.1f}", seen, found[0]))
        for copies, times in sorted(seen.by_copies().items()):
            details.append([name, copy, rate, f"{copies}{'+' if copies == 4 else ''}",
                            f"{len(times) / len(seen.times) * 100:.1f} %",
                            *(f"{kit.quantile(times, q):.3f}" for q in (0.1, 0.5, 0.9, 0.99))])


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", help="0.5B, 8B, loop; worker, daemon, demotion")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--mib", type=int, default=CHUNK_MIB)
    arguments = parser.parse_args()
    names = [w for w in arguments.what if w in ("0.5B", "8B", "loop", "tiny")]
    ways = [w for w in arguments.what if w in ("worker", "daemon", "demotion")]
    if len(names) + len(ways) != len(arguments.what):
        parser.error("unknown: " + " ".join(set(arguments.what) - set(names) - set(ways)))
    return (names or (["tiny", "loop"] if kit.REHEARSE else ["0.5B", "8B", "loop"]),
            ways or ["worker", "daemon", "demotion"], arguments.rounds, arguments.mib)


def main():
    names, ways, rounds, mib = parse()
    kit.need_gpus()
    rows, details = [], []
    for name in names:
        for way in ways:
            try:
                if way == "demotion":
                    outside, inside, rates = demotion(name, 1 if kit.REHEARSE else rounds)
                    rows.append(row(name, "none", 0, "0.0", outside, outside))
                    rows.append(row(name, way, "all", f"{kit.median(rates):.1f}", inside, outside))
                else:
                    measure(name, way, rounds, mib, rows, details)
            except Waived as reason:
                print(f"  {name}, {way}: {reason}")
    kit.table(
        f"steps of a decode loop, ms (batch {BATCH}, context {CONTEXT}); {kit.machine()}",
        ["victim", "who copies", "GB/s", "reached", "p50", "p95", "p99", "p50 change",
         "p99 change", "mean interval", "its p50 change", "steps"],
        rows,
    )
    kit.table(
        "the same steps, by how many copies began during each, ms",
        ["victim", "who copies", "GB/s", "copies", "of the steps", "p10", "p50", "p90", "p99"],
        details,
    )


if __name__ == "__main__":
    kit.run("interference", main)
