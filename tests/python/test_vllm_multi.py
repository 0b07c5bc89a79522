#!/usr/bin/env python3
"""Beside other connectors, in vLLM's MultiConnector: what is told to which of them, and what is saved
of what they load."""

import sys
import types
from unittest import mock

import stand_in_multi
import support
import vllm_case
from stand_in import TOKENS, FullAttentionSpec, Request, SlidingWindowSpec, step
from stand_in_multi import MultiConnector, Other, Silent
from vllm_case import Case, prompt

from kvcache_client.vllm import layout

ORDERS = (Other, None), (None, Other), (Silent, None), (None, Silent), (Other, Silent, None, Other)


class Multi(Case):
    def engine(self, daemon, specs=None, order=(Other, None), kind=MultiConnector, transfer=None,
               **how):
        made = type("Engine", (stand_in_multi.Engine,), {
            "order": order, "kind": stand_in_multi.install(kind), "transfer": transfer})
        with mock.patch.object(vllm_case, "Engine", made):
            return super().engine(daemon, specs, **how)


class Told(Multi):
    def test_each_is_told_what_its_own_workers_say(self):
        for order in ORDERS:
            for ranks in (1, 2):
                engine = self.engine(self.daemon(), order=order, ranks=ranks)
                tokens = prompt(30)
                self.assertEqual(engine.serve(Request(tokens)), 0)
                self.assertEqual(engine.serve(Request(tokens)), 28)
                self.assertEqual([len(other.ranks) for other in engine.others],
                                 [ranks * (kind is Other) for kind in order if kind is not None])

    def test_several_groups(self):
        engine = self.engine(self.daemon(), [FullAttentionSpec(), SlidingWindowSpec()], ranks=2)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 28)

    def test_one_inside_of_another(self):
        engine = self.engine(self.daemon())
        said = [engine.workers[0].get_handshake_metadata(), stand_in_multi.Said()]
        kind = sys.modules[stand_in_multi.MODULE].MultiConnector
        workers, schedulers = ([types.SimpleNamespace(
            get_handshake_metadata=lambda one=one: one,
            set_xfer_handshake_metadata_pp_aware=mock.Mock()) for one in said] for _ in range(2))
        both = [kind([kind(each[:1], None), each[1]], None) for each in (workers, schedulers)]
        both[1].set_xfer_handshake_metadata_pp_aware({(0, 0): both[0].get_handshake_metadata()})
        for one, scheduler in zip(said, schedulers):
            scheduler.set_xfer_handshake_metadata_pp_aware.assert_called_once_with({(0, 0): one})

    def test_a_worker_that_cannot_take_part_says_why(self):
        for order in ORDERS:
            with self.assertLogs("kvcache_client.vllm", "ERROR") as said, mock.patch.object(
                    layout, "groups_of", side_effect=layout.LayoutError("a strange layout")):
                engine = self.engine(self.daemon(), order=order)
            self.assertEqual([r.getMessage() for r in said.records],
                             ["kvcached: not used: a strange layout"] * 2)
            self.assertEqual(engine.serve(Request(prompt(30))), 0)

    def test_a_version_that_passes_words_on_in_its_own_way(self):
        """It is left alone."""
        class Whole(MultiConnector):
            def get_handshake_metadata(self):
                return [c.get_handshake_metadata() for c in self._connectors]

            def set_xfer_handshake_metadata_pp_aware(self, metadata):
                for i, connector in enumerate(self._connectors):
                    connector.set_xfer_handshake_metadata_pp_aware(
                        {rank: said[i] for rank, said in metadata.items()})

        engine = self.engine(self.daemon(), kind=Whole)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 28)
        self.assertEqual(len(engine.others[0].ranks), 1)

    def test_a_version_in_which_nothing_is_passed_on(self):
        class First(MultiConnector):
            def get_handshake_metadata(self):
                return self._connectors[0].get_handshake_metadata() or "nothing"

        with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
            engine = self.engine(self.daemon(), kind=First)
        self.assertIn("not used: some workers said nothing", said.output[0])
        self.assertEqual(engine.serve(Request(prompt(30))), 0)

    def test_failed_loads_are_treated_as_the_engine_was_told(self):
        """Not as is said for this connector alone, which vLLM does not ask for."""
        for own in ("fail", "recompute"):
            for engines in ("fail", "recompute"):
                transfer = types.SimpleNamespace(kv_load_failure_policy=engines)
                with self.assertLogs("kvcache_client.vllm", "INFO") as said:
                    engine = self.engine(
                        self.daemon(), transfer=transfer, kv_load_failure_policy=own)
                self.assertEqual("policy is not recompute" in str(said.output), engines == "fail")
                self.assertEqual(engine.scheduler._scheduler.break_even.beside, engines == "fail")


class Loads(Multi):
    """Of other connectors."""

    def admitted(self, engine, n=30, there=20):
        """A request of which another connector loads so much, and one behind it that has that from
        the engine's own cache; their step."""
        tokens = prompt(there)
        one, two = (Request(tokens + prompt(n - there)) for _ in range(2))
        engine.admit(one)
        engine.admit(two)
        shared = engine.tables[one.request_id][0][: there // TOKENS]
        engine.tables[two.request_id][0][: there // TOKENS] = shared
        engine.forward(one, 0, there)
        names = [one.request_id, two.request_id]
        self.step = step(new=[(name, engine.tables[name], there) for name in names],
                         scheduled=dict.fromkeys(names, n - there))
        return [one, two], shared, [(one, there, n), (two, there, n)]

    def test_nothing_is_saved_until_they_are_known_to_be_there(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"save_every": 100})
        (one, two), _, forward = self.admitted(engine)
        self.assertEqual(engine.run(self.step, forward), (set(), set()))
        self.assertEqual(engine.counts()["saves"], 0)
        names = [one.request_id, two.request_id]
        for request in (one, two):
            request.all_token_ids.append(7)
        engine.run(step(cached=[(name, None, 30) for name in names],
                        scheduled=dict.fromkeys(names, 1)), [(one, 30, 31), (two, 30, 31)])
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 7 + 2)
        other = self.engine(daemon)
        for request in (one, two):
            self.assertEqual(other.serve(Request(request.all_token_ids)), 28)

    def test_one_that_failed_has_left_nothing(self):
        daemon = self.daemon()
        engine = self.engine(daemon, ranks=2)
        (one, two), shared, forward = self.admitted(engine)
        engine.workers[1]._worker._invalid.update(shared)  # as vLLM adds up those of all connectors
        self.assertEqual(engine.run(self.step, forward), (set(shared), set()))
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 0)
        names = [one.request_id, two.request_id]
        engine.run(step(cached=[(name, None, 0) for name in names],
                        scheduled=dict.fromkeys(names, 30)), [(one, 0, 30), (two, 0, 30)])
        self.settled(daemon)
        self.assertEqual(self.engine(daemon, ranks=2).serve(Request(two.all_token_ids)), 28)

    def test_without_another_connector_there_are_none(self):
        """What is there may be a piece of a block more than was said."""
        engine = Case.engine(self, self.daemon())
        _, _, forward = self.admitted(engine)
        engine.run(self.step, forward)
        self.assertEqual(engine.counts()["saves"], 1)

    def test_steps_that_are_scheduled_before_it_is_known(self):
        from kvcache_client.vllm.messages import StepOrders
        from kvcache_client.vllm.others import Others

        side, told = Others(), []
        side.on = True

        def admit(name, computed, there, **how):
            side.asked(name, computed)
            side.given(name, 8)
            orders = StepOrders()
            kind = "cached" if how else "new"
            side.step(step(**{kind: [(name, [[1]], there)]}, **how), orders)
            told.append(orders.number)
            return [n for n in "abcd" if side.hold(n)]

        self.assertEqual(admit("a", 4, 12), [])  # what is loaded here is known otherwise
        self.assertEqual(admit("b", 4, 16), ["b"])
        self.assertEqual(admit("c", 4, 12, resumed=["c"]), ["b", "c"])
        self.assertEqual(admit("d", 4, 20, resumed=["d"]), ["b", "c", "d"])
        self.assertEqual(told[0], 0)
        side.known(told[1])
        self.assertEqual([n for n in "abcd" if side.hold(n)], ["c", "d"])
        side.known(told[3])
        self.assertEqual(admit("a", 4, 12), [])
        self.assertEqual(told[4], 0)
        orders = StepOrders()
        side.step(step(new=[("b", [[1]], 16)]), orders)  # it was asked for in an earlier step
        self.assertFalse(side.hold("b"))


class Figures(Case):
    def test_are_found_by_the_name_of_the_class(self):
        """Whatever it was made by, and in processes that do not make it."""
        from kvcache_client.vllm import connector, stats

        kind = connector.KvcacheConnector
        with mock.patch.object(stats.KVConnectorFactory, "register_connector") as register:
            stats.known_by_name("A", "b")
            register.assert_called_once_with("A", "b", "A")
            register.side_effect = ValueError("it is there")
            stats.known_by_name("A", "b")
        self.assertIn(kind.__name__, stats.KVConnectorFactory.known)
        self.assertIsNone(kind.build_prom_metrics(None, {}, [], {}).observe({"worker_saves": 1}))


support.main(__name__)
