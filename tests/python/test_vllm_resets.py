#!/usr/bin/env python3
"""New weights, and other resets, that the daemon is not told of at once."""

import contextlib
import signal
import sys
from unittest import mock

import support
from stand_in import Request
from vllm_case import Case, prompt

from kvcache_client.errors import SessionError


class Resets(Case):
    def served(self, daemon, **extra):
        """An engine that has saved a prompt, and the prompt."""
        engine, tokens = self.engine(daemon, extra=extra), prompt(30)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 28)
        return engine, tokens

    @contextlib.contextmanager
    def silent(self, daemon):
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            daemon.process.send_signal(signal.SIGCONT)

    def reset(self, engine):
        with self.assertLogs("kvcache_client.vllm", "WARNING") as said:
            self.assertTrue(engine.scheduler.reset_cache())  # later versions end on False
        self.assertIn("cannot be told of a reset now", " ".join(said.output))

    def missed(self, daemon, engine, tokens):
        """Once, and then it is saved anew."""
        self.assertEqual(engine.serve(Request(tokens)), 0)
        link = engine.scheduler._scheduler._link
        support.until(lambda: link.get() is not None, "not connected")
        self.assertEqual(engine.serve(Request(tokens)), 0)
        support.until(lambda: engine.serve(Request(tokens)) == 28, "never found again")

    def test_without_a_session(self):
        """What a daemon has that was not reachable at the time is a miss when it is again."""
        daemon = self.daemon()
        engine, tokens = self.served(daemon)
        with self.silent(daemon):  # so that the next session does not begin at once
            engine.scheduler._scheduler._link.lost(SessionError("lost"))
            self.reset(engine)
        self.missed(daemon, engine, tokens)

    def test_of_a_daemon_that_does_not_answer(self):
        daemon = self.daemon()
        engine, tokens = self.served(daemon, connect_ms=50)
        with self.silent(daemon):
            self.reset(engine)
        self.missed(daemon, engine, tokens)

    def test_while_a_connection_is_set_up(self):
        """Whoever connects meanwhile may not have heard of it."""
        daemon = self.daemon()
        engine, tokens = self.served(daemon)
        side = engine.scheduler._scheduler
        side._link._up = False
        with mock.patch.object(side._link, "get", return_value=None):
            self.reset(engine)
        self.assertIsNotNone(side._link._client)
        side._link._up = True
        self.missed(daemon, engine, tokens)

    def test_of_an_engine_that_goes_without_the_cache(self):
        engine = self.engine(self.daemon())
        engine.scheduler._scheduler._ranks = 0
        self.assertTrue(engine.scheduler.reset_cache())

    def test_with_the_caches_of_an_engine_that_says_nothing(self):
        """vLLM 0.20, when it is paused for new weights, or put to sleep."""
        class Before:
            scheduler = mock.Mock()

            def _reset_caches(self, reset_running_requests=True):
                self.cleared = reset_running_requests

        class Since(Before):
            def _reset_caches(self, reset_running_requests=True, reset_connector=True):
                self.cleared = reset_running_requests

        core = sys.modules["vllm.v1.engine.core"]
        for kind, calls in ((Before, 1), (Since, 0)):
            Before.scheduler.reset_mock()
            with mock.patch.object(core, "EngineCore", kind):
                for _ in range(2):  # in each scheduler
                    self.engine(self.daemon())
                engine = kind()
                engine._reset_caches(reset_running_requests=False)
            self.assertFalse(engine.cleared)
            self.assertEqual(engine.scheduler.reset_connector_cache.call_count, calls)


support.main(__name__)
