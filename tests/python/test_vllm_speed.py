#!/usr/bin/env python3
"""From which length on the vLLM connector loads instead of computing; its statistics say so."""

import support
from stand_in import TOKENS, Request
from vllm_case import Case, prompt

from kvcache_client.vllm.breakeven import NEVER, STEP_TOKENS, BreakEven, LoadCost

LONG = 2 * STEP_TOKENS


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
