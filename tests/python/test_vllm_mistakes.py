#!/usr/bin/env python3
"""What is said to whoever sets the connector up wrongly: what is wrong, and what to do."""

import os
from unittest import mock

import support
from stand_in import Request
from vllm_case import Case, prompt

from kvcache_client import Client, errors
from kvcache_client.vllm.link import Link

LOG = "kvcache_client.vllm"


class Socket(Case):
    def failing(self, error):
        link = Link(mock.Mock(side_effect=error), mock.Mock(), 1000)
        self.addCleanup(link.close)
        with self.assertLogs(LOG, "WARNING") as said:
            self.assertFalse(link.open())
        (line,) = said.output
        return line

    def test_what_to_look_at_when_there_is_no_daemon(self):
        wrong = os.path.join(self.folder, "nobody")
        with mock.patch.dict(os.environ, KVCACHE_SOCKET=wrong), self.assertRaises(
                errors.DisconnectedError) as refused:
            Client()
        line = self.failing(refused.exception)
        self.assertIn(wrong, line)
        self.assertIn("without the cache until then. Is kvcached running, and is this its ", line)

    def test_what_to_look_at_when_it_refuses(self):
        self.assertIn("May this user connect", self.failing(errors.DeniedError("not allowed")))

    def test_other_reasons_stand_alone(self):
        line = self.failing(errors.LimitError("limit reached", "sessions: 64"))
        self.assertTrue(line.endswith("until then"), line)


class Order(Case):
    def test_a_daemon_that_starts_behind_an_idle_engine_is_found(self):
        """Without a step of that engine, so that its first request is saved."""
        daemon = self.daemon()
        daemon.kill()
        engine = self.engine(daemon, extra={"retry_s": 0.01})
        links = [side._link for side in (
            engine.scheduler._scheduler, *(w._worker for w in engine.workers))]
        daemon.start()
        support.until(lambda: all(link._up for link in links), "not connected")
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 28)


support.main(__name__)
