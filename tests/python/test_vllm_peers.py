#!/usr/bin/env python3
"""The vLLM connector asks other daemons."""

import itertools
import json
import os
import subprocess
import time
from unittest import mock

import stand_in
import support
from stand_in import Request
from support import MS
from vllm_case import Case, prompt


class MadeUp(Case):
    """What a lookup says of other daemons is made up here; what the engine is told is not."""

    def ask(self, told):
        """An engine whose lookups have three blocks fetched; told: the answers about it."""
        from kvcache_client import DeadlineError

        daemon = self.daemon()
        engine = self.engine(daemon)
        self.tokens = prompt(30)
        engine.serve(Request(self.tokens[:13]))
        client = engine.scheduler._scheduler._link.get()
        look_up, declined = client.lookup, []

        def lookup(*arguments, **keywords):
            lease = look_up(*arguments, **keywords)
            lease.remote, lease.fetch = 3, 77
            return lease

        def remote(fetch, ms):
            self.assertEqual((fetch, ms), (77, 0))
            answer = next(told)
            if answer is None:
                raise DeadlineError("deadline passed")
            return answer

        client.lookup, client.remote, client.decline = lookup, remote, declined.append
        return daemon, engine, declined

    def test_ask_again_only_while_other_daemons_are_asked(self):
        told = iter([None, None, 3])
        daemon, engine, declined = self.ask(told)
        request = Request(self.tokens)
        found = [engine.scheduler.get_num_new_matched_tokens(request, 0) for _ in range(5)]
        self.assertEqual(found, [(None, False)] * 3 + [(12, False)] * 2)
        self.assertEqual(list(told), [])
        self.assertEqual(declined, [77, 77])  # nobody is asked twice
        self.assertEqual(self.figures(daemon)["leases"], 1)
        engine.finish(request)
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_a_daemon_that_is_silent_about_other_daemons_is_not_waited_for_longer(self):
        """Than it may ask them, and one connect time-out."""
        daemon, engine, declined = self.ask(itertools.repeat(None))
        request, begin = Request(self.tokens), time.monotonic()
        for later, found in ((0, None), (MS / 1000 - 1, None), (MS / 1000 + 1, 12)):
            with mock.patch("time.monotonic", lambda later=later: begin + later):
                self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0),
                                 (found, False))
        self.assertEqual(declined, [77, 77])  # the second one: nobody is asked twice
        engine.finish(request)
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_an_abort_while_other_daemons_are_asked(self):
        daemon, engine, declined = self.ask(iter([None]))
        request = Request(self.tokens)
        for _ in range(2):
            engine.scheduler.get_num_new_matched_tokens(request, 0)
        engine.finish(request)
        self.assertEqual(declined, [77])
        self.assertEqual(self.figures(daemon)["leases"], 0)


class TwoDaemons(Case):
    """Each with an engine, and each the other's peer."""

    def pair(self, expect=()):
        a, b = support.ports(2)
        try:
            daemons = [
                self.daemon("--peers", f"127.0.0.1:{other}", "--peer-listen", f"127.0.0.1:{own}",
                            expect=expect if own == b else ())
                for own, other in ((a, b), (b, a))]
        except AssertionError as why:
            if "this build knows no peers" not in str(why):
                raise
            self.skipTest("kvcached was built without UCX")
        support.until(lambda: all(self.linked(d) for d in daemons), "not linked", 20)
        return daemons

    def linked(self, daemon):
        said = subprocess.run(
            [os.path.join(support.BUILD, "kvcachectl"), "--socket", daemon.socket, "peers",
             "--json"], capture_output=True, text=True)
        rows = json.loads(said.stdout or "[]")
        return sum(r["state"] == "open" for r in rows) == 2

    def engines(self, daemons, remote_ms=MS):
        return [self.engine(d, extra={"remote_ms": remote_ms}) for d in daemons]

    def admitted(self, engine, request):
        """How often it was told to ask again, and what it was told then."""
        again = 0
        while True:
            found, beside = engine.scheduler.get_num_new_matched_tokens(request, 0)
            if found is not None:
                return again, found, beside
            again += 1
            engine.run(stand_in.step())

    def serve(self, engine, request):
        again, _, _ = self.admitted(engine, request)
        return again, engine.serve(request)

    def test_blocks_of_a_peer_are_fetched_and_loaded(self):
        daemons = self.pair()
        first, second = self.engines(daemons)
        tokens = prompt(50)
        self.serve(first, Request(tokens))
        self.settled(daemons[0])
        again, found = self.serve(second, Request(tokens))
        self.assertGreater(again, 0)
        self.assertEqual(found, 48)
        counts = second.counts("scheduler")
        self.assertEqual((counts["asked_peers"], counts["peer_blocks"]), (1, 12))
        self.settled(daemons[1])
        # It is here now: nobody is asked, nobody waits.
        self.assertEqual(self.serve(second, Request(tokens)), (0, 48))

    def test_what_nobody_has_is_not_waited_for_again(self):
        daemons = self.pair()
        _, second = self.engines(daemons)
        request = Request(prompt(30))
        _, found, _ = self.admitted(second, request)
        self.assertEqual(found, 0)
        self.assertEqual(second.serve(request), 0)
        self.assertEqual(second.serve(Request(request.all_token_ids)), 28)
        self.settled(daemons[1])

    def test_a_part_here_and_the_rest_at_a_peer(self):
        daemons = self.pair()
        first, second = self.engines(daemons)
        tokens = prompt(50)
        self.serve(first, Request(tokens))
        self.serve(second, Request(tokens[:21]))
        self.settled(daemons[0])
        self.settled(daemons[1])
        again, found = self.serve(second, Request(tokens))
        self.assertGreater(again, 0)
        self.assertEqual(found, 48)

    def test_a_peer_that_dies_costs_its_time_at_most(self):
        daemons = self.pair(expect=("peer",))
        first, second = self.engines(daemons, remote_ms=300)
        tokens = prompt(50)
        self.serve(first, Request(tokens))
        self.settled(daemons[0])
        daemons[0].kill()
        self.assertEqual(self.serve(second, Request(tokens))[1], 0)
        self.settled(daemons[1])
        self.assertEqual(self.serve(second, Request(tokens)), (0, 48))


support.main(__name__)
