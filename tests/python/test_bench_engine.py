#!/usr/bin/env python3
"""The serving benchmark (bench_batch.py, bench_serving.py and bench_vllm.py of tests/gpu) with forward
passes that compute nothing: that it measures what it says."""

import array
import contextlib
import io
import os
import sys
import types
import unittest
from unittest import mock

import support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))

import batch
import bench_vllm
import figures
import handed
import kit
import serve
import server
import serving
import ways
import workloads

OUTPUT = 4


class Still(batch.Batch):
    """Every pass makes the token 7."""

    def __init__(self, rows, blocks, hook=None):
        self.rows, self.most, self.size, self.chunk, self.hook = rows, blocks, 16, 64, hook
        self.lists = [[]] * rows
        self.d_next, self.p_next = array.array("q", [7] * rows), 7
        self.decode = {b: lambda: None for b in range(1, rows + 1)}
        self.renew(blocks, True)

    def place(self, s):
        self.lists[s.row] = s.ids

    def put_prefill(self, s):
        return self.chunk

    def go_prefill(self, s, size):
        s.computed = min(s.computed + size, s.prompt)
        return s.computed == s.prompt

    def put_decode(self, running):
        return len(running)

    def serve(self, prompts, most=4):
        requests = [batch.Request(p.tokens(256), p.keys(), p.output, p.at, p.cancel)
                    for p in prompts]
        self.run(requests, most)
        return requests


class Keeper:
    """A hook that has everything, some of which comes at once and some later."""

    def __init__(self, beside):
        self.beside, self.looks, self.judges, self.passes = beside, 2, 0, 0

    def admitted(self, engine, s, own, n):
        s.gpu = n - own
        if s.gpu > 0 and self.beside:
            s.loading = self
        elif s.gpu > 0:
            s.judge, s.computed = self, n * 16

    def arrived_at(self, engine, s):
        self.looks -= 1
        if self.looks > 0:
            return False
        s.loading, s.computed = None, (s.own + s.gpu) * 16
        return True

    def before(self, engine, s):
        self.passes += 1

    def judged(self, engine, s):
        self.judges += 1
        batch.time.sleep(0)

    def reads(self, s):
        return False


def prompt(name, blocks, **how):
    return workloads.Prompt([(name, blocks)], OUTPUT, **how)


class Clock:
    """Of engines: a second passes while something sleeps, and hardly any else."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now

    def sleep(self, _):
        self.now += 1.0


class Times(unittest.TestCase):
    def firsts(self, blocks, most, hook=None):
        """When first tokens are there, of two requests; decoding takes a second a step."""
        engine = Still(4, blocks, hook)
        with mock.patch.object(batch, "time", Clock()) as clock:
            engine.decode = {b: lambda: clock.sleep(1) for b in (1, 2)}
            return [round(s.first, 2) for s in engine.serve([prompt("a", 6), prompt("b", 6)], most)]

    def test_the_first_token_is_there_when_its_load_is_judged(self):
        self.assertEqual(self.firsts(40, 1, Keeper(False)), [1.0, 1.0])

    def test_waiting_for_blocks_counts_until_the_first_token(self):
        self.assertEqual(self.firsts(10, 2), [0.0, OUTPUT - 1.0])

    def test_waiting_for_a_place_does_not_count(self):
        self.assertEqual(self.firsts(40, 1), [0.0, 0.0])

    def test_a_step_of_others_counts(self):
        self.assertEqual(self.firsts(40, 2), [0.0, 2.0])  # of two chunks each


class Engine(unittest.TestCase):
    def test_all_requests_are_served_and_give_their_blocks_back(self):
        engine = Still(4, 40)
        served = engine.serve(workloads.warm(30, 3, 5, 1, OUTPUT, "w", 0))
        self.assertEqual([s.made for s in served], [OUTPUT] * 30)
        self.assertEqual(len(engine.pool.users), 0)
        self.assertEqual(len(engine.pool.free) + len(engine.pool.idle), 40)

    def test_what_was_computed_is_an_own_hit(self):
        engine = Still(4, 40)
        engine.serve([prompt("a", 6)])
        self.assertEqual([s.own for s in engine.serve([prompt("a", 6), prompt("b", 6)])], [6, 0])

    def test_what_was_loaded_is_an_own_hit_afterwards(self):
        for beside in (False, True):
            keeper = Keeper(beside)
            engine = Still(4, 40, keeper)
            found = [engine.serve([prompt("a", 6)])[0] for _ in range(2)]
            self.assertEqual([(s.own, s.gpu) for s in found], [(0, 6), (6, 0)], beside)
            self.assertEqual((keeper.judges, keeper.passes), (0 if beside else 1, 2))

    def test_a_stream_that_is_cancelled_ends_there(self):
        engine = Still(4, 40)
        served = engine.serve(workloads.cancelled(4, 3, 8, "c"))
        self.assertEqual([(s.made, s.cancelled) for s in served], [(4, True)] * 4)
        self.assertEqual(len(engine.pool.users), 0)

    def test_a_request_larger_than_the_engine_is_said_at_once(self):
        engine = Still(4, 4)
        with self.assertRaisesRegex(RuntimeError, "larger than the engine; blocks: 4 free"):
            engine.serve([prompt("a", 6)])

    def test_a_load_that_never_ends_is_said(self):
        keeper = Keeper(True)
        keeper.looks = 1 << 30
        engine, limit = Still(4, 40, keeper), batch.LIMIT_S
        batch.LIMIT_S = 0.05
        try:
            with self.assertRaisesRegex(RuntimeError, "0 wait, 1 load, 0 prefill"):
                engine.serve([prompt("a", 6)])
        finally:
            batch.LIMIT_S = limit


class Workloads(unittest.TestCase):
    def test_prompts_share_what_their_names_share(self):
        a, b = (workloads.Prompt([("x", 2), (name, 3)], 1) for name in "yz")
        self.assertEqual(a.keys()[:32], b.keys()[:32])
        self.assertNotEqual(a.keys()[32:48], b.keys()[32:48])
        self.assertEqual(a.tokens(99)[:32], b.tokens(99)[:32])
        self.assertEqual((len(a.tokens(99)), len(a.keys()), a.shared), (81, 80, 2))

    def test_what_has_other_names_has_nothing_in_common(self):
        keys = [p.keys()[:16] for names in ("a", "b") for seed in (0, 1)
                for p in (*workloads.chat(9, 8, 1, names, seed),
                          *workloads.prefixes(3, 2, f"{names} {seed}"))]
        heads = [set(keys[i : i + 12]) for i in range(0, len(keys), 12)]
        self.assertEqual(len(set.union(*heads)), sum(map(len, heads)))

    def test_made_up_talks_fit_however_short(self):
        for most in (2, 6, 68):
            talks = workloads.chat(40, most, 1, "t", 0)
            self.assertEqual(len(talks), 40)
            self.assertLessEqual(max(len(t.keys()) // 16 for t in talks), most)


class Silent:
    """Of kit.Remote: keeps what is called; everything is there, what was forgotten is loaded."""

    def __init__(self, tokens=(7,)):
        self.calls, self.tokens = [], tokens

    def call(self, name, *arguments, **how):
        self.calls.append((name, *arguments))
        if name == "moved":
            return len(self.calls), 0
        if name != "serve":
            return None
        requests, loaded = [], self.calls[-2:-1] == [("forget",)]
        for p in arguments[0]:
            n = sum(n for _, n in p.parts)
            requests.append(server.Served(
                0.01, self.tokens, *((0, n) if loaded else (n, 0)), 0, p.shared))
        return server.Ran(requests, 1.0, [0.01], {})


class Turns(unittest.TestCase):
    def stream(self, until=float("inf")):
        """A stream of nothing, and what it says."""
        stream = serving.Stream.__new__(serving.Stream)
        stream.name, stream.until = "tiny", until
        stream.sizes = serving.Sizes(96, 24, 6, 1, 8, 4, 1)
        stream.block, stream.bytes, stream.server = 8192, 24 * 8192, Silent()
        stream.with_tier = lambda bytes_=None: "socket"
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            stream.warm("w", 4, ["none", "own", "packed"], 8, 3)
        return stream.server.calls, said.getvalue()

    def test_ways_take_turns_and_the_predecessors_are_in_two_rounds(self):
        calls, said = self.stream()
        self.assertEqual(
            [c[1] for c in calls if c[0] == "use"],
            ["none", "own", "packed", "packed", "own", "none", "none", "own"])
        self.assertEqual([line.split()[3] for line in said.splitlines()[-3:]], ["24", "24", "16"])

    def test_every_run_has_prompts_of_its_own(self):
        calls, _ = self.stream()
        runs = [{p.keys() for p in c[1]} for c in calls if c[0] == "serve" and c[2] == 4
                and len(c[1]) == 8 and c[1][0].output > 1]
        self.assertEqual(len(runs), 8)
        self.assertEqual(len(set.union(*runs)), sum(map(len, runs)))

    def test_past_its_time_nothing_is_begun_and_said_so(self):
        calls, said = self.stream(until=0)
        self.assertEqual([c for c in calls if c[0] == "use"], [])
        self.assertEqual(said.count("not begun"), 8)


class Memory(unittest.TestCase):
    def served(self):
        one = server.Server.__new__(server.Server)
        one.name, one.gpu, one.pool, one.hook = "tiny", 0, 96, None
        one.engine = Still(4, 96)
        one.engine.model = types.SimpleNamespace(cache=[mock.Mock(), mock.Mock()])
        return one

    def test_what_a_tier_has_is_taken_from_the_pool(self):
        one = self.served()
        with mock.patch.object(ways, "make", lambda *how, **more: None):
            for way, left in (("none", 96), ("own", 96), ("packed", 72), ("each", 72),
                              ("kvcached", 72), ("kvcached daemon", 72)):
                self.assertIsNone(one.use(way, "socket", 24))
                self.assertEqual(len(one.engine.pool.free), left, way)
                one.forget()
                self.assertEqual(len(one.engine.pool.free), left, way)

    def test_what_is_forgotten_is_overwritten(self):
        one = self.served()
        one.tier = 0
        one.engine.serve([prompt("a", 6)])
        one.forget()
        self.assertEqual(one.engine.serve([prompt("a", 6)])[0].own, 0)
        for cache in one.engine.model.cache:
            cache.fill_.assert_called_once_with(100.0)


class Handed(unittest.TestCase):
    def same(self, theirs):
        pair = handed.Pair.__new__(handed.Pair)
        pair.name, pair.first, pair.second = "tiny", Silent([7]), Silent(theirs)
        with contextlib.redirect_stdout(io.StringIO()):
            found = {"kvcached": []}
            same = pair._way("kvcached", "h", 1, "socket", found, [0, 0])
        return same, pair.second.calls

    def test_tokens_are_compared_with_those_of_who_computed_them(self):
        self.assertTrue(self.same([7])[0])
        # Own hits on what was loaded are wrong when that was.
        self.assertFalse(self.same([8])[0])

    def test_other_tokens_are_a_failure_of_the_run(self):
        with contextlib.redirect_stdout(io.StringIO()):
            handed.table([["tiny", *["-"] * 11, "yes"]])
            self.assertRaises(RuntimeError, handed.table, [["tiny", *["-"] * 11, "NO"]])

    def test_nothing_is_left_where_it_is_loaded_to(self):
        calls = [c[0] for c in self.same([7])[1]]
        self.assertEqual(calls[1:5], ["forget", "serve", "serve", "serve"])


class Streams(unittest.TestCase):
    def test_a_background_stream_has_so_many_tokens_and_begins_again(self):
        engine = serve.Engine.__new__(serve.Engine)
        engine.most, engine.size, engine.hook = 1000, 16, None
        engine.d_next, longest = array.array("q", [7]), []
        engine.step_prefill = lambda s: len(longest) > 2 * serve.STREAM
        engine.step_decode = lambda running: longest.append(len(running[0].tokens)) or 1
        engine.p_next = 7
        stream = serve.Sequence(0, [1] * 16, b"", 0, 0)
        gaps, _, seconds = engine.serve([stream], [serve.Sequence(1, [1] * 16, b"", 1, 0)])
        self.assertEqual(max(longest), 16 + serve.STREAM - 1)
        self.assertAlmostEqual(sum(gaps), seconds, places=2)


class Pieces(unittest.TestCase):
    def order(self, size):
        """What a pass of this size does that waits for layers."""
        engine, done = serve.Engine.__new__(serve.Engine), []
        engine.model = types.SimpleNamespace(shape=types.SimpleNamespace(layers=12))
        engine.prefill = {n: lambda: done.append("whole") for n in (16, 64)}
        engine.pieces = {16: [lambda i=i: done.append(i) for i in range(serve.PIECES)]}
        s = serve.Sequence(0, [1], b"", 1, 0)
        s.layers = types.SimpleNamespace(needed=done.append, end=lambda: done.append("end"))
        engine._pass(s, size)
        self.assertIsNone(s.layers)
        return engine, done

    def test_each_piece_runs_behind_the_layers_that_it_reads(self):
        engine, done = self.order(16)
        names = [f"piece.{i}." for i in range(serve.PIECES)]
        self.assertEqual(done, [x for i, name in enumerate(names) for x in (name, i)])
        layers = [engine.piece(i) for i in range(serve.PIECES)]
        self.assertEqual([first for first, _ in layers], [0] + [end for _, end in layers[:-1]])
        self.assertEqual(layers[-1][1], 12)

    def test_a_pass_that_is_not_cut_runs_behind_all_layers(self):
        self.assertEqual(self.order(64)[1], ["end", "whole"])


class Figures(unittest.TestCase):
    def test_a_median_of_two_is_between_them(self):
        self.assertEqual(kit.median([3.0, 1.0]), 2.0)
        self.assertEqual(kit.median([5.0, 1.0, 3.0]), 3.0)
        self.assertEqual([round(kit.quantile(list(range(101)), q), 9) for q in (0, 0.95, 1)],
                         [0, 95, 100])
        self.assertEqual(figures.over([[3.0], [1.0]], [[1.0], [1.0]])[0], 2.0)

    def test_an_interval_holds_the_median_and_grows_with_what_rounds_differ(self):
        near = [[1.0, 2.0, 3.0] * 9, [1.1, 2.1, 3.1] * 9]
        far = [[1.0, 2.0, 3.0] * 9, [11.0, 12.0, 13.0] * 9]
        for rounds in (near, far):
            low, high = figures.interval(rounds)
            self.assertLessEqual(low, high)
        self.assertLess(figures.interval(near)[1], figures.interval(far)[1])

    def test_a_ratio_is_of_rounds_that_took_turns(self):
        self.assertEqual(
            figures.over([[2.0] * 9], [[1.0] * 9, [100.0] * 9]), (2.0, 2.0, 2.0))

    def test_a_ratio_of_equal_rounds_is_one(self):
        rounds = [[1.0] * 9, [1.0] * 9]
        self.assertEqual(figures.over(rounds, rounds), (1.0, 1.0, 1.0))


class Vllm(unittest.TestCase):
    def test_throughput_of_a_turn_is_that_of_its_runs(self):
        runs = [([1.0, 3.0], [0.1], 100.0), ([5.0], [0.3], 200.0)]
        self.assertEqual(bench_vllm.figures_of(runs)[:3], (3.0, 4.8, 150.0))
        self.assertEqual(bench_vllm.shown((1.0, 2.0, 150.0, 0.5, 1.0)), [1e3, 2e3, 150.0, 5e2, 1e3])

    def ended(self, **how):
        """What a run says of engines of which one is like that."""
        ways = [mock.Mock(way="none", why=None, unequal=False),
                mock.Mock(way="kvcached", **{"why": None, "unequal": False, **how})]
        said = types.SimpleNamespace(ways=["none", "kvcached"], eager=False, wait=None)
        with mock.patch.object(bench_vllm, "Way", side_effect=ways), \
                mock.patch.object(bench_vllm, "measure"), \
                contextlib.redirect_stdout(io.StringIO()):
            good = bench_vllm.of_one("8B", said, ["hits"], 0, {})
        ways[1].close.assert_called_once()
        return good

    def test_an_engine_that_ends_or_a_hit_that_differs_is_a_failure(self):
        self.assertEqual([self.ended(), self.ended(why=RuntimeError()), self.ended(unequal=True)],
                         [True, False, False])

    def test_what_was_loaded_has_to_be_what_an_own_hit_is(self):
        for differs in (False, True):
            way = mock.Mock(way="kvcached", unequal=False)
            found = {"GPU tier": ([1.0], [1.0], [1.0], [not differs], [1.0]),
                     "nowhere": ([1.0], [1.0], [1.0], [False], [0.0])}
            with mock.patch.object(bench_vllm, "hits", return_value=found), \
                    contextlib.redirect_stdout(io.StringIO()):
                bench_vllm.hit_rows("8B", [way], [4096], {})
            self.assertEqual(way.unequal, differs)

    def test_where_prompts_came_from(self):
        a_token, counted = bench_vllm.TOKEN_BYTES["8B"], dict.fromkeys(bench_vllm.FIGURES, 0)
        counted |= {"tiers.gpu.bytes_loaded": 160 * a_token, "tiers.host.bytes_loaded": 480 * a_token,
                    "tiers.host.bytes_saved": 320 * a_token, "demotions": 15, "promotions": 5}
        rows = bench_vllm.source_rows(
            "8B", "w", {"off": [1600, 800], "kvcached": [1600, 800]}, counted)
        self.assertEqual(rows[0][2:], ["off", "50 %", "0 %", "0 %", "0.00", "0.00", "0.00", "-"])
        self.assertEqual(rows[1][2:], ["kvcached", "10 %", "10 %", "30 %", "0.08", "0.04", "0.04", "2.00"])


support.main(__name__)
