#!/usr/bin/env python3
"""What is said to whoever sets the connector up wrongly: what is wrong, and what to do."""

import os
from unittest import mock

import support
from stand_in import Request
from vllm_case import Case, prompt

from kvcache_client import Client, errors
from kvcache_client.memory import Slice
from kvcache_client.vllm.link import Link
from kvcache_client.vllm.options import options_of

LOG = "kvcache_client.vllm"


class Options(Case):
    def test_a_misspelt_option_is_guessed(self):
        for name, meant in (("lookup_mss", "lookup_ms"), ("sockets", "socket"),
                            ("synchronus", "synchronous")):
            with self.assertRaisesRegex(ValueError, f"no option {name}; did you mean {meant}?"):
                options_of({name: 1})
        with self.assertRaisesRegex(ValueError, "no option xyz; there are connect_ms, "):
            options_of({"xyz": 1})

    def test_it_is_said_before_weights_are_read(self):
        """By what vLLM asks the class while it makes its configuration."""
        from kvcache_client.vllm import KvcacheConnector as kind

        with self.assertRaisesRegex(ValueError, "did you mean layer_by_layer?"):
            kind.requires_piecewise_for_cudagraph({"layer_by_layers": True})

    def test_a_wrong_type_is_told_in_words(self):
        for name, value, wanted in (
                ("lookup_ms", "3", "a whole number"), ("min_tokens", 1.5, "a whole number"),
                ("retry_s", True, "a number"), ("socket", 3, "a string"),
                ("synchronous", "yes", "true or false"), ("save", None, "true or false")):
            with self.assertRaisesRegex(ValueError, f"{name}: {value!r} is not {wanted}$"):
                options_of({name: value})


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

    def test_what_to_look_at_when_one_of_the_two_was_not_upgraded(self):
        line = self.failing(errors.VersionError("", "version: the daemon speaks 1, this is 2"))
        self.assertIn("of one release, and was kvcached restarted since", line)

    def test_a_daemon_without_a_gpu_and_an_engine_on_one(self):
        """Its worker must not copy from there as if it were memory of this machine."""
        daemon = self.daemon()
        with mock.patch.object(Slice, "on_gpu", lambda slice: True), self.assertLogs(
                LOG, "WARNING") as said:
            engine = self.engine(daemon, extra={"retry_s": 1000})
            tokens = prompt(30)
            for _ in range(2):
                self.assertEqual(engine.serve(Request(tokens)), 0)
        self.assertIn('on a GPU, not for a daemon whose device is "host"', said.output[0])
        self.assertIn("Does the daemon see the GPU", said.output[0])
        self.assertEqual(self.figures(daemon)["blocks"], 0)

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
