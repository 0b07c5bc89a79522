#!/usr/bin/env python3
"""vLLM itself, with random weights: without a connector, with KvcacheConnector, and with its own
offloading to host memory. Every way has the same GPU memory for KV: a slab is taken from the
engine's pool.

Hits: prompts are computed, then each is served, the engine's own prefix cache having been reset, from
what the way keeps elsewhere, and at once again from the own cache; tokens and their log probabilities
have to be equal. There are more of them than the GPU tier holds, so that the first ones come from the
host tier. Before that, the first ones are loaded from the GPU tier both ways by turns: a step waits for
the load, and it goes on beside the steps; in an idle engine, and while eight streams decode.

Arrivals: eight streams decode while 32 prompts of 2048 tokens behind a template of 256 arrive at
intervals of 100 ms and make 64 tokens each. Warm: requests behind eight shared prefixes of 2048 tokens,
16 and 32 at once, with 16 to 48 tokens of output; the own prefix cache begins empty, the daemon has the
prefixes from the turn before. Seen: the same, 16 at once, and the own cache has them, too. Overflow: as
warm, 16 at once, with a GPU tier of 8 MiB. Chat: turns of conversations (--trace FILE: of a trace), 16
at once. Arrivals-gpu: arrivals, with no host tier, so that the daemon moves nothing. All in turns of A
B C C B A: "off" is the engine with the connector while that does nothing, so that what saving costs is
seen within one process. vLLM's offloading has turns of its own with "none", half as many. What the
calls of the connector take on the host is told for each run. Changes are between the two ways of one
turn, with a 95 % interval of their mean over the turns (bootstrap). A second table has where prompts
came from, and bytes moved for those that were loaded.

Engines of one model start side by side, each in a process of its own; one at a time is measured, the
others are idle.

    bench_vllm.py [--eager] [--hits] [--arrivals] [--arrivals-gpu] [--warm] [--seen] [--overflow]
                  [--chat] [--trace FILE] [--turns N] [--seconds N] [--lengths N,N] [--wait FILE]
                  [--ways A,B] [0.5B] [8B]

No turn begins later than --seconds after the start, of which models have equal parts. --wait: nothing is
measured before that file is there. WAIVED without vLLM (0.20 to 0.33) or a GPU. $OUT: a folder for the
figures as JSON.
"""

import argparse
import json
import os
import random
import threading
import time

import kit
from kit import Daemon, Waived
from vllm_engine import Setting

BACKGROUND, TEMPLATE, INCOMING, PROMPT, INTERVAL_S, OUTPUT = 8, 256, 32, 2048, 0.1, 64
SHARED, OWN, REQUESTS, AT_ONCE, WARM_OUTPUT = 8, 128, 128, (16, 32), 32
TALKS, TALK_BLOCKS = 300, 256  # turns of conversations, and the longest
LENGTHS, MADE, OVER = (4096, 7936), 8, 1.6  # OVER: of what the GPU tier holds
MOST = 60  # prompts of a length
NEAR, AGAIN, BUSY = 4, 8, 6  # so many of them, so many times in each way
BOTH = {"steps wait": True, "beside the steps": False}
OVERFLOW = 8 << 20  # bytes of the GPU tier
# Of the daemon, told for each workload: blocks that got room, and without a wait for it.
FIGURES = ("admitted_blocks", "admitted_at_once", "skipped_blocks", "demotions", "promotions",
           *(f"tiers.{tier}.bytes_{done}" for tier in ("gpu", "host") for done in ("loaded", "saved")))
TOKENS = 16  # of a block
TOKEN_BYTES = {"0.5B": 12288, "8B": 131072}
POOL = {"0.5B": 4, "8B": 12}  # GiB of KV in the engine
SLAB = {"0.5B": 0.5, "8B": 4}  # of which the slab takes so much
WAYS = ("none", "kvcached", "offloading")
BASES = (("kvcached", "off"), ("kvcached", "none"), ("off", "none"), ("offloading", "none"))
if kit.REHEARSE:
    INCOMING, PROMPT, OUTPUT, TEMPLATE, REQUESTS, LENGTHS = 3, 300, 8, 32, 12, (512,)
    POOL, TALKS, TALK_BLOCKS = {"0.5B": 1, "8B": 1}, 12, 16
    TOKEN_BYTES, SLAB = {"0.5B": 512, "8B": 512}, {"0.5B": 2 / 1024, "8B": 2 / 1024}


class Way:
    """An engine, and the daemon that it needs. ready() waits for it. why: it failed; unequal: what it
    loaded became something else than an own hit."""

    def __init__(self, name, way, eager):
        self.way, self.remote, self.why, self.daemon = way, None, None, None
        self.unequal = False
        pool, slab = POOL[name], SLAB[name]
        self.pool, self.usual = pool, int(slab * 2**30)
        self.tiers = self.usual, f"{pool}G"
        if way == "kvcached":
            self.daemon = Daemon("--gpu-bytes", str(self.usual), "--host-bytes", f"{pool}G")
            pool -= 0 if kit.REHEARSE else slab
        setting = Setting(
            name, None if way == "none" else way, self.daemon and self.daemon.socket, pool, eager)
        self.starting = threading.Thread(target=self._start, args=(setting,))
        self.starting.start()

    def _start(self, setting):
        try:
            self.remote = setting.start()
        except (RuntimeError, Waived) as why:
            self.why = why

    def ready(self):
        self.starting.join()
        if isinstance(self.why, Waived):
            raise self.why
        if self.why:
            print(f"  {self.way}: failed\n{str(self.why)[-3000:]}", flush=True)
        return self.why is None

    def call(self, *what):
        """None when it failed; then the way is given up."""
        try:
            return self.remote.call(*what) if self.why is None else None
        except (RuntimeError, EOFError, OSError) as why:
            self.why = why
            print(f"  {self.way}: {what[0]} failed\n{str(why)[-3000:]}", flush=True)
            return None

    def tier(self, what, fresh=False):
        """The daemon with the tiers of that workload. Nothing stays in them when they change, nor
        when they are to be fresh."""
        tiers = (OVERFLOW if what == "overflow" else self.usual,
                 "0" if what == "arrivals-gpu" else f"{self.pool}G")
        if self.daemon is None or (self.tiers == tiers and not fresh):
            return
        self.tiers = tiers
        self.daemon.kill()
        self.daemon.again("--gpu-bytes", str(tiers[0]), "--host-bytes", tiers[1])
        self.call("found_again")

    def states(self):
        return ("off", "kvcached") if self.way == "kvcached" else (self.way,)

    def close(self):
        self.starting.join()
        if self.remote:
            self.remote.__exit__(Waived)
        if self.daemon:
            self.daemon.__exit__(Waived)


# Hits.


def hits(name, way, length):
    """{where it was: ([computed], [own], [loaded], [equal], [share of the own hit's tokens])}, s; None
    when the engine failed."""
    whole = SLAB[name] * 2**30 / (length * TOKEN_BYTES[name])  # prompts that the GPU tier holds
    n, near = (min(MOST, int(OVER * whole) + 1), min(NEAR, int(whole / 2))) if (
        way.way == "kvcached") else (6, 0)
    way.tier("hits", fresh=True)
    seeds, computed, found = [(length * 100 + i, length) for i in range(-1, n)], [], {}
    for i, seed in enumerate(seeds):
        computed.append(way.call("one", seed, MADE, False))
        way.call("settled")
        if 0 < i <= near and not both(found, way, seed, computed[-1]):
            return None
        if i == near > 0 and not busy(found, way, seeds[1 : i + 1], computed[1:]):
            return None
    for seed, cold in reversed(list(zip(seeds, computed))[1:]):
        if not note(found, way, seed, cold):
            return None
    return found


def note(found, way, seed, cold, how=""):
    """A prompt loaded, and from the own cache."""
    loaded = way.call("one", seed, MADE, True)
    own = way.call("one", seed, MADE, False)
    if None in (cold, own, loaded):
        return False
    where = "nowhere" if loaded[2] == 0 else "host tier"
    if way.way == "kvcached" and loaded[2]:
        share = loaded[3] if loaded[3] is not None else 0.0
        where = "GPU tier" if share == 1 else "host tier" if share == 0 else "both tiers"
    add(found, where + how, cold[0], own[0], loaded[0], own[1] == loaded[1],
        loaded[2] / max(own[2], 1))
    return True


def add(found, where, *values):
    for have, one in zip(found.setdefault(where, tuple([] for _ in values)), values):
        have.append(one)


def both(found, way, seed, cold):
    """What steps wait for and what goes on beside them, in turns of A B B A."""
    for turn in range(AGAIN):
        for how in list(BOTH)[:: 1 if turn % 2 else -1]:
            way.call("waits", BOTH[how])
            if not note(found, way, seed, cold, f", {how}"):
                return False
    way.call("waits", None)
    return True


def busy(found, way, seeds, computed):
    """The same while streams decode: prompts at intervals, loaded, and from the own cache. Equal are
    the tokens that came from a cache: what becomes of them depends on who is in a batch."""
    for turn in range(BUSY):
        for how in list(BOTH)[:: 1 if turn % 2 else -1]:
            way.call("waits", BOTH[how])
            some = [way.call("busy", seeds, BACKGROUND, TEMPLATE, INTERVAL_S, MADE, reset)
                    for reset in (True, False)]
            if None in some:
                return False
            for cold, (loaded, n), (own, m) in zip(computed, *some):
                add(found, f"GPU tier, {how}, streams decode", cold[0], own, loaded, n == m > 0,
                    n / max(m, 1))
    way.call("waits", None)
    return True


def hit_rows(name, ways, lengths, output):
    rows = []
    for way in ways:
        for length in lengths:
            found = hits(name, way, length)
            output[f"{name} {way.way} {length}"] = found
            for where, (cold, own, loaded, equal, share) in (found or {}).items():
                way.unequal |= way.way == "kvcached" and where != "nowhere" and not all(equal)
                ratio, low, high = change([[a] for a in loaded], [[b] for b in own])
                rows.append([
                    name, way.way, where, length, len(cold), kit.spread(cold, 1e3),
                    kit.spread(own, 1e3), kit.spread(loaded, 1e3),
                    f"{1 + ratio:.2f} ({1 + low:.2f} to {1 + high:.2f})", f"{sum(equal)} of {len(equal)}",
                    f"{min(share):.2f}"])
                print("   ", *rows[-1], flush=True)
    return rows


# Turns.


def change(some, base, _random=random.Random(1)):
    """The mean over turns of some / base - 1, and its 95 % interval; values of a turn are averaged."""
    each = [sum(a) / len(a) / (sum(b) / len(b)) - 1 for a, b in zip(some, base)]
    means = sorted(
        sum(_random.choices(each, k=len(each))) / len(each) for _ in range(2000))
    return sum(each) / len(each), means[50], means[-51]


def figures_of(rounds):
    """Of the rounds of one way in one turn: (TTFT p50, p95, tokens a second, gap p95, p99)."""
    ttft = [t for r in rounds for t in r[0]]
    gaps = [g for r in rounds for g in r[1]]
    return (kit.quantile(ttft, 0.5), kit.quantile(ttft, 0.95),
            sum(r[2] for r in rounds) / len(rounds), kit.quantile(gaps, 0.95),
            kit.quantile(gaps, 0.99))


def shown(figures):
    """In ms, but for tokens a second."""
    return [f * (1 if i == 2 else 1e3) for i, f in enumerate(figures)]


def turns(what, ways, n, end, *call):
    """{state: [figures of each turn]}, and {state: [tokens of prompts, those from a cache]}."""
    order = [(way, state) for way in ways for state in way.states()]
    found, served = {state: [] for _, state in order}, {state: [0, 0] for _, state in order}
    for turn in range(-1, n):
        if time.monotonic() > end and turn > 0:
            break
        rounds = {state: [] for _, state in order}
        for way, state in order + list(reversed(order)) if turn >= 0 else order:
            if way.way == "kvcached":
                way.call("switch", state == "kvcached")
            way.call("spent")
            way.call("served")
            one = way.call(*call)
            if one is None:
                return {}, served
            spent = way.call("spent")
            served[state] = [a + b for a, b in zip(served[state], way.call("served"))]
            way.call("settled")
            rounds[state].append(one)
            if spent and turn >= 0:
                print("    " + json.dumps({"what": what, "way": state, "calls": spent}), flush=True)
        if turn < 0:
            continue
        for state, some in rounds.items():
            found[state].append(figures_of(some))
            print("    " + json.dumps({
                "what": what, "turn": turn, "way": state,
                "figures": [round(f, 3) for f in shown(found[state][-1])]}), flush=True)
    for way in ways:
        if way.way == "kvcached":
            way.call("switch", True)
    return found, served


def turn_rows(name, what, found):
    """Medians, and the changes against what they are compared with."""
    rows = []
    for state, figures in found.items():
        a = [kit.median([f[i] for f in figures]) for i in range(5)]
        rows.append([name, what, state, len(figures)] + [f"{f:.2f}" for f in shown(a)])
    for state, base in BASES:
        if state in found and base in found and found[state]:
            changes = [change([[f[i]] for f in found[state]], [[f[i]] for f in found[base]])
                       for i in range(5)]
            rows.append([name, what, f"{state} / {base}", len(found[state])] + [
                f"{a * 100:+.1f} % ({b * 100:+.1f} to {c * 100:+.1f})" for a, b, c in changes])
    return rows


def source_rows(name, what, served, counted):
    """Where tokens of prompts came from, and what was moved for those that were loaded. counted: what
    the daemon counted meanwhile. What vLLM's offloading brings is not told from the own cache."""
    rows = []
    for state, (asked, cached) in served.items():
        of = counted if state == "kvcached" else dict.fromkeys(FIGURES, 0)
        loaded = [of[f"tiers.{tier}.bytes_loaded"] for tier in ("gpu", "host")]
        saved = sum(of[f"tiers.{tier}.bytes_saved"] for tier in ("gpu", "host"))
        between = (of["demotions"] + of["promotions"]) * TOKENS * TOKEN_BYTES[name]
        tokens = [b / TOKEN_BYTES[name] for b in loaded]
        rows.append(
            [name, what, state]
            + [f"{100 * n / max(asked, 1):.0f} %" for n in (cached - sum(tokens), *tokens)]
            + [f"{b / 1e9:.2f}" for b in (sum(loaded), saved, between)]
            + [f"{(sum(loaded) + saved + between) / sum(loaded):.2f}" if sum(loaded) else "-"])
    return rows


COLUMNS = ["model", "workload", "way", "turns", "TTFT p50 ms", "p95", "token/s", "gap p95 ms", "p99"]
SOURCES = ["model", "workload", "way", "tokens: own", "GPU tier", "host tier", "GB loaded", "saved",
           "between tiers", "moved / loaded"]


def workloads(ways, wanted, trace):
    """[(what, the ways that take turns, its share of the time, the call)]."""
    ours = [way for way in ways if way.way != "offloading"]
    others = [way for way in ways if way.way != "kvcached"]
    warm = [("warm", n, SHARED, PROMPT, OWN, REQUESTS, n, WARM_OUTPUT) for n in AT_ONCE]
    arrivals = ("arrivals", BACKGROUND, TEMPLATE, INCOMING, PROMPT, INTERVAL_S, OUTPUT)
    chat = ("chat", TALKS, TALK_BLOCKS, AT_ONCE[0], WARM_OUTPUT, trace)
    calls = [("arrivals", arrivals), ("overflow", warm[0]), ("arrivals-gpu", arrivals),
             ("seen", (*warm[0], True)), ("chat", chat),
             *((f"warm {n}", call) for n, call in zip(AT_ONCE, warm))]
    found = [(what, ours, 4 if what == "arrivals" else 2, call)
             for what, call in calls if what.split()[0] in wanted]
    if len(others) > 1:
        found += [(what, others, 1, call) for what, _, _, call in found
                  if what not in ("overflow", "arrivals-gpu")]
    return found


def measure(name, ways, said, wanted, end, output):
    for way in ways:
        output[f"{name} {way.way}"] = way.call("about")
        print(f"  {name}, {way.way}: {output[f'{name} {way.way}']}", flush=True)
    if "hits" in wanted:
        rows = hit_rows(name, ways, said.lengths, output)
        if rows:
            kit.table(
                f"vLLM: ms to the first token; {kit.machine()}",
                ["model", "way", "from", "tokens", "prompts", "computed", "own prefix cache",
                 "loaded", "over own", "equal", "of the own hit, at least"], rows)
    left = workloads(ways, wanted, said.trace)
    while left:
        what, some, share, call = left.pop(0)
        now = time.monotonic()
        if now > end:
            print(f"  {name}, {what}: no time is left", flush=True)
            continue
        for way in some:
            way.tier(what)
        n = said.turns if share > 1 else (said.turns + 1) // 2
        until = now + (end - now) * share / (share + sum(w[2] for w in left))
        before = {way.way: way.call("daemon") for way in some}
        found, served = turns(f"{name} {what}", some, n, until, *call)
        counted = {}
        for way in some:
            after = way.call("daemon")
            if after:
                counted = {key: after[key] - before[way.way][key] for key in FIGURES}
                print("    " + json.dumps({"what": f"{name} {what}", "way": way.way,
                                           "daemon": counted}), flush=True)
        output[f"{name} {what} {[way.way for way in some]}"] = found
        if any(found.values()):
            kit.table(f"vLLM: {what}; {kit.machine()}", COLUMNS, turn_rows(name, what, found))
            kit.table("  where prompts came from", SOURCES, source_rows(name, what, served, counted))
    for way in ways:
        counts = output[f"{name} {way.way} counts"] = way.call("counts")
        if counts:
            print(f"  {name}, {way.way}: {json.dumps(counts)}", flush=True)


def of_one(name, said, wanted, end, output):
    """The engines of one model, side by side. Whether all is well."""
    begin = time.monotonic()
    ways = [Way(name, way, said.eager) for way in said.ways]
    try:
        ready = [way for way in ways if way.ready()]
        print(f"  {name}: started in {time.monotonic() - begin:.0f} s", flush=True)
        while said.wait and not os.path.exists(said.wait) and (
                time.monotonic() < begin + (end - begin) / 2):
            time.sleep(0.1)
        measure(name, ready, said, wanted, end, output)
    finally:
        for way in ways:
            way.close()
    wrong = [way.way for way in ways if way.why or way.unequal]
    if wrong:
        print(f"  {name}: failed, or not equal to own hits: {', '.join(wrong)}", flush=True)
    return not wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags = ("hits", "arrivals", "arrivals-gpu", "warm", "seen", "overflow", "chat")
    for flag in ("eager", *flags):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")],
                        default=LENGTHS)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--trace")
    parser.add_argument("--wait")
    parser.add_argument("--ways", type=kit.some_of(WAYS),  # the last of which wants a GPU
                        default=WAYS[:2] if kit.REHEARSE else WAYS)
    parser.add_argument("names", nargs="*", default=["0.5B"] if kit.REHEARSE else ["0.5B", "8B"])
    said = parser.parse_args()
    kit.need_gpus()
    wanted = [w for w in flags if getattr(said, w.replace("-", "_"))] or flags
    end, output, good = time.monotonic() + said.seconds, {}, True
    try:
        for i, name in enumerate(said.names):
            now = time.monotonic()
            good &= of_one(name, said, wanted, now + (end - now) / (len(said.names) - i), output)
    finally:
        if "OUT" in os.environ:
            with open(os.path.join(os.environ["OUT"], "vllm.json"), "w") as f:
                json.dump(output, f)
    if not good:
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run("vllm", main)
