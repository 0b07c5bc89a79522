"""Streams of requests for bench_batch.py: one engine that stays, ways that take turns."""

import collections
import time

import figures
import kit
import ways
import workloads
from kit import Daemon, Remote
from server import Server

ROWS = 32
COLUMNS = [
    "model", "workload", "way", "requests", "TTFT p50 ms", "over own", "p95", "token/s", "over own",
    "gap p95 ms", "p99", "blocks: own", "GPU tier", "host tier", "GB loaded", "saved",
    "between tiers", "moved / loaded", "TTFT p50 of own hits", "GPU tier", "over", "host tier",
    "over", "computed",
]
Sizes = collections.namedtuple("Sizes", "pool tier prefix rest prefixes output host_bytes")


def source(s):
    """Where what the prompt shares with others came from; part of it computed: "computed"."""
    if s.own + s.gpu + s.host < s.shared:
        return "computed"
    return "host" if s.host > 0 else "gpu" if s.gpu > 0 else "own" if s.own > 0 else "computed"


class Way:
    """What its rounds gave."""

    def __init__(self):
        self.ttft, self.gaps, self.rates = [], [], []
        self.blocks = collections.Counter()  # of all rounds
        self.by_source = collections.defaultdict(list)
        self.saved = self.moved = 0

    def add(self, ran):
        self.ttft.append([s.first for s in ran.requests])
        self.gaps.append(ran.gaps or [0.0])
        self.rates.append([sum(len(s.tokens) for s in ran.requests) / ran.seconds])
        blocks = collections.Counter()
        for s in ran.requests:
            self.by_source[source(s)].append(s.first)
            blocks.update(own=s.own, gpu=s.gpu, host=s.host, shared=max(1, s.shared))
        self.blocks += blocks
        return blocks


class Stream:
    """An engine, and a daemon for each size of the GPU tier, one at a time. until: no run begins
    later, by time.monotonic(); a table is of those that did."""

    def __init__(self, name, sizes, until=float("inf")):
        self.name, self.sizes, self.until = name, sizes, until
        self.block = {"0.5B": 192 << 10, "8B": 2 << 20, "tiny": 8192}[name]
        most = sizes.prefix + sizes.rest + -(-4 * sizes.output // 16) + 2
        self.server = self.daemon = self.bytes = None
        kit.side_by_side(lambda: self._start(most), self.with_tier)
        self.server.call("serve", self.prompts("first", 0, 8), 8)

    def _start(self, most):
        self.server = Remote(Server, self.name, ROWS, most, self.sizes.pool)
        self.server.limit_s = 300

    def close(self, failed=None):
        self.server.__exit__(failed)
        if self.daemon is not None:
            self.daemon.__exit__(failed)
            self.daemon = None

    def with_tier(self, bytes_=None):
        """The daemon with so much of a GPU tier (None: its usual one)."""
        bytes_ = self.sizes.tier * self.block if bytes_ is None else bytes_
        if bytes_ != self.bytes:
            if self.daemon is not None:
                self.server.call("close")
                self.daemon.__exit__(None)
                self.daemon, self.bytes = None, None
            self.daemon = Daemon("--gpu-bytes", str(max(bytes_, 2 << 20)),
                                 "--host-bytes", str(self.sizes.host_bytes))
            self.daemon.wait_for("memory is populated")
            self.bytes = bytes_
        return self.daemon.socket

    def use(self, way, socket, **how):
        return self.server.call(
            "use", way, socket, self.bytes // self.block,
            host=self.sizes.host_bytes // self.block, **how)

    def prompts(self, names, seed, n):
        s = self.sizes
        return workloads.warm(n, s.prefixes, s.prefix, s.rest, s.output, names, seed)

    def warm(self, title, most, some, n, rounds, tier=None):
        s, socket = self.sizes, self.with_tier(tier)

        def prepare(way):
            if way != "none":
                names = f"{title} {way}"
                self.server.call("serve", workloads.prefixes(s.prefixes, s.prefix, names), most)

        self._rounds(title, most, some, rounds, socket, prepare,
                     lambda way, seed: self.prompts(f"{title} {way}", seed, n))

    def chat(self, some, n, rounds, trace):
        s = self.sizes
        self._rounds("chat", 16, some, rounds, self.with_tier(), lambda way: None,
                     lambda way, seed: workloads.chat(
                         n, s.prefix + s.rest, s.output, f"chat {way}", seed, trace))

    def _rounds(self, title, most, some, rounds, socket, prepare, make):
        """Ways in the order A B B A; a line for each run, a table behind the last."""
        found, waived = {}, set()
        for r, way in ((r, way) for r in range(rounds) for way in ways.turn(some, r)):
            if time.monotonic() > self.until:
                print(f"  {title}, {way}, round {r}: not begun", flush=True)
                continue
            why = None if way in waived else self.use(way, socket)
            if why:
                print(f"  {why}")
                waived.add(way)
            if way in waived:
                continue
            prepare(way)
            self.server.call("serve", self.prompts("again", r, 8), 8)
            before = self.server.call("moved")
            ran = self.server.call("serve", make(way, r), most)
            after = self.server.call("moved")
            mine = found.setdefault(way, Way())
            blocks = mine.add(ran)
            mine.saved += after[0] - before[0]
            mine.moved += after[1] - before[1]
            gaps = {f"gap_p{p}": kit.quantile(mine.gaps[-1], p / 100) for p in (50, 95, 99)}
            figures.line(
                model=self.name, workload=title, way=way, round=r, seconds=ran.seconds,
                tokens_s=mine.rates[-1][0], ttft_p50=kit.median(mine.ttft[-1]),
                ttft_p95=kit.quantile(mine.ttft[-1], 0.95), **gaps, blocks=blocks,
                saved=after[0] - before[0], moved=after[1] - before[1], **ran.figures)
        if not found:
            return
        base = found.get("own") or next(iter(found.values()))
        kit.table("requests that come and go", COLUMNS,
                  [self._row(title, way, mine, base) for way, mine in found.items()])

    def _row(self, title, way, mine, base):
        p50 = {k: kit.median(v) for k, v in mine.by_source.items()}
        # Beside the same requests: own hits of the same way, where it has any.
        own = p50.get("own") or kit.median([t for r in base.ttft for t in r])

        def hits(tier):
            if tier not in p50:
                return ["-", "-"]
            return [f"{p50[tier] * 1e3:.2f} ({len(mine.by_source[tier])})",
                    f"{p50[tier] / own:.2f}"]

        def percent(part):
            return f"{100 * mine.blocks[part] / mine.blocks['shared']:.0f} %"

        gaps = [g for r in mine.gaps for g in r]
        loaded = (mine.blocks["gpu"] + mine.blocks["host"]) * self.block
        whole = loaded + mine.saved + mine.moved
        return [
            self.name, title, way, sum(map(len, mine.ttft)), figures.ms(mine.ttft),
            "" if mine is base else figures.change(mine.ttft, base.ttft),
            figures.ms(mine.ttft, 0.95), f"{kit.median(sum(mine.rates, [])):.0f}",
            "" if mine is base else figures.change(mine.rates, base.rates),
            f"{kit.quantile(gaps, 0.95) * 1e3:.2f}", figures.ms(mine.gaps, 0.99),
            percent("own"), percent("gpu"), percent("host"),
            *(f"{b / 1e9:.2f}" for b in (loaded, mine.saved, mine.moved)),
            f"{whole / loaded:.2f}" if loaded else "-",
            hits("own")[0], *hits("gpu"), *hits("host"), hits("computed")[0],
        ]
