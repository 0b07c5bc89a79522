#!/usr/bin/env python3
"""Requests that come and go in a small engine of our own (batch.py), with and without the cache.
The GPU memory is equal: what the GPU tier has is taken from the engine's pool.

    none             every prompt is computed
    own              the engine's own prefix cache
    kvcached         that and the daemon's, copy = worker
    kvcached layers  the same, and what comes from the host tier is loaded layer by layer, while the
                     layers before it run
    kvcached daemon  the daemon copies (where it can)
    packed           that and the predecessor's: at a prompt's end each layer is gathered, all are
                     concatenated, each block is cloned, and the engine waits for it
    each             the same, each layer of each block is cloned by itself

    warm16, warm32   requests at concurrency 16 and 32 behind shared prefixes, which were all seen
    overflow         the same at 16, with a GPU tier of 8 MiB: the host tier carries
    long16           at 16 behind prefixes of 4096 tokens, most of the pool being the GPU tier's
    chat             conversations of many turns (--trace FILE: of a trace)
    cancel           four streams cancelled in the middle, then 600 requests: all succeed, and
                     descriptors and memory stay as they are
    verify           what is loaded has the right checksums, and gives the tokens of an own hit
    break            from which length on loading is faster than computing, beside what the
                     connector for vLLM would say
    second           two engines: the second serves prompts that the first has seen
    second-host      the same, from the host tier
    handoff          prefill in one process, decoding in another; on one GPU, and on two

    bench_batch.py [--workload A,B...] [--ways A,B...] [--requests N] [--rounds N] [--trace FILE]
                   [--budget S] [--behind N] [--tier N] [0.5B] [8B]

Ways take turns, A B B A, --requests in each of --rounds (the predecessor's in two rounds at most);
figures are medians with what 95 % of resamplings give. Each run is a line of JSON as soon as it is
over. --budget: seconds after which nothing else is begun. --behind: requests behind the cancelled
streams. --tier: blocks of the GPU tier (but for overflow, second, handoff, break).
"""

import argparse
import time

import handed
import kit
import serving
import steady
import ways
from kit import Waived

# Of the streams of requests: blocks of the pool and of the GPU tier, of a prefix and of the rest
# behind it, prefixes, output; and bytes of the host tier.
SIZES = {
    "0.5B": serving.Sizes(4096, 1024, 64, 4, 96, 32, 3 << 30),
    "8B": serving.Sizes(2304, 576, 64, 4, 48, 32, 12 << 30),
    "tiny": serving.Sizes(96, 24, 6, 1, 8, 4, 64 << 20),
}
LONG = {
    "0.5B": serving.Sizes(12288, 8192, 256, 4, 64, 32, 4 << 30),
    "8B": serving.Sizes(10240, 6144, 256, 4, 40, 32, 24 << 30),
    "tiny": serving.Sizes(240, 160, 12, 1, 16, 4, 64 << 20),
}
WARM = {"warm16": 16, "warm32": 32, "overflow": 16}
OVERFLOW = 64 << 10 if kit.REHEARSE else 8 << 20
SEEDS = ("warm16", "overflow")  # where the predecessor's ways run too
WAYS = ("none", "own", "packed", "each", "kvcached", "kvcached layers", "kvcached daemon")
ALL = (*WARM, "long16", "chat", "cancel", "verify", "break", "second", "second-host", "handoff")


class Bench:
    def __init__(self, name, said, until):
        self.name, self.said, self.until = name, said, until
        self.stream = self.two = None

    def streams(self, sizes=SIZES):
        """The engine and the daemon of the streams, which stay."""
        wanted = sizes[self.name]
        if self.said.tier is not None:
            wanted = wanted._replace(tier=self.said.tier)
        if self.stream is None or self.stream.sizes != wanted:
            self.close()
            self.stream = serving.Stream(self.name, wanted, self.until)
        return self.stream

    def pair(self):
        """Two engines on one GPU, which stay."""
        if self.two is None:
            self.close()
            self.two = handed.Pair(self.name)
        return self.two

    def close(self, failed=None):
        stay, self.stream, self.two = (self.stream, self.two), None, None
        for one in stay:
            if one is not None:
                one.close(failed)

    def ways(self, workload):
        return [w for w in self.said.ways
                if w not in ways.SLOW or workload in SEEDS or self.said.ways != WAYS]

    def copies(self):
        return [w for w in self.said.ways if w.startswith("kvcached")]

    def run(self, workload):
        """Prints its table."""
        n, rounds, trace = self.said.requests, self.said.rounds, self.said.trace
        if workload in WARM:
            self.streams().warm(workload, WARM[workload], self.ways(workload), n, rounds,
                                tier=OVERFLOW if workload == "overflow" else None)
        elif workload == "long16":
            self.streams(LONG).warm(workload, 16, self.ways(workload), n, rounds)
        elif workload == "chat":
            self.streams().chat(self.ways(workload), n, rounds, trace)
        elif workload == "cancel":
            steady.cancel(self.streams(), self.copies(), self.said.behind)
        elif workload == "verify":
            steady.verify(self.streams(), self.copies())
        elif workload == "break":
            handed.break_even(self.name)
        elif workload == "second":
            handed.table([self.pair().run(workload, self.copies(), rounds)])
        elif workload == "second-host":
            handed.table([self.pair().run(workload, self.copies(), rounds, gpu_tier=False)])
        else:
            handed.table([self.pair().run("handoff, one GPU", self.copies(), rounds)])
            kit.need_gpus(2)
            self.close()
            self.two = handed.Pair(self.name, (0, 1))
            handed.table([self.two.run("handoff, two GPUs", self.copies(), rounds)])
            self.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=kit.some_of(ALL), default=ALL)
    parser.add_argument("--ways", type=kit.some_of(WAYS), default=WAYS)
    parser.add_argument("--requests", type=int, default=24 if kit.REHEARSE else 300)
    parser.add_argument("--behind", type=int, default=24 if kit.REHEARSE else 600)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trace")
    parser.add_argument("--tier", type=int)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("names", nargs="*", default=["tiny"] if kit.REHEARSE else ["0.5B", "8B"])
    said = parser.parse_args()
    kit.need_gpus()
    begin, failed = time.monotonic(), 0
    print(f"{said.requests} requests, {said.rounds} rounds; {kit.machine()}", flush=True)
    for name in said.names:
        bench = Bench(name, said, begin + said.budget)
        for workload in said.workload:
            if time.monotonic() - begin > said.budget:
                print(f"  {name}, {workload}: not begun, after {said.budget:.0f} s", flush=True)
                continue
            at = time.monotonic()
            try:
                bench.run(workload)
            except Waived as why:
                print(f"  {name}, {workload}: {why}")
            except RuntimeError as why:
                failed += 1
                print(f"  {name}, {workload}: failed: {why}", flush=True)
                bench.close(RuntimeError)
            print(f"  {name}, {workload}: {time.monotonic() - at:.0f} s", flush=True)
        bench.close()
    if failed > 0:
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run("batch", main)
