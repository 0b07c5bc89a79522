"""Prompts that another process has computed, and from which length on loading them pays."""

import kit
import workloads
from kit import Daemon, Remote
from server import Server

BLOCK = {"0.5B": 192 << 10, "8B": 2 << 20, "tiny": 8192}
HIT = {"0.5B": 256, "8B": 256, "tiny": 6}  # blocks of a prompt that is handed over
LENGTHS = {"0.5B": (1, 2, 4, 8, 16, 32, 64), "8B": (1, 2, 4, 8, 16, 32, 64), "tiny": (1, 2, 4, 8)}
OUTPUT = 32
COPIES = ("kvcached", "kvcached daemon")


def table(rows):
    kit.table(
        "a prompt that another process has computed, TTFT in ms",
        ["model", "workload", "tokens", "computed", "own prefix cache", "loaded", "over own",
         "daemon copies", "over own", "blocks, GPU / host tier", "tokens equal"], rows)


def daemon(name, blocks, gpu_tier, *more):
    room = blocks * BLOCK[name]
    d = Daemon("--gpu-bytes", str(max(room, 2 << 20)) if gpu_tier else "0",
               "--host-bytes", str(max(64 << 20, 0 if gpu_tier else room)), *more)
    d.wait_for("memory is populated")
    return d


def pair(name, how, rounds, gpu_tier=True, gpus=(0, 0)):
    """One process computes prompts, the other goes on: TTFT there, beside what computing it and
    what its own prefix hit take. Tokens have to be equal."""
    blocks, found = HIT[name], {"cold": [], "own": [], **{way: [] for way in COPIES}}
    same, tiers = True, [0, 0]
    most, pool = blocks + OUTPUT // 16 + 2, 4 * blocks + 32
    more = ("--gpus", "all") if gpus[0] != gpus[1] else ()
    with daemon(name, 3 * blocks, gpu_tier, *more) as d:
        with Remote(Server, name, 4, most, pool, gpus[0]) as a, (
                Remote(Server, name, 4, most, pool, gpus[1])) as b:
            for way in COPIES:
                why = a.call("use", way, d.socket, 0, save_ms=kit.MS) or b.call(
                    "use", way, d.socket, 0, min_tokens=0)
                if why:
                    print(f"  {why}")
                    continue
                for r in range(-2, 3 * rounds):
                    prompt = workloads.Prompt([(f"{how} {way} {r}", blocks)], 1)
                    a.call("serve", [prompt], 1)
                    a.call("waited", prompt.keys())
                    prompt.output = OUTPUT
                    loaded = b.call("serve", [prompt], 1).requests[0]
                    own = b.call("serve", [prompt], 1).requests[0]
                    other = workloads.Prompt([(f"{how} cold {way} {r}", blocks)], 1)
                    cold = b.call("serve", [other], 1).requests[0]
                    same = same and loaded.tokens == own.tokens
                    assert loaded.gpu + loaded.host == blocks, loaded
                    if r >= 0:
                        found["cold"].append(cold.first)
                        found["own"].append(own.first)
                        found[way].append(loaded.first)
                        tiers[0] += loaded.gpu
                        tiers[1] += loaded.host
    own = kit.median(found["own"])
    return [name, how, blocks * 16, kit.spread(found["cold"], 1e3), kit.spread(found["own"], 1e3),
            *(cell for way in COPIES for cell in (
                (kit.spread(found[way], 1e3), f"{kit.median(found[way]) / own:.2f}")
                if found[way] else ("-", "-"))),
            f"{tiers[0]} / {tiers[1]}", "yes" if same else "NO"]


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
