#!/usr/bin/env python3
"""Requests that come and go in a small engine of our own (batch.py), with and without the cache.
The GPU memory is equal: what the GPU tier has is taken from the engine's pool.

    none             every prompt is computed
    own              the engine's own prefix cache
    kvcached         that and the daemon's, copy = worker
    kvcached daemon  the same, the daemon copies (where it can)

    warm16, warm32   600 requests at concurrency 16 and 32 behind shared prefixes
    overflow         the same at 16, with a GPU tier of 8 MiB: the host tier carries
    chat             conversations of many turns (--trace FILE: of a trace)
    cancel           four streams cancelled in the middle, then the requests: all succeed, and
                     descriptors and memory stay as they are
    second           two engines: the second serves prompts that the first has seen
    handoff          prefill in one process, decoding in another; on one GPU, and on two

    bench_batch.py [--workload A,B...] [--ways A,B...] [--requests N] [--rounds N] [--trace FILE]
                   [--budget S] [0.5B] [8B]

Ways take turns, A B B A; figures are medians with what 95 % of resamplings give. --budget: seconds
after which no other workload is begun.
"""

import argparse
import faulthandler
import os
import random
import time

import batch
import kit
import ways
import workloads
from kit import Daemon, Remote, Waived

LIMIT_S = 60  # of one run of a way
WAYS = ("none", "own", "kvcached", "kvcached daemon")
ALL = ("warm16", "warm32", "overflow", "chat", "cancel", "second", "handoff")
# Blocks of the pool, of the GPU tier, of a prefix and of the rest behind it; prefixes, output.
SIZES = {
    "0.5B": (4096, 1024, 64, 4, 96, 32),
    "8B": (4096, 1024, 64, 4, 96, 32),
    "tiny": (96, 24, 6, 1, 8, 4),
}
HIT = {"0.5B": 256, "8B": 256, "tiny": 6}  # blocks of a prompt that is handed over


TABLES = {
    "serving": (
        "requests that come and go",
        ["model", "workload", "way", "TTFT p50 ms", "p95", "over own", "token/s", "over own",
         "blocks: own", "GPU tier", "host tier", "GB loaded"]),
    "cancelled": (
        "four streams cancelled, then the requests",
        ["model", "workload", "whole", "saves given up", "descriptors, engine", "daemon",
         "MiB, engine", "daemon"]),
    "handed": (
        "a prompt that another process has computed, TTFT in ms",
        ["model", "workload", "tokens", "computed", "own prefix cache", "loaded", "over own",
         "blocks, GPU / host tier", "tokens equal"]),
}


class Server:
    """An engine in a process of its own."""

    def __init__(self, name, rows, gpu=0, prompt=0):
        kit.need_gpus()
        import model
        import torch

        if not kit.REHEARSE:
            torch.cuda.set_device(gpu)
        self.name, self.gpu = name, gpu
        self.pool, self.tier, prefix, rest, _, output = SIZES[name]
        shape = {"0.5B": model.SMALL, "8B": model.LARGE, "tiny": model.TINY}[name]
        longest = (prompt or prefix + rest) + -(-4 * output // 16) + 2
        self.engine = batch.Batch(shape, rows, longest, self.pool)
        self.hook = None

    def close(self):
        if self.hook is not None:
            self.hook.close()
        self.hook = self.engine.hook = None

    def use(self, way, socket=None, tier=None):
        """An empty engine. Why the way cannot be had, or None."""
        self.close()
        self.engine.renew(self.pool, way != "none")
        if way.startswith("kvcached"):
            tier = self.tier if tier is None else tier
            self.engine.renew(self.pool - tier, True)
            try:
                self.hook = self.engine.hook = ways.make(
                    way, self.engine, socket, self.name, self.gpu)
            except Waived as why:
                return str(why)
        return None

    def serve(self, prompts, most):
        """Of each request: TTFT, tokens made, blocks by where they came from; and seconds."""
        vocab = self.engine.model.shape.vocab
        requests = [batch.Request(p.tokens(vocab), p.keys(), p.output, p.at, p.cancel)
                    for p in prompts]
        kit.sync(self.engine.torch)
        faulthandler.dump_traceback_later(LIMIT_S / 2)
        seconds = self.engine.run(requests, most)
        faulthandler.cancel_dump_traceback_later()
        return [(s.first, s.tokens[s.prompt :], s.own, s.gpu, s.host, (s.prompt - 1) // 16)
                for s in requests], seconds

    def waited(self, keys):
        """Until all of them are published."""
        end = time.monotonic() + 20
        while (self.hook.client.probe(self.hook.part, keys) < len(keys) // 16
               and time.monotonic() < end):
            time.sleep(0.001)

    def dropped(self):
        return getattr(self.hook, "dropped", 0)

    def held(self):
        """Descriptors and KiB of this process."""
        return held("self")


def held(process):
    with open(f"/proc/{process}/status") as f:
        memory = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{process}/fd")), memory


def interval(values):
    """What the median is in 95 % of resamplings."""
    chosen = random.Random(1)
    medians = sorted(kit.median(chosen.choices(values, k=len(values))) for _ in range(400))
    return medians[10], medians[389]


class Bench:
    def __init__(self, name, said):
        self.name, self.said = name, said
        self.pool, self.tier, self.prefix, self.rest, self.prefixes, self.output = SIZES[name]
        self.n, self.rounds = said.requests, said.rounds
        self.block = {"0.5B": 192 << 10, "8B": 2 << 20, "tiny": 8192}[name]

    def daemon(self, tier=None, *more):
        bytes_ = self.tier * self.block if tier is None else tier
        d = Daemon("--gpu-bytes", str(max(bytes_, 2 << 20)), "--host-bytes",
                   str(max(4 * self.pool * self.block, 64 << 20)), *more)
        d.wait_for("memory is populated")
        return d

    def warm(self, names, seed=0, n=None):
        return workloads.warm(
            n or self.n, self.prefixes, self.prefix, self.rest, self.output, names, seed)

    def rows(self, title, make, most, tier=None):
        """All ways, A B B A: TTFT, tokens a second and hit ratios."""
        found = {}
        with self.daemon(tier) as d, Remote(Server, self.name, most) as server:
            server.limit_s = LIMIT_S
            usable = []
            for way in self.said.ways:
                why = server.call("use", way, d.socket, tier and 0)
                if why:
                    print(f"  {why}")
                    continue
                usable.append(way)
                server.call("serve", self.warm(f"warm up {way}", n=24), most)
            for r in range(self.rounds):
                for way in usable if r % 2 == 0 else reversed(usable):
                    server.call("use", way, d.socket, tier and 0)
                    served, seconds = server.call("serve", make(f"{title} {r} {way}", r), most)
                    print(f"    {title}, {way}: {seconds:.1f} s", flush=True)
                    ttft, tokens, own, gpu, host, whole = found.setdefault(
                        way, ([], [], [0], [0], [0], [0]))
                    ttft += [s[0] for s in served]
                    tokens.append(sum(len(s[1]) for s in served) / seconds)
                    for total, i in ((own, 2), (gpu, 3), (host, 4), (whole, 5)):
                        total[0] += sum(s[i] for s in served)
        base, rows = None, []
        for way, (ttft, rates, own, gpu, host, whole) in found.items():
            if way == "own" or base is None:
                base = (kit.median(ttft), kit.median(rates))
        for way, (ttft, rates, own, gpu, host, whole) in found.items():
            p50, rate = kit.median(ttft), kit.median(rates)
            low, high = interval(ttft)
            rows.append([
                self.name, title, way, f"{p50 * 1e3:.1f} ({low * 1e3:.1f} to {high * 1e3:.1f})",
                f"{kit.quantile(ttft, 0.95) * 1e3:.1f}", f"{(p50 / base[0] - 1) * 100:+.1f} %",
                f"{rate:.0f} ({min(rates):.0f} to {max(rates):.0f})",
                f"{(rate / base[1] - 1) * 100:+.1f} %",
                *(f"{100 * part[0] / max(1, whole[0]):.0f} %" for part in (own, gpu, host)),
                f"{(gpu[0] + host[0]) * self.block / 1e9:.2f}",
            ])
        return rows

    def run(self, workload):
        """Tables of a workload: their kind and rows."""
        if workload in ("warm16", "warm32"):
            yield "serving", self.rows(workload, self.warm, int(workload[4:]))
        elif workload == "overflow":
            yield "serving", self.rows(workload, self.warm, 16, tier=8 << 20)
        elif workload == "chat":
            yield "serving", self.rows(
                workload, lambda names, seed: workloads.chat(
                    self.n, self.prefix, self.output, names, seed, self.said.trace), 16)
        elif workload == "cancel":
            yield "cancelled", self.cancel()
        elif workload == "second":
            yield "handed", self.pair(0, 0, workload)
        elif workload == "handoff":
            yield "handed", self.pair(0, 0, "handoff, one GPU")
            try:
                kit.need_gpus(2)
            except Waived as why:
                print(f"  handoff, two GPUs: {why}")
                return
            yield "handed", self.pair(0, 1, "handoff, two GPUs", "--gpus", "all")
        else:
            raise RuntimeError("there is no such workload")

    def cancel(self):
        """What holds before and behind the requests."""
        with self.daemon() as d, Remote(Server, self.name, 16) as server:
            server.call("use", "kvcached", d.socket)
            server.call("serve", self.warm("before", n=self.n // 4), 16)
            before = server.call("held"), held(d.process.pid)
            served, _ = server.call(
                "serve", workloads.cancelled(4, self.prefix, 4 * self.output, "cancelled"), 16)
            assert all(len(s[1]) < 4 * self.output for s in served), "not cancelled"
            served, _ = server.call("serve", self.warm("behind"), 16)
            good = sum(len(s[1]) == self.output for s in served)
            time.sleep(0.2)
            after = server.call("held"), held(d.process.pid)
            return [[self.name, "cancel", f"{good} of {self.n}", server.call("dropped"),
                     f"{before[0][0]} to {after[0][0]}", f"{before[1][0]} to {after[1][0]}",
                     f"{(after[0][1] - before[0][1]) / 1024:+.1f}",
                     f"{(after[1][1] - before[1][1]) / 1024:+.1f}"]]

    def pair(self, first_gpu, second_gpu, how, *more):
        """One process computes prompts, the other goes on: TTFT there, beside what computing it and
        what its own prefix hit take. Tokens have to be equal."""
        blocks, output, found = HIT[self.name], self.output, {"cold": [], "own": [], "loaded": []}
        same, tiers = True, [0, 0]
        with self.daemon(2 * blocks * self.block, *more) as d:
            with Remote(Server, self.name, 4, first_gpu, blocks) as a, (
                    Remote(Server, self.name, 4, second_gpu, blocks)) as b:
                a.call("use", "kvcached", d.socket)
                b.call("use", "kvcached", d.socket)
                for r in range(-2, 3 * self.rounds):
                    prompt = workloads.Prompt([(f"{how} {r}", blocks)], 1)
                    a.call("serve", [prompt], 1)
                    a.call("waited", prompt.keys())
                    prompt.output = output
                    (loaded,), _ = b.call("serve", [prompt], 1)
                    (own,), _ = b.call("serve", [prompt], 1)
                    other = workloads.Prompt([(f"{how} cold {r}", blocks)], 1)
                    (cold,), _ = b.call("serve", [other], 1)
                    same = same and loaded[1] == own[1]
                    assert loaded[3] + loaded[4] == blocks, loaded[2:]
                    if r >= 0:
                        found["cold"].append(cold[0])
                        found["own"].append(own[0])
                        found["loaded"].append(loaded[0])
                        tiers[0] += loaded[3]
                        tiers[1] += loaded[4]
        own = kit.median(found["own"])
        return [[self.name, how, blocks * 16, kit.spread(found["cold"], 1e3),
                 kit.spread(found["own"], 1e3), kit.spread(found["loaded"], 1e3),
                 f"{kit.median(found['loaded']) / own:.2f}", f"{tiers[0]} / {tiers[1]}",
                 "yes" if same else "NO"]]


def main():
    kit.need_gpus()
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=lambda text: text.split(","), default=ALL)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS)
    parser.add_argument("--requests", type=int, default=24 if kit.REHEARSE else 600)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trace")
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("names", nargs="*", default=["tiny"] if kit.REHEARSE else ["0.5B"])
    said = parser.parse_args()
    begin = time.monotonic()
    for name in said.names:
        bench = Bench(name, said)
        for workload in said.workload:
            if time.monotonic() - begin > said.budget:
                print(f"  {name}, {workload}: not begun, after {said.budget:.0f} s")
                continue
            at = time.monotonic()
            try:
                for kind, rows in bench.run(workload):
                    kit.table(*TABLES[kind], rows)
            except RuntimeError as why:
                print(f"  {name}, {workload}: failed: {why}")
            print(f"  {name}, {workload}: {time.monotonic() - at:.0f} s", flush=True)
    print(f"{said.requests} requests, {said.rounds} rounds; {kit.machine()}")


if __name__ == "__main__":
    kit.run("batch", main)
