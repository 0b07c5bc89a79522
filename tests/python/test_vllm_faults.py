#!/usr/bin/env python3
"""Nothing that happens to the daemon reaches a request of an engine with the vLLM connector."""

import signal
import time

import support
from stand_in import TOKENS, Request, step
from vllm_case import Case, layer_by_layer, prompt


class Faults(Case):
    def test_a_load_that_fails_is_computed(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(42)
        other.serve(Request(tokens))
        request = Request(tokens)
        admit = engine.admit

        def flushed_behind(*arguments):
            found = admit(*arguments)
            self.assertTrue(other.scheduler.reset_cache())
            return found

        engine.admit = flushed_behind
        self.assertEqual(engine.serve(request), 40)  # was told so, and computed it after all
        engine.admit = admit
        self.assertGreater(engine.counts()["failed_blocks"], 0)
        self.assertEqual(engine.counts("scheduler")["failed_blocks"], 10)
        self.settled(daemon)
        # Nothing that was computed on blocks that were not there has been saved.
        for one in (engine, other):
            for _ in range(5):
                one.serve(Request(prompt(9)))
            one.serve(Request(tokens))
            one.serve(Request(tokens))
        self.assertGreater(other.counts()["loaded_blocks"], 0)

    def test_blocks_of_a_failed_load_are_not_written_under_the_forward_pass(self):
        """Copies that were enqueued before it failed end before the blocks are computed."""
        from kvcache_client.vllm.streams import NoStreams

        class Recorder(NoStreams):
            waits = 0

            def mark(self):
                return "a place on the side stream"

            def compute_after(self, mark):
                self.waits += mark == "a place on the side stream"

        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(42)
        other.serve(Request(tokens))
        engine.workers[0]._worker._streams = recorder = Recorder()
        request = Request(tokens)
        engine.admit(request)
        other.scheduler.reset_cache()
        name = request.request_id
        invalid, _ = engine.run(
            step(new=[(name, engine.tables[name], 40)], scheduled={name: 2}), [(request, 40, 42)])
        self.assertEqual(len(invalid), 10)
        self.assertGreaterEqual(recorder.waits, 1)
        engine.finish(request)

    def test_saves_are_held_back_for_the_steps_that_ran_ahead(self):
        """Each step counts once, although two calls end it."""
        engine = self.engine(self.daemon())
        engine.workers[0]._worker._distrust = 3
        saved = []
        for _ in range(5):
            engine.serve(Request(prompt(TOKENS)))
            saved.append(engine.counts()["saved_blocks"])
        self.assertEqual(saved, [0, 0, 0, 1, 2])

    def test_a_daemon_that_comes_back_with_other_tiers(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        worker = engine.workers[0]._worker
        self.assertFalse(worker._host_only)
        daemon.kill()
        daemon._command += ["--gpu-bytes", "0"]
        daemon.start()
        tokens = prompt(30)

        def hits():
            time.sleep(0.02)
            return engine.serve(Request(tokens)) == 28

        support.until(hits, "no hit after the daemon came back")
        self.assertTrue(worker._host_only)

    def test_a_daemon_that_is_killed_and_comes_back(self):
        daemon = self.daemon()
        engine = self.engine(daemon, ranks=2)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 28)
        request = Request(tokens)
        engine.scheduler.get_num_new_matched_tokens(request, 0)
        daemon.kill()
        begin = time.monotonic()
        for _ in range(5):
            self.assertEqual(engine.serve(Request(tokens)), 0)
        engine.finish(request)
        self.assertLess(time.monotonic() - begin, 5 * support.MULTIPLIER)
        daemon.start()

        def hits():
            time.sleep(0.02)
            return engine.serve(Request(tokens)) == 28

        support.until(hits, "no hit after the daemon came back")

    def test_a_daemon_that_starts_last(self):
        daemon = self.daemon()
        daemon.stop()
        engine = self.engine(daemon, extra={"connect_ms": 50})
        self.assertEqual(engine.serve(Request(prompt(20))), 0)
        daemon.start()
        tokens = prompt(30)
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")

    def test_a_lookup_that_is_late_is_a_miss(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lookup_ms": 30})
        tokens = prompt(30)
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            found = engine.scheduler.get_num_new_matched_tokens(Request(tokens), 0)
            took = time.monotonic() - begin
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(found, (0, False))
        self.assertLess(took, 1 * support.MULTIPLIER)
        self.assertEqual(engine.counts("scheduler")["late_lookups"], 1)

    def test_a_reset_makes_everything_a_miss(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertTrue(engine.scheduler.reset_cache())
        self.assertEqual(engine.serve(Request(tokens)), 0)
        self.assertEqual(other.serve(Request(tokens)), 0)
        support.until(lambda: other.serve(Request(tokens)) == 28, "never saved again")

    def test_a_full_daemon_slows_nobody(self):
        daemon = self.daemon("--gpu-bytes", "2M", "--host-bytes", "2M")
        engine = self.engine(daemon)
        for _ in range(60):
            engine.serve(Request(prompt(60)))
        self.assertLessEqual(self.figures(daemon)["tiers.gpu.used_bytes"], 2 << 20)

    def test_loaded_from_the_host_tier_beside_the_steps(self):
        daemon = self.daemon("--gpu-bytes", "0")
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.settled(daemon)
        request = Request(tokens)
        self.assertEqual(other.admit(request), (28, True))
        other.finish(request)
        other.run(step())
        self.assertEqual(other.serve(Request(tokens)), 28)
        self.settled(daemon)

    def test_another_failure_policy_is_warned_of(self):
        with self.assertLogs("kvcache_client.vllm", "WARNING") as said:
            self.engine(self.daemon(), kv_load_failure_policy="fail")
        self.assertIn("kv_load_failure_policy is not recompute", said.output[0])

    def test_statistics_add_up(self):
        engine = self.engine(self.daemon(), ranks=2)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        engine.serve(Request(tokens))
        stats = engine.workers[0].get_kv_connector_stats()
        stats = stats.aggregate(engine.workers[1].get_kv_connector_stats())
        stats = stats.aggregate(engine.scheduler.get_kv_connector_stats())
        self.assertEqual(stats.reduce()["worker_loaded_blocks"], 14)
        self.assertEqual(stats.reduce()["scheduler_hit_tokens"], 28)
        self.assertIsNone(engine.workers[0].get_kv_connector_stats())


FaultsByLayer = layer_by_layer(Faults)

support.main(__name__)
