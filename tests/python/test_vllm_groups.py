#!/usr/bin/env python3
"""Groups and ranks in the vLLM connector, on stand-ins for vLLM: which layouts are known, and that
what is loaded of them is right."""

import types
from unittest import mock

import stand_in
import support
from stand_in import TOKENS, MambaSpec, MLAAttentionSpec, Request, SlidingWindowSpec
from vllm_case import Case, layer_by_layer, prompt

from kvcache_client.parts import Rule
from kvcache_client.vllm.layout import LayoutError, arrangement, block_axis, block_tokens


def states(mode):
    return [stand_in.FullAttentionSpec(), MambaSpec(mamba_cache_mode=mode)]


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

    def test_full_and_state_groups(self):
        """States at the end of each block: the one at the boundary is loaded."""
        daemon = self.daemon()
        first = self.engine(daemon, states("all"))
        second = self.engine(daemon, states("all"))
        tokens = prompt(50)
        first.serve(Request(tokens), chunk=7)
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 2 * 12)
        self.assertEqual(second.serve(Request(tokens)), 48)
        self.assertEqual(second.counts()["loaded_blocks"], 12 + 1)
        self.assertEqual(second.serve(Request(tokens[:30] + prompt(10))), 28)

    def test_states_that_are_there_only_where_a_step_ended(self):
        daemon = self.daemon()
        first = self.engine(daemon, states("align"))
        second = self.engine(daemon, states("align"))
        tokens = prompt(50)
        first.serve(Request(tokens), chunk=5 * TOKENS)
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 12 + 2)
        # Beside the steps: such engines copy states before a connector is called.
        request = Request(tokens)
        self.assertEqual(second.admit(request), (40, True))
        second.finish(request)
        second.run(stand_in.step())
        self.assertEqual(second.serve(Request(tokens)), 40)
        self.assertEqual(second.serve(Request(tokens[:30])), 20)
        self.assertEqual(second.serve(Request(tokens[:20])), 0)
        other = self.engine(daemon, states("align"))
        self.assertEqual(other.serve(Request(prompt(8)), decode=13), 0)
        self.settled(daemon)

    def test_states_beside_a_drafter_are_refused(self):
        specs = [MambaSpec(mamba_cache_mode="all", num_speculative_blocks=2)]
        with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
            engine = self.engine(self.daemon(), specs)
        self.assertIn("states beside speculative decoding", said.output[0])
        self.assertEqual(engine.serve(Request(prompt(20))), 0)

    def test_kernel_blocks_that_are_pieces_of_blocks(self):
        daemon = self.daemon()
        first, second = self.engine(daemon, pieces=2), self.engine(daemon, pieces=2)
        tokens = prompt(30)
        first.serve(Request(tokens))
        self.assertEqual(second.serve(Request(tokens)), 28)

    def test_blocks_that_lie_otherwise_in_memory_do_not_meet(self):
        """Backends of one engine put heads before tokens, or behind them; bytes are the same."""
        space = types.SimpleNamespace
        numbers = {"sizes": (10, 16, 8, 4), "tokens first": (512, 32, 4, 1),
                   "heads first": (512, 4, 64, 1)}
        found = {name: arrangement(space(shape=numbers["sizes"], stride=lambda s=s: s), 0, 10)
                 for name, s in numbers.items() if name != "sizes"}
        self.assertEqual(found, {"tokens first": "1:16 2:8 3:4", "heads first": "2:8 1:16 3:4"})
        split = stand_in.Tensor((2, 20, 8, 4, 4))
        self.assertEqual(arrangement(split, 1, 10), "0:2 2:2 3:8 4:4 5:4")
        daemon = self.daemon()
        tokens = prompt(30)
        self.engine(daemon).serve(Request(tokens))
        self.assertEqual(self.engine(daemon, pieces=2).serve(Request(tokens)), 0)

    def test_everything_that_decides_about_content_is_in_the_name(self):
        from kvcache_client.vllm.layout import Rank, namespace

        engine = self.engine(self.daemon(), ranks=2)
        config, spec = engine.config, stand_in.FullAttentionSpec()
        layers = {"model.layers.0.attn": spec, "model.layers.1.attn": spec}

        def name(rank=Rank(0, 2), hashes="h", layers=layers, arranged="a", model="m", **changes):
            for path, value in changes.items():
                where, _, field = path.partition("__")
                with mock.patch.object(getattr(config, where), field, value, create=True):
                    return namespace(config, model, hashes, layers, rank, arranged).digest()
            return namespace(config, model, hashes, layers, rank, arranged).digest()

        later = {"model.layers.2.attn": spec, "model.layers.3.attn": spec}
        drafter = types.SimpleNamespace(speculative_config=types.SimpleNamespace(model="d"))
        names = [
            name(), name(Rank(1, 2)), name(Rank(0, 1)), name(Rank(0, 2, 1, 2)),
            name(Rank(0, 2, 0, 2)), name(Rank(0, 2, 0, 1, 1, 2)), name(Rank(0, 2, 0, 1, 0, 2)),
            name(hashes="i"), name(layers=later), name(arranged="b"), name(model="n"),
            name(model_config__dtype="torch.bfloat16"), name(cache_config__cache_dtype="fp8"),
            name(model_config__quantization="awq"), name(model_config__revision="r"),
            name(model_config__hf_text_config=types.SimpleNamespace(rope_theta=1)),
            name(model_config__hf_text_config=types.SimpleNamespace(max_position_embeddings=9)),
            name(Rank(0, 2, 0, 1, 0, 2), parallel_config__cp_kv_cache_interleave_size=2),
        ]
        # Other factors for longer contexts, in all of an engine that is made for them.
        long = types.SimpleNamespace(rope_parameters={"rope_type": "longrope"})
        with mock.patch.object(config.model_config, "hf_text_config", long, create=True):
            names += [name(model_config__max_model_len=n) for n in (4096, 8192)]
        self.assertEqual(name(model_config__max_model_len=4096), names[0])
        with mock.patch.object(config, "speculative_config", drafter.speculative_config):
            names.append(name())
        made_up = types.SimpleNamespace(load_format="dummy")
        with mock.patch.object(config, "load_config", made_up, create=True):
            names.append(name())
            self.assertEqual(name(load_config__load_format="auto"), names[0])
        self.assertEqual(len(set(names)), len(names))

    def test_replicated_heads_are_stored_once(self):
        """Two KV heads on four ranks are two shards."""
        from kvcache_client.vllm.layout import Rank, namespace

        engine = self.engine(self.daemon(), ranks=4, kv_heads=2)
        layers = {"model.layers.0.attn": stand_in.FullAttentionSpec()}
        names = [namespace(engine.config, "m", "h", layers, Rank(r, 4)).digest() for r in range(4)]
        self.assertEqual((names[0], names[2]), (names[1], names[3]))
        self.assertNotEqual(names[0], names[2])
        self.assertEqual(len(engine.scheduler._scheduler._all), 2)

    def test_what_one_rank_has_not_saved_is_not_found(self):
        daemon, tokens = self.daemon(), prompt(30)
        first, second = (self.engine(daemon, ranks=2) for _ in range(2))
        with mock.patch.object(first.workers[1]._worker._link, "ready", return_value=None):
            first.serve(Request(tokens))
        self.assertEqual(self.figures(daemon)["blocks"], 7)
        self.assertEqual(second.serve(Request(tokens)), 0)
        self.assertEqual(self.figures(daemon)["blocks"], 14)
        self.assertEqual(first.serve(Request(tokens)), 28)

    def test_what_each_rank_has_of_its_own_is_not_shared(self):
        """States, and layers with more KV heads than the others, in models whose KV heads are
        replicated."""
        from kvcache_client.vllm.layout import Rank, namespace

        space, full = types.SimpleNamespace, stand_in.FullAttentionSpec()

        def shards(*specs, tp=4, draft=None, **text):
            config = stand_in.config({}, tp, kv_heads=2)
            config.model_config.hf_text_config = space(**text)
            config.speculative_config = draft and space(model="d", draft_model_config=space(
                get_total_num_kv_heads=lambda: draft))
            layers = {f"model.layers.{i}.attn": spec for i, spec in enumerate(specs)}
            return len({namespace(config, "m", "h", layers, Rank(r, tp)).digest()
                        for r in range(tp)})

        self.assertEqual(shards(full), 2)
        self.assertEqual(shards(MambaSpec(mamba_cache_mode="all")), 4)
        self.assertEqual(shards(MLAAttentionSpec(), MLAAttentionSpec()), 1)
        self.assertEqual(shards(MLAAttentionSpec(), full), 4)  # a drafter's layer
        self.assertEqual((shards(full, draft=2), shards(full, draft=4)), (2, 4))
        self.assertEqual(shards(full, tp=8, draft=4), 4)
        self.assertEqual(shards(full, num_key_value_heads=2, num_global_key_value_heads=1), 2)
        self.assertEqual(shards(full, num_key_value_heads=[2, 2, 4]), 4)
        self.assertEqual(shards(full, block_configs=[space()]), 4)

    def test_prefill_context_parallel_ranks_are_refused(self):
        engine = self.engine(self.daemon())
        engine.config.parallel_config.prefill_context_parallel_size = 2
        with self.assertRaises(LayoutError):
            block_tokens(engine.config, engine.cache)

    def test_groups_that_context_parallel_ranks_do_not_divide_have_other_blocks(self):
        """vLLM 0.33 divides a model's blocks among them, but not a drafter's."""
        engine = self.engine(self.daemon(), states("all"))
        engine.config.parallel_config.decode_context_parallel_size = 2
        full, state = (g.kv_cache_spec for g in engine.cache.kv_cache_groups)
        state.block_size = 2 * TOKENS
        self.assertEqual(block_tokens(engine.config, engine.cache), 2 * TOKENS)
        full.dcp_sharded = False
        with self.assertRaisesRegex(LayoutError, r"blocks of \[4, 8\] tokens"):
            block_tokens(engine.config, engine.cache)

    def test_blocks_that_have_slid_out_of_a_window_are_not_saved(self):
        """By then they may be another request's: only what the next token sees is named."""
        from kvcache_client.vllm.requests import group_ids

        info = types.SimpleNamespace(rule=Rule.WINDOW, window=TOKENS + 2, block_tokens=TOKENS)
        table = list(range(1, 21))
        for computed in range(3 * TOKENS, 6 * TOKENS):
            first = max(0, computed - info.window + 1) // TOKENS  # that vLLM has not given back
            ids = group_ids(info, table, 0, 7, computed)
            self.assertEqual(ids, [None] * first + table[first:7], computed)

    def test_layouts_that_differ_do_not_meet(self):
        daemon = self.daemon()
        tokens = prompt(30)
        self.engine(daemon).serve(Request(tokens))
        self.assertEqual(self.engine(daemon, layers=3).serve(Request(tokens)), 0)
        self.assertEqual(self.engine(daemon, ranks=2).serve(Request(tokens)), 0)

    def test_scales_of_one_engine_are_refused(self):
        """They are not in the blocks, and another engine's are not the same."""
        plain = stand_in.config

        def scaled(*arguments, **how):
            config = plain(*arguments, **how)
            config.cache_config.calculate_kv_scales = True
            return config

        with mock.patch.object(stand_in, "config", scaled), (
                self.assertLogs("kvcache_client.vllm", "ERROR")) as said:
            engine = self.engine(self.daemon())
        self.assertIn("calculate_kv_scales", said.output[0])
        for _ in range(2):
            self.assertEqual(engine.serve(Request(prompt(20, 78))), 0)

    def test_what_does_not_follow_from_its_prefix_is_refused(self):
        """vLLM takes its own prefix cache from such models: blocks follow from later tokens, or
        outputs from more than the blocks."""
        engine = self.engine(self.daemon())
        config, cache = engine.config, engine.cache
        self.assertEqual(block_tokens(config, cache), TOKENS)
        with mock.patch.object(cache.kv_cache_groups[0].kv_cache_spec, "non_causal", True,
                               create=True), self.assertRaisesRegex(LayoutError, "not causal"):
            block_tokens(config, cache)
        with mock.patch.object(config.cache_config, "enable_prefix_caching", False):
            self.assertEqual(block_tokens(config, cache), TOKENS)  # somebody wanted it so
            with mock.patch.object(config.model_config, "is_prefix_caching_supported", False,
                                   create=True), self.assertRaisesRegex(LayoutError, "prefixes"):
                block_tokens(config, cache)

    def test_a_layout_that_is_not_known_is_refused(self):
        daemon = self.daemon()
        with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
            engine = self.engine(daemon, [MambaSpec()])
        self.assertIn("MambaSpec: the engine keeps no states", said.output[0])
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

    def test_a_version_with_other_fields_is_refused(self):
        """With a line in the log, and the engine runs on."""
        for field in ("page_size_bytes", "block_size"):
            spec = stand_in.FullAttentionSpec()
            setattr(spec, field, None)
            with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
                engine = self.engine(self.daemon(), [spec])
            self.assertIn("not used: ", said.output[0])
            self.assertEqual([engine.serve(Request(prompt(20, 79))) for _ in range(2)], [0, 0])

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

        outer, _ = cross_layer_slices(stand_in.Tensor((400, 3, TOKENS, 24)), 400)
        self.assertEqual([(s.bytes, s.stride) for s in outer], [(3 * TOKENS * 24,) * 2])
        inner, axis = cross_layer_slices(stand_in.Tensor((3, 800, TOKENS // 2, 24)), 400)
        self.assertEqual(axis, 1)
        self.assertEqual([(s.bytes, s.stride) for s in inner], [(TOKENS * 24,) * 2] * 3)
        with self.assertRaises(LayoutError):
            cross_layer_slices(stand_in.Tensor((4, 3, 4, 24)), 4)


class Repairs(Case):
    def test_states_that_are_not_there_are_not_counted_as_computed(self):
        """As vLLM 0.24 to 0.26 does beside a connector: attention has 6 blocks, the states 2."""
        from kvcache_client.vllm import repairs

        class Coordinator:
            def find_longest_cache_hit(self, hashes, longest):
                return (hashes[:2], hashes[:2]), 2 * TOKENS, 0

            def find_longest_cache_hit_per_group(self, hashes, longest):
                return (hashes[:6], hashes[:2]), (6 * TOKENS, 2 * TOKENS)

        later = type("Later", (), {"supports_divergent_local_hybrid_hits": False})
        stand_in._module("vllm.v1.core.kv_cache_coordinator", HybridKVCacheCoordinator=Coordinator)
        hashes, one = list(range(9)), Coordinator()
        self.assertFalse(repairs.common_prefixes(later))
        self.assertEqual(max(one.find_longest_cache_hit_per_group(hashes, 99)[1]), 6 * TOKENS)
        self.assertTrue(repairs.common_prefixes(object))
        blocks, lengths = one.find_longest_cache_hit_per_group(hashes, 99)
        self.assertEqual((blocks, lengths), ((hashes[:2], hashes[:2]), (2 * TOKENS,) * 2))

    def older(self, **methods):
        """vLLM's before 0.30, but for these methods."""
        class Scheduler:
            def _update_requests_with_invalid_blocks(
                    self, requests, invalid, scheduled, evict_blocks=True):
                for request in requests:
                    (ids,) = self.kv_cache_manager.get_block_ids(request.request_id)
                return "what one group has"

            def _update_waiting_for_remote_kv(self, request):
                if request.num_computed_tokens == 0:
                    self.kv_cache_manager.free(request)
                self.failed_recving_kv_req_ids.remove(request.request_id)
                self.finished_recving_kv_req_ids.remove(request.request_id)

        for name, method in methods.items():
            setattr(Scheduler, name, method)
        self.addCleanup(stand_in.install)
        stand_in._module("vllm.v1.core.sched.scheduler", Scheduler=Scheduler)
        return Scheduler

    def test_failed_loads_of_several_groups_do_not_end_the_engine(self):
        from kvcache_client.vllm import repairs

        space, one = types.SimpleNamespace, self.older()()
        blocks = {"a": ([1, 2], [3, 0]), "b": ([4], [5]), "c": ([6], [2])}
        one.kv_cache_manager = space(get_block_ids=blocks.get)
        one.kv_cache_config = space(kv_cache_groups=[1, 2])
        requests = [space(request_id=r, num_computed_tokens=8) for r in "abc"]
        update = one._update_requests_with_invalid_blocks
        self.assertRaises(ValueError, update, requests, {3}, {}, evict_blocks=False)
        self.assertTrue(repairs.failed_loads())
        self.assertTrue(repairs.failed_loads())  # by each engine of a process
        update = one._update_requests_with_invalid_blocks
        self.assertEqual(update(requests, {3, 9}, {}, evict_blocks=False), ({"a"}, 8, set()))
        self.assertEqual([r.num_computed_tokens for r in requests], [0, 8, 8])
        self.assertEqual(update(requests[1:], {3}, {}), (set(), 0, set()))
        self.assertRaises(ValueError, update, requests, {3}, {})  # these run
        one.kv_cache_config.kv_cache_groups.pop()
        one.kv_cache_manager.get_block_ids = lambda request: ([1],)
        self.assertEqual(update(requests, {3}, {}), "what one group has")

    def test_where_it_is_not_known_what_a_failed_load_does_the_cache_is_not_used(self):
        from kvcache_client.vllm import connector

        kinds = [self.older(_update_waiting_for_remote_kv=lambda scheduler, request: None),
                 self.older(_update_requests_with_invalid_blocks=lambda *a, **how: set())]
        daemon, tokens = self.daemon(), prompt(20)
        specs = [stand_in.FullAttentionSpec(), SlidingWindowSpec()]
        with mock.patch.object(connector, "KVConnectorBase_V1", object):
            for kind in [*kinds, type("Scheduler", (), {})]:
                stand_in._module("vllm.v1.core.sched.scheduler", Scheduler=kind)
                before = dict(vars(kind))
                with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
                    engine = self.engine(daemon, specs)
                self.assertIn("not used", said.output[0])
                self.assertEqual(dict(vars(kind)), before)
                for _ in range(2):
                    self.assertEqual(engine.serve(Request(tokens)), 0)
            one_group = self.engine(daemon)
            one_group.serve(Request(tokens))
            self.assertEqual(one_group.serve(Request(tokens)), 16)
            self.older()
            self.engine(daemon, specs).serve(Request(tokens))
            self.assertEqual(self.engine(daemon, specs).serve(Request(tokens)), 16)


class FailedLoads(Case):
    """Of several groups: vLLM is told which requests lack something."""

    def fails(self, daemon, specs, ranks=1):
        engine, tokens = self.engine(daemon, specs, ranks=ranks), prompt(42)
        engine.serve(Request(tokens))
        counts, lookups = engine.counts("scheduler"), engine.counts("scheduler")["lookups"]
        away = engine.workers[-1]._worker  # others may have it all
        with mock.patch.object(away._link, "ready", return_value=None):
            request = Request(tokens)
            self.assertEqual(engine.serve(request, finish=False), 40)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        engine.finish(request)
        self.assertEqual(counts["lookups"], lookups + 1)
        self.assertEqual((counts["failed_requests"], away.counts["failed_loads"]), (1, 1))
        self.settled(daemon)
        support.until(lambda: engine.serve(Request(tokens)) == 40, "no hit")
        self.assertEqual(counts["failed_requests"], 1)

    def test_are_computed(self):
        for tier in ("8M", "0"):
            daemon = self.daemon("--gpu-bytes", tier)
            for specs in ([stand_in.FullAttentionSpec(), SlidingWindowSpec()], states("all")):
                self.fails(daemon, specs)
                self.fails(daemon, specs, ranks=2)

    def test_no_step_waits_for_loads(self):
        engine = self.engine(self.daemon(), [stand_in.FullAttentionSpec(), SlidingWindowSpec()])
        tokens = prompt(42)
        engine.serve(Request(tokens))
        request = Request(tokens)
        self.assertEqual(engine.admit(request), (40, True))
        engine.run(stand_in.step())
        engine.finish(request)

    def test_blocks_that_fail_while_another_group_is_loaded_are_not_forgotten(self):
        from kvcache_client.errors import DeadlineError
        from kvcache_client.vllm.messages import LoadOrder
        from kvcache_client.vllm.worker import _Loading

        class OneGroup:
            valid = b""

            def __init__(self, *answers):
                self.answers = list(answers)

            def wait(self, ms):
                if isinstance(self.answers[0], Exception):
                    raise self.answers.pop(0)
                return self.answers.pop(0)

        worker = self.engine(self.daemon()).workers[0]._worker
        order = LoadOrder("r", b"", 0, 2, ([1, 2], [None, 3]), True)
        late = DeadlineError("it is still under way")
        worker._beside.append(_Loading(order, [OneGroup([2]), OneGroup(late, [])], {1, 2, 3}))
        self.assertEqual(worker.poll(), (set(), set(), set()))
        self.assertEqual(worker.poll(), ({"r"}, {2}, {"r"}))


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


GroupsByLayer = layer_by_layer(Groups)

support.main(__name__)
