#!/usr/bin/env python3
"""The vLLM connector asks other daemons."""

import support
from stand_in import Request
from vllm_case import Case, prompt


class Peers(Case):
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
            answer = told.pop(0)
            if answer is None:
                raise DeadlineError("deadline passed")
            return answer

        client.lookup, client.remote, client.decline = lookup, remote, declined.append
        return daemon, engine, declined

    def test_ask_again_only_while_other_daemons_are_asked(self):
        told = [None, None, 3]
        daemon, engine, declined = self.ask(told)
        request = Request(self.tokens)
        found = [engine.scheduler.get_num_new_matched_tokens(request, 0) for _ in range(5)]
        self.assertEqual(found, [(None, False)] * 3 + [(12, False)] * 2)
        self.assertEqual(told, [])
        self.assertEqual(declined, [77, 77])  # nobody is asked twice
        self.assertEqual(self.figures(daemon)["leases"], 1)
        engine.finish(request)
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_an_abort_while_other_daemons_are_asked(self):
        daemon, engine, declined = self.ask([None])
        request = Request(self.tokens)
        for _ in range(2):
            engine.scheduler.get_num_new_matched_tokens(request, 0)
        engine.finish(request)
        self.assertEqual(declined, [77])
        self.assertEqual(self.figures(daemon)["leases"], 0)

support.main(__name__)
