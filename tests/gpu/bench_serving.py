#!/usr/bin/env python3
"""Cold prompts that arrive while other requests decode: what keeping their KV cache costs, and what
a hit is worth. The engine is tests/gpu/serve.py (torch, CUDA graphs), not vLLM.

Arrivals: eight background streams decode; 32 distinct prompts of 2048 tokens behind one template of
256, which the engine's own prefix cache has, arrive at intervals of 100 ms (8B: 200) and make 64
tokens each; rounds for each way, in the order A B C D E, E D C B A, A B ...

    none             nothing is kept but by the engine itself
    kvcached         saved behind each step's forward pass, copy = worker
    kvcached daemon  the same, the daemon copies (where it can)
    packed           at the end of a prompt each layer is gathered, all are concatenated, each block
                     is cloned, and the engine waits for it
    each             the same, each layer of each block is cloned by itself

Each run is a line of JSON as soon as it is over; figures are medians with what 95 % of resamplings
give.

Hits: prompts of 4096 tokens one after the other in an idle engine: with the blocks in the engine's
own cache, and loaded from the daemon's tiers after another process had saved them.

    bench_serving.py [--ways A,B...] [--rounds N] [--no-hits] [0.5B] [8B]
"""

import argparse
import random
import time

import figures
import kit
import serve
import ways
from kit import MS, Daemon, Remote, fresh_keys

BACKGROUND, INCOMING, OUTPUT = 8, 32, 64
INTERVAL_S = {"0.5B": 0.1, "8B": 0.2, "tiny": 0.01}
TEMPLATE, PROMPT, HIT = 256, 2048, 4096
HITS = 15
WAYS = ("none", "kvcached", "kvcached daemon", "packed", "each")


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

    def use(self, way, socket=None):
        """Why it cannot be had, or None."""
        self.close()
        self.hook = self.engine.hook = None
        try:
            self.hook = self.engine.hook = ways.make(way, self.engine, socket, self.name)
        except kit.Waived as why:
            return str(why)
        return None

    def _tokens(self, n):
        vocab = self.engine.model.shape.vocab
        return [self.random.randrange(vocab) for _ in range(n)]

    def arrivals(self, incoming=None):
        """TTFT of each prompt, gaps of the background (s), tokens a second, saves given up."""
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
            s = serve.Sequence(row, tokens, all_keys, self.output,
                               i * INTERVAL_S[self.name])
            s.computed = self.template
            arriving.append(s)
        kit.sync(engine.torch)
        engine.hook = hook
        gaps, tokens, seconds = engine.serve(background, arriving)
        dropped = getattr(hook, "dropped", 0)
        return [s.first - s.at for s in arriving], gaps, tokens / seconds, dropped

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


def arrivals(name, server, socket, rounds, ways):
    """Of each way TTFT and token gaps of each round, tokens a second, saves given up."""
    found = {way: ([], [], [], 0) for way in ways}
    usable = []
    for way in ways:  # find out which can be had, and warm up
        why = server.call("use", way, socket)
        if why:
            print(f"  {why}")
            continue
        if way in ("none", "kvcached"):
            server.call("arrivals", 4)
        usable.append(way)
    for r in range(rounds):
        for way in usable if r % 2 == 0 else reversed(usable):
            server.call("use", way, socket)
            ttft, gaps, rate, dropped = server.call("arrivals")
            a, b, c, d = found[way]
            found[way] = (a + [ttft], b + [gaps], c + [[rate]], d + dropped)
            figures.line(
                model=name, workload="arrivals", way=way, round=r, tokens_s=rate,
                ttft_p50=kit.median(ttft), ttft_p95=kit.quantile(ttft, 0.95),
                gap_p50=kit.median(gaps), gap_p95=kit.quantile(gaps, 0.95),
                gap_p99=kit.quantile(gaps, 0.99), dropped=dropped)
    return {way: found[way] for way in usable}


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
    kit.need_gpus()
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-hits", action="store_true")
    parser.add_argument("names", nargs="*", default=["tiny"] if kit.REHEARSE else ["0.5B", "8B"])
    said = parser.parse_args()
    sizes, repeats, room = (
        ((2, 3, 32, 64, 96, 4), 2, "64M") if kit.REHEARSE
        else ((BACKGROUND, INCOMING, TEMPLATE, PROMPT, HIT, OUTPUT), HITS, "8G"))
    rows, hit_rows = [], []
    for name in said.names:
        # The tier is part of the GPU's memory in every row: the daemon runs all the while.
        with Daemon("--gpu-bytes", room, "--host-bytes", "0") as d:
            with Remote(Server, name, sizes) as server:
                found = arrivals(name, server, d.socket, said.rounds, said.ways)
        base = found[said.ways[0]]
        for way, (ttft, gaps, rates, dropped) in found.items():
            def beside(mine, other, q=0.5, way=way):
                return "" if way == said.ways[0] else figures.change(mine, other, q)

            all_gaps = sum(gaps, [])
            rows.append([
                name, way, figures.ms(ttft), beside(ttft, base[0]), figures.ms(ttft, 0.95),
                beside(ttft, base[0], 0.95), f"{kit.median(sum(rates, [])):.0f}",
                beside(rates, base[2]), f"{kit.quantile(all_gaps, 0.95) * 1e3:.2f}",
                f"{kit.quantile(all_gaps, 0.99) * 1e3:.2f}", beside(gaps, base[1], 0.99), dropped,
            ])
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
        f"prompts that arrive beside {sizes[0]} decoding streams; {kit.machine()}",
        ["model", "way", "TTFT p50 ms", "change", "p95", "change", "token/s", "change",
         "gap p95 ms", "p99", "change", "saves given up"], rows)
    if hit_rows:
        kit.table(
            f"TTFT of a hit, {sizes[4]} tokens, ms; {repeats} repeats",
            ["model", "own prefix cache", "gpu tier", "over own", "host tier", "over own",
             "tokens equal"], hit_rows)


if __name__ == "__main__":
    kit.run("serving", main)
