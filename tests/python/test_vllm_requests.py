#!/usr/bin/env python3
"""What the vLLM connector finds, loads and saves for a request, on stand-ins for vLLM."""

import dataclasses
import itertools
from unittest import mock

import stand_in
import support
from stand_in import TOKENS, Request, SlidingWindowSpec, step
from vllm_case import Case, layer_by_layer, prompt

from kvcache_client.names import KEY_BYTES
from kvcache_client.saves import KeyState
from kvcache_client.vllm import lately


def served_from_the_own_cache(engine, tokens, before):
    """A request whose prefix is in the blocks of the one before it; it finds so many more."""
    request = Request(tokens)
    engine.tables[request.request_id] = [list(t) for t in engine.tables[before.request_id]]
    return request, engine.serve(request, local=24, finish=False)


class Requests(Case):
    def test_computed_by_one_engine_loaded_by_another(self):
        daemon = self.daemon()
        first, second = self.engine(daemon), self.engine(daemon)
        tokens = prompt(43)
        self.assertEqual(first.serve(Request(tokens)), 0)
        self.assertEqual(second.serve(Request(tokens)), 40)
        self.assertEqual(second.serve(Request(tokens + prompt(20))), 40)
        self.assertEqual(second.counts()["loaded_blocks"], 20)
        self.settled(daemon)

    def test_the_last_token_is_never_counted(self):
        engine = self.engine(self.daemon())
        tokens = prompt(8 * TOKENS)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 7 * TOKENS)
        self.assertEqual(engine.serve(Request(tokens[: TOKENS])), 0)
        self.assertEqual(engine.serve(Request(tokens[: TOKENS + 1])), TOKENS)

    def test_asked_again_and_again_it_is_one_lease(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        request = Request(tokens)
        for _ in range(5):
            found = engine.scheduler.get_num_new_matched_tokens(request, 0)
            self.assertEqual(found, (28, False))
        self.assertEqual(self.figures(daemon)["leases"], 1)
        engine.admit(request, give=0)  # the engine takes none of it
        self.assertEqual(self.figures(daemon)["leases"], 0)
        again = Request(tokens)
        engine.scheduler.get_num_new_matched_tokens(again, 0)
        engine.finish(again)  # aborted while it waited
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_behind_the_engines_own_hits(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(42)
        engine.serve(Request(tokens))
        request = Request(tokens)
        engine.serve(request, finish=False)  # its blocks are the own cache of the next
        other = Request(tokens)
        engine.tables[other.request_id] = [list(t) for t in engine.tables[request.request_id]]
        self.assertEqual(engine.serve(other, local=24), 16)
        again = Request(tokens)
        engine.tables[again.request_id] = engine.tables[request.request_id]
        self.assertEqual(engine.serve(again, local=40), 0)
        self.settled(daemon)

    def test_the_daemon_is_not_asked_about_own_hits(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens, asked = prompt(42), []
        request = Request(tokens)
        engine.serve(request, finish=False)
        self.settled(daemon)
        client = engine.scheduler._scheduler._link.get()
        lookup = client.lookup
        client.lookup = lambda parts, keys, **how: (
            asked.append(len(keys) // KEY_BYTES) or lookup(parts, keys, **how))
        for _ in range(3):
            request, found = served_from_the_own_cache(engine, tokens, request)
            self.assertEqual(found, 16)
        self.assertEqual(asked, [4] * 3)
        counts = engine.counts()
        self.assertEqual((counts["saved_blocks"], counts["hit_blocks"]), (10, 0))
        self.assertEqual(engine.counts("scheduler")["ordered_saves"], 1)

    def test_the_last_block_of_a_prompt_that_was_found_is_not_named_again(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(40)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 36)
        self.assertEqual(engine.counts()["hit_blocks"], 0)
        self.assertEqual(engine.counts("scheduler")["ordered_saves"], 1)

    def test_own_hits_are_named_again_after_a_while(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(42)
        request = Request(tokens)
        engine.serve(request, finish=False)
        self.settled(daemon)
        with mock.patch.object(lately, "SECONDS", 0):
            request, _ = served_from_the_own_cache(engine, tokens, request)
        self.assertEqual(engine.counts()["hit_blocks"], 10)
        served_from_the_own_cache(engine, tokens, request)
        self.assertEqual(engine.counts()["hit_blocks"], 10)

    def test_blocks_without_room_are_saved_a_little_later(self):
        """As of a long prompt in a small GPU tier, which makes room for a part of it at a time."""
        if self.by_layer:
            return
        daemon = self.daemon()
        engine, other = self.engine(daemon, extra={"save_every": 1000}), self.engine(daemon)
        worker, asked = engine.workers[0]._worker, []
        save = worker._save_entries

        def some(client, entries, far, spilled=False):
            """Of each four blocks there is room for three; or for none. None in the host tier."""
            (entry,) = entries
            n = len(entry.keys) // KEY_BYTES
            if spilled:
                return bytes([KeyState.SKIPPED]) * n
            asked.append(n)
            room = 0 if full else n - n // 4
            states = save(client, [dataclasses.replace(
                entry, keys=entry.keys[: room * KEY_BYTES], blocks=entry.blocks[:room])], far
            ) if room else b""
            return states.ljust(n, bytes([KeyState.SKIPPED]))

        full = False
        worker._save_entries = some
        tokens = prompt(80)
        engine.serve(Request(tokens), decode=6)
        self.assertEqual(asked, [20, 5, 1])
        self.assertEqual(other.serve(Request(tokens)), 76)
        full = True
        asked.clear()
        engine.serve(Request(prompt(80)), decode=6)
        self.assertEqual(asked, [20])

    def test_what_the_daemon_evicted_is_saved_again(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(42)
        request = Request(tokens)
        engine.serve(request)
        worker = engine.workers[0]._worker
        keys = b"".join(h[:KEY_BYTES] for h in request.block_hashes)
        worker._link.get().flush_keys(worker._parts[0], keys[3 * KEY_BYTES :])
        self.assertEqual(engine.serve(Request(tokens)), 12)
        self.settled(daemon)
        self.assertEqual(engine.serve(Request(tokens)), 40)

    def test_what_the_daemon_lost_is_saved_again(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(42)
        request = Request(tokens)
        with mock.patch.object(engine.workers[0]._worker._link, "ready", lambda: None):
            engine.serve(request, finish=False)  # it was ordered to be saved
        self.assertEqual(engine.counts()["dropped_saves"], 1)
        request, found = served_from_the_own_cache(engine, tokens, request)
        self.assertEqual(found, 0)
        self.settled(daemon)
        self.assertEqual(other.serve(Request(tokens)), 40)
        other.scheduler.reset_cache()
        self.assertEqual(engine.counts()["saved_blocks"], 10)
        served_from_the_own_cache(engine, tokens, request)  # finds the flush
        sides = [engine.scheduler._scheduler, engine.workers[0]._worker]
        support.until(lambda: all(side._link.get() for side in sides), "not registered again")
        served_from_the_own_cache(engine, tokens, request)
        self.assertEqual(engine.counts()["saved_blocks"], 20)

    def test_chunked_prefill_saves_as_it_goes(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(50)
        request = Request(tokens)
        engine.admit(request)
        name = request.request_id
        engine.run(step(new=[(name, engine.tables[name], 0)], scheduled={name: 18}),
                   [(request, 0, 18)])
        self.settled(daemon)
        self.assertEqual(other.serve(Request(tokens)), 16)
        engine.run(step(cached=[(name, None, 18)], scheduled={name: 32}), [(request, 18, 50)])
        self.settled(daemon)
        self.assertEqual(engine.serve(Request(tokens)), 48)

    def test_generated_tokens_are_saved_for_the_next_turn(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        request = Request(prompt(10))
        engine.serve(request, decode=15)
        self.settled(daemon)
        self.assertEqual(other.serve(Request(request.all_token_ids + [7])), 24)
        prompts_only = self.engine(daemon, extra={"save_decoded": False})
        request = Request(prompt(10))
        prompts_only.serve(request, decode=15)
        self.assertEqual(other.serve(Request(request.all_token_ids + [7])), 8)

    def test_generated_tokens_of_some_steps_are_saved_together(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon, extra={"save_every": 8}), self.engine(daemon)
        request = Request(prompt(12))
        engine.serve(request, decode=30)
        self.settled(daemon)
        counts = engine.counts("scheduler")
        self.assertLessEqual(counts["ordered_saves"], 1 + 4)
        found = other.serve(Request(request.all_token_ids + [7]))
        self.assertGreaterEqual(found, 42 - 8 - 2 * TOKENS)

    def test_drafts_are_not_saved(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        request = Request(prompt(10))
        engine.admit(request)
        name = request.request_id
        engine.run(step(new=[(name, engine.tables[name], 0)], scheduled={name: 10}),
                   [(request, 0, 10)])
        request.all_token_ids.append(5)
        engine.run(step(cached=[(name, None, 10)], scheduled={name: 6}, drafts={name: [1] * 5}),
                   [(request, 10, 11)])
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 2)

    def test_a_drafter_that_looks_ahead_loses_the_last_block(self):
        """Its KV of a token follows from the next one, which the block's name does not know."""
        daemon = self.daemon()
        specs = [stand_in.FullAttentionSpec(), SlidingWindowSpec()]
        engine = self.engine(daemon, specs, drafter=True)
        tokens = prompt(43)
        engine.serve(Request(tokens), chunk=5)
        self.assertEqual(engine.serve(Request(tokens)), 36)
        self.assertEqual(engine.serve(Request(tokens[:6])), 0)
        self.settled(daemon)

    def test_preempted_and_resumed(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        request = Request(prompt(30))
        engine.admit(request)
        name = request.request_id
        engine.run(step(new=[(name, engine.tables[name], 0)], scheduled={name: 20}),
                   [(request, 0, 20)])
        self.settled(daemon)
        found, _ = engine.admit(request)  # preempted: new blocks, and what it had is found again
        self.assertEqual(found, 20)
        engine.run(
            step(cached=[(name, engine.tables[name], 20)], scheduled={name: 10}, resumed=[name]),
            [(request, 20, 30)])
        engine.check(request, 30)
        engine.finish(request)
        self.settled(daemon)
        self.assertEqual(engine.serve(Request(request.all_token_ids)), 28)

    def test_a_request_without_blocks_lacks_nothing(self):
        """Those that a preempted request had may be lacking to whoever has them now."""
        engine = self.engine(self.daemon("--gpu-bytes", "0"))
        tokens = prompt(30)
        engine.serve(Request(tokens))
        request, other = Request(tokens[:9]), Request(tokens)
        engine.admit(request, give=0)
        name, table = request.request_id, engine.tables[request.request_id]
        engine.run(step(new=[(name, table, 0)], scheduled={name: 9}), [(request, 0, 9)])
        engine.run(step(preempted=[name]))
        engine.free = itertools.chain(table[0], engine.free)
        self.assertEqual(engine.admit(other), (28, True))
        with mock.patch.object(engine.workers[0]._worker._link, "ready", return_value=None):
            engine.run(step())
        self.assertEqual(engine.counts("scheduler")["failed_requests"], 1)
        engine.scheduler._scheduler._link.answered()
        self.assertEqual(engine.admit(request), (8, True))
        for one in (request, other):
            engine.finish(one)
        engine.run(step())

    def test_what_was_computed_before_a_reset_is_not_saved_behind_it(self):
        """Nor what was loaded: requests that go on have it of the old weights."""
        for tier in ("8M", "0"):
            daemon = self.daemon("--gpu-bytes", tier)
            engine = self.engine(daemon)
            tokens, saved, new = prompt(30), prompt(30), prompt(30)
            engine.serve(Request(saved))
            request, loaded = Request(tokens), Request(saved + tokens)
            self.assertEqual([engine.admit(one) for one in (request, loaded)],
                             [(0, False), (28, tier == "0")])
            name, other = request.request_id, loaded.request_id
            engine.run(step(new=[(name, engine.tables[name], 0)], scheduled={name: 10}),
                       [(request, 0, 10)])
            self.settled(daemon)
            engine.scheduler.reset_cache()
            support.until(lambda: engine.serve(Request(new)) == 28, "nothing is saved any more")
            engine.run(step(cached=[(name, None, 10)], new=[(other, engine.tables[other], 28)],
                            scheduled={name: 20, other: 32}),
                       [(request, 10, 30), (loaded, 28, 60)])
            for one in (request, loaded):
                engine.finish(one)
            self.settled(daemon)
            self.assertEqual(self.figures(daemon)["blocks"], 7)
            self.assertEqual([engine.serve(Request(one)) for one in (new, tokens, tokens)],
                             [28, 0, 28])

    def test_requests_that_must_not_be_cached(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(20)
        for fields in ({"kv_transfer_params": {"kvcached": False}}, {"prompt_embeds": object()},
                       {"resumable": True}):
            engine.serve(Request(tokens, **fields))
        self.assertEqual(self.figures(daemon)["blocks"], 0)
        engine.serve(Request(tokens, kv_transfer_params="kvcached"))
        self.assertEqual(engine.serve(Request(tokens, skip_reading_prefix_cache=True)), 0)
        self.assertEqual(engine.serve(Request(tokens)), 16)

    def test_adapters_and_salts_are_apart(self):
        for own in (False, True):
            engine = self.engine(self.daemon(), extra={"own_hashes": own})
            tokens = prompt(20)
            engine.serve(Request(tokens, adapter="a"))
            engine.serve(Request(tokens, salt="s"))
            self.assertEqual(engine.serve(Request(tokens, adapter="b")), 0)
            self.assertEqual(engine.serve(Request(tokens, salt="t")), 0)
            self.assertEqual(engine.serve(Request(tokens)), 0)
            self.assertEqual(engine.serve(Request(tokens, adapter="a")), 16)

    def test_a_short_gain_is_declined(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"min_tokens": 16})
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens[:13])), 0)
        self.assertEqual(engine.counts("scheduler")["declined"], 1)
        self.assertEqual(self.figures(daemon)["leases"], 0)
        self.assertEqual(engine.serve(Request(tokens)), 28)

    def test_long_prompts_are_saved_in_several_packets(self):
        engine = self.engine(self.daemon(), layers=1, blocks=6000)
        tokens = prompt(1500 * TOKENS)
        engine.check = lambda *_: None
        engine.forward = lambda *_: None
        engine.serve(Request(tokens), chunk=len(tokens))
        self.assertEqual(engine.counts()["saved_blocks"], 1500)
        self.assertEqual(engine.serve(Request(tokens)), 1499 * TOKENS)


RequestsByLayer = layer_by_layer(Requests)

support.main(__name__)
