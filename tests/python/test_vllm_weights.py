#!/usr/bin/env python3
"""New weights that vLLM's worker is given while the engine is not paused, or that no reset comes with."""

import sys
import types
from unittest import mock

import stand_in
import support
from stand_in import MLAAttentionSpec, Request, step
from vllm_case import Case, layer_by_layer, prompt

from kvcache_client.errors import DeadlineError
from kvcache_client.loads import Load
from kvcache_client.vllm.messages import StepReport


class Worker:
    """As much of vLLM's as takes weights."""

    def __init__(self):
        self.taken = []

    def reload_weights(self, *names, **how):
        self.taken.append((names, how))
        return "reloaded"

    def update_weights(self, info):
        raise RuntimeError(info)


class Updating(Case):
    def setUp(self):
        super().setUp()
        self.kind = type("Worker", (Worker,), {})
        name = "vllm.v1.worker.gpu_worker"
        stand_in._module(name, Worker=self.kind)
        self.addCleanup(sys.modules.pop, name)
        self.weights = 0

    def engine(self, daemon, specs=None, **how):
        """Whose KV follows from the weights, too."""
        engine = super().engine(daemon, specs, **how)
        row = engine.row
        engine.row = lambda request, p, layer, rank: row(request, p, layer + 50 * self.weights, rank)
        return engine

    def update(self):
        self.weights += 1
        self.assertEqual(self.kind().reload_weights(), "reloaded")

    def found(self, engine, tokens):
        support.until(lambda: engine.serve(Request(tokens)) == 28, "never found again")


class Weights(Updating):
    def test_what_was_saved_before_is_not_loaded(self):
        """By no engine of the model."""
        for specs, ranks, tier in ((None, 1, "8M"), (None, 1, "0"), ([MLAAttentionSpec()], 2, "8M")):
            daemon, tokens = self.daemon("--gpu-bytes", tier), prompt(30)
            engine, other = (self.engine(daemon, specs, ranks=ranks) for _ in range(2))
            engine.serve(Request(tokens))
            self.assertEqual(other.serve(Request(tokens)), 28)
            self.update()
            with self.assertLogs("kvcache_client.vllm", "INFO") as said:
                engine.serve(Request(tokens))  # all that it computes on is right
            self.assertIn("new weights", " ".join(said.output))
            self.assertEqual(other.serve(Request(tokens)), 0)
            for one in (engine, other):
                self.found(one, tokens)
                self.assertGreater(one.counts()["loaded_blocks"], 0)

    def test_what_is_being_loaded_is_computed(self):
        daemon, tokens = self.daemon("--gpu-bytes", "0"), prompt(30)
        engine = self.engine(daemon)
        worker, room = engine.workers[0]._worker, engine.workers[0]._worker._room
        for begun, ahead in ((True, False), (False, False), (False, True)):
            worker._room = room
            self.found(engine, tokens)
            request = Request(tokens)
            self.assertEqual(engine.admit(request), (28, True))
            if not begun:
                worker._room = lambda order, ms: False  # for one more
            with mock.patch.object(Load, "_judge", side_effect=DeadlineError("not over")):
                if not ahead:
                    self.assertEqual(engine.run(step()), (set(), set()))
                self.update()
            invalid, done = engine.run(step())
            self.assertEqual((len(invalid), done), (7, {request.request_id}))
            engine.finish(request)

    def test_a_request_that_goes_on_is_not_saved(self):
        """What it had computed is of the old weights. Nor is what was ordered before the scheduler's
        side knew."""
        daemon, tokens = self.daemon(), prompt(30)
        engine = self.engine(daemon)
        request = Request(tokens)
        engine.admit(request)
        name = request.request_id
        engine.run(step(new=[(name, engine.tables[name], 0)], scheduled={name: 10}),
                   [(request, 0, 10)])
        self.settled(daemon)
        self.update()
        engine.check = lambda *_: None
        for first, end in ((10, 20), (20, 30)):
            engine.run(step(cached=[(name, None, first)], scheduled={name: end - first}),
                       [(request, first, end)])
        engine.finish(request)
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 0)
        del engine.check
        self.found(engine, tokens)

    def test_orders_from_before_it_are_not_carried_out(self):
        """Of a step that was scheduled ahead."""
        daemon, tokens = self.daemon(), prompt(30)
        engine, other = self.engine(daemon), self.engine(daemon)
        other.serve(Request(tokens))
        request = Request(tokens)
        self.assertEqual(engine.admit(request), (28, False))
        self.update()
        name = request.request_id
        invalid, _ = engine.run(
            step(new=[(name, engine.tables[name], 28)], scheduled={name: 2}), [(request, 28, 30)])
        self.assertEqual(len(invalid), 7)
        self.assertEqual(engine.counts()["loads"], 0)
        engine.finish(request)
        self.found(engine, tokens)

    def test_saves_from_before_it_come_too_late(self):
        """Of a step that was scheduled ahead, when the worker knows of the reset."""
        daemon, request, tokens = self.daemon(), Request(prompt(30)), prompt(30)
        engine = self.engine(daemon)
        engine.admit(request)
        name, worker = request.request_id, engine.workers[0]
        old = engine.scheduler.build_connector_meta(
            step(new=[(name, engine.tables[name], 0)], scheduled={name: 30}))
        self.assertEqual(len(old.orders.saves), 1)
        self.update()
        self.found(engine, tokens)
        worker.bind_connector_metadata(old)
        for _, _, layer in engine._layers():
            worker.save_kv_layer(layer, None, None)
        worker.wait_for_save()
        worker.clear_connector_metadata()
        engine.finish(request)
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 7)


WeightsByLayer = layer_by_layer(Weights)


class Told(Updating):
    def test_of_ranks_any_says_so(self):
        for one, other in ((0, 1), (1, 0), (2, 1)):
            self.assertEqual(
                StepReport(updates=one).add(StepReport(updates=other)).updates, max(one, other))
        self.assertTrue(StepReport(updates=1))

    def test_each_side_once_however_it_ends(self):
        engines = [self.engine(self.daemon()) for _ in range(2)]
        sides = [engine.workers[0]._worker for engine in engines]
        worker = self.kind()
        self.assertEqual(worker.reload_weights("a", path="b"), "reloaded")
        self.assertEqual(worker.taken, [(("a",), {"path": "b"})])
        self.assertEqual([side._updates for side in sides], [1, 1])
        self.assertRaises(RuntimeError, worker.update_weights, "half of them")
        self.assertEqual([side._updates for side in sides], [2, 2])
        self.assertFalse(hasattr(self.kind, "finish_weight_update"))

    def test_a_worker_of_another_kind_is_let_be(self):
        for module in (types.ModuleType("empty"), None):
            with mock.patch.dict(sys.modules, {"vllm.v1.worker.gpu_worker": module}):
                engine, tokens = self.engine(self.daemon()), prompt(30)
                engine.serve(Request(tokens))
                self.assertEqual(engine.serve(Request(tokens)), 28)


support.main(__name__)
