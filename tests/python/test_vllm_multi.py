#!/usr/bin/env python3
"""Beside other connectors, in vLLM's MultiConnector."""

from unittest import mock

import support
from vllm_case import Case


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
