#!/usr/bin/env python3
"""The connector in the vLLM that is installed: made by its factory, called by its scheduler and its
model runner's frame, with its own requests and outputs; a forward pass is played on the CPU.

scripts/check-vllm installs vLLM and runs this; make check does not. Arguments name tests.
    real_vllm.py --signatures BASE.PY...    compares signatures only, without importing vLLM
"""

import ast
import contextlib
import hashlib
import inspect
import json
import os
import signal
import sys
import time
from unittest import mock

import support
from support import MS

TOKENS, LAYERS, HEADS, SIZE, BLOCKS = 16, 2, 2, 16, 200


# Signatures, which need no vLLM.


def functions_of(path, name):
    """{method: argument names} of a class in a file."""
    with open(path) as f:
        tree = ast.parse(f.read())
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
    return {
        n.name: [a.arg for a in n.args.posonlyargs + n.args.args]
        for n in found.body if isinstance(n, ast.FunctionDef)
    }


def abstract_of(path, name):
    with open(path) as f:
        tree = ast.parse(f.read())
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
    return {
        n.name for n in found.body if isinstance(n, ast.FunctionDef)
        and any(ast.unparse(d) == "abstractmethod" for d in n.decorator_list)
    }


def compare(path):
    """What is wrong with the connector for this version's base class."""
    ours = functions_of(
        os.path.join(support.ROOT, "client/python/kvcache_client/vllm/connector.py"),
        "KvcacheConnector",
    )
    wrong = []
    for name in ("KVConnectorBase_V1", "SupportsHMA"):
        theirs = functions_of(path, name)
        wrong += [f"{m} is missing" for m in abstract_of(path, name) if m not in ours]
        wrong += [
            f"{m}({', '.join(ours[m])}), there ({', '.join(args)})"
            for m, args in theirs.items() if m in ours and ours[m] != args
        ]
    return wrong


class Signatures(support.Case):
    def test_signatures_of_the_installed_version(self):
        from vllm.distributed.kv_transfer.kv_connector.v1 import base

        self.assertEqual(compare(inspect.getfile(base)), [])


# The engine.


class Engine:
    """window: of a second group of layers. ahead: steps may be scheduled ahead."""

    def __init__(self, socket, folder, window=None, ahead=False, **extra):
        import torch
        from vllm.config import (
            CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig)
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, SlidingWindowSpec,
        )
        from vllm.v1.structured_output import StructuredOutputManager

        self.torch = torch
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
                "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": LAYERS,
                "num_key_value_heads": HEADS, "head_dim": SIZE, "vocab_size": 1000,
                "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
            }, f)
        self.config = VllmConfig(
            model_config=ModelConfig(
                model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16",
                seed=0, max_model_len=2048),
            cache_config=CacheConfig(block_size=TOKENS, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_seqs=8, max_num_batched_tokens=128, max_model_len=2048,
                enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=False),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=self.transfer({
                "socket": socket, "connect_ms": MS, "lookup_ms": MS, "save_ms": MS,
                "model": "a model", "min_tokens": 0, "save_every": 1, **extra}),
        )
        self.config.cache_config.num_gpu_blocks = BLOCKS
        self.config.scheduler_config.async_scheduling = ahead  # whatever the platform says
        how = dict(block_size=TOKENS, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.bfloat16)
        specs = [FullAttentionSpec(**how)]
        if window:
            specs.append(SlidingWindowSpec(sliding_window=window, **how))
        # The first layers of all groups are in one tensor, and so on.
        self.windows = [getattr(spec, "sliding_window", None) for spec in specs]
        self.layers = [[f"model.layers.{g * LAYERS + i}.self_attn.attn" for i in range(LAYERS)]
                       for g in range(len(specs))]
        cache = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=self.places(
                KVCacheTensor, list(zip(*self.layers)), specs[0].page_size_bytes),
            kv_cache_groups=[KVCacheGroupSpec(*both) for both in zip(self.layers, specs)],
        )
        self.tensors = {}
        for names in zip(*self.layers):
            one = torch.zeros(BLOCKS, HEADS, TOKENS, 2 * SIZE, dtype=torch.bfloat16)
            self.tensors.update(dict.fromkeys(names, one))
        self.scheduler = Scheduler(
            vllm_config=self.config, kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(self.config), block_size=TOKENS,
            log_stats=True)
        self.worker = KVConnectorFactory.create_connector(
            self.config, KVConnectorRole.WORKER, cache)
        self.worker.register_kv_caches(self.tensors)
        said, connector = self.worker.get_handshake_metadata(), self.scheduler.connector
        if hasattr(connector, "set_xfer_handshake_metadata_pp_aware"):
            connector.set_xfer_handshake_metadata_pp_aware({(0, 0): said})
        else:
            connector.set_xfer_handshake_metadata({0: said})
        self.tables, self.requests, self.loaded = {}, {}, {}

    def transfer(self, extra):
        from vllm.config import KVTransferConfig

        return KVTransferConfig(
            kv_connector="KvcacheConnector", kv_connector_module_path="kvcache_client.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute", kv_connector_extra_config=extra)

    def ours(self, connector):
        return connector

    @staticmethod
    def places(kind, names, page):
        """Where the layers lie, layer by layer, as this version says it."""
        if "layers" in inspect.signature(kind).parameters:
            return [kind(size=len(names) * BLOCKS * page, layers=list(group),
                         layer_stride=BLOCKS * page, block_stride=page) for group in zip(*names)]
        return [kind(size=BLOCKS * page, shared_by=list(n)) for n in names]

    def close(self):
        self.worker.shutdown()
        self.scheduler.shutdown()

    def request(self, name, tokens, max_tokens=1):
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        hash_fn = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_fn)
        parameters = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        with contextlib.suppress(AttributeError):
            parameters.update_from_generation_config({}, 2)
        self.requests[name] = Request(
            request_id=name, prompt_token_ids=list(tokens), sampling_params=parameters,
            pooling_params=None, block_hasher=get_request_block_hasher(TOKENS, hash_fn))
        self.scheduler.add_request(self.requests[name])

    def row(self, name, position, layer):
        prefix = repr(list(self.requests[name].all_token_ids[: position + 1])).encode()
        data = hashlib.shake_128(prefix + bytes([layer])).digest(HEADS * 2 * SIZE * 2)
        bits = self.torch.frombuffer(bytearray(data), dtype=self.torch.int16)
        return bits.view(HEADS, 2 * SIZE)

    def place(self, name, position, group, layer):
        block = self.tables[name][group][position // TOKENS]
        return self.tensors[layer].view(self.torch.int16)[block, :, position % TOKENS]

    def forward(self, output):
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [list(ids) for ids in new.block_ids]
            self.loaded[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        begin = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        for i, name in enumerate(cached.req_ids):
            begin[name] = cached.num_computed_tokens[i]
            new = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                self.tables[name] = [list(ids) for ids in new]
            elif new is not None:
                for have, ids in zip(self.tables[name], new):
                    have += ids
        for name in self.tensors:
            self.worker.wait_for_layer_load(name)
        # Computed on what did not arrive, the outputs are thrown away.
        lost = self.ours(self.worker)._worker._invalid
        for name, n in output.num_scheduled_tokens.items():
            for g, layers in enumerate(self.layers):
                self.compute(name, g, layers, begin[name], n, lost)
        for name, tensor in self.tensors.items():
            self.worker.save_kv_layer(name, tensor, None)

    def compute(self, name, group, layers, begin, n, lost):
        window = self.windows[group]
        for p in range(max(0, begin - window + 1) if window else 0, begin + n):
            for i, layer in enumerate(layers, group * LAYERS):
                place, row = self.place(name, p, group, layer), self.row(name, p, i)
                if p >= begin:
                    place.copy_(row)
                elif not lost and not self.torch.equal(place, row):
                    raise AssertionError(f"{name}: position {p} of {layer} is wrong")

    def run(self, output):
        """A step of the worker."""
        from vllm.distributed.kv_transfer import kv_transfer_state
        from vllm.forward_context import set_forward_context
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

        kv_transfer_state._KV_CONNECTOR_AGENT = self.worker
        try:
            if output.total_num_scheduled_tokens == 0:
                return KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self.config)
            with set_forward_context(None, self.config), (
                    KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(output)) as said:
                self.forward(output)
            names = list(output.num_scheduled_tokens)
            return ModelRunnerOutput(
                req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)},
                sampled_token_ids=[self.sampled(n) for n in names], kv_connector_output=said)
        finally:
            kv_transfer_state._KV_CONNECTOR_AGENT = None

    def sampled(self, name):
        done = self.requests[name].num_computed_tokens >= self.requests[name].num_tokens
        return [7] if done else []

    def step(self):
        output = self.scheduler.schedule()
        self.said = self.scheduler.update_from_output(output, self.run(output))

    def serve(self, name, tokens, max_tokens=1):
        """How many tokens of the prompt were not computed."""
        self.request(name, tokens, max_tokens)
        support.until(lambda: self.step() or not self.scheduler.has_unfinished_requests(),
                      "the request does not end", 60)
        return self.loaded[name]


class Served(support.Case):
    def engine(self, daemon, **how):
        engine = Engine(daemon.socket, self.folder, **how)
        self.addCleanup(engine.close)
        return engine

    def figures(self, daemon):
        return self.client(daemon, role="operator").statistics()

    def settled(self, daemon):
        support.until(lambda: self.figures(daemon)["filling_slots"] == 0, "not published")

    def test_computed_by_one_engine_loaded_by_another(self):
        daemon = self.daemon()
        first, second = self.engine(daemon), self.engine(daemon)
        tokens = [(i * 7) % 900 for i in range(330)]
        self.assertEqual(first.serve("a", tokens, 40), 0)
        self.settled(daemon)
        self.assertEqual(self.figures(daemon)["blocks"], 23)
        self.assertEqual(second.serve("b", tokens), 320)
        self.assertEqual(second.serve("c", tokens[:160]), 144)
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_layer_by_layer(self):
        daemon = self.daemon()
        first = self.engine(daemon, layer_by_layer=True)
        second = self.engine(daemon, layer_by_layer=True)
        tokens = [(i * 29) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)
        self.assertEqual(second.serve("b", tokens), 320)

    def test_beside_the_engines_own_prefix_cache(self):
        daemon = self.daemon()
        first, second = self.engine(daemon), self.engine(daemon)
        tokens = [(i * 11) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)
        self.assertEqual(second.serve("b", tokens[:100]), 96)
        self.assertEqual(second.serve("c", tokens), 320)
        self.assertTrue(second.scheduler.reset_prefix_cache(reset_connector=True))
        self.assertEqual(second.serve("d", tokens), 0)

    def test_loaded_from_the_host_tier_beside_the_steps(self):
        daemon = self.daemon("--gpu-bytes", "0")
        first, second = self.engine(daemon), self.engine(daemon)
        tokens = [(i * 13) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)
        self.assertEqual(second.serve("b", tokens), 320)

    def test_an_own_chain_of_hashes(self):
        daemon = self.daemon()
        first, second = self.engine(daemon, own_hashes=True), self.engine(daemon, own_hashes=True)
        tokens = [(i * 17) % 900 for i in range(100)]
        first.serve("a", tokens)
        self.settled(daemon)
        self.assertEqual(second.serve("b", tokens), 96)

    def flush_behind_the_lookup(self, first, second):
        """By the first engine, in the second one's next step."""
        start = second.worker.start_load_kv

        def flushed(*arguments):
            second.worker.start_load_kv = start
            first.scheduler.connector.reset_cache()
            return start(*arguments)

        second.worker.start_load_kv = flushed

    def test_the_prefix_is_flushed_behind_the_lookup(self):
        daemon = self.daemon()
        first, second = self.engine(daemon), self.engine(daemon)
        tokens = [(i * 19) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)
        self.flush_behind_the_lookup(first, second)
        second.serve("b", tokens)
        self.assertEqual(second.worker._worker.counts["failed_loads"], 1)
        second.serve("c", tokens[:-1])

    def test_the_daemon_is_killed(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens = [(i * 23) % 900 for i in range(330)]
        engine.serve("a", tokens)
        daemon.kill()
        engine.serve("b", tokens)
        engine.serve("c", tokens[:200])

    def test_the_daemon_is_killed_and_restarted_in_the_middle_of_requests(self, **how):
        daemon = self.daemon()
        engine = self.engine(daemon, retry_s=0.01, connect_ms=200, **how)
        prompts = [[(i * (3 + n % 5)) % 900 for i in range(100 + 17 * n)] for n in range(16)]
        for n, tokens in enumerate(prompts):
            engine.request(f"r{n}", tokens, 8)
        steps = 0
        while engine.scheduler.has_unfinished_requests():
            if steps in (4, 14):
                daemon.kill()
            elif steps in (8, 18):
                daemon.start()
            engine.step()
            steps += 1
        self.assertGreater(steps, 18)
        self.assertGreater(engine.worker._worker.counts["daemon_losses"], 0)

        def hits():
            engine.scheduler.reset_prefix_cache()
            return engine.serve(f"again {time.monotonic()}", prompts[0]) > 0

        support.until(hits, "no hit after the daemon came back", 20)

    def test_the_daemon_is_killed_and_restarted_under_several_groups(self):
        self.test_the_daemon_is_killed_and_restarted_in_the_middle_of_requests(window=40)

    def test_both_tiers_are_full(self):
        daemon = self.daemon("--gpu-bytes", "2M", "--host-bytes", "2M")
        engine = self.engine(daemon)
        for n in range(40):
            engine.serve(f"r{n}", [(i * 7 + n) % 900 for i in range(600)])
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_two_engines_with_different_layouts(self):
        daemon = self.daemon()
        first = self.engine(daemon)
        tokens = [(i * 31) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)
        with mock.patch.object(sys.modules[__name__], "HEADS", 4):
            second = self.engine(daemon)
            self.assertEqual(second.serve("b", tokens), 0)
            second.scheduler.reset_prefix_cache()
            self.settled(daemon)
            self.assertEqual(second.serve("c", tokens), 320)

    def test_preempted_and_resumed(self):
        daemon = self.daemon()
        with mock.patch.object(sys.modules[__name__], "BLOCKS", 24):
            engine = self.engine(daemon)
            for n in range(2):
                engine.request(f"r{n}", [(i * 43 + n) % 900 for i in range(150)], 60)
            while engine.scheduler.has_unfinished_requests():
                engine.step()
        self.assertEqual({r.num_output_tokens for r in engine.requests.values()}, {60})
        self.assertGreater(sum(r.num_preemptions for r in engine.requests.values()), 0)
        self.assertEqual(self.figures(daemon)["leases"], 0)
        # What was preempted is found where it was saved.
        self.assertGreater(engine.scheduler.connector._scheduler.counts["hit_requests"], 0)

    def test_aborted_while_it_is_loaded(self):
        from vllm.v1.request import RequestStatus

        for tier, window in (("8M", None), ("0", None), ("8M", 40)):
            daemon = self.daemon("--gpu-bytes", tier)
            first, second = (self.engine(daemon, window=window) for _ in range(2))
            tokens = [(i * 47) % 900 for i in range(330)]
            first.serve("a", tokens)
            self.settled(daemon)
            second.request("b", tokens, 8)
            second.step()
            second.scheduler.finish_requests("b", RequestStatus.FINISHED_ABORTED)
            second.request("c", tokens[:40])

            def over():
                second.step()
                return not second.scheduler.has_unfinished_requests() and (
                    self.figures(daemon)["leases"] == 0)

            support.until(over, "a lease stays")
            self.assertTrue(second.scheduler.reset_prefix_cache())
            self.assertEqual(second.serve("d", tokens), 320)

    def test_an_idle_engines_last_request_is_published(self):
        daemon = self.daemon()
        first, second = self.engine(daemon), self.engine(daemon)
        tokens = [(i * 37) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)  # no step in between
        self.assertEqual(second.serve("b", tokens), 320)

    def test_a_lookup_that_is_late_is_computed(self):
        daemon = self.daemon()
        engine = self.engine(daemon, lookup_ms=20, save_ms=20)
        tokens = [(i * 41) % 900 for i in range(330)]
        engine.serve("a", tokens)
        engine.scheduler.reset_prefix_cache()
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            self.assertEqual(engine.serve("b", tokens), 0)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(engine.scheduler.connector._scheduler.counts["late_lookups"], 1)

    def test_a_load_of_several_groups_that_fails(self):
        for tier in ("0", "8M"):
            daemon = self.daemon("--gpu-bytes", tier)
            first, second = (self.engine(daemon, window=40) for _ in range(2))
            tokens = [(i * 53) % 900 for i in range(330)]
            first.serve("a", tokens)
            self.settled(daemon)
            self.assertEqual(second.serve("b", tokens), 320)
            self.assertEqual(second.worker._worker.counts["loaded_blocks"], 20 + 3)
            second.scheduler.reset_prefix_cache()
            self.flush_behind_the_lookup(first, second)
            lookups = second.scheduler.connector._scheduler.counts["lookups"]
            self.assertEqual(second.serve("c", tokens, 8), 0)
            self.assertEqual(second.worker._worker.counts["failed_loads"], 1)
            self.assertEqual(
                second.scheduler.connector._scheduler.counts["lookups"], lookups + 1)
            self.settled(daemon)
            self.assertEqual(self.figures(daemon)["leases"], 0)
            # Once its worker knows of the flush.
            support.until(lambda: second.scheduler.reset_prefix_cache() and second.serve(
                f"again {time.monotonic()}", tokens) == 320, "no hit")


def main():
    if sys.argv[1:2] == ["--signatures"]:
        failed = False
        for path in sys.argv[2:]:
            wrong = compare(path)
            print(f"{'not ok' if wrong else 'ok'} - {path}", *wrong, sep="\n    ")
            failed = failed or bool(wrong)
        sys.exit(failed)
    import faulthandler

    faulthandler.enable()
    support.LIMIT_S = 300  # the first test has vLLM imported
    support.main("__main__")


if __name__ == "__main__":
    main()
