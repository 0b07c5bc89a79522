#!/usr/bin/env python3
"""What happens to a daemon under an engine with many requests, on stand-ins for vLLM: all of them
end, with right outputs, and statistics and log say what happened."""

import os
import signal
import subprocess
import sys
import time

import stand_in
import support
from stand_in import Request
from support import MS, Cache, some_keys
from vllm_case import Case, prompt
from vllm_load import Load

N = 40


def prompts(n, talks=6, first=1):
    """Some share their beginnings."""
    return [prompt(20, seed=first + i % talks) + prompt(7 + i % 16) for i in range(n)]


class UnderLoad(Case):
    def load(self, daemon, specs=None, **how):
        extra = {"save_ms": MS, "lookup_ms": MS, **how.pop("extra", {})}
        engine = self.engine(daemon, specs, extra=extra, **{"blocks": 1200, **how})
        return Load(engine)

    def ended(self, load, n=N):
        self.assertEqual(load.ended, n)
        load.engine.settle()

    def test_nothing_happens(self):
        daemon = self.daemon()
        load = self.load(daemon)
        load.add(prompts(N))
        load.run()
        self.ended(load)
        self.assertGreater(load.hits, N // 3)

    def test_loads_beside_the_steps(self):
        daemon = self.daemon("--gpu-bytes", "0")
        load = self.load(daemon)
        load.add(prompts(N))
        load.run()
        self.ended(load)
        self.assertGreater(load.engine.counts()["loaded_blocks"], 0)

    def killed(self, daemon, **how):
        """Killed, and started again, and both once more, in the middle."""
        load = self.load(daemon, extra={"log_s": 0.001, "retry_s": 0.01}, **how)
        load.add(prompts(2 * N))
        sides = [load.engine.scheduler._scheduler, load.engine.workers[0]._worker]
        counts = [side.counts for side in sides]

        def connected():
            return all(side._link.get() for side in sides)

        def happens(at):
            if at in (20, 60):
                support.until(connected, "not connected")
                daemon.kill()
            elif at in (30, 70):
                # Each side finds out by its next call.
                support.until(lambda: load.step() or all(
                    c["daemon_losses"] == (1 if at == 30 else 2) for c in counts), counts)
                daemon.start()
                support.until(connected, "not connected")

        with self.assertLogs("kvcache_client.vllm", "INFO") as said:
            load.run(happens)
        self.ended(load, 2 * N)
        self.assertGreater(load.hits, 0)
        line = [text for text in said.output if "scheduler_lookups=" in text][-1]
        self.assertIn("scheduler_daemon_losses=2", line)
        stats = load.engine.workers[0].get_kv_connector_stats().reduce()
        self.assertEqual(stats["worker_daemon_losses"], 2)

    def test_the_daemon_is_killed_and_restarted(self):
        self.killed(self.daemon())

    def test_the_daemon_is_killed_while_it_loads_beside_the_steps(self):
        self.killed(self.daemon("--gpu-bytes", "0"))

    def test_the_daemon_is_killed_where_vllm_does_not_recover(self):
        self.killed(self.daemon(), runner=2, ahead=True)

    def test_the_daemon_is_killed_under_two_ranks_and_a_window(self):
        specs = [stand_in.FullAttentionSpec(), stand_in.SlidingWindowSpec()]
        self.killed(self.daemon(), specs=specs, ranks=2)

    def test_both_tiers_are_full_of_what_is_leased(self):
        daemon = self.daemon("--gpu-bytes", "2M", "--host-bytes", "2M")
        other = self.client(daemon)
        cache = Cache((65536,), blocks=32)
        part = other.register(b"f" * 32, cache.slices, blocks=32, block_tokens=4)
        keys = some_keys(7, 64)
        for half in (keys[: 32 * 16], keys[32 * 16 :]):
            other.save(part, half, list(range(32))).wait(MS)
        lease = other.lookup(part, keys)
        load = self.load(daemon)
        load.add(prompts(N))
        load.run()
        self.assertEqual(load.ended, N)
        self.assertGreater(load.engine.counts()["skipped_blocks"], 0)
        self.assertGreater(lease.blocks, 16)

    def test_a_daemon_that_answers_late(self):
        """Stopped for some steps: lookups and saves are given up."""
        daemon = self.daemon()
        load = self.load(daemon, extra={"lookup_ms": 20, "save_ms": 20})
        load.add(prompts(N))

        def happens(at):
            if at == 15:
                daemon.process.send_signal(signal.SIGSTOP)
            elif at == 25:
                daemon.process.send_signal(signal.SIGCONT)

        try:
            load.run(happens)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(load.ended, N)

        def ended_late():  # by a later step; without one, by its time
            load.idle_step()
            return self.figures(daemon)["leases"] == 0

        support.until(ended_late, "leases that came late")
        load.engine.settle()
        counts = load.engine.counts("scheduler")
        dropped = load.engine.counts()["dropped_saves"]
        self.assertGreater(counts["late_lookups"] + counts["failed_lookups"] + dropped, 0)

    def test_everything_is_reset_in_the_middle(self):
        daemon = self.daemon()
        load = self.load(daemon)
        load.add(prompts(N))
        load.run(lambda at: at % 25 == 10 and load.engine.scheduler.reset_cache())
        self.ended(load)

    def test_two_engines_with_different_layouts(self):
        daemon = self.daemon()
        loads = [self.load(daemon), self.load(daemon, layers=3),
                 self.load(daemon, [stand_in.MLAAttentionSpec()], ranks=2)]
        for load in loads:
            load.add(prompts(N))
        while any(load.waiting or load.running for load in loads):
            for load in loads:
                if load.waiting or load.running:
                    load.step()
        for load in loads:
            self.ended(load)
            self.assertGreater(load.hits, N // 3)

    def test_restarted_with_another_block_size(self):
        daemon = self.daemon()
        load = self.load(daemon)
        load.add(prompts(N))
        load.run()
        load.engine.close()
        spec = stand_in.FullAttentionSpec(block_size=8, page_size_bytes=8 * stand_in.ROW)
        self.addCleanup(setattr, stand_in, "TOKENS", stand_in.TOKENS)
        stand_in.TOKENS = 8
        engine = self.engine(daemon, [spec])
        tokens = prompts(1)[0]
        self.assertEqual(engine.serve(Request(tokens)), 0)
        self.assertEqual(engine.serve(Request(tokens)), (len(tokens) - 1) // 8 * 8)
        self.settled(daemon)

    def test_an_idle_engines_last_request_is_published(self):
        daemon = self.daemon()
        load, other = self.load(daemon), self.load(daemon)
        tokens = prompt(30)
        load.add([tokens])
        load.run()
        self.settled(daemon)  # no step of the engine in between
        self.assertEqual(other.engine.serve(Request(tokens)), 28)

    def test_an_engine_is_killed(self):
        """Another one goes on with what it had saved; nothing of it stays held."""
        daemon = self.daemon(expect=())
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve", daemon.socket],
            stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(child.stdout.readline(), "serving\n")
            time.sleep(0.05)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        load = self.load(daemon)
        load.add(prompts(N))
        load.run()
        self.ended(load)
        self.assertGreater(load.hits, N // 3)


def serve(socket):
    """The engine that is killed."""
    engine = stand_in.Engine(
        {"socket": socket, "lookup_ms": MS, "save_ms": MS, "min_tokens": 0}, blocks=1200)
    load = Load(engine)
    load.add(prompts(N))
    load.run()
    print("serving", flush=True)
    while True:
        load.add(prompts(N))
        load.run()


if sys.argv[1:2] == ["--serve"]:
    serve(sys.argv[2])
support.main(__name__)
