#!/usr/bin/env python3
"""What saving and loading cost a decode loop that runs meanwhile.

The victim is a process with a model (batch 8, context 2048) whose decoding step is a CUDA graph, or
a loop of 100 plain kernels; its steps are timed by events around each on its stream. Meanwhile
chunks of 12 to 16 MiB are saved and loaded in turn, at a steady rate:

    worker     by the victim's own client, on another stream of the victim
    daemon     the same, of memory that is lent to the daemon, which copies (where it can)
    demotion   nothing is saved; the daemon copies blocks from the GPU tier to the host tier, as
               fast as it does

    bench_interference.py [0.5B] [8B] [loop]

Rates take turns, round by round; p50, p95 and p99 are of all rounds' steps, the change is against
the steps without any copies of the same run.
"""

import sys
import time

import kit
from kit import MS, Daemon, Remote, Waived, fresh_keys

BATCH, CONTEXT = 8, 2048
RATES = (0, 1, 5, 20)  # GB/s
CHUNK = 12 << 20
UNIT = 1e6 if kit.REHEARSE else 1e9  # bytes a second
KEPT = 16  # chunks that loads take turns with


class Victim:
    def __init__(self, name, socket, copy):
        self.torch = torch = kit.need_gpus()
        import model

        shapes = {"0.5B": model.SMALL, "8B": model.LARGE, "tiny": model.TINY}
        shape = shapes.get(name, model.TINY if kit.REHEARSE else model.SMALL)
        context = 64 if kit.REHEARSE else CONTEXT
        each = context // model.TOKENS + 1
        self.model = model.Model(shape, BATCH * each + 2 * (CHUNK // shape.block_bytes + 1),
                                 kit.DEVICE)
        self.chunk = max(1, min(64, CHUNK // shape.block_bytes))
        if kit.REHEARSE:
            self.chunk = 4
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
            work = torch.zeros(1 << 10 if kit.REHEARSE else 56 << 20, device=kit.DEVICE)

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
        """ms of each step, when each began (of the machine's clock), and the rate reached."""
        torch, times, begins = self.torch, [], []
        moved, at = 0, time.perf_counter()
        events = None
        if not kit.REHEARSE:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        while len(times) < n or (until and time.monotonic() < until):
            begins.append(time.monotonic())
            if events:
                events[0].record()
            self.step()
            if events:
                events[1].record()
            while rate and moved + self.bytes <= rate * UNIT * (time.perf_counter() - at):
                self._copy()
                moved += self.bytes
            if events:
                events[1].synchronize()
                times.append(events[0].elapsed_time(events[1]))
            else:
                times.append((time.monotonic() - begins[-1]) * 1000)
        reached = moved / (time.perf_counter() - at) / 1e9
        return times, begins, reached


def by_rate(victim, n, rounds):
    """{rate: (ms of each step, GB/s reached)}"""
    found = {rate: ([], []) for rate in RATES}
    victim.call("keep")
    for rate in RATES:
        victim.call("steps", n // 4, rate)
    for r in range(rounds):
        for rate in RATES if r % 2 == 0 else reversed(RATES):
            times, _, reached = victim.call("steps", n, rate)
            found[rate][0].extend(times)
            found[rate][1].append(reached)
    return found


def demotion(name, rounds):
    """ms of the steps while the daemon demotes, and without; GB/s."""
    size, fill = ("2M", 1 << 20) if kit.REHEARSE else ("12G", 11 << 30)
    inside, outside, rates = [], [], []
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
                outside += victim.call("steps", 5 if kit.REHEARSE else 100)[0]
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
                times, begins, _ = victim.end()
                inside += [t for t, b in zip(times, begins) if begin < b and b + t / 1000 < end]
                used = figures["tiers.host.used_bytes"] - before["tiers.host.used_bytes"]
                rates.append(used / max(end - begin, 1e-6) / 1e9)
    return outside, inside, rates


def row(name, what, asked, reached, times, base):
    if not times:
        return [name, what, asked, reached] + ["-"] * 5 + ["0"]
    cells = [f"{kit.quantile(times, q):.3f}" for q in (0.5, 0.95, 0.99)]
    change = [
        f"{(kit.quantile(times, q) / kit.quantile(base, q) - 1) * 100:+.1f} %" for q in (0.5, 0.99)
    ]
    return [name, what, asked, reached, *cells, *change, len(times)]


def main():
    kit.need_gpus()
    names = sys.argv[1:] or (["tiny", "loop"] if kit.REHEARSE else ["0.5B", "8B", "loop"])
    rows = []
    for name in names:
        n, rounds = (20, 2) if kit.REHEARSE else {"0.5B": (1000, 4)}.get(name, (200, 2))
        for copy in ("worker", "daemon"):
            room = "64M" if kit.REHEARSE else "8G"
            try:
                with Daemon("--gpu-bytes", room, "--host-bytes", "0") as d:
                    with Remote(Victim, name, d.socket, copy) as victim:
                        found = by_rate(victim, n, rounds)
            except Waived as reason:
                print(f"  {name}: {reason}")
                continue
            for rate, (times, reached) in found.items():
                rows.append(row(name, copy, rate, f"{kit.median(reached):.1f}", times, found[0][0]))
        outside, inside, rates = demotion(name, 1 if kit.REHEARSE else 3)
        rows.append(row(name, "none", 0, "0.0", outside, outside))
        rows.append(row(name, "demotion", "all", f"{kit.median(rates):.1f}", inside, outside))
    kit.table(
        f"steps of a decode loop, ms (batch {BATCH}, context {CONTEXT}); {kit.machine()}",
        ["victim", "who copies", "GB/s", "reached", "p50", "p95", "p99", "p50 change",
         "p99 change", "steps"],
        rows,
    )


if __name__ == "__main__":
    kit.run("interference", main)
