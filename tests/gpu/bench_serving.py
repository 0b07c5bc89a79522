#!/usr/bin/env python3
"""Cold prompts that arrive while other requests decode: what keeping their KV cache costs, and what
a hit is worth. The engine is tests/gpu/serve.py (torch, CUDA graphs), not vLLM.

Arrivals: eight background streams decode; 32 distinct prompts of 2048 tokens behind one template of
256, which the engine's own prefix cache has, arrive at intervals of 100 ms (--interval) and make 64
tokens each; rounds for each way, in the order A B C D E, E D C B A, A B ... (packed and each in two
rounds at most). The 8B shape computes a prompt in some 210 ms: at 100 ms they queue.

    none             nothing is kept but by the engine itself
    kvcached         saved behind each step's forward pass, copy = worker; the GPU tier overflows
                     into the host tier
    kvcached daemon  the same, the daemon copies (where it can)
    packed           at the end of a prompt each layer is gathered, all are concatenated, each block
                     is cloned, and the engine waits for it
    each             the same, each layer of each block is cloned by itself

Each run is a line of JSON as soon as it is over; figures are medians with what 95 % of resamplings
give.

Hits: prompts of 4096 tokens one after the other in an idle engine: with the blocks in the engine's
own cache, and loaded from the daemon's tiers after another process had saved them.

    bench_serving.py [--ways A,B...] [--rounds N] [--interval MS] [--no-hits] [--budget S]
                     [0.5B] [8B]

--budget: seconds after which no other run begins.
"""

import argparse
import collections
import random
import time

import figures
import kit
import serve
import ways
from kit import MS, Daemon, Remote, fresh_keys

BACKGROUND, INCOMING, OUTPUT = 8, 32, 64
TEMPLATE, PROMPT, HIT = 256, 2048, 4096
HITS = 15
WAYS = ("none", "kvcached", "kvcached daemon", "packed", "each")
Arrived = collections.namedtuple("Arrived", "ttft gaps rate dropped saved new between")
# Bytes of the GPU tier, less than the prompts of a round have, and of the host tier: of the daemon,
# which is there in every way, and of what the predecessor keeps.
TIERS = {"0.5B": (512 << 20, 2 << 30), "8B": (4 << 30, 8 << 30), "tiny": (2 << 20, 64 << 20)}


class Server:
    def __init__(self, name, sizes, idle=False):
        kit.need_gpus()
        import model

        self.name = name
        self.background, self.incoming, self.template, self.prompt, self.hit, self.output = sizes
        shape = {"0.5B": model.SMALL, "8B": model.LARGE, "tiny": model.TINY}[name]
        longest = self.hit if idle else self.prompt + self.output
        rows = 2 if idle else self.background + self.incoming
        self.engine = serve.Engine(shape, rows, -(-longest // 16) + 2)
        self.random = random.Random(7)
        self.hook = None

    def close(self):
        if self.hook is not None:
            self.hook.close()

    def use(self, way, socket=None, tiers=(0, 0)):
        """Why it cannot be had, or None."""
        self.close()
        self.hook = self.engine.hook = None
        try:
            self.hook = self.engine.hook = ways.make(
                way, self.engine, socket, self.name,
                room=[b // self.engine.model.shape.block_bytes for b in tiers])
        except kit.Waived as why:
            return str(why)
        return None

    def _tokens(self, n):
        vocab = self.engine.model.shape.vocab
        return [self.random.randrange(vocab) for _ in range(n)]

    def arrivals(self, interval, incoming=None):
        """TTFT of each prompt, gaps of the background (s), tokens a second, saves given up, bytes
        saved, those of new blocks, and bytes moved between tiers."""
        template, keys = self._tokens(self.template), fresh_keys(self.template // 16)
        engine, hook = self.engine, self.engine.hook
        engine.hook = None
        background = []
        for row in range(self.background):
            s = serve.Sequence(row, template, keys, 0, 0)
            engine.step_prefill(s)
            s.tokens.append(1)
            background.append(s)
        arriving = []
        for i in range(incoming or self.incoming):
            row = self.background + i
            engine.share(row, 0, self.template // 16)
            tokens = template + self._tokens(self.prompt - self.template)
            all_keys = keys + fresh_keys((self.prompt - self.template) // 16)
            s = serve.Sequence(row, tokens, all_keys, self.output, i * interval)
            s.computed = self.template
            arriving.append(s)
        kit.sync(engine.torch)
        engine.hook = hook
        before = hook.moved() if hook else (0, 0)
        gaps, tokens, seconds = engine.serve(background, arriving)
        after = hook.moved() if hook else (0, 0)
        new = sum((s.prompt - self.template) // engine.size for s in arriving)
        return Arrived([s.first - s.at for s in arriving], gaps, tokens / seconds,
                       getattr(hook, "dropped", 0), after[0] - before[0],
                       new * engine.model.shape.block_bytes, after[1] - before[1])

    def compute(self, seed, keys):
        """A prompt in an idle engine, from the beginning, saved if there is a hook. s."""
        return self._run(seed, keys, 0, None)

    def own_hit(self, seed, keys):
        """The same prompt again: all but the last block are there."""
        return self._run(seed, keys, self.hit // 16 - 1, None)

    def load_hit(self, seed, keys):
        """The same, but they are loaded."""
        for cache in self.engine.model.cache:
            cache.fill_(100.0)
        return self._run(seed, keys, self.hit // 16 - 1, self.hook)

    def _run(self, seed, keys, there, load):
        self.random.seed(seed)
        engine = self.engine
        s = serve.Sequence(0, self._tokens(self.hit), keys, 1, 0)
        kit.sync(engine.torch)
        at, loading = time.perf_counter(), None
        if load is not None:
            lease = load.client.lookup(load.part, keys[: there * 16])
            assert lease.blocks == there, lease
            loading = load.client.load(lease, load.part, engine.blocks_of(s, 0, there))
        s.computed = there * 16
        while not engine.step_prefill(s):
            pass
        token = int(engine.p_next)
        if loading is not None:
            assert loading.wait(MS) == []
            lease.release()
        return time.perf_counter() - at, token

    def waited(self, keys):
        """Until everything is published."""
        hook = self.hook
        end = time.monotonic() + 20
        while hook.client.probe(hook.part, keys) < self.hit // 16 and time.monotonic() < end:
            time.sleep(0.002)


def arrivals(name, server, socket, some, said):
    """What arrived in each round, of each way that can be had."""
    usable, interval = [], said.interval / 1e3
    for way in some:  # find out which, and warm up
        why = server.call("use", way, socket, TIERS[name])
        if why:
            print(f"  {why}")
            continue
        if way in ("none", "kvcached"):
            server.call("arrivals", interval, 4)
        usable.append(way)
    found = {way: [] for way in usable}
    for r, way in ((r, way) for r in range(said.rounds) for way in ways.turn(usable, r)):
        if time.monotonic() > said.until:
            print(f"  {way}, round {r}: not begun", flush=True)
            continue
        server.call("use", way, socket, TIERS[name])
        ran = server.call("arrivals", interval)
        found[way].append(ran)
        gaps = {f"gap_p{p}": kit.quantile(ran.gaps, p / 100) for p in (50, 95, 99)}
        figures.line(
            model=name, workload="arrivals", interval=interval, way=way, round=r,
            tokens_s=ran.rate, ttft_p50=kit.median(ran.ttft),
            ttft_p95=kit.quantile(ran.ttft, 0.95), **gaps, dropped=ran.dropped,
            saved=ran.saved, new=ran.new, between=ran.between)
    return {way: runs for way, runs in found.items() if runs}


def row(name, way, mine, base):
    """Of the table. mine, base: what arrived in each round; base: None for the first way."""
    ttft, gaps = [r.ttft for r in mine], [r.gaps for r in mine]

    def beside(part, q=0.5):
        return "" if base is None else figures.change(
            *([part(r) for r in some] for some in (mine, base)), q)

    return [
        name, way, len(mine), figures.ms(ttft), beside(lambda r: r.ttft), figures.ms(ttft, 0.95),
        beside(lambda r: r.ttft, 0.95), f"{kit.median([r.rate for r in mine]):.0f}",
        beside(lambda r: [r.rate]),
        *(f"{kit.quantile(sum(gaps, []), q) * 1e3:.2f}" for q in (0.95, 0.99)),
        beside(lambda r: r.gaps, 0.99), sum(r.dropped for r in mine),
        *(f"{sum(getattr(r, part) for r in mine) / 1e9:.2f}"
          for part in ("saved", "new", "between")),
    ]


def hits(name, sizes, repeats, room):
    """ms of an own hit, and of hits in both tiers; whether the tokens are equal."""
    found, same = {"own": [], "gpu": [], "host": []}, True
    with Remote(Server, name, sizes, True) as first, Remote(Server, name, sizes, True) as second:
        for tier in ("gpu", "host"):
            arguments = ("--gpu-bytes", room if tier == "gpu" else "0",
                         "--host-bytes", room if tier == "host" else "0")
            with Daemon(*arguments) as d:
                d.wait_for("memory is populated")
                first.call("use", "kvcached", d.socket)
                second.call("use", "kvcached", d.socket)
                for r in range(-2, repeats):
                    keys, seed = fresh_keys(sizes[4] // 16), 1000 + r
                    _, token = first.call("compute", seed, keys)
                    own, again = first.call("own_hit", seed, keys)
                    first.call("waited", keys)
                    loaded, other = second.call("load_hit", seed, keys)
                    same = same and again == other
                    if r >= 0:
                        found["own"].append(own)
                        found[tier].append(loaded)
                first.call("use", "none")
                second.call("use", "none")
    return found, same


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", type=kit.some_of(WAYS), default=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interval", type=float, default=10 if kit.REHEARSE else 100)
    parser.add_argument("--no-hits", action="store_true")
    parser.add_argument("names", nargs="*", default=["tiny"] if kit.REHEARSE else ["0.5B", "8B"])
    parser.add_argument("--budget", type=float, default=1e9)
    said = parser.parse_args()
    kit.need_gpus()
    said.until = time.monotonic() + said.budget
    sizes, repeats, room = (
        ((2, 3, 32, 64, 96, 4), 2, "64M") if kit.REHEARSE
        else ((BACKGROUND, INCOMING, TEMPLATE, PROMPT, HIT, OUTPUT), HITS, "8G"))
    rows, hit_rows = [], []
    for name in said.names:
        # The tier is part of the GPU's memory in every row: the daemon runs all the while.
        gpu, host = map(str, TIERS[name])
        with Daemon("--gpu-bytes", gpu, "--host-bytes", host) as d:
            d.wait_for("memory is populated")
            with Remote(Server, name, sizes) as server:
                found = arrivals(name, server, d.socket, said.ways, said)
        base = found.get(said.ways[0])
        rows += [row(name, way, mine, base if way != said.ways[0] else None)
                 for way, mine in found.items()]
        if said.no_hits:
            continue
        warm, same = hits(name, sizes, repeats, room)
        own = kit.median(warm["own"])
        hit_rows.append([
            name, kit.spread(warm["own"], 1e3), kit.spread(warm["gpu"], 1e3),
            f"{kit.median(warm['gpu']) / own:.2f}", kit.spread(warm["host"], 1e3),
            f"{kit.median(warm['host']) / own:.2f}", "yes" if same else "NO",
        ])
    kit.table(
        f"prompts that arrive every {said.interval:g} ms beside {sizes[0]} decoding streams; "
        f"{kit.machine()}",
        ["model", "way", "rounds", "TTFT p50 ms", "change", "p95", "change", "token/s", "change",
         "gap p95 ms", "p99", "change", "saves given up", "GB saved", "of new blocks",
         "between tiers"], rows)
    if hit_rows:
        kit.table(
            f"TTFT of a hit, {sizes[4]} tokens, ms; {repeats} repeats",
            ["model", "own prefix cache", "gpu tier", "over own", "host tier", "over own",
             "tokens equal"], hit_rows)
    if any(row[-1] == "NO" for row in hit_rows):
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run("serving", main)
