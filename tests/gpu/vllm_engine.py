"""vLLM with random weights in a process of its own, for the benchmark and the tests that run the
connector in it. In a rehearsal (KVC_REHEARSE=1) it is vLLM's build for CPUs, with tiny shapes.
"""

import dataclasses
import faulthandler
import gc
import json
import os
import random
import shutil
import tempfile
import time

import kit
import vllm_ahead
import vllm_joined
import workloads
from kit import MS, Waived
from vllm_clock import Clock
from vllm_shapes import SHAPES

GIB = 1 << 30
LIMIT_S = 60  # of one call
START_S = 600 if kit.REHEARSE else 120  # of an engine of several ranks
SIZES = [1, 2, 4, 8, 16, 24, 32, 40, 48]  # of decoding batches with a CUDA graph
STREAM_TOKENS = 1024  # of a stream, then it begins again
TOLD = 5  # of the likeliest tokens, their log probabilities

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
if kit.REHEARSE:
    ENVIRONMENT.update({
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"})
# NVLink multicast puts GPUs that others share at risk.
OF_RANKS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """kind: which memory beside the engine's; None, "kvcached" or "offloading". gib: of KV in the
    engine. extra: options of the connector; more: arguments of vllm.LLM. ranks: so many, with weights
    that do not depend on how many there are; 0: one, with weights of its own. late: it is made by
    build(), and until then only imported. environment: more of its process."""

    shape: str
    kind: object = None
    socket: object = None
    gib: float = 1
    eager: bool = False
    longest: int = 8192
    block: int = 16
    extra: tuple = ()
    more: tuple = ()
    ranks: int = 0
    late: bool = False
    environment: tuple = ()

    def start(self):
        """Its process. A RuntimeError says why there is none."""
        if not self.ranks:
            remote = kit.Remote(Engine, self, **{**ENVIRONMENT, **dict(self.environment)})
        else:
            remote = Tree(Late if self.late else Engine, self, **ENVIRONMENT, **OF_RANKS)
        remote.limit_s = START_S if self.late else LIMIT_S
        return remote


class Tree(kit.Tree):
    start_s = START_S


def weights(model):
    """Equal in every process, and such that attention is not the same for all tokens: what a token
    becomes follows from those before it."""
    import torch

    generator = torch.Generator(kit.DEVICE).manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.fill_(1.0)
            elif name.rpartition(".")[2] in ("A", "A_log"):  # states remember some thousand tokens
                p.fill_(-0.001 if name.endswith("A") else -7.0)
            elif p.dim() > 1:
                scale = 0.02 if "embed" in name else (1.5 if "qkv" in name else 1.0) * (
                    p.shape[-1] ** -0.5)
                p.normal_(0, scale, generator=generator)
            else:
                p.zero_()


class Engine:
    """vLLM, in this process."""

    def __init__(self, setting):
        try:
            import vllm
        except ImportError as why:
            raise Waived(f"no vLLM: {why}") from None
        kit.need_gpus()
        begin = time.perf_counter()
        self.setting, self.vllm, self.random = setting, vllm, random.Random(1)
        self.folder = tempfile.mkdtemp(prefix="kvc-vllm-")
        with open(os.path.join(self.folder, "config.json"), "w") as f:
            json.dump({**SHAPES[setting.shape], "torch_dtype": "bfloat16", "bos_token_id": 1,
                       "max_position_embeddings": 32768, "eos_token_id": 2, "pad_token_id": 0}, f)
        self.vocab = SHAPES[setting.shape]["vocab_size"]
        from vllm.model_executor.model_loader import dummy_loader

        dummy_loader.DummyModelLoader.load_weights = lambda self, model, config: weights(model)
        if setting.shape == "states":
            from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

            Qwen3NextForCausalLM.set_moe_parameters = lambda self: None  # it has none
        if kit.REHEARSE and dict(setting.more).get("async_scheduling"):
            vllm_ahead.ahead()
        self.llm = vllm.LLM(self.folder, **self._arguments())
        self.engine = self.llm.llm_engine
        self._sides = self._share = self._beside = None
        self._asked = self._cached = 0
        self._watch()
        self._clocks = {
            side: Clock(side, self._connector(side == "worker"))
            for side in ("scheduler", "worker") if self._connector(side == "worker")}
        self.serve([(0.0, "warm", self.tokens(64), 4)])
        self.started_s = time.perf_counter() - begin

    def _arguments(self):
        s = self.setting
        how = {
            "skip_tokenizer_init": True, "load_format": "dummy", "dtype": "bfloat16", "seed": 0,
            "max_model_len": s.longest, "max_num_seqs": 64, "max_num_batched_tokens": s.longest,
            "block_size": s.block, "enable_prefix_caching": True, "gpu_memory_utilization": 0.05,
            "enforce_eager": s.eager or kit.REHEARSE,
        }
        if not kit.REHEARSE:
            how["kv_cache_memory_bytes"] = int(s.gib * GIB)
        if s.kind == "kvcached":
            how["kv_transfer_config"] = {
                "kv_connector": "KvcacheConnector",
                "kv_connector_module_path": "kvcache_client.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "socket": s.socket, "model": s.shape,
                    **({"lookup_ms": MS, "save_ms": MS} if kit.REHEARSE else {}),
                    **dict(s.extra)}}
        elif s.kind == "offloading":
            how["kv_offloading_size"] = 2 * s.gib
        if not how["enforce_eager"]:
            how["compilation_config"] = {"cudagraph_capture_sizes": SIZES}
        if s.ranks:
            how["worker_extension_cls"] = "vllm_rank.Rank"
        if s.ranks > 1:
            how.update(tensor_parallel_size=s.ranks, distributed_executor_backend="mp",
                       disable_custom_all_reduce=True)
        return {**how, **dict(s.more)}

    def close(self):
        if self.setting.ranks > 1:
            self.engine.engine_core.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def about(self):
        config = self.engine.vllm_config
        worker = getattr(self._connector(worker=True), "_worker", None)
        scheduler = getattr(self._connector(), "_scheduler", None)
        return {"vllm": self.vllm.__version__, "started_s": round(self.started_s, 1),
                "runner": 2 if getattr(config, "use_v2_model_runner", False) else 1,
                "ahead": bool(config.scheduler_config.async_scheduling),
                "synchronous": hasattr(scheduler, "break_even") and not scheduler.break_even.beside,
                "blocks": config.cache_config.num_gpu_blocks,
                "block_tokens": config.cache_config.block_size,
                **self._about_ranks(),
                "slices": [len(g.slices) for g in getattr(worker, "groups", ())]}

    def _about_ranks(self):
        if self.setting.ranks <= 1:
            return {}
        pids, parts, slices, _ = zip(*self.llm.collective_rpc("kvcached_rank"))
        return {"pids": pids, "parts": parts, "slices of ranks": slices,
                "parts of all": len(self._connector()._scheduler._all)}

    def tokens(self, n):
        return [self.random.randrange(3, self.vocab) for _ in range(n)]

    # Requests.

    def _add(self, name, tokens, made, logs):
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self.engine.add_request(
            name, {"prompt_token_ids": tokens},
            SamplingParams(temperature=0.0, max_tokens=made, ignore_eos=True, detokenize=False,
                           logprobs=logs, output_kind=RequestOutputKind.DELTA))

    def serve(self, arrivals, streams=(), logs=None, at_once=None):
        """arrivals: (at, name, tokens, how many to make). streams: tokens of prompts that decode
        until all others are done. logs: how many of the likeliest tokens are told. at_once: so many
        are under way, and the next one arrives when one ends. {name: [arrived, times of tokens,
        tokens, log probabilities of each, cached tokens]}, gaps of the streams, tokens a second."""
        found, gaps, last, made = {}, [], {}, 0
        running, number = {}, 0
        for tokens in streams:
            number += 1
            running[f"stream {number}"] = tokens
            self._add(f"stream {number}", tokens, STREAM_TOKENS, None)
        waiting, left = sorted(arrivals), len(arrivals)
        begin = time.perf_counter()
        while left:
            now = time.perf_counter() - begin
            while waiting and waiting[0][0] <= now:
                if at_once and left - len(waiting) >= at_once:
                    break
                at, name, tokens, n = waiting.pop(0)
                found[name] = [now if at_once else at, [], [], [], 0]
                self._asked += len(tokens)
                self._add(name, tokens, n, logs)
            if not self.engine.has_unfinished_requests():
                time.sleep(max(0.0, waiting[0][0] - (time.perf_counter() - begin)))
                continue
            outputs = self.engine.step()
            now = time.perf_counter() - begin
            for o in outputs:
                new = o.outputs[0]
                made += len(new.token_ids)
                if o.request_id in running:
                    if o.request_id in last:
                        gaps.append(now - last[o.request_id])
                    last[o.request_id] = now
                    if o.finished:
                        tokens = running.pop(o.request_id)
                        number += 1
                        running[f"stream {number}"] = tokens
                        self._add(f"stream {number}", tokens, STREAM_TOKENS, None)
                    continue
                record = found[o.request_id]
                record[1] += [now] * len(new.token_ids)
                record[2] += new.token_ids
                record[3] += [{t: e.logprob for t, e in p.items()} for p in new.logprobs or []]
                record[4] = max(record[4], o.num_cached_tokens or 0)
                left -= bool(o.finished)
        seconds = time.perf_counter() - begin
        self._cached += sum(record[4] for record in found.values())
        if running:
            self.engine.abort_request(list(running), internal=False)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return found, gaps, made / seconds

    def reset(self):
        """Of the engine's own prefix cache."""
        end = time.monotonic() + 10
        while not self.llm.reset_prefix_cache() and time.monotonic() < end:
            self.engine.step()

    def one(self, tokens, made, reset):
        """A prompt in an idle engine: s to its first token, what it became, tokens that came from a
        cache, and the share of what kvcached had of it that was in its GPU tier. tokens: those, or
        (seed, how many)."""
        if reset:
            self.reset()
        self._share = None
        if isinstance(tokens, tuple):
            tokens = random.Random(tokens[0]).choices(range(3, self.vocab), k=tokens[1])
        faulthandler.dump_traceback_later(LIMIT_S / 2)
        found, _, _ = self.serve([(0.0, f"one {time.monotonic()}", tokens, made)], logs=TOLD)
        faulthandler.cancel_dump_traceback_later()
        (at, times, became, logs, cached), = found.values()
        return times[0] - at, (became, logs), cached, self._share

    def busy(self, seeds, streams, length, interval, made, reset):
        """Prompts of (seed, how many) tokens that arrive beside decoding streams, which are the same
        each time: s to the first token of each, and tokens that came from a cache."""
        if reset:
            self.reset()

        def prompt(seed, n):
            return random.Random(seed).choices(range(3, self.vocab), k=n)

        found, _, _ = self.serve(
            [(0.3 + i * interval, str(i), prompt(*seed), made) for i, seed in enumerate(seeds)],
            [prompt(f"stream {i}", length) for i in range(streams)])
        return [(r[1][0] - r[0], r[4]) for r in found.values()]

    def arrivals(self, streams, template, prompts, length, interval, made):
        """Prompts behind one template that arrive beside decoding streams: s to the first tokens,
        gaps of the streams, tokens a second."""
        template, streams = self.tokens(template), [self.tokens(template) for _ in range(streams)]
        self.serve([(0.0, "template", template, 1)])
        gc.collect()
        found, gaps, rate = self.serve(
            [(0.3 + i * interval, f"p{i}", template + self.tokens(length - len(template)), made)
             for i in range(prompts)], streams)
        return [r[1][0] - r[0] for r in found.values()], gaps, rate

    def warm(self, seed, shared, length, own, requests, at_once, made, seen=False):
        """Requests behind some shared prefixes after a reset of the own cache. seen: it has them, too."""
        self.reset()
        some = random.Random(seed)
        prefixes = [some.choices(range(3, self.vocab), k=length) for _ in range(shared)]
        if seen:
            self.serve([(0.0, f"prefix {i}", p, 1) for i, p in enumerate(prefixes)])
            self.served()  # those are not among what is told
        return self._together(
            [prefixes[i % shared] + self.tokens(own) for i in range(requests)], at_once, made)

    def chat(self, turns, blocks, at_once, made, trace):
        """Turns of conversations that nobody has seen, of one shape each time, at most so many blocks
        (workloads.py), after a reset of the own cache."""
        self.reset()
        talks = workloads.chat(turns, blocks, made, f"chat {time.monotonic()}", 0, trace)
        return self._together([p.tokens(self.vocab) for p in talks], at_once, made)

    def _together(self, prompts, at_once, made):
        """So many at once: s to the first tokens, gaps between tokens, tokens a second. made: tokens of
        each in the mean; were they equal, requests would come in waves."""
        some = random.Random(len(prompts))
        gc.collect()
        found, _, rate = self.serve(
            [(0.0, f"{i}", p, made // 2 + some.randrange(made + 1)) for i, p in enumerate(prompts)],
            at_once=at_once)
        gaps = [b - a for r in found.values() for a, b in zip(r[1], r[1][1:])]
        return [r[1][0] - r[0] for r in found.values()], gaps, rate

    def answers(self, prompts, made, reset=True):
        """All of them at once: [(tokens, log probabilities)]."""
        if reset:
            self.reset()
        found, _, _ = self.serve(
            [(0.0, f"{i} {time.monotonic()}", p, made) for i, p in enumerate(prompts)], logs=TOLD)
        return [(r[2], r[3]) for _, r in sorted(found.items(), key=lambda f: int(f[0].split()[0]))]

    def joined(self, *arguments):
        return vllm_joined.joined(self, *arguments)

    # The connector.

    def _connector(self, worker=False):
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        if worker:
            return get_kv_transfer_group() if has_kv_transfer_group() else None
        return getattr(self.engine.engine_core.engine_core.scheduler, "connector", None)

    def _watch(self):
        """Remembers where the last prefix was found."""
        side = getattr(self._connector(), "_scheduler", None)
        if not hasattr(side, "_pays"):
            return
        pays = side._pays

        def watched(lease, gain):
            self._share = lease.gpu / lease.blocks if lease.blocks else None
            return pays(lease, gain)

        side._pays = watched

    def switch(self, on):
        """Without its sides a connector does nothing: as without one, but for vLLM's calls of it.
        Between requests only."""
        ends = self._connector(), self._connector(worker=True)
        if self.setting.kind != "kvcached":
            return
        if self._sides is None:
            self._sides = ends[0]._scheduler, ends[1]._worker
        ends[0]._scheduler, ends[1]._worker = self._sides if on else (None, None)

    def waits(self, on):
        """Whether steps wait for loads from the GPU tier; None: as the connector has decided."""
        even = self._connector()._scheduler.break_even
        if self._beside is None:
            self._beside = even.beside
        even.beside = self._beside if on is None else not on

    def away(self, rank):
        """That rank finds no daemon; -1: all do."""
        if self.setting.ranks > 1:
            self.llm.collective_rpc("kvcached_away", args=(rank,))
            return
        link = self._connector(worker=True)._worker._link
        link.ready = (lambda: None) if rank == 0 else type(link).ready.__get__(link)

    def found_again(self):
        """Until the connector uses a daemon that was started again."""
        end = time.monotonic() + 20
        tokens = self.tokens(512)
        while self.one(tokens, 1, True)[2] == 0:
            if time.monotonic() > end:
                raise RuntimeError("no hits")
            time.sleep(0.05)

    def settled(self):
        """Until what was saved can be had. No step is made for kvcached."""
        if self.setting.kind == "offloading":
            for _ in range(20):
                self.engine.step()
                time.sleep(0.005)
        if self.setting.socket is None:
            return
        from kvcache_client import Client

        with Client(self.setting.socket, role="operator", connect_ms=MS) as operator:
            end = time.monotonic() + 10
            while operator.statistics()["filling_slots"] and time.monotonic() < end:
                time.sleep(0.002)

    def spent(self):
        """What its calls took on the host since the last time."""
        return {side: clock.told() for side, clock in self._clocks.items()}

    def served(self):
        """Tokens of prompts since the last time, but for those of streams, and of these the ones that
        came from a cache."""
        asked, cached = self._asked, self._cached
        self._asked = self._cached = 0
        return asked, cached

    def daemon(self):
        """What the daemon counted."""
        from kvcache_client import Client

        if self.setting.socket is None:
            return {}
        with Client(self.setting.socket, role="operator", connect_ms=MS) as operator:
            return operator.statistics()

    def counts(self):
        """What the connector counted."""
        said = {}
        scheduler = getattr(self._connector(), "_scheduler", None)
        if hasattr(scheduler, "break_even"):
            said = {**scheduler.counts, **scheduler.break_even.figures()}
        worker = getattr(self._connector(worker=True), "_worker", None)
        said.update({f"worker_{k}": n for k, n in getattr(worker, "counts", {}).items()})
        if self.setting.ranks > 1:
            for *_, counts in self.llm.collective_rpc("kvcached_rank"):
                for k, n in counts.items():
                    said[f"worker_{k}"] = said.get(f"worker_{k}", 0) + n
        return {k: n for k, n in said.items() if n}


class Late(Engine):
    def __init__(self, setting):
        import vllm  # noqa: F401
        from vllm.v1.executor import multiproc_executor  # noqa: F401

        self.setting = setting

    def build(self):
        super().__init__(self.setting)

    def about(self):
        return super().about() if hasattr(self, "llm") else {"late": True}

    def close(self):
        if hasattr(self, "llm"):
            super().close()
