#!/usr/bin/env python3
"""The repair of loads that fail when a step has waited for them: who is begun again, on stand-ins of
vLLM's scheduler. In vLLM itself: real_vllm_again.py, tests/gpu/test_vllm.py."""

import logging
import types
from unittest import mock

import stand_in
import support

RUNNING, PREEMPTED = stand_in.RequestStatus.RUNNING, stand_in.RequestStatus.PREEMPTED
LOADING = stand_in.RequestStatus.WAITING_FOR_REMOTE_KVS
ALL = set(range(1, 20))  # blocks
space = types.SimpleNamespace


class Older(stand_in.Scheduler):
    """As in vLLM 0.26."""

    def _preempt_request(self, request, timestamp):
        placeholders = request.num_output_placeholders
        stand_in.Scheduler._preempt_request(self, request, timestamp)
        request.num_output_placeholders = placeholders
        del request.drop_stale_output, request.num_stale_output_tokens


class OlderAhead:
    def _update_request_with_output(self, request, new):
        if request.async_tokens_to_discard > 0:
            request.async_tokens_to_discard -= 1
            return [], False
        return super()._update_request_with_output(request, new)


class OlderRequest:
    def __init__(self):
        self.num_in_flight_tokens = 0


class Waiting(list):
    def prepend_request(self, request):
        self.insert(0, request.request_id)


class Again(support.Case):
    def setUp(self):
        super().setUp()
        stand_in.install()
        from kvcache_client.vllm import repairs

        self.repairs, self.evicted, self.begun = repairs, set(), set()
        log = logging.getLogger("kvcache_client.vllm")
        self.addCleanup(log.setLevel, log.level)
        log.setLevel(logging.ERROR)

    def install(self, kind):
        """That version; what it knows of outputs in flight."""
        stand_in._module("vllm.v1.core.sched.scheduler", Scheduler=kind)
        stand_in._module("vllm.v1.core.sched.async_scheduler", AsyncScheduler=OlderAhead)
        stand_in._module("vllm.v1.request", RequestStatus=stand_in.RequestStatus,
                         Request=OlderRequest)
        return self.repairs.waited_loads()

    def scheduler(self, older, admitted, **requests):
        """requests: (status, block ids, tokens of two steps in flight)."""
        kind = type("Scheduler", (Older if older else stand_in.Scheduler,), {})
        self.assertTrue(self.install(kind))
        one = kind()
        vars(one).update(
            recompute_kv_load_failures=True, block_size=4, waiting=Waiting(), running=[],
            kv_cache_config=space(kv_cache_groups=[1]), reset_preempted_req_ids=set(),
            prev_step_scheduled_req_ids=set(requests), failed_recving_kv_req_ids=set(),
            _free_request_blocks=lambda request: None, requests={},
            kv_cache_manager=space(
                get_block_ids=lambda name: (requests[name][1],),
                block_pool=space(blocks=[0, *ALL]), evict_blocks=self.evicted.update),
            connector=space(admitted_beside_loads=lambda: set(admitted),
                            begun_again=self.begun.update))
        for name, (status, ids, *flight) in requests.items():
            one.requests[name] = space(
                request_id=name, status=status, num_computed_tokens=4 * len(ids),
                num_in_flight_tokens=sum(flight), is_prefill_chunk=False, spec_token_ids=[],
                num_output_placeholders=len(flight), num_preemptions=0, async_tokens_to_discard=0)
            if status == RUNNING:
                one.running.append(one.requests[name])
        return one

    def test_who_has_computed_behind_what_is_not_there_is_begun_again(self):
        for older in (True, False):
            self.evicted.clear()
            one = self.scheduler(
                older, "abd", a=(RUNNING, [1, 2, 3], 5, 1), b=(RUNNING, [1, 2, 4], 3),
                c=(RUNNING, [5, 6], 1, 1), d=(RUNNING, [7, 3, 8], 0, 2), e=(LOADING, [9, 8]))
            names = one._handle_invalid_blocks({2}, {"a": 5, "b": 3, "c": 1})
            self.assertEqual((names, self.begun), ({"a", "b", "d"},) * 2)
            self.assertEqual(one.running, [one.requests["c"]])
            self.assertEqual(one.waiting, ["a", "b", "d"])
            self.assertEqual(self.evicted, {2, 3, 4, 8})
            self.assertEqual(one.prev_step_scheduled_req_ids, {"c", "e"})
            self.assertEqual(one.reset_preempted_req_ids, {"a", "b", "d"})
            self.assertEqual(one.requests["e"].num_computed_tokens, 4)
            self.assertEqual(one.failed_recving_kv_req_ids, {"e"})
            told = [one.requests[name] for name in "abd"]
            if older:  # only what the next step makes of them
                self.assertEqual([r.async_tokens_to_discard for r in told], [1, 0, 1])
            else:
                self.assertEqual([r.num_stale_output_tokens for r in told], [6, 3, 2])
                self.assertTrue(all(r.drop_stale_output for r in told))
            self.assertEqual([r.num_output_placeholders for r in told], [0, 0, 0])

    def test_a_piece_of_a_prompt_has_no_token_to_be_left_out(self):
        one = self.scheduler(True, "a", a=(RUNNING, [1, 2], 4, 4))
        one.requests["a"].is_prefill_chunk = True
        self.assertEqual(one._handle_invalid_blocks({2}, {"a": 4}), {"a"})
        self.assertEqual(one.requests["a"].async_tokens_to_discard, 0)

    def test_behind_a_request_that_is_gone_everything_is_begun_again(self):
        """What it had computed, and who shares that, nobody knows any more."""
        for older in (True, False):
            one = self.scheduler(
                older, "abx", a=(RUNNING, [1, 2], 1, 1), b=(PREEMPTED, [], 4),
                c=(PREEMPTED, [], 1))
            names = one._handle_invalid_blocks({9}, {"a": 1, "b": 4, "c": 1, "x": 3})
            self.assertEqual((names, self.evicted), ({"a", "b", "x"}, ALL))
            self.assertEqual(one.waiting, ["a"])
            # c was admitted before: its token is right, and still expected.
            self.assertEqual(one.requests["b"].num_output_placeholders, 0)
            self.assertEqual(one.requests["c"].num_output_placeholders, 1)

    def test_what_is_all_its_own_is_not_begun_again(self):
        """Log probabilities of its prompt come once, with a step that would be left out; from the step
        behind that they end vLLM 0.26."""
        one = self.scheduler(True, "ax", a=(RUNNING, [1, 2], 1), p=(RUNNING, [3, 4], 4, 4))
        one.requests["p"].skip_reading_prefix_cache = True
        self.assertEqual(one._handle_invalid_blocks({9}, {"a": 1, "p": 4}), {"a", "x"})
        self.assertEqual(one.running, [one.requests["p"]])
        one = self.scheduler(True, "", p=(RUNNING, [3, 4], 4, 4))
        one.requests["p"].skip_reading_prefix_cache = True
        self.assertEqual(one._handle_invalid_blocks({4}, {"p": 4}), {"p"})

    def test_a_reset_beside_running_requests_leaves_the_next_step_out(self):
        """Which vLLM has counted with this one, when it preempted them."""
        one = self.scheduler(True, "ab", a=(PREEMPTED, [], 1, 1), b=(PREEMPTED, [], 1))
        for name, n in (("a", 2), ("b", 1)):
            one.requests[name].num_output_placeholders = 0
            one.requests[name].async_tokens_to_discard = n
        self.assertEqual(one._handle_invalid_blocks({9}, {"a": 1, "b": 1}), {"a", "b"})
        self.assertEqual([one.requests[name].async_tokens_to_discard for name in "ab"], [1, 0])

    def test_beside_other_connectors_it_is_asked_all_the_same(self):
        one = self.scheduler(True, "bx", a=(PREEMPTED, [], 1), b=(RUNNING, [1, 2], 1))
        one.connector = space(_connectors=[one.connector, space()])
        self.assertEqual(one._handle_invalid_blocks({9}, {"a": 1, "b": 1}), {"a", "b", "x"})
        self.assertEqual((self.evicted, self.begun), (ALL, {"b"}))

    def test_loads_beside_the_steps_concern_nobody_else(self):
        one = self.scheduler(False, "", a=(RUNNING, [1, 2], 1, 1), b=(LOADING, [3, 4, 5]))
        self.assertEqual(one._handle_invalid_blocks({4, 5}, {"a": 1}), set())
        self.assertEqual(one.running, [one.requests["a"]])
        self.assertEqual(one.requests["b"].num_computed_tokens, 4)
        self.assertEqual(one.failed_recving_kv_req_ids, {"b"})

    def test_where_requests_fail_whoever_has_computed_on_one_that_does_fails_too(self):
        """Where steps are told to wait. Of other connectors nobody knows who may have."""
        with mock.patch.object(stand_in.Scheduler, "_handle_invalid_blocks",
                               lambda self, invalid, scheduled: {"a"}):
            for admitted, failed, evicted in (
                    ("ab", "abe", {1, 2, 4, 7}), ("abx", "abcex", ALL)):
                self.evicted.clear()
                one = self.scheduler(
                    False, admitted, a=(RUNNING, [1, 2], 1, 1), b=(RUNNING, [3, 2, 4], 1),
                    c=(RUNNING, [5, 6], 1), d=(PREEMPTED, [], 1), e=(LOADING, [4, 7]))
                one.recompute_kv_load_failures = False
                one.connector = space(_connectors=[one.connector, space()])
                self.assertEqual(one._handle_invalid_blocks({1}, dict.fromkeys("abcd", 1)), {*failed})
                self.assertEqual((self.evicted, len(one.running)), (evicted, 3))

    def test_what_it_does_not_repair_is_left_to_vllm(self):
        one = self.scheduler(False, "a", a=(RUNNING, [1, 2], 1, 1))
        one.kv_cache_config.kv_cache_groups.append(2)
        self.assertRaises(NotImplementedError, one._handle_invalid_blocks, {1}, {"a": 1})

    def test_without_a_known_way_no_step_waits(self):
        from kvcache_client.vllm import connector

        def untold(self, request, timestamp):  # to the runner, as in vLLM 0.20
            Older._preempt_request(self, request, timestamp)
            self.reset_preempted_req_ids.clear()

        class Deaf(OlderAhead):
            def _update_request_with_output(self, request, new):
                return new, False

        config = stand_in.config({})
        for kind, ahead in ((type("Scheduler", (Older,), {"_preempt_request": untold}), OlderAhead),
                            (type("Scheduler", (), {}), OlderAhead),
                            (type("Scheduler", (Older,), {}), Deaf)):
            before = dict(vars(kind))
            with mock.patch.object(support.sys.modules[__name__], "OlderAhead", ahead):
                self.assertFalse(self.install(kind))
            self.assertFalse(connector._waits(config, None))
            with self.assertLogs("kvcache_client.vllm", "WARNING"):
                self.assertTrue(connector._waits(config, True))
            self.assertEqual(dict(vars(kind)), before)
        self.assertTrue(self.install(type("Scheduler", (Older,), {})))
        self.assertTrue(connector._waits(config, None))
        config.kv_transfer_config.kv_load_failure_policy = "fail"
        with mock.patch.object(self.repairs, "waited_loads", return_value=True) as repair:
            self.assertFalse(connector._waits(config, None))
            with self.assertLogs("kvcache_client.vllm", "WARNING"):
                self.assertTrue(connector._waits(config, True))
        self.assertEqual(repair.call_count, 2)
        config.kv_transfer_config.kv_load_failure_policy = "recompute"
        config.parallel_config.pipeline_parallel_size = 2
        self.assertFalse(connector._waits(config, None))


if __name__ == "__main__":
    support.main(__name__)
