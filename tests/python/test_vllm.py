#!/usr/bin/env python3
"""The vLLM connector on stand-ins for vLLM, against a real daemon: what is loaded is right, what is
saved is complete, and nothing that happens to the daemon reaches a request."""

import itertools
import os
import signal
import subprocess
import sys
import time

import stand_in
import support
from stand_in import TOKENS, Engine, MambaSpec, MLAAttentionSpec, Request, SlidingWindowSpec, step
from support import MS

stand_in.install()
os.environ.pop("PYTHONHASHSEED", None)

from kvcache_client import Client  # noqa: E402
from kvcache_client.vllm import chain  # noqa: E402
from kvcache_client.vllm.layout import LayoutError, block_axis, block_tokens  # noqa: E402
from kvcache_client.vllm.options import options_of  # noqa: E402

_seed = itertools.count(1)


def prompt(n, seed=None):
    seed = next(_seed) if seed is None else seed
    return [seed * 1000 + i for i in range(n)]


class Case(support.Case):
    by_layer = False

    def engine(self, daemon, specs=None, **how):
        extra = {"layer_by_layer": self.by_layer, "socket": daemon.socket, "lookup_ms": MS,
                 "save_ms": MS, "connect_ms": MS, "retry_s": 0.05, **how.pop("extra", {})}
        engine = Engine(extra, specs, **how)
        self.addCleanup(engine.close)

        def settle():
            if daemon.process.poll() is None:
                self.settled(daemon)

        engine.settle = settle
        return engine

    def figures(self, daemon):
        with Client(daemon.socket, role="operator", connect_ms=MS) as operator:
            return operator.statistics()

    def settled(self, daemon):
        """Every save is published, and nothing is held."""
        busy = ("filling_slots", "open_loads", "leases")
        support.until(lambda: not any(self.figures(daemon)[b] for b in busy), "not settled")


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

    def test_requests_that_must_not_be_cached(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = prompt(20)
        for fields in ({"kv_transfer_params": {"kvcached": False}}, {"prompt_embeds": object()},
                       {"resumable": True}):
            engine.serve(Request(tokens, **fields))
        self.assertEqual(self.figures(daemon)["blocks"], 0)
        engine.serve(Request(tokens))
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


class Groups(Case):
    def test_ranks_of_one_model(self):
        daemon = self.daemon()
        first, second = self.engine(daemon, ranks=3), self.engine(daemon, ranks=3)
        tokens = prompt(30)
        first.serve(Request(tokens))
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 21)
        self.assertEqual(second.serve(Request(tokens)), 28)
        self.settled(daemon)

    def test_identical_shards_are_stored_once(self):
        daemon = self.daemon()
        tokens = prompt(30)
        engine = self.engine(daemon, [MLAAttentionSpec()], ranks=2)
        engine.serve(Request(tokens))
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 7)
        self.assertEqual(engine.serve(Request(tokens)), 28)

    def test_full_and_sliding_window_groups(self):
        daemon = self.daemon()
        specs = [stand_in.FullAttentionSpec(), SlidingWindowSpec()]
        first, second = self.engine(daemon, specs), self.engine(daemon, specs)
        tokens = prompt(50)
        first.serve(Request(tokens), chunk=7)
        self.settled(daemon)
        self.assertEqual(second.serve(Request(tokens)), 48)
        self.assertEqual(second.counts()["loaded_blocks"], 12 + 2)

    def test_kernel_blocks_that_are_pieces_of_blocks(self):
        daemon = self.daemon()
        first, second = self.engine(daemon, pieces=2), self.engine(daemon)
        tokens = prompt(30)
        first.serve(Request(tokens))
        self.assertEqual(second.serve(Request(tokens)), 28)

    def test_layouts_that_differ_do_not_meet(self):
        daemon = self.daemon()
        tokens = prompt(30)
        self.engine(daemon).serve(Request(tokens))
        self.assertEqual(self.engine(daemon, layers=3).serve(Request(tokens)), 0)
        self.assertEqual(self.engine(daemon, ranks=2).serve(Request(tokens)), 0)

    def test_a_layout_that_is_not_known_is_refused(self):
        daemon = self.daemon()
        with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
            engine = self.engine(daemon, [MambaSpec()])
        self.assertIn("MambaSpec is not known", said.output[0])
        for _ in range(2):
            self.assertEqual(engine.serve(Request(prompt(20, 77))), 0)
        for field, value in (("host_resident", True), ("enable_kv_transfer", False)):
            setattr(engine.cache.kv_cache_groups[0], field, value)
            with self.assertRaises(LayoutError):
                block_tokens(engine.config, engine.cache)
            delattr(engine.cache.kv_cache_groups[0], field)
        with self.assertRaises(LayoutError):
            block_axis((3, 400, 8), 400)
        self.assertEqual(block_axis((2, 800, 8), 400), 1)
        self.assertEqual(block_axis((400, 2, 8), 400), 0)

    def test_a_page_that_is_not_all_there_is_refused(self):
        class Wide(stand_in.FullAttentionSpec):
            pass

        Wide.__name__ = "FullAttentionSpec"
        with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
            engine = self.engine(self.daemon(), [Wide(page_size_bytes=TOKENS * 24 + 8)])
        self.assertIn("its page has 104", said.output[0])
        self.assertEqual(engine.serve(Request(prompt(20))), 0)

    def test_one_tensor_of_all_layers(self):
        """Where the engine offers it a block is one piece."""
        from kvcache_client.vllm.layout import cross_layer_slices

        outer = cross_layer_slices(stand_in.Tensor((400, 3, TOKENS, 24)), 400)
        self.assertEqual([(s.bytes, s.stride) for s in outer], [(3 * TOKENS * 24,) * 2])
        inner = cross_layer_slices(stand_in.Tensor((3, 800, TOKENS // 2, 24)), 400)
        self.assertEqual([(s.bytes, s.stride) for s in inner], [(TOKENS * 24,) * 2] * 3)
        with self.assertRaises(LayoutError):
            cross_layer_slices(stand_in.Tensor((4, 3, 4, 24)), 4)

    def test_workers_on_several_hosts_are_refused(self):
        from kvcache_client.vllm.messages import RankInfo
        from kvcache_client.vllm.scheduler import SchedulerSide

        side = SchedulerSide(options_of({}), TOKENS)
        with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
            self.assertFalse(side.set_ranks([RankInfo((), "a"), RankInfo((), "b")]))
            self.assertFalse(side.set_ranks([RankInfo((), "a"), None]))
        self.assertIn("several hosts", said.output[0])
        side.close()


class Names(Case):
    def test_engines_with_random_hashes_meet(self):
        """As before vLLM had a fixed seed: hashes that differ in each process."""
        stand_in.install(fixed_seed=False)
        self.addCleanup(stand_in.install)
        daemon = self.daemon()
        tokens = prompt(30)
        self.engine(daemon).serve(Request(tokens, seed=b"one"))
        self.assertEqual(self.engine(daemon).serve(Request(tokens, seed=b"two")), 28)

    def F42_chain_vectors(self):
        """Equal in every process and every Python."""
        first = chain.link(chain.ROOT, [1, 2, 3, 4])
        second = chain.link(first, [5, 6, 7, 8], ("adapter", ("image", -3), b"x", None, True))
        self.assertEqual(
            [chain.ROOT.hex()[:16], first.hex()[:16], second.hex()[:16]], VECTORS)
        code = ("import sys; sys.path[:0] = [sys.argv[1]]\n"
                "from kvcache_client.vllm import chain\n"
                "print(chain.link(chain.ROOT, [1, 2, 3, 4]).hex())")
        for seed in ("0", "1"):
            said = subprocess.run(
                [sys.executable, "-c", code, os.path.join(support.ROOT, "client", "python")],
                env=dict(os.environ, PYTHONHASHSEED=seed), capture_output=True, text=True)
            self.assertEqual(said.stdout.strip(), first.hex(), said.stderr)

    def test_different_extra_keys_give_different_hashes(self):
        values = [None, 0, "", b"", (), (0,), ("",), (("",),), ("a", "b"), ("ab",), 1, True, "1",
                  (1, 2), ((1,), 2), (1, (2,))]
        found = {chain.link(chain.ROOT, [1], v) for v in values}
        self.assertEqual(len(found), len(values))
        with self.assertRaises(TypeError):
            chain.encode(1.5)

    def test_options_that_do_not_exist_are_named(self):
        with self.assertRaisesRegex(ValueError, "no option sockt"):
            options_of({"sockt": "x"})
        with self.assertRaisesRegex(ValueError, "lookup_ms: 'x'"):
            options_of({"lookup_ms": "x"})
        with self.assertRaisesRegex(ValueError, "save: 1"):
            options_of({"save": 1})


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


def layer_by_layer(kind):
    """The same tests, with a connector that copies layer by layer."""
    def again(method):
        def test(self):
            self.by_layer = True
            method(self)

        return test

    names = [n for n in vars(kind) if n.startswith("test_")]
    return type(f"{kind.__name__}ByLayer", (Case,),
                {f"{n}_layer_by_layer": again(vars(kind)[n]) for n in names})


class PiecewiseGraphs(Case):
    def test_layer_by_layer_asks_for_piecewise_graphs(self):
        from kvcache_client.vllm import KvcacheConnector as kind

        self.assertFalse(kind.requires_piecewise_for_cudagraph({}))
        self.assertTrue(kind.requires_piecewise_for_cudagraph({"layer_by_layer": True}))

    def test_layers_that_nobody_calls_are_saved_at_the_end(self):
        daemon = self.daemon()
        self.by_layer = True
        engine = self.engine(daemon, layers=4)
        worker = engine.workers[0]
        tokens = prompt(30)
        called = worker.save_kv_layer
        worker.save_kv_layer = lambda name, *_: called(name, *_) if ".1." in name else None
        engine.serve(Request(tokens))
        self.assertEqual(self.figures(daemon)["blocks"], 7)
        self.assertEqual(engine.serve(Request(tokens)), 28)


RequestsByLayer = layer_by_layer(Requests)
GroupsByLayer = layer_by_layer(Groups)
FaultsByLayer = layer_by_layer(Faults)

VECTORS = ["a6b1a69b4c2da042", "64aa33b59f9f8bd8", "12a375dab6f98df3"]

support.main(__name__)
