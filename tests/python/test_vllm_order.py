#!/usr/bin/env python3
"""Steps in which vLLM makes its calls in another order: loads that no forward pass needs are started
behind it, and beside a drafter saves are given when the outputs have been told."""

import time
from unittest import mock

import support
from stand_in import Request, step
from vllm_case import Case, prompt, record

from kvcache_client import Client
from kvcache_client.loads import SlicedLoad
from kvcache_client.vllm.breakeven import STEP_TOKENS
from kvcache_client.vllm.streams import NoStreams, Reading

SLOW_S = 0.02


class Recorder(NoStreams):
    """What is enqueued, in order, beside what the test says."""

    def __init__(self):
        self.said = []

    def mark(self):
        return len(self.said)

    def passed(self, mark):
        return False

    def after_compute(self):
        self.said.append("side behind compute")

    def compute_after(self, mark):
        self.said.append("compute behind side")

    def side_after(self, mark):
        self.said.append("loads behind saves")


class Order(Case):
    def engine(self, daemon, specs=None, loads=True, saves=True, **how):
        engine = super().engine(daemon, specs, **how)
        engine.loads_behind, engine.saves_behind = loads, saves
        return engine

    def recorded(self, engine):
        worker = engine.workers[0]._worker
        recorder = record(worker, Recorder())
        forward = engine.forward
        engine.forward = lambda *what: (recorder.said.append("forward"), forward(*what))
        return worker, recorder.said

    def served(self, *arguments, **how):
        daemon = self.daemon(*arguments)
        engine, other = self.engine(daemon, **how), self.engine(daemon, **how)
        tokens = prompt(43)
        self.assertEqual(engine.serve(Request(tokens), chunk=10), 0)
        self.assertEqual(other.serve(Request(tokens)), 40)
        self.assertEqual(other.serve(Request(tokens + prompt(20)), decode=9), 40)
        self.assertEqual(other.counts()["loaded_blocks"], 20)
        self.settled(daemon)

    def test_from_the_gpu_tier(self):
        self.served()

    def test_from_the_host_tier(self):
        self.served("--gpu-bytes", "0")

    def test_layer_by_layer(self):
        self.served(extra={"layer_by_layer": True})

    def test_of_two_ranks(self):
        self.served(ranks=2)

    def test_a_forward_pass_is_timed_wherever_its_loads_start(self):
        """A pass that seems to take no time would have every load declined."""
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"min_tokens": None})
        forward = engine.forward
        engine.forward = lambda *what: (time.sleep(SLOW_S), forward(*what))
        for _ in range(6):
            engine.serve(Request(prompt(2 * STEP_TOKENS)))
        samples = engine.scheduler._scheduler.break_even._samples
        self.assertGreaterEqual(len(samples), 5)
        self.assertGreater(min(samples) * 2 * STEP_TOKENS, SLOW_S * 0.9)

    def test_a_load_in_front_of_a_pass_is_not_part_of_its_time(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(2 * STEP_TOKENS)
        engine.serve(Request(tokens))
        worker = engine.workers[0]._worker
        load, report, said = worker._load, worker.report, []
        worker._load = lambda *what: (time.sleep(20 * SLOW_S), load(*what))[1]
        worker.report = lambda: said.append(report()) or said[-1]
        self.assertEqual(engine.serve(Request(tokens + prompt(STEP_TOKENS))), len(tokens))
        (_, took), = sum((one.passes for one in said), [])
        self.assertLess(took, 20 * SLOW_S)

    def test_what_is_read_is_waited_for_before_the_forward_pass(self):
        engine = self.engine(self.daemon())
        worker, said = self.recorded(engine)
        request = Request(prompt(30))
        engine.admit(request)
        worker._reading.add(frozenset(engine.tables[request.request_id][0]))
        name = request.request_id
        engine.run(step(new=[(name, engine.tables[name], 0)], scheduled={name: 30}),
                   [(request, 0, 30)])
        self.assertEqual(said[:2], ["compute behind side", "forward"])

    def test_what_a_request_is_given_later_is_waited_for_too(self):
        """As it grows, or has been preempted and goes on in blocks of others."""
        engine = self.engine(self.daemon(), extra={"save": False})
        worker, said = self.recorded(engine)
        request = Request(prompt(30))
        engine.admit(request)
        name, table = request.request_id, engine.tables[request.request_id]
        engine.run(step(new=[(name, [table[0][:4]], 0)], scheduled={name: 16}),
                   [(request, 0, 16)])
        for resumed, ids in (((), table[0][4:]), ([name], table[0])):
            worker._reading = Reading(worker._streams)
            worker._reading.add(frozenset(ids[-1:]))
            del said[:]
            engine.run(step(cached=[(name, [ids], 16)], scheduled={name: 14}, resumed=resumed),
                       [(request, 16, 30)])
            self.assertEqual(said[:2], ["compute behind side", "forward"])

    def test_loads_beside_the_steps_do_not_wait_for_this_one(self):
        """They are behind whoever had the blocks, in earlier steps."""
        daemon = self.daemon("--gpu-bytes", "0")
        engine = self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        worker, said = self.recorded(engine)
        request, other = Request(tokens + [7]), Request(prompt(10))
        self.assertEqual(engine.admit(request), (28, True))
        engine.admit(other)
        name = other.request_id
        engine.run(step(new=[(name, engine.tables[name], 0)], scheduled={name: 7}),
                   [(other, 0, 7)])
        self.assertEqual(said[:2], ["side behind compute", "forward"])
        for one in (request, other):
            engine.finish(one)
        engine.run(step())
        self.settled(daemon)

    def test_loads_beside_the_steps_are_not_on_the_compute_stream(self):
        load = Client.load
        for tier, wanted in (("8M", "compute"), ("0", "side")):
            engine, tokens, asked = self.engine(self.daemon("--gpu-bytes", tier)), prompt(30), []

            def enqueued(*what, stream, **how):
                asked.append(stream)
                return load(*what, **how)

            engine.serve(Request(tokens))
            self.recorded(engine)
            with mock.patch.object(Client, "load", enqueued), mock.patch.object(
                    Recorder, "side", lambda recorder: "side"), mock.patch.object(
                    Recorder, "compute", lambda recorder: "compute"):
                request = Request(tokens)
                engine.admit(request)
                engine.run(step())
            self.assertEqual(asked, [wanted])
            engine.finish(request)
            engine.run(step())

    def test_loads_beside_the_steps_wait_for_saves_of_their_blocks_alone(self):
        """Which are on a side stream of their own: a long copy to the host tier keeps up no load."""
        daemon = self.daemon("--gpu-bytes", "0")
        engine = self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        worker, said = self.recorded(engine)
        for waits in (0, 1):
            request = Request(tokens)
            self.assertEqual(engine.admit(request), (28, True))
            last = max(engine.tables[request.request_id][0])
            worker._reading.add(frozenset([last + 1 - waits]))
            del said[:]
            engine.run(step())
            self.assertEqual(said.count("loads behind saves"), waits)
            self.assertEqual(said.count("compute behind side"), 0)
            engine.finish(request)
            engine.run(step())
        self.settled(daemon)

    def test_a_checksum_that_differs_is_told_before_outputs_are_used(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(42)
        engine.serve(Request(tokens))  # a step whose saves came last
        worker, request = engine.workers[0]._worker, Request(tokens)
        load = worker._load

        def spoilt(client, part, order, ids, stream):
            one = load(client, part, order, ids, stream)
            wait = one.wait
            one.wait = lambda ms: wait(ms) + [ids[2]]
            return one

        worker._load = spoilt
        self.assertEqual(engine.admit(request), (40, False))
        name = request.request_id
        invalid, _ = engine.run(
            step(new=[(name, engine.tables[name], 40)], scheduled={name: 2}), [(request, 40, 42)])
        self.assertEqual(invalid, {engine.tables[name][0][2]})
        engine.finish(request)
        self.settled(daemon)

    def test_layers_are_waited_for_one_by_one(self):
        """On the side stream, in the order in which they run, and each before it runs."""
        daemon, tokens = self.daemon(), prompt(30)
        engine = self.engine(daemon, layers=3, loads=False, extra={"layer_by_layer": True})
        engine.serve(Request(tokens))
        worker, said = self.recorded(engine)
        worker._layer_loads._streams = worker._streams
        load, needed = SlicedLoad.load, worker.layer_needed

        def enqueued(one, first, n, stream):
            said.append(f"{stream} {first}")
            return load(one, first, n)

        worker.layer_needed = lambda name: (said.append("needed"), needed(name))
        with mock.patch.object(SlicedLoad, "load", enqueued), mock.patch.object(
                Recorder, "side", lambda recorder: "side"), mock.patch.object(
                Recorder, "compute", lambda recorder: "compute"):
            request = Request(tokens)
            self.assertEqual(engine.admit(request), (28, False))
            name = request.request_id
            engine.run(step(new=[(name, engine.tables[name], 28)], scheduled={}),
                       [(request, 28, 30)])
        self.assertEqual(said, ["side behind compute", "side 0", "side 1", "side 2",
                                *["needed", "compute behind side"] * 3, "forward"])
        engine.finish(request)
        self.settled(daemon)

    def test_layers_are_saved_as_they_are_computed(self):
        """And the last one when wait_for_save says that a drafter's are, too."""
        engine = self.engine(self.daemon(), layers=4, extra={"layer_by_layer": True})
        worker, check, at = engine.workers[0], Client._check, {}
        saves = []

        def counted(client, call, *arguments):
            if call == "kvc_save":
                saves.append(call)
            return check(client, call, *arguments)

        def noting(name):
            method = getattr(worker, name)

            def noted(*arguments, **keywords):
                at.setdefault(name, len(saves))
                return method(*arguments, **keywords)

            return noted

        names = ("start_load_kv", "get_finished", "wait_for_save")
        for name in names:
            setattr(worker, name, noting(name))
        with mock.patch.object(Client, "_check", counted):
            engine.serve(Request(prompt(20)))
        self.assertEqual([at[name] for name in names], [3, 3, 3])
        self.assertEqual(len(saves), 4)


support.main(__name__)
