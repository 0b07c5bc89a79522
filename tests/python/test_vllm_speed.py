#!/usr/bin/env python3
"""What the vLLM connector costs a step, in questions to the daemon; and from which length on it loads
instead of computing, which its statistics say."""

import contextlib
import time
from unittest import mock

import support
from stand_in import TOKENS, MLAAttentionSpec, Request, step
from vllm_case import Case, prompt

from kvcache_client import Client
from kvcache_client.vllm.breakeven import NEVER, STEP_TOKENS, BreakEven, LoadCost

LONG = 2 * STEP_TOKENS


class Questions(Case):
    """Calls of the library; all but kvc_load_result are questions that wait for the daemon's answer."""

    @contextlib.contextmanager
    def calls(self):
        """Of all sides, in order."""
        made, check = [], Client._check

        def counted(client, call, *arguments):
            made.append(call)
            return check(client, call, *arguments)

        with mock.patch.object(Client, "_check", counted):
            yield made
        made[:] = [call for call in made if call != "kvc_figures"]  # of the tests themselves

    def decoding(self, engine, n):
        """So many requests behind their prompts of two blocks, and what decodes the next token of all."""
        requests = [Request(prompt(2 * TOKENS)) for _ in range(n)]
        for request in requests:
            engine.admit(request)
        engine.run(step(new=[(r.request_id, engine.tables[r.request_id], 0) for r in requests],
                        scheduled={r.request_id: 2 * TOKENS for r in requests}),
                   [(r, 0, 2 * TOKENS) for r in requests])

        def decode():
            cached = []
            for r in requests:
                at, name, new = r.num_tokens, r.request_id, None
                if at % TOKENS == 0:
                    new = [[next(engine.free)] for _ in engine.specs]
                    for ids, more in zip(engine.tables[name], new):
                        ids.extend(more)
                r.all_token_ids.append(1000 + at)
                cached.append((name, new, at))
            engine.run(step(cached=cached, scheduled={r.request_id: 1 for r in requests}),
                       [(r, r.num_tokens - 1, r.num_tokens) for r in requests])

        return requests, decode

    def test_a_step_that_saves_and_loads_nothing_asks_nobody(self):
        engine = self.engine(self.daemon(), extra={"save_every": 1000}, ranks=2)
        _, decode = self.decoding(engine, 3)
        with self.calls() as made:
            for _ in range(40):
                decode()
            engine.run(step())
        self.assertEqual(made, [])

    def test_decoding_requests_cost_one_question_in_so_many_steps(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"save_every": 8})
        requests, decode = self.decoding(engine, 5)
        with self.calls() as made:
            for _ in range(32):
                decode()
        self.assertEqual(made, ["kvc_save"] * 4)
        for request in requests:
            engine.finish(request)
        self.settled(daemon)
        self.assertGreaterEqual(self.figures(daemon)["blocks"], 5 * (2 + 32 // TOKENS - 1))

    def test_a_prompt_that_nobody_has_costs_a_lookup_and_a_save(self):
        engine = self.engine(self.daemon())
        with self.calls() as made:
            engine.serve(Request(prompt(200)))
        self.assertEqual(made, ["kvc_lookup", "kvc_save"])
        with self.calls() as made:
            engine.serve(Request(prompt(200)), chunk=40)  # a save for each step that completes blocks
        self.assertEqual(made, ["kvc_lookup"] + ["kvc_save"] * 5)

    def test_a_hit_costs_four_questions_of_which_a_worker_asks_two(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(200)
        engine.serve(Request(tokens))
        with self.calls() as made:
            self.assertEqual(engine.serve(Request(tokens + [7])), 200)
        self.assertEqual(made, ["kvc_lookup", "kvc_adopt", "kvc_load", "kvc_load_result",
                                "kvc_release"])
        self.settled(daemon)

    def test_a_load_that_is_under_way_is_looked_at_without_a_question(self):
        daemon = self.daemon("--gpu-bytes", "0")
        engine = self.engine(daemon)
        tokens = prompt(200)
        engine.serve(Request(tokens))
        other = self.engine(daemon)
        with self.calls() as made:
            self.assertEqual(other.serve(Request(tokens + [7])), 200)
        looks = [call for call in made if call != "kvc_load_result"]
        self.assertEqual(looks, ["kvc_lookup", "kvc_adopt", "kvc_load", "kvc_release"])

    def test_a_request_that_waits_for_room_is_asked_about_while_there_may_be_more(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lease_ms": 5000})
        tokens = prompt(200)
        engine.serve(Request(tokens))
        found, waiting = [], [Request(tokens + [7]), Request(tokens + prompt(20))]
        with self.calls() as made:
            for request in waiting:
                for _ in range(5):
                    found.append(engine.scheduler.get_num_new_matched_tokens(request, 0))
        self.assertEqual(found, [(200, False)] * 10)
        self.assertEqual(made, ["kvc_lookup"] * (1 + 5))
        clock = time.monotonic
        with self.calls() as made, mock.patch("time.monotonic", lambda: clock() + 3):
            engine.scheduler.get_num_new_matched_tokens(waiting[0], 0)  # half of its time is over
        self.assertEqual(made, ["kvc_lookup"])
        with self.calls() as made:
            engine.scheduler.get_num_new_matched_tokens(waiting[0], 40)  # the own cache has more
        self.assertEqual(made, ["kvc_lookup"])
        for request in waiting:
            engine.finish(request)
        self.settled(daemon)

    def test_every_rank_asks_for_its_own_part_only(self):
        daemon = self.daemon()
        engine = self.engine(daemon, [MLAAttentionSpec()], ranks=2, kv_heads=1)
        tokens = prompt(200)
        engine.serve(Request(tokens))
        with self.calls() as made:
            self.assertEqual(engine.serve(Request(tokens + [7])), 200)
        self.assertEqual(made, [
            "kvc_lookup", *["kvc_adopt", "kvc_load"] * 2, *["kvc_load_result"] * 2, "kvc_release"])
        self.settled(daemon)


class Speed(Case):
    def engine(self, daemon, **how):
        how["extra"] = {"min_tokens": None, **how.get("extra", {})}
        return super().engine(daemon, **how)

    def measured(self, engine, a_token, fixed, prefill):
        """As if copies and forward passes had taken so long, s."""
        side = engine.scheduler._scheduler.break_even
        side.ranks([LoadCost(fixed, a_token, a_token)])
        side._samples.clear()
        side.computed([(STEP_TOKENS, prefill * STEP_TOKENS)] * 5)
        return side

    def test_a_gain_that_costs_more_than_computing_it_is_declined(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.measured(engine, a_token=1e-6, fixed=20e-6, prefill=2e-6)  # 21 tokens and more
        self.assertEqual(engine.serve(Request(tokens[:18])), 0)
        self.assertEqual(engine.counts("scheduler")["declined"], 1)
        self.assertEqual(engine.serve(Request(tokens)), 28)
        self.measured(engine, a_token=3e-6, fixed=0, prefill=2e-6)  # a link slower than computing
        self.assertEqual(engine.serve(Request(tokens)), 0)
        self.assertEqual(engine.counts("scheduler")["declined"], 2)
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_the_option_overrides_what_was_measured(self):
        engine = self.engine(self.daemon(), extra={"min_tokens": 0})
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.measured(engine, a_token=3e-6, fixed=1, prefill=2e-6)
        self.assertEqual(engine.serve(Request(tokens)), 28)

    def test_forward_passes_and_copies_are_measured(self):
        engine = self.engine(self.daemon(), ranks=2)
        side = engine.scheduler._scheduler.break_even
        self.assertGreater(side.cost.fixed, 0)
        self.assertGreater(side.cost.gpu, 0)
        for _ in range(2):
            engine.serve(Request(prompt(20)))
        self.assertEqual(side.figures()["prefill_tokens_s"], 0)  # too short to say anything
        with self.assertLogs("kvcache_client.vllm", "INFO") as said:
            for _ in range(4):
                engine.serve(Request(prompt(LONG)))
        self.assertIn("loading pays", said.output[-1])
        stats = engine.scheduler.get_kv_connector_stats().reduce()
        self.assertGreater(stats["scheduler_now_prefill_tokens_s"], 0)
        self.assertGreater(stats["scheduler_now_load_tokens_s_gpu"], 0)
        self.assertIn("scheduler_now_break_even_tokens_host", stats)

    def test_a_daemon_that_starts_last_is_measured_then(self):
        daemon = self.daemon()
        daemon.stop()
        engine = self.engine(daemon, extra={"connect_ms": 50}, ranks=2)
        side = engine.scheduler._scheduler.break_even
        self.assertEqual(side.cost.fixed, 0)
        daemon.start()

        def measured():
            engine.serve(Request(prompt(9)))
            return side.cost.fixed > 0 and side.cost.gpu > 0

        support.until(measured, "never measured")

    def test_figures_of_now_are_not_added_up(self):
        engine = self.engine(self.daemon())
        self.measured(engine, a_token=1e-6, fixed=20e-6, prefill=2e-6)
        kind = type(engine.scheduler.get_kv_connector_stats())
        stats = kind(data={"scheduler_now_x": 3, "scheduler_y": 3})
        stats = stats.aggregate(kind(data={"scheduler_now_x": 2, "scheduler_y": 2}))
        self.assertEqual(stats.reduce(), {"scheduler_now_x": 2, "scheduler_y": 5})


class Arithmetic(Case):
    def test_break_even(self):
        some = BreakEven()
        self.assertTrue(some.pays(1, 0))  # nothing is known yet
        self.assertFalse(some.pays(0, 0))
        some.ranks([LoadCost(1e-3, 1e-6, 4e-6), LoadCost(2e-3, 0.5e-6, 4e-6)])
        some.computed([(STEP_TOKENS, 6e-6 * STEP_TOKENS)] * 5)
        figures = some.figures()
        self.assertAlmostEqual(figures["break_even_tokens_gpu"], 400, delta=1)  # 2 ms / 5 us
        self.assertAlmostEqual(figures["break_even_tokens_host"], 2000, delta=1)  # 4 ms / 2 us
        self.assertTrue(some.pays(402, 0))
        self.assertFalse(some.pays(398, 0))
        self.assertFalse(some.pays(0, 1998))
        self.assertTrue(some.pays(1500, 500))
        some.computed([(STEP_TOKENS, 1e-6 * STEP_TOKENS)] * 64)
        self.assertEqual(some.tokens(some.cost.host), NEVER)
        self.assertEqual(some.figures()["break_even_tokens_host"], -1)
        self.assertIn("never (host tier)", str(some))
        self.assertEqual(TOKENS * BreakEven(8).tokens(1.0), 32)


support.main(__name__)
