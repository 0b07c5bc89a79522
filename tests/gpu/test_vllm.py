#!/usr/bin/env python3
"""vLLM itself with KvcacheConnector, on a GPU (KVC_REHEARSE=1: vLLM's build for CPUs): models with
sliding windows and with states, and what happens to the daemon and to engines under load. Outputs are
compared with those of the same engine without the cache; where the two differ it has to be between
tokens that are about as likely.

    test_vllm.py [WORDS OF A TEST'S NAME]...

WAIVED without vLLM (0.20 to 0.33) or a GPU. A line of JSON for each engine and test says what
happened. $KVC_TEST_ENGINES: names of those that are started, with commas; the others' tests are
WAIVED.
"""

import os
import random
import time

import kit
from engines import FULL, LONG, MADE, SMALL, Engines, prompts, right, say
from kit import Waived

V1, V2 = ((("VLLM_USE_V2_MODEL_RUNNER", runner),) for runner in "01")
TIGHT = ("--gpu-bytes", "8M", "--host-bytes", "8M")
WANTED = {
    "small": ("small", "shared", {}),
    "beside": ("small", "shared", {"extra": (*FULL, ("synchronous", False))}),
    "blocks of 32": ("small", "shared", {"block": 32}),
    "window": ("window", "window", {}),
    # Triton's kernels do not have to be compiled by nvcc.
    "states": ("states", "states", {"more": (
        ("mamba_ssm_cache_dtype", "float32"),
        ("additional_config", {"gdn_prefill_backend": "triton"}))}),
}
# Steps wait for loads, and prompts are computed in pieces.
WAITS = {"extra": (*FULL, ("synchronous", True))}
PIECES = ("max_num_batched_tokens", 256)
WANTED.update({
    "waits ahead": ("small", "shared", {
        **WAITS, "more": (PIECES, ("async_scheduling", True)), "environment": V1}),
    "waits": ("small", "shared", {
        **WAITS, "more": (PIECES, ("async_scheduling", False)), "environment": V1}),
})
if not kit.REHEARSE:
    WANTED["all states"] = ("all states", "states", {})
    for name, ahead in (("waits ahead V2", True), ("waits V2", False)):
        WANTED[name] = ("small", "shared", {
            **WAITS, "more": (PIECES, ("async_scheduling", ahead)), "environment": V2})
engines = None


def without(engine, call, *arguments):
    """The same without the cache, and without the engine's own."""
    engine.call("switch", False)
    try:
        return engine.call(call, *arguments)
    finally:
        engine.call("switch", True)


# Hybrid models.


def hits(name, least):
    """Each prompt computed and saved, found in the own cache, loaded behind its reset."""
    engine = engines[name]
    block = engine.call("about")["block_tokens"]
    some = random.Random(3).choices(range(3, 1000), k=4 * block + 3 * block // 4 + 300)
    shared = 2 * block + block // 2
    others = [some, some[:shared] + some[5 : block + 5], some[: shared + block] + some[9:200]]
    for tokens in others:
        engine.call("one", tokens, MADE, True)
        engine.call("settled")
        own = engine.call("one", tokens, MADE, False)
        loaded = engine.call("one", tokens, MADE, True)
        plain = without(engine, "one", tokens, MADE, True)
        whole = (len(tokens) - 1) // block * block
        right(name, [plain[1], own[1]], [own[1], loaded[1]], tokens=len(tokens), own=own[2],
              loaded=loaded[2], bits=own[1] == loaded[1])
        if loaded[2] < least * whole or plain[2]:
            raise AssertionError(f"loaded {loaded[2]} of {whole}, without {plain[2]}")
    # A part of what is in the own cache, without a state at its end.
    engine.call("one", some, MADE, True)
    tokens = some[: 3 * block + block // 3] + some[7 : block + 7]
    found = engine.call("one", tokens, MADE, False)
    plain = without(engine, "one", tokens, MADE, True)
    right(f"{name}, behind a part of a prompt", [plain[1]], [found[1]], own=found[2])
    counts = engine.call("counts")
    say(name, **counts)
    if counts.get("worker_failed_blocks") or counts.get("worker_dropped_saves"):
        raise AssertionError(counts)


def test_sliding_windows_and_full_attention():
    hits("window", 1)


def test_states_where_a_step_ended():
    hits("states", 0.5)


def test_states_at_the_end_of_each_block():
    hits("all states", 1)


# Faults.


def failing(name):
    """A worker that has no daemon when it is to load: what was found is computed."""
    engine = engines[name]
    block = engine.call("about")["block_tokens"]
    some = random.Random(13)
    tokens = some.choices(range(3, 1000), k=3 * block + 5)
    longer = tokens + some.choices(range(3, 1000), k=2 * block)
    engine.call("one", tokens, MADE, True)
    engine.call("settled")
    plain = without(engine, "one", longer, MADE, True)
    before = engine.call("counts").get("failed_blocks", 0)
    before_worker = engine.call("counts").get("worker_failed_loads", 0)
    engine.call("away", 0)
    failed = engine.call("one", longer, MADE, True)
    engine.call("away", -1)
    counts = engine.call("counts")
    time.sleep(0.1)
    engine.call("one", longer, MADE, True)
    engine.call("settled")
    own, loaded = (engine.call("one", longer, MADE, reset) for reset in (False, True))
    right(f"{name}, a load that fails", [plain[1]] * 3, [failed[1], own[1], loaded[1]],
          failed=counts.get("worker_failed_loads", 0) - before_worker,
          blocks=counts.get("failed_blocks", 0) - before, loaded=loaded[2])
    if counts.get("worker_failed_loads", 0) == before_worker or not loaded[2]:
        raise AssertionError("nothing failed, or nothing is loaded afterwards")


def test_a_load_that_fails():
    failing("small")


def test_a_load_that_fails_beside_the_steps():
    failing("beside")


def test_a_load_that_fails_in_several_groups():
    failing("window")


def test_a_load_that_fails_beside_states():
    failing("states")


def waiting(name):
    """Steps that wait for loads which fail: of a request alone, of one that joins others, and of some
    with the same blocks that come together and step by step. Then what is in the own cache."""
    engine, some = engines[name], random.Random(name)
    shared = some.choices(range(3, 1000), k=30 * 16 + 5)
    longer = [shared + some.choices(range(3, 1000), k=k) for k in (40, 7, 700, 90, 60)]
    others = [some.choices(range(3, 1000), k=k) for k in (50, 90, 170)]
    engine.call("one", shared, MADE, True)
    engine.call("settled")
    for what, decoding, groups in (
            ("alone", [], [longer[:1]]), ("alone, in pieces", [], [longer[2:3]]),
            ("joins others", others, [longer[:1]]),
            ("joins others, in pieces", others, [longer[2:3]]),
            ("some share", others, [longer[:2], longer[2:3], longer[3:4], longer[4:]]),
            ("some share, without others", [], [longer[2:3], longer[:2], longer[3:]])):
        scene = decoding, groups, 2 * MADE
        before = engine.call("counts")
        plain = without(engine, "joined", *scene, False)
        failed = engine.call("joined", *scene, True)
        counts = engine.call("counts")
        how = {k: counts.get(k, 0) - before.get(k, 0) for k in (
            "worker_failed_loads", "failed_blocks", "failed_requests", "worker_loads")}
        right(f"{name}, {what}", plain, failed, **how)
        own = [engine.call("one", p, 2 * MADE, False)[1] for group in groups for p in group]
        right(f"{name}, {what}, own cache", plain[len(decoding):], own)
        if not how["worker_failed_loads"]:
            raise AssertionError("nothing failed")
        time.sleep(0.1)
    loaded = engine.call("one", longer[0], 2 * MADE, True)
    right(f"{name}, loaded", [without(engine, "one", longer[0], 2 * MADE, True)[1]], [loaded[1]],
          loaded=loaded[2])


def test_a_load_that_fails_and_a_step_waited_for():
    waiting("waits")


def test_a_load_that_fails_and_a_step_waited_for_ahead():
    waiting("waits ahead")


def test_a_load_that_fails_and_a_step_waited_for_in_the_V2_runner():
    waiting("waits V2")


def test_a_load_that_fails_and_a_step_waited_for_ahead_in_the_V2_runner():
    waiting("waits ahead V2")


def test_the_first_token_behind_a_load_that_a_step_waits_for():
    """And behind one that goes on beside the steps."""
    names, some = ("beside", "waits ahead" if kit.REHEARSE else "waits ahead V2"), random.Random(19)
    asked = [some.choices(range(3, 1000), k=3905) for _ in range(3 if kit.REHEARSE else 9)]
    for tokens in asked:
        engines[names[0]].call("one", tokens, 1, True)
    engines[names[0]].call("settled")
    took = {name: [] for name in names}
    for tokens in asked * 2:
        for name in names:
            seconds, _, loaded, share = engines[name].call("one", tokens, 1, True)
            if loaded < 3904 or share != 1:
                raise AssertionError(f"{name}: {loaded}, {share}")
            took[name].append(seconds * 1000)
    say("first token, ms", **{name: [round(ms, 1) for ms in sorted(took[name])] for name in names})


def under_load(what, n, seed, happens, made=LONG, name="small"):
    """Requests while something happens to the daemon."""
    engine, asked = engines[name], prompts(n, seed)
    reference = without(engine, "answers", asked, made)
    before = engine.call("counts")
    engine.begin("answers", asked, made)
    happens(engines.daemons["shared"])
    found = engine.end()
    after = engine.call("counts")
    right(what, reference, found,
          **{k: after[k] - before.get(k, 0) for k in after if after[k] != before.get(k, 0)
             and not k.endswith(("_s_gpu", "_s_host", "_tokens_s"))})
    return after


def comes_back(engine, seed):
    """Hits, as soon as the daemon has been found again."""
    asked = prompts(4, seed)
    end = time.monotonic() + 20
    while engine.call("one", asked[0], 1, True)[2] == 0:
        if time.monotonic() > end:
            raise AssertionError("no hits")
        time.sleep(0.05)


def killed(name):
    def happens(daemon):
        for _ in range(2):
            time.sleep(0.3)
            daemon.kill()
            time.sleep(0.3)
            daemon.again(*SMALL)

    counts = under_load(f"{name}, killed twice", 96, 1, happens, name=name)
    if not counts.get("daemon_losses") and not counts.get("worker_daemon_losses"):
        raise AssertionError(counts)
    comes_back(engines[name], 1)


def test_the_daemon_is_killed_and_restarted_under_load():
    killed("small")


def test_the_daemon_is_killed_and_restarted_under_loads_beside_the_steps():
    killed("beside")


def test_a_daemon_that_does_not_answer():
    for name in ("small", "beside"):
        under_load(f"{name}, hangs", 96, 2, lambda daemon: (time.sleep(0.2), daemon.hang(0.6)),
                   name=name)
        comes_back(engines[name], 2)


def test_both_tiers_are_full():
    daemon = engines.daemons["shared"]
    daemon.kill()
    daemon.again(*TIGHT)
    comes_back(engines["small"], 3)
    for seed in (4, 4):
        under_load("full", 96, seed, lambda _: None, 24)
    figures = daemon.figures()
    say("full", **{k: figures[k] for k in ("blocks", "tiers.gpu.used_bytes",
                                           "tiers.host.used_bytes") if k in figures})
    daemon.kill()
    daemon.again(*SMALL)
    comes_back(engines["small"], 5)


def test_another_block_size_on_one_daemon():
    """As an engine that was restarted with one; both at the same time, too."""
    small, other = engines["small"], engines["blocks of 32"]
    asked = prompts(24, 6)
    small.call("answers", asked, MADE)
    small.call("settled")
    end = time.monotonic() + 20
    while not other.call("counts") or other.call("one", asked[1][:70], 1, True)[2]:
        if time.monotonic() > end:
            raise AssertionError("it found what the other engine had saved")
    tokens = asked[0]
    if other.call("one", tokens, 1, True)[2]:
        raise AssertionError("it found what the other engine had saved")
    references = [without(e, "answers", asked, MADE) for e in (small, other)]
    for e in (small, other):
        e.begin("answers", asked, MADE)
    for e, name, reference in zip((small, other), ("of 16", "of 32"), references):
        right(f"blocks {name}", reference, e.end())
    other.call("settled")
    if other.call("one", tokens, 1, True)[2] != (len(tokens) - 1) // 32 * 32:
        raise AssertionError("it does not find its own")


def test_an_idle_engines_last_request_is_published():
    engine, daemon = engines["small"], engines.daemons["shared"]
    tokens = random.Random(7).choices(range(3, 1000), k=1600)
    before = daemon.figures()["blocks"]
    engine.call("one", tokens, 1, True)
    # No step of the engine from here on.
    daemon.until(lambda f: f["filling_slots"] == 0 and f["blocks"] >= before + 100, "published")
    say("idle", published=daemon.figures()["blocks"] - before)


def test_an_engine_is_killed_under_load():
    """The other one goes on, and nothing of the killed one stays held."""
    small, other = engines["small"], engines["blocks of 32"]
    other.begin("answers", prompts(96, 8), LONG)
    time.sleep(0.3)
    under_load("beside one that is killed", 48, 9, lambda _: other.process.kill(), 24)
    other.process.join()
    engines.daemons["shared"].until(
        lambda f: not any(f[k] for k in ("leases", "open_loads", "filling_slots")), "held")
    if small.call("counts").get("worker_failed_loads"):
        say("killed", failed=small.call("counts")["worker_failed_loads"])


TESTS = [
    test_sliding_windows_and_full_attention,
    test_states_where_a_step_ended,
    test_states_at_the_end_of_each_block,
    test_an_idle_engines_last_request_is_published,
    test_a_load_that_fails,
    test_a_load_that_fails_beside_the_steps,
    test_a_load_that_fails_and_a_step_waited_for,
    test_a_load_that_fails_and_a_step_waited_for_ahead,
    test_a_load_that_fails_and_a_step_waited_for_in_the_V2_runner,
    test_a_load_that_fails_and_a_step_waited_for_ahead_in_the_V2_runner,
    test_the_first_token_behind_a_load_that_a_step_waits_for,
    test_a_load_that_fails_in_several_groups,
    test_a_load_that_fails_beside_states,
    test_the_daemon_is_killed_and_restarted_under_load,
    test_the_daemon_is_killed_and_restarted_under_loads_beside_the_steps,
    test_a_daemon_that_does_not_answer,
    test_both_tiers_are_full,
    test_another_block_size_on_one_daemon,
    test_an_engine_is_killed_under_load,
]


def main():
    global engines
    kit.need_gpus()
    some = os.environ.get("KVC_TEST_ENGINES")
    wanted = {name: how for name, how in WANTED.items() if not some or name in some.split(",")}
    try:
        import vllm  # noqa: F401
    except ImportError as why:
        raise Waived(f"no vLLM: {why}") from None
    engines = Engines(wanted).start()
    try:
        kit.run_tests(TESTS)
    finally:
        engines.close()


if __name__ == "__main__":
    kit.run("vllm", main)
