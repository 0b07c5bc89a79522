#!/usr/bin/env python3
"""Many loads at a time: more than the library holds, and what an engine waits for meanwhile."""

from unittest import mock

import support
from stand_in import FullAttentionSpec, Request, SlidingWindowSpec, step
from vllm_case import Case, prompt

from kvcache_client.errors import DeadlineError, NoMemoryError
from kvcache_client.loads import Load
from kvcache_client.structs import LOADS_MAX
from kvcache_client.vllm import worker

MANY = 2 * LOADS_MAX + 20


class Many(Case):
    def admitted(self, specs=None, n=MANY, **how):
        """Requests with one prefix, which has been saved, and a last token that has not."""
        daemon = self.daemon()
        engine = self.engine(daemon, specs, blocks=4000, **how)
        tokens = prompt(21)
        engine.serve(Request(tokens))
        many = [Request(tokens + prompt(1)) for _ in range(n)]
        self.assertEqual({engine.admit(r) for r in many}, {(20, engine.beside)})
        return engine, many

    def engine(self, daemon, specs=None, beside=True, **how):
        engine = super().engine(daemon, specs, runner=1 + beside, **how)
        engine.beside = beside
        return engine

    def loaded(self, engine, many):
        """All are there, in the end."""
        done = set()
        support.until(lambda: done.update(engine.run(step())[1]) or len(done) == len(many),
                      "loads that are never over")
        self.finished(engine, many)

    def finished(self, engine, many):
        self.assertEqual(engine.counts()["failed_loads"], 0)
        for request in many:
            engine.check(request, 20)
            engine.finish(request)
        engine.settle()

    def test_beside_the_steps(self):
        for behind in (False, True):  # the forward pass, as vLLM 0.33 starts them
            engine, many = self.admitted()
            engine.loads_behind = behind
            self.loaded(engine, many)

    def test_beside_the_steps_of_two_groups_and_two_ranks(self):
        self.loaded(*self.admitted([FullAttentionSpec(), SlidingWindowSpec()], ranks=2))

    def test_no_step_waits_until_one_more_can_be_loaded_beside_it(self):
        engine, many = self.admitted()
        with mock.patch.object(Load, "_judge", side_effect=DeadlineError("not over")) as judge:
            for _ in range(2):
                self.assertEqual(engine.run(step()), (set(), set()))
            self.assertEqual(engine.counts()["loads"], LOADS_MAX)
            self.assertEqual({call.args[0] for call in judge.call_args_list},
                             {0, worker.IDLE_MS})
        self.loaded(engine, many)

    def test_a_step_of_many_requests_waits_for_all_of_them(self):
        for by_layer in (False, True):
            engine, many = self.admitted(beside=False, extra={"layer_by_layer": by_layer})
            new = [(r.request_id, engine.tables[r.request_id], 20) for r in many]
            invalid, _ = engine.run(step(new=new, scheduled={r.request_id: 2 for r in many}),
                                    [(r, 20, 22) for r in many])
            self.assertEqual(invalid, set())
            self.finished(engine, many)

    def test_layers_are_more_than_the_library_holds(self):
        engine, many = self.admitted(n=3, beside=False, layers=LOADS_MAX // 2,
                                     extra={"layer_by_layer": True})
        judge = Load._judge

        def slowly(load, ms):
            if ms == 0:
                raise DeadlineError("not over")
            return judge(load, ms)

        new = [(r.request_id, engine.tables[r.request_id], 20) for r in many]
        with mock.patch.object(Load, "_judge", slowly):
            invalid, _ = engine.run(step(new=new, scheduled={r.request_id: 2 for r in many}),
                                    [(r, 20, 22) for r in many])
        self.assertEqual(invalid, set())
        self.finished(engine, many)

    def test_one_load_that_is_over_is_enough_to_go_on(self):
        """An engine without anything else to do waits for one, and not for one behind the other."""
        engine, many = self.admitted(n=5)
        judge, waits = Load._judge, []
        with mock.patch.object(Load, "_judge", lambda load, ms: (waits.append(ms),
                                                                 judge(load, ms))):
            self.assertEqual(len(engine.run(step())[1]), 5)
        self.assertEqual(waits, [worker.IDLE_MS, 0, 0, 0, 0])
        self.finished(engine, many)

    def test_layers_that_cannot_be_loaded_end_their_lease(self):
        """Nothing else may come that would end it."""
        engine, (request,) = self.admitted(
            n=1, beside=False, extra={"layer_by_layer": True, "lease_ms": 600000})
        with mock.patch.object(engine.workers[0]._worker._link.get(), "load_slices",
                               side_effect=NoMemoryError("no memory")):
            name = request.request_id
            invalid, _ = engine.run(step(new=[(name, engine.tables[name], 20)],
                                         scheduled={name: 2}), [(request, 20, 22)])
        self.assertEqual(len(invalid), 5)
        engine.finish(request)
        engine.settle()


support.main(__name__)
