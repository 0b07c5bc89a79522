"""Prompts that another process has computed, and from which length on loading them pays."""

import figures
import kit
import workloads
from kit import Daemon, Remote
from server import Server

BLOCK = {"0.5B": 192 << 10, "8B": 2 << 20, "tiny": 8192}
HIT = {"0.5B": 256, "8B": 256, "tiny": 6}  # blocks of a prompt that is handed over
LENGTHS = {"0.5B": (1, 2, 4, 8, 16, 32, 64), "8B": (1, 2, 4, 8, 16, 32, 64), "tiny": (1, 2, 4, 8)}
OUTPUT = 32
COPIES = ("kvcached", "kvcached layers", "kvcached daemon")


def table(rows):
    kit.table(
        "a prompt that another process has computed, TTFT in ms",
        ["model", "workload", "tokens", "computed", "own prefix cache", "loaded", "over own",
         "layer by layer", "over own", "daemon copies", "over own", "blocks, GPU / host tier",
         "tokens equal"], rows)
    if any(row[-1] == "NO" for row in rows):
        raise RuntimeError("tokens differ from those of an own hit")


def daemon(name, blocks, gpu_tier, *more):
    room = blocks * BLOCK[name]
    d = Daemon("--gpu-bytes", str(max(room, 2 << 20)) if gpu_tier else "0",
               "--host-bytes", str(max(64 << 20, 0 if gpu_tier else room)), *more)
    d.wait_for("memory is populated")
    return d


class Pair:
    """Two engines of one model, which stay."""

    def __init__(self, name, gpus=(0, 0)):
        self.name, self.gpus, blocks = name, gpus, HIT[name]
        most, pool = blocks + OUTPUT // 16 + 2, 4 * blocks + 32
        self.first, self.second = kit.side_by_side(
            *(lambda gpu=gpu: Remote(Server, name, 4, most, pool, gpu) for gpu in gpus))

    def close(self, failed=None):
        self.first.__exit__(failed)
        self.second.__exit__(failed)

    def run(self, how, some, rounds, gpu_tier=True):
        """One computes prompts, the other goes on: TTFT there, beside what computing it and what
        its own prefix hit take. Tokens have to be those of the first one's own prefix hit."""
        found, tiers = {way: [] for way in COPIES}, [0, 0]
        some = [way for way in COPIES if way in some]
        more = ("--gpus", "all") if self.gpus[0] != self.gpus[1] else ()
        with daemon(self.name, 3 * HIT[self.name], gpu_tier, *more) as d:
            same = all([self._way(way, how, rounds, d.socket, found, tiers) for way in some])
            for server in (self.first, self.second):
                server.call("close")
        cold, own = ([ran[i] for way in some for ran in found[way]] for i in (0, 1))
        return [self.name, how, HIT[self.name] * 16, kit.spread(cold, 1e3), kit.spread(own, 1e3),
                *(cell for way in COPIES for cell in self._cells(found[way])),
                f"{tiers[0]} / {tiers[1]}", "yes" if same else "NO"]

    @staticmethod
    def _cells(runs):
        """What is loaded, and over the own hits of the same way, which were beside it."""
        if not runs:
            return "-", "-"
        own, loaded = ([ran[i] for ran in runs] for i in (1, 2))
        return kit.spread(loaded, 1e3), f"{kit.median(loaded) / kit.median(own):.2f}"

    def _way(self, way, how, rounds, socket, found, tiers):
        a, b, blocks, same = self.first, self.second, HIT[self.name], True
        why = a.call("use", way, socket, 0, save_ms=kit.MS) or b.call(
            "use", way, socket, 0, min_tokens=0, save_ms=kit.MS)
        if why:
            print(f"  {why}")
            return True
        for r in range(-2, 3 * rounds):
            prompt = workloads.Prompt([(f"{how} {way} {r}", blocks)], 1)
            a.call("serve", [prompt], 1)
            a.call("waited", prompt.keys())
            prompt.output = OUTPUT
            there = a.call("serve", [prompt], 1).requests[0]
            b.call("forget")
            loaded = b.call("serve", [prompt], 1).requests[0]
            own = b.call("serve", [prompt], 1).requests[0]
            other = workloads.Prompt([(f"{how} cold {way} {r}", blocks)], 1)
            cold = b.call("serve", [other], 1).requests[0]
            same = same and there.tokens == loaded.tokens == own.tokens
            assert there.own == own.own == loaded.gpu + loaded.host == blocks, (there, loaded, own)
            if r < 0:
                continue
            figures.line(model=self.name, workload=how, way=way, computed=cold.first,
                         own=own.first, loaded=loaded.first, gpu=loaded.gpu, host=loaded.host)
            found[way].append((cold.first, own.first, loaded.first))
            tiers[0] += loaded.gpu
            tiers[1] += loaded.host
        return same


def break_even(name, repeats=7):
    """Prompts of growing length in an idle engine."""
    rows, lengths = [], LENGTHS[name]
    cells, said = {n: [] for n in lengths}, {}
    most = lengths[-1] + 4
    with Remote(Server, name, 4, most, 2 * repeats * sum(lengths)) as server:
        for tier in ("gpu", "host"):
            with daemon(name, 2 * repeats * sum(lengths), tier == "gpu") as d:
                server.call("use", "kvcached", d.socket, 0, min_tokens=0,
                            save_ms=kit.MS)
                for n in lengths:
                    prompts = [workloads.Prompt([(f"{tier} {n} {i}", n)], 1)
                               for i in range(repeats)]
                    cold = server.call("serve", prompts, 1).requests
                    for p in prompts:
                        server.call("waited", p.keys())
                    server.call("forget")
                    warm = server.call("serve", prompts, 1).requests
                    assert all(s.gpu + s.host == n for s in warm), warm
                    cells[n].append(([s.first for s in cold], [s.first for s in warm]))
                server.call("use", "kvcached", d.socket, 0)
                ran = server.call(
                    "serve", [workloads.Prompt([(f"{tier} more {i}", lengths[-1])], 1)
                              for i in range(8)] * 2, 1)
                said[tier] = ran.figures
                server.call("close")
    for n in lengths:
        (cold, gpu), (other, host) = cells[n]
        cold = cold + other
        rows.append([name, n * 16, kit.spread(cold, 1e3), kit.spread(gpu, 1e3),
                     f"{kit.median(gpu) / kit.median(cold):.2f}", kit.spread(host, 1e3),
                     f"{kit.median(host) / kit.median(cold):.2f}"])
    kit.table("prompts in an idle engine, TTFT in ms",
              ["model", "tokens", "computed", "loaded from the GPU tier", "over computed",
               "from the host tier", "over computed"], rows)
    print("  the connector: " + "; ".join(
        f"{tier}: {f[f'break_even_tokens_{tier}']} tokens" for tier, f in said.items())
        + f"; {said['gpu']}", flush=True)
