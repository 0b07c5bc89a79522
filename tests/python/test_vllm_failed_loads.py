#!/usr/bin/env python3
"""Loads that fail, in engines with the vLLM connector: what they lacked is computed, nothing of it is
saved, and no step waits for a load where vLLM would go on behind it."""

import itertools
import sys
import time
from unittest import mock

import stand_in
import support
from stand_in import TOKENS, MLAAttentionSpec, Request, step
from vllm_case import Case, layer_by_layer, prompt

from kvcache_client.errors import DeadlineError
from kvcache_client.loads import Load
from kvcache_client.vllm.handed import GONE, Handed
from kvcache_client.vllm.messages import StepReport
from kvcache_client.vllm.worker import JUDGE_MS


class FailedLoads(Case):
    def test_a_load_that_fails_is_computed(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(42)
        other.serve(Request(tokens))
        request = Request(tokens)
        admit = engine.admit

        def flushed_behind(*arguments):
            found = admit(*arguments)
            self.assertTrue(other.scheduler.reset_cache())
            return found

        engine.admit = flushed_behind
        self.assertEqual(engine.serve(request), 40)  # was told so, and computed it after all
        engine.admit = admit
        self.assertGreater(engine.counts()["failed_blocks"], 0)
        self.assertEqual(engine.counts("scheduler")["failed_blocks"], 10)
        self.settled(daemon)
        # Nothing that was computed on blocks that were not there has been saved.
        for one in (engine, other):
            for _ in range(5):
                one.serve(Request(prompt(9)))
            one.serve(Request(tokens))
            one.serve(Request(tokens))
        # What was flushed is registered again beside the steps.
        support.until(lambda: other.serve(Request(tokens)) == 40
                      and other.counts()["loaded_blocks"] > 0, "nothing is loaded")

    def test_no_step_waits_for_loads_where_vllm_does_not_recover(self):
        daemon = self.daemon()
        for runner, ahead, option, version in itertools.product(
                (1, 2), (False, True), (None, True, False), ("0.26.1", "0.28.0")):
            with mock.patch.object(sys.modules["vllm"], "__version__", version, create=True):
                engine = self.engine(
                    daemon, runner=runner, ahead=ahead, extra={"synchronous": option})
            tokens = prompt(42)
            engine.serve(Request(tokens))
            beside = not option if option is not None else (
                (runner == 2 or ahead) and version != "0.26.1")
            request = Request(tokens)
            self.assertEqual(engine.admit(request), (40, beside), (runner, ahead, option, version))
            engine.run(step())
            engine.finish(request)
            figures = engine.scheduler.get_kv_connector_stats().reduce()
            self.assertEqual(figures["scheduler_now_synchronous"], int(not beside))

    def test_where_the_repair_has_not_been_seen_no_step_waits(self):
        daemon, tokens = self.daemon(), prompt(42)
        for how in ({"ranks": 2}, {"drafter": True}):
            with mock.patch.object(sys.modules["vllm"], "__version__", "0.26.1", create=True):
                engine = self.engine(daemon, runner=2, **how)
            engine.serve(Request(tokens))
            request = Request(tokens)
            self.assertTrue(engine.admit(request)[1], how)
            engine.run(step())
            engine.finish(request)

    def test_a_load_that_fails_where_vllm_does_not_recover_is_computed(self):
        daemon = self.daemon()
        other = self.engine(daemon)
        for how in ({"runner": 2}, {"ahead": True}):
            for option in (None, True):
                engine = self.engine(  # the lease of what ends in the middle has its time
                    daemon, extra={"synchronous": option, "lease_ms": 300}, **how)
                tokens = prompt(42)
                other.serve(Request(tokens))
                with mock.patch.object(engine.workers[0]._worker._link, "ready",
                                       return_value=None):
                    if option:  # it is what vLLM does
                        self.assertRaises(stand_in.Wrong, engine.serve, Request(tokens))
                    else:
                        self.assertEqual(engine.serve(Request(tokens)), 40)
                self.assertEqual(engine.counts()["failed_blocks"], 10)

    def test_what_one_rank_could_not_load_no_rank_saves(self):
        """The others have computed on it, too. With and without ranks that ask each other."""
        for agree in (True, False):
            for specs, lost in itertools.product((None, [MLAAttentionSpec()]), (0, 1)):
                daemon = self.daemon()
                engines = [self.engine(daemon, specs, ranks=2, agree=agree) for _ in range(2)]
                tokens = prompt(42)
                engines[0].serve(Request(tokens[:22]))
                worker = engines[1].workers[lost]._worker
                with mock.patch.object(worker._link, "ready", return_value=None):
                    request = Request(tokens)
                    self.assertEqual(engines[1].serve(request, chunk=8), 20)  # was told so
                self.assertEqual(engines[1].counts("scheduler")["failed_blocks"], 5)
                self.settled(daemon)
                # What there is of it by now is right, on all ranks.
                engines[0].serve(Request(tokens))
                self.settled(daemon)
                support.until(lambda: engines[1].serve(Request(tokens)) == 40, "no hit")

    def test_what_is_computed_in_place_of_a_load_is_offered_again(self):
        """The daemon may have lost it; what was loaded is not."""
        engine, tokens = self.engine(self.daemon()), prompt(42)
        engine.serve(Request(tokens))
        request, counts = Request(tokens), engine.counts("scheduler")
        self.assertEqual(engine.admit(request), (40, False))
        name, saves = request.request_id, counts["ordered_saves"]
        with mock.patch.object(engine.workers[0]._worker._link, "ready", return_value=None):
            engine.run(step(new=[(name, engine.tables[name], 40)], scheduled={name: 2}),
                       [(request, 40, 42)])
        self.assertEqual(counts["ordered_saves"], saves)
        engine.run(step(cached=[(name, None, 0)], scheduled={name: 42}), [(request, 0, 42)])
        self.assertEqual(counts["ordered_saves"], saves + 1)
        engine.finish(request)

    def test_a_load_that_is_not_over_behind_its_step_is_computed(self):
        """It is waited for; nothing is taken for loaded of which that is not known."""
        daemon, tokens, waits = self.daemon(), prompt(42), []
        engine = self.engine(daemon)
        engine.serve(Request(tokens))
        request = Request(tokens)
        self.assertEqual(engine.admit(request), (40, False))

        def never(load, ms):
            waits.append(ms)
            raise DeadlineError("not over")

        name = request.request_id
        with mock.patch.object(Load, "_judge", never):
            invalid, _ = engine.run(step(new=[(name, engine.tables[name], 40)],
                                         scheduled={name: 2}), [(request, 40, 42)])
        self.assertEqual((len(invalid), waits), (10, [JUDGE_MS]))
        engine.finish(request)

    def test_checksums_are_compared_unless_told_otherwise(self):
        daemon, tokens = self.daemon(), prompt(42)
        self.engine(daemon).serve(Request(tokens))
        for extra, wanted in (({}, True), ({"verify": True}, True), ({"verify": False}, False)):
            engine, asked = self.engine(daemon, extra=extra), []
            client = engine.workers[0]._worker._link.get()
            for name in ("load", "load_slices"):
                method = getattr(client, name)
                setattr(client, name, lambda *what, method=method, **how: (
                    asked.append(how["verify"]) or method(*what, **how)))
            self.assertEqual(engine.serve(Request(tokens)), 40)
            self.assertEqual(asked, [wanted])

    def test_while_a_rank_has_no_daemon_nothing_is_looked_up(self):
        engine = self.engine(self.daemon(), ranks=2)
        tokens = prompt(42)
        engine.serve(Request(tokens))
        link = engine.workers[1]._worker._link
        link._up, link._next = False, time.monotonic() + 600  # as after an attempt that failed
        asked = engine.counts("scheduler")["lookups"]
        self.assertEqual([engine.serve(Request(tokens)) for _ in range(4)], [40, 0, 0, 0])
        self.assertEqual(engine.counts("scheduler")["lookups"], asked + 1)
        link._next = engine.scheduler._scheduler._link._asked_again = 0
        support.until(lambda: engine.serve(Request(tokens)) == 40, "no hit when it was back")

    def test_a_request_whose_load_failed_is_not_looked_up_again(self):
        """vLLM asks again for one whose load beside the steps failed: while a worker cannot load,
        that would go on for ever."""
        engine = self.engine(self.daemon("--gpu-bytes", "0"))
        tokens = prompt(42)
        engine.serve(Request(tokens))
        request = Request(tokens)
        with mock.patch.object(engine.workers[0]._worker._link, "ready", return_value=None):
            self.assertEqual(engine.admit(request), (40, True))
            invalid, done = engine.run(step())
        self.assertEqual((len(invalid), done), (10, {request.request_id}))
        engine.scheduler._scheduler._link.answered()  # whatever else is known of the worker
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        engine.finish(request)
        support.until(lambda: engine.serve(Request(tokens)) == 40, "no hit")

    def test_blocks_of_a_failed_load_are_not_written_under_the_forward_pass(self):
        """Copies that were enqueued before it failed end before the blocks are computed."""
        from kvcache_client.vllm.streams import NoStreams

        class Recorder(NoStreams):
            waits = 0

            def mark(self):
                return "a place on the side stream"

            def compute_after(self, mark):
                self.waits += mark == "a place on the side stream"

        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(42)
        other.serve(Request(tokens))
        engine.workers[0]._worker._streams = recorder = Recorder()
        request = Request(tokens)
        engine.admit(request)
        other.scheduler.reset_cache()
        name = request.request_id
        invalid, _ = engine.run(
            step(new=[(name, engine.tables[name], 40)], scheduled={name: 2}), [(request, 40, 42)])
        self.assertEqual(len(invalid), 10)
        self.assertGreaterEqual(recorder.waits, 1)
        engine.finish(request)

    def test_saves_are_held_back_for_the_steps_that_ran_ahead(self):
        """Each step counts once, although two calls end it."""
        engine = self.engine(self.daemon())
        engine.workers[0]._worker._distrust = 4  # this step is the first of them
        saved = []
        for _ in range(5):
            engine.serve(Request(prompt(TOKENS)))
            saved.append(engine.counts()["saved_blocks"])
        self.assertEqual(saved, [0, 0, 0, 1, 2])


class InFlight(Case):
    """What is known of a step that waits for loads until its output comes."""

    def in_flight(self, engine, request, **how):
        """It is admitted with a load, and the step is scheduled; what the workers are told."""
        self.assertEqual(engine.admit(request), (40, False))
        one = (request.request_id, engine.tables[request.request_id], 40)
        output = step(scheduled={one[0]: 2}, **({"cached": [one], **how} if how else {"new": [one]}))
        return engine.scheduler.build_connector_meta(output)

    def carry_out(self, engine, meta):
        with mock.patch.object(engine.scheduler, "build_connector_meta", lambda output: meta):
            return engine.run(step())

    def test_a_request_is_loaded_again_while_its_first_step_is_in_flight(self):
        """vLLM preempts all that run, to reset its cache, and admits them again in the next step."""
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(42)
        engine.serve(Request(tokens))
        request = Request(tokens)
        name, handed = request.request_id, engine.scheduler._scheduler.handed
        first = self.in_flight(engine, request)
        second = self.in_flight(engine, request, resumed=[name], preempted=[name])
        self.assertEqual(self.carry_out(engine, first)[0], set())
        self.assertEqual(handed.admitted() - {GONE}, {name})  # of the second
        self.assertEqual(self.carry_out(engine, second)[0], set())
        self.assertEqual(handed.admitted(), set())
        engine.check(request, 40)
        engine.finish(request)
        self.settled(daemon)

    def test_workers_tell_of_both_loads_at_once(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(42)
        engine.serve(Request(tokens))
        request = Request(tokens)
        handed = engine.scheduler._scheduler.handed
        first = self.in_flight(engine, request)
        second = self.in_flight(
            engine, request, resumed=[request.request_id], preempted=[request.request_id])
        with mock.patch.object(engine.workers[0]._worker, "report", StepReport):
            self.carry_out(engine, first)
        self.carry_out(engine, second)
        self.assertEqual(handed.admitted(), set())
        engine.finish(request)
        self.settled(daemon)

    def test_ranks_tell_of_their_loads_in_the_order_of_steps(self):
        handed, first, second = Handed(lambda name: True), object(), object()
        handed.hand("a", first, 2)
        handed.hand("a", second, 2)
        self.assertEqual(handed.adopted({"a": 3}), [first])
        self.assertEqual(handed.adopted({"a": 1}), [second])

    def test_a_request_that_runs_again_had_blocks_that_nobody_can_tell(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lease_ms": 300})
        tokens = prompt(42)
        engine.serve(Request(tokens))
        request, other = Request(tokens), Request(prompt(9))
        self.in_flight(engine, request)
        self.assertEqual(engine.scheduler.admitted_beside_loads(), {request.request_id})
        engine.scheduler.build_connector_meta(step(preempted=[other.request_id]))
        self.assertNotIn(GONE, engine.scheduler.admitted_beside_loads())
        engine.scheduler.build_connector_meta(step(preempted=[request.request_id]))
        self.assertIn(GONE, engine.scheduler.admitted_beside_loads())
        engine.finish(request)

    def test_who_reads_no_prefix_has_not_computed_on_what_failed(self):
        """Log probabilities of its prompt come with one step, which would be left out."""
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lease_ms": 300})
        tokens = prompt(42)
        engine.serve(Request(tokens))
        request, other = Request(tokens), Request(prompt(9), skip_reading_prefix_cache=True)
        self.assertEqual(engine.admit(other), (0, False))
        self.assertEqual(engine.admit(request), (40, False))
        both = [(r.request_id, engine.tables[r.request_id], n) for r, n in ((request, 40), (other, 0))]
        engine.scheduler.build_connector_meta(step(new=both, scheduled={
            request.request_id: 2, other.request_id: 9}))
        engine.scheduler.build_connector_meta(step(preempted=[other.request_id]))
        self.assertEqual(engine.scheduler.admitted_beside_loads(), {request.request_id})
        for one in (request, other):
            engine.finish(one)


FailedLoadsByLayer = layer_by_layer(FailedLoads)

support.main(__name__)
