#!/usr/bin/env python3
"""The serving benchmark's engine (tests/gpu/batch.py) with forward passes that compute nothing."""

import array
import os
import sys
import unittest

import support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))

import batch
import figures
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

    def reads(self, s):
        return False


def prompt(name, blocks, **how):
    return workloads.Prompt([(name, blocks)], OUTPUT, **how)


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

    def test_made_up_talks_fit_however_short(self):
        for most in (2, 6, 68):
            talks = workloads.chat(40, most, 1, "t", 0)
            self.assertEqual(len(talks), 40)
            self.assertLessEqual(max(len(t.keys()) // 16 for t in talks), most)


class Figures(unittest.TestCase):
    def test_an_interval_holds_the_median_and_grows_with_what_rounds_differ(self):
        near = [[1.0, 2.0, 3.0] * 9, [1.1, 2.1, 3.1] * 9]
        far = [[1.0, 2.0, 3.0] * 9, [11.0, 12.0, 13.0] * 9]
        for rounds in (near, far):
            low, high = figures.interval(rounds)
            self.assertLessEqual(low, high)
        self.assertLess(figures.interval(near)[1], figures.interval(far)[1])

    def test_a_ratio_of_equal_rounds_is_one(self):
        rounds = [[1.0] * 9, [1.0] * 9]
        self.assertEqual(figures.over(rounds, rounds), (1.0, 1.0, 1.0))


support.main(__name__)
