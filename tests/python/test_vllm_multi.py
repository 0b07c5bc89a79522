#!/usr/bin/env python3
"""Beside other connectors, in vLLM's MultiConnector: what is told to which of them."""

import sys
import types
from unittest import mock

import stand_in_multi
import support
import vllm_case
from stand_in import FullAttentionSpec, Request, SlidingWindowSpec
from stand_in_multi import MultiConnector, Other, Silent
from vllm_case import Case, prompt

from kvcache_client.vllm import layout

ORDERS = (Other, None), (None, Other), (Silent, None), (None, Silent), (Other, Silent, None, Other)


class Beside(Case):
    def engine(self, daemon, specs=None, order=(Other, None), kind=MultiConnector, transfer=None,
               **how):
        made = type("Engine", (stand_in_multi.Engine,), {
            "order": order, "kind": stand_in_multi.install(kind), "transfer": transfer})
        with mock.patch.object(vllm_case, "Engine", made):
            return super().engine(daemon, specs, **how)

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
