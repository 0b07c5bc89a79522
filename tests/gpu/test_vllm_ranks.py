#!/usr/bin/env python3
"""vLLM with two ranks (tensor parallel, worker processes of their own) and KvcacheConnector, on two GPUs
of which one daemon owns both (KVC_REHEARSE=1: vLLM's build for CPUs, ranks that talk over shared
memory).

    test_vllm_ranks.py [--8B] [WORDS OF A TEST'S NAME]...

WAIVED without vLLM (0.20 to 0.33) or with fewer than two GPUs. Each test has a limit of its own; what
would begin later than $KVC_TEST_SECONDS [150; a rehearsal: 3000] after the start is WAIVED. --8B:
also the time to the first token at the shape of an 8B model, which takes a minute more.
$KVC_TEST_ENGINES: names of those that are started, with commas; the others' tests are WAIVED.
"""

import os
import random
import signal
import sys
import time

import kit
from engines import LONG, MADE, Engines, prompts, right, say
from kit import Waived

SLOW = 8 if kit.REHEARSE else 1
SECONDS = float(os.environ.get("KVC_TEST_SECONDS", 3000 if kit.REHEARSE else 150))
BLOCKS, TOKENS = 100, 100 * 16 + 3  # of a prompt; what is decoded does not complete another block
PROMPTS = 8  # more than the GPU tier holds
OPTIONS = () if kit.REHEARSE else ("--gpus", "all")
SMALL = (*OPTIONS, "--gpu-bytes", "8M" if kit.REHEARSE else "16M", "--host-bytes", "512M")
TIERS = {
    "shared": SMALL, "restarted": SMALL,
    "8B": (*OPTIONS, *(("--gpu-bytes", "8M", "--host-bytes", "1G") if kit.REHEARSE else (
        "--gpu-bytes", "1G", "--host-bytes", "16G"))),
}
TWO = {"ranks": 2}
WANTED = {
    "first": ("small", "shared", TWO),
    "second": ("small", "shared", TWO),
    "one head": ("one head", "restarted", TWO),  # both ranks have it
    "alone": ("small", "shared", {"ranks": 1}),
    "stages": ("small", "shared", {"ranks": 2, "more": (
        ("tensor_parallel_size", 1), ("pipeline_parallel_size", 2))}),
    "next": ("small", "shared", {**TWO, "late": True}),  # after another one's end
    "8B": ("8B", "8B", {**TWO, "gib": 1 if kit.REHEARSE else 8, "eager": False, "longest": 8192}),
}
HELD = ("leases", "open_loads", "filling_slots", "quarantined_slots")
LENGTHS = (512,) if kit.REHEARSE else (4096, 7936)
OVER = 3  # prompts of each length at 8B; as many again end in the host tier
begun = time.monotonic()
engines = None
before = {}  # any engine: of the daemon
first_own = []  # what the first engine's own prefix cache gave for asked()


def asked():
    some = random.Random(11)
    return [some.choices(range(3, 1000), k=TOKENS) for _ in range(PROMPTS)]


def no_harm(engine, harm={}):
    counts = engine.call("counts")
    new = {k: n - harm.get(k, 0) for k, n in counts.items()}
    if new.get("worker_failed_blocks") or new.get("worker_dropped_saves"):
        raise AssertionError(counts)
    # Leases end long before their time: each rank has told of its load.
    for daemon in engines.daemons.values():
        daemon.until(lambda f: not any(f[k] for k in HELD), "held", 10)
    return counts


def all_loaded(what, own, loaded):
    """Bit by bit what the own prefix cache gave."""
    equal = [a[1] == b[1] for a, b in zip(own, loaded)]
    say(what, own=[a[2] for a in own], loaded=[a[2] for a in loaded], bits=equal,
        share_of_gpu_tier=[a[3] for a in loaded])
    if not all(equal) or any(a[2] != BLOCKS * 16 for a in (*own, *loaded)):
        raise AssertionError(f"{what}: {equal}")


def computed_own(engine, some):
    """Each prompt computed, and found in the own prefix cache at once."""
    computed, own = [], []
    for tokens in some:
        computed.append(engine.call("one", tokens, MADE, True))
        own.append(engine.call("one", tokens, MADE, False))
    engine.call("settled")
    right("own and computed", [c[1] for c in computed], [o[1] for o in own],
          cached=[c[2] for c in computed])
    return computed, own


def loaded_of(engine, some):
    """The last one first: the others have been pushed out of the GPU tier."""
    found = [engine.call("one", tokens, MADE, True) for tokens in reversed(some)]
    return found[::-1]


def test_two_ranks_load_what_they_saved_from_both_tiers():
    engine, some = engines["first"], asked()
    about = engine.call("about")
    if about["parts of all"] != 2 or len(about["parts"]) != 2:
        raise AssertionError(f"a part for each rank: {about}")
    # Nothing is in the tiers yet, so that this one is all in the GPU tier.
    computed, own = computed_own(engine, some[:1])
    near = loaded_of(engine, some[:1])
    all_loaded("two ranks, GPU tier", own, near)
    if any(c[2] for c in computed) or near[0][3] != 1:
        raise AssertionError("found before it was saved, or not in the GPU tier")
    own += computed_own(engine, some[1:])[1]
    first_own[:] = own
    far = loaded_of(engine, some)
    all_loaded("two ranks, both tiers", own, far)
    if min(a[3] for a in far) > 0.5:
        raise AssertionError("nothing came from the host tier")
    say("two ranks", **no_harm(engine))


def test_another_engine_loads_what_the_first_saved():
    loaded = loaded_of(engines["second"], asked())
    if not first_own:
        raise Waived("the first engine saved nothing")
    all_loaded("another engine", first_own, loaded)
    no_harm(engines["second"])


def test_one_rank_and_two_share_nothing():
    engine, some = engines["alone"], asked()[:3]
    if not first_own:
        raise Waived("the first engine saved nothing")
    computed, own = computed_own(engine, some)
    if any(c[2] for c in computed):
        raise AssertionError("it found what two ranks had saved")
    # The same model: other sums.
    right("one rank and two", [o[1] for o in first_own[:3]], [o[1] for o in own])
    all_loaded("one rank", own, loaded_of(engine, some))
    all_loaded("two ranks, again", first_own[:3], loaded_of(engines["first"], some))


def test_two_pipeline_stages():
    engine, some = engines["stages"], asked()
    if engine.call("about")["parts of all"] != 2:
        raise AssertionError("a part for each stage")
    computed, own = computed_own(engine, some)
    if any(c[2] for c in computed):
        raise AssertionError("they found what ranks had saved")
    all_loaded("stages", own, loaded_of(engine, some))
    if first_own:
        right("stages and ranks", [o[1] for o in first_own], [o[1] for o in own])
    no_harm(engine)


def test_shards_that_are_the_same_are_stored_once():
    engine, daemon, some = engines["one head"], engines.daemons["restarted"], asked()
    about = engine.call("about")
    if about["parts of all"] != 1 or len(set(map(tuple, about["parts"]))) != 1:
        raise AssertionError(f"one part for both ranks: {about}")
    had = daemon.figures()["blocks"]
    computed, own = computed_own(engine, some)
    new = daemon.figures()["blocks"] - had
    all_loaded("the same shards", own, loaded_of(engine, some))
    say("the same shards", blocks=new, **no_harm(engine))
    if new != BLOCKS * len(some) or any(c[2] for c in computed):
        raise AssertionError(f"{new} blocks for {BLOCKS * len(some)}")


def test_a_load_that_fails_on_one_rank():
    """The other one has computed on it, and saves nothing of that."""
    engine, some = engines["first"], random.Random(12)
    before = engine.call("counts").get("worker_dropped_saves", 0)
    synchronous = engine.call("about")["synchronous"]
    tokens = some.choices(range(3, 1000), k=323)  # there is room for it in the GPU tier
    longer = tokens + some.choices(range(3, 1000), k=320)
    engine.call("one", tokens, MADE, True)
    engine.call("settled")
    engine.call("away", 1)
    failed = engine.call("one", longer, MADE, True)
    engine.call("away", -1)
    engine.call("one", longer, MADE, False)
    counts = engine.call("counts")
    engine.call("settled")
    own = engine.call("one", longer, MADE, False)
    loaded = engine.call("one", longer, MADE, True)
    plain = engines["alone"].call("one", longer, MADE, True)
    dropped = counts.get("worker_dropped_saves", 0) - before
    say("one rank failed", share_of_gpu_tier=failed[3], own=own[2], loaded=loaded[2],
        bits=own[1] == loaded[1], failed=counts["failed_blocks"], dropped=dropped)
    right("one rank failed", [plain[1]] * 3, [failed[1], own[1], loaded[1]])
    if synchronous and failed[3] == 1 and dropped < 2:
        raise AssertionError("what was computed without it was saved")
    # Bits may differ: what is loaded was computed in pieces that the own cache has as a whole.
    if not counts["failed_blocks"] or not loaded[2]:
        raise AssertionError("nothing failed, or nothing is loaded")


def test_many_requests_at_once():
    """Loads beside the steps end on one rank before the other."""
    engine, some = engines["first"], prompts(48, 5)
    harm = engine.call("counts")
    reference = engine.call("answers", some, MADE)
    engine.call("settled")
    for turn in range(3):
        right(f"many, turn {turn}", reference, engine.call("answers", some, MADE))
    say("many", **no_harm(engine, harm))


def test_the_daemon_is_killed_and_restarted():
    """Each rank, and the scheduler, loses it at a time of its own, in the middle of requests."""
    engine, some, daemon = engines["one head"], prompts(64, 6), engines.daemons["restarted"]
    reference = engine.call("answers", some, LONG)
    engine.begin("answers", some, LONG)
    for _ in range(2):
        time.sleep(0.3 * min(SLOW, 3))
        daemon.kill()
        time.sleep(0.3)
        daemon.again(*TIERS["restarted"])
    right("killed twice", reference, engine.end())
    engine.call("found_again")
    tokens = some[0]
    engine.call("one", tokens, MADE, True)
    engine.call("settled")
    own, loaded = (engine.call("one", tokens, MADE, reset) for reset in (False, True))
    say("back again", loaded=loaded[2], bits=own[1] == loaded[1])
    if not loaded[2] or own[1] != loaded[1]:
        raise AssertionError("nothing is loaded, or not the same")


def gone(pids):
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rpartition(")")[2].split()[0] != "Z":
                    return False
        except OSError:
            pass
    return True


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def free_memory():
    """Bytes of each GPU, of whoever uses it."""
    if kit.REHEARSE:
        return []
    import torch

    return [torch.cuda.mem_get_info(i)[0] for i in range(2)]


def test_a_rank_is_killed():
    """vLLM ends the engine, and the daemon holds nothing of it."""
    for name in set(engines.starting) - {"8B"}:
        engines[name]  # no session comes meanwhile
    daemon, engine = engines.daemons["shared"], engines["second"]
    pids, had = engine.call("about")["pids"], daemon.figures()
    engine.begin("answers", prompts(96, 8), LONG)
    daemon.until(lambda f: f["saves"] > had["saves"] + 1, "saves")
    os.kill(pids[1], signal.SIGKILL)
    at = time.monotonic()
    try:
        engine.end()
        raise AssertionError("it answered")
    except RuntimeError as why:
        said, told_s = str(why).strip().splitlines()[-1], time.monotonic() - at
    itself = within(30, lambda: gone([engine.process.pid, *pids]))
    gone_s = time.monotonic() - at
    engine.kill()
    daemon.until(lambda f: f["sessions"] == had["sessions"] - 3 and not any(f[k] for k in HELD),
                 "held", 30)
    say("a rank killed", error=said, told_s=round(told_s, 2), gone_s=round(gone_s, 2),
        by_itself=itself, settled_s=round(time.monotonic() - at, 2))
    del engines.starting["second"], engines.remotes["second"]
    if "next" in engines.starting:
        engines["next"].begin("build")
    if not itself:
        raise AssertionError("the engine did not end")


def test_an_engine_that_starts_after_that_has_the_cache():
    engine = engines["next"]
    engine.end()
    say("start", engine="next", **engine.call("about"))
    if not first_own:
        raise Waived("the first engine saved nothing")
    all_loaded("the next engine", first_own, loaded_of(engine, asked()))
    no_harm(engine)


def test_nothing_is_left_when_all_have_gone():
    """Of the engine whose rank was killed, too."""
    daemon, own = engines.daemons["shared"], engines.daemons["shared"].resident()
    others = [name for name in engines.starting if engines.wanted[name][1] != "8B"]
    kit.side_by_side(*(lambda name=name: engines.end(name) for name in others))
    daemon.until(lambda f: f["sessions"] == 0 and not any(f[k] for k in HELD), "held", 10)
    within(5, lambda: daemon.fds() <= before["fds"])
    free = free_memory()
    say("nothing left", fds=[before["fds"], daemon.fds()],
        resident_mib=[own >> 20, daemon.resident() >> 20],
        free_mib=[[m >> 20 for m in some] for some in (before["memory"], free)])
    if daemon.fds() > before["fds"] or daemon.resident() > own + (16 << 20):
        raise AssertionError("the daemon keeps descriptors or memory")
    if any(a - b > 64 << 20 for a, b in zip(before["memory"], free)):
        raise AssertionError("memory of a GPU is missing")


def test_time_to_the_first_token_at_8B():
    if "8B" not in engines.starting:
        raise Waived("not asked for (--8B)")
    engine = engines["8B"]
    for length in LENGTHS:
        rows = {}
        seeds = [(length * 100 + i, length) for i in range(-1, 2 * OVER)]
        computed, own = [], []
        for seed in seeds:
            computed.append(engine.call("one", seed, MADE, True))
            own.append(engine.call("one", seed, MADE, False))
        engine.call("settled")
        for seed, c, o in reversed(list(zip(seeds, computed, own))[1:]):
            loaded = engine.call("one", seed, MADE, True)
            where = {1: "GPU tier", 0: "host tier"}.get(loaded[3], "both")
            rows.setdefault(where if loaded[2] else "nowhere", []).append(
                (c[0], o[0], loaded[0], o[1] == loaded[1], loaded[2]))
        for where, some in rows.items():
            say("8B", tokens=length, where=where, prompts=len(some),
                equal=sum(row[3] for row in some), loaded=[row[4] for row in some],
                **{what: kit.spread([row[i] for row in some], 1e3)
                   for i, what in enumerate(("computed", "own", "from_kvcached"))})
            if not all(row[3] and row[4] for row in some):
                raise AssertionError(f"{where}: not loaded, or not what the own prefix cache gave")


LIMITS = {
    test_two_ranks_load_what_they_saved_from_both_tiers: 100,  # the engines' start
    test_another_engine_loads_what_the_first_saved: 40,
    test_one_rank_and_two_share_nothing: 40,
    test_shards_that_are_the_same_are_stored_once: 40,
    test_a_rank_is_killed: 60,
    test_a_load_that_fails_on_one_rank: 20,
    test_two_pipeline_stages: 40,
    test_many_requests_at_once: 20,
    test_the_daemon_is_killed_and_restarted: 30,
    test_an_engine_that_starts_after_that_has_the_cache: 90,
    test_time_to_the_first_token_at_8B: 60,
    test_nothing_is_left_when_all_have_gone: 30,
}


def limit_s(test):
    left = begun + SECONDS - time.monotonic()
    if left < 1:
        raise Waived("no time is left")
    return min(LIMITS[test] * SLOW, left)


def main():
    global engines
    big = "--8B" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--8B"]
    kit.need_gpus(1 if kit.REHEARSE else 2)
    try:
        import vllm  # noqa: F401
    except ImportError as why:
        raise Waived(f"no vLLM: {why}") from None
    some = os.environ.get("KVC_TEST_ENGINES")
    wanted = {name: how for name, how in WANTED.items() if (big or name != "8B") and (
        not some or name in some.split(","))}
    engines = Engines(wanted, TIERS)
    try:
        for daemon in engines.daemons.values():
            daemon.figures()
        if "shared" in engines.daemons:
            before.update(fds=engines.daemons["shared"].fds(), memory=free_memory())
        engines.start()
        kit.run_tests(list(LIMITS), limit_s)
    finally:
        engines.close()


if __name__ == "__main__":
    kit.run("vllm with two ranks", main)
