#!/usr/bin/env python3
"""vLLM itself, with random weights: without a connector, with KvcacheConnector, and with its own
offloading to host memory. Every way has the same GPU memory for KV: a slab is taken from the
engine's pool.

Hits: a prompt is computed, then served from the engine's own prefix cache, then, that having been
reset, from what the way keeps elsewhere; tokens and their log probabilities have to be equal.

Arrivals: eight streams decode while 32 prompts of 2048 tokens behind a template of 256 arrive at
intervals of 100 ms and make 64 tokens each, in the order A B C C B A.

Engines start side by side, each in a process of its own; one at a time is measured, the others are
idle.

    bench_vllm.py [--eager] [--hits] [--arrivals] [--rounds N] [--ways A,B] [0.5B] [8B]

WAIVED without vLLM (0.20 to 0.33) or a GPU. $OUT: a folder for the figures as JSON.
"""

import argparse
import faulthandler
import json
import os
import random
import shutil
import tempfile
import threading
import time

import kit
from kit import MS, Daemon, Remote, Waived

GIB = 1 << 30
BACKGROUND, INCOMING, OUTPUT = 8, 32, 64
TEMPLATE, PROMPT = 256, 2048
LENGTHS, REPEATS, MADE = (1024, 4096, 7936), 5, 8
LONGEST = 8192
SIZES = [1, 2, 4, 8, 16, 24, 32, 40, 48]  # of decoding batches with a CUDA graph
INTERVAL_S = {"0.5B": 0.1, "8B": 0.2}
POOL = {"0.5B": 8, "8B": 32}  # GiB of KV in the engine, of which half is the slab's
LIMIT_S = 60  # of one call
WAYS = ("none", "kvcached", "kvcached on the host", "offloading")

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
    "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
SHAPES = {"0.5B": QWEN, "8B": LLAMA}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


def weights(model):
    """Equal in every process, and large enough that what a token becomes follows from all others
    before it."""
    import torch

    generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.fill_(1.0)
            elif p.dim() > 1:
                p.normal_(0, 0.04 if "qkv" in name else 0.02, generator=generator)
            else:
                p.zero_()


class Engine:
    """One way's vLLM, in this process."""

    def __init__(self, name, way, pool, socket, eager):
        try:
            import vllm
        except ImportError as why:
            raise Waived(f"no vLLM: {why}") from None
        kit.need_gpus()
        begin = time.perf_counter()
        self.folder = tempfile.mkdtemp(prefix="kvc-vllm-")
        with open(os.path.join(self.folder, "config.json"), "w") as f:
            json.dump({**SHAPES[name], "hidden_act": "silu", "torch_dtype": "bfloat16",
                       "max_position_embeddings": 32768, "bos_token_id": 1, "eos_token_id": 2}, f)
        how = {}
        if way.startswith("kvcached"):
            how["kv_transfer_config"] = {
                "kv_connector": "KvcacheConnector",
                "kv_connector_module_path": "kvcache_client.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"socket": socket, "model": name}}
        elif way == "offloading":
            how["kv_offloading_size"] = 2 * POOL[name]
        if not eager:
            how["compilation_config"] = {"cudagraph_capture_sizes": SIZES}
        self.way, self.vllm, self.random = way, vllm, random.Random(1)
        self.vocab = SHAPES[name]["vocab_size"]
        self.llm = vllm.LLM(
            self.folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", seed=0,
            max_model_len=LONGEST, max_num_seqs=64, max_num_batched_tokens=LONGEST, block_size=16,
            enable_prefix_caching=True, kv_cache_memory_bytes=int(pool * GIB), enforce_eager=eager,
            gpu_memory_utilization=0.2, **how)
        self.engine = self.llm.llm_engine
        self.llm.apply_model(weights)
        self._serve([(0.0, "warm", self.tokens(64), 4)])
        self.started_s = time.perf_counter() - begin

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def about(self):
        config = self.engine.vllm_config
        return {"vllm": self.vllm.__version__, "started_s": round(self.started_s, 1),
                "runner": 2 if getattr(config, "use_v2_model_runner", False) else 1,
                "blocks": config.cache_config.num_gpu_blocks}

    def tokens(self, n):
        return [self.random.randrange(3, self.vocab) for _ in range(n)]

    def _serve(self, arrivals, streams=(), logs=None):
        """arrivals: (at, name, tokens, how many to make). streams: tokens of prompts that decode
        until all others are done. logs: 0 for the log probabilities of the tokens. {name: [arrived,
        times of tokens, tokens, log probabilities, cached tokens]}, gaps of the streams, tokens a
        second."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        found, gaps, last, made = {}, [], {}, 0

        def add(name, tokens, n):
            self.engine.add_request(
                name, {"prompt_token_ids": tokens},
                SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False,
                               logprobs=logs, output_kind=RequestOutputKind.DELTA))

        running, number = {}, 0
        for tokens in streams:
            number += 1
            running[f"stream {number}"] = tokens
            add(f"stream {number}", tokens, 1024)
        waiting, left = sorted(arrivals), len(arrivals)
        begin = time.perf_counter()
        while left:
            now = time.perf_counter() - begin
            while waiting and waiting[0][0] <= now:
                at, name, tokens, n = waiting.pop(0)
                found[name] = [at, [], [], [], 0]
                add(name, tokens, n)
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
                        add(f"stream {number}", tokens, 1024)
                    continue
                record = found[o.request_id]
                record[1] += [now] * len(new.token_ids)
                record[2] += new.token_ids
                record[3] += [p[t].logprob for t, p in zip(new.token_ids, new.logprobs or [])]
                record[4] = max(record[4], o.num_cached_tokens or 0)
                left -= bool(o.finished)
        seconds = time.perf_counter() - begin
        self.engine.abort_request(list(running), internal=False) if running else None
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return found, gaps, made / seconds

    def one(self, seed, length, reset):
        """A prompt in an idle engine: s to its first token, what it became, tokens that came from a
        cache."""
        if reset:
            end = time.monotonic() + 10
            while not self.llm.reset_prefix_cache() and time.monotonic() < end:
                self.engine.step()
        tokens = random.Random(seed).choices(range(3, self.vocab), k=length)
        self.random.seed(seed)
        faulthandler.dump_traceback_later(LIMIT_S / 2)
        found, _, _ = self._serve([(0.0, f"{seed} {time.monotonic()}", tokens, MADE)], logs=0)
        faulthandler.cancel_dump_traceback_later()
        (at, times, made, logs, cached), = found.values()
        return times[0] - at, (made, logs), cached

    def settled(self, socket):
        """Until what was saved can be had."""
        if self.way == "offloading":
            for _ in range(20):
                self.engine.step()
                time.sleep(0.005)
        if socket is None:
            return
        from kvcache_client import Client

        with Client(socket, role="operator", connect_ms=MS) as operator:
            end = time.monotonic() + 10
            while operator.statistics()["filling_slots"] and time.monotonic() < end:
                time.sleep(0.002)

    def arrivals(self, name, seed):
        self.random.seed(seed)
        template = self.tokens(TEMPLATE)
        streams = [self.tokens(TEMPLATE) for _ in range(BACKGROUND)]
        self._serve([(0.0, "template", template, 1)])
        found, gaps, rate = self._serve(
            [(0.3 + i * INTERVAL_S[name], f"p{i}", template + self.tokens(PROMPT - TEMPLATE),
              OUTPUT) for i in range(INCOMING)], streams)
        return [r[1][0] - r[0] for r in found.values()], gaps, rate

    def counts(self):
        """What the connector counted."""
        core = self.engine.engine_core.engine_core
        connector = getattr(core.scheduler, "connector", None)
        said = {}
        scheduler = getattr(connector, "_scheduler", None)
        if hasattr(scheduler, "break_even"):
            said = {**scheduler.counts, **scheduler.break_even.figures()}
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        if has_kv_transfer_group():
            worker = getattr(get_kv_transfer_group(), "_worker", None)
            said.update({f"worker_{k}": n for k, n in getattr(worker, "counts", {}).items()})
        return {k: n for k, n in said.items() if n}


class Way:
    """An engine, and the daemon that it needs. enter() waits for it."""

    def __init__(self, name, way, eager):
        half, whole = POOL[name] / 2, POOL[name]
        arguments = {"kvcached": ("--gpu-bytes", f"{half:g}G", "--host-bytes", f"{whole}G"),
                     "kvcached on the host": ("--gpu-bytes", "0", "--host-bytes", f"{whole}G")}
        self.way, self.remote, self.why = way, None, None
        self.daemon = Daemon(*arguments[way]) if way in arguments else None
        if self.daemon:
            self.daemon.wait_for("memory is populated")
        self.socket = self.daemon.socket if self.daemon else None
        pool = half if way == "kvcached" else whole
        self.starting = threading.Thread(target=self._start, args=(name, way, pool, eager))
        self.starting.start()

    def _start(self, name, way, pool, eager):
        try:
            self.remote = Remote(Engine, name, way, pool, self.socket, eager, **ENVIRONMENT)
            self.remote.limit_s = LIMIT_S
        except (RuntimeError, Waived) as why:
            self.why = why

    def ready(self):
        self.starting.join()
        if isinstance(self.why, Waived):
            raise self.why
        if self.why:
            print(f"  {self.way}: failed\n{str(self.why)[-3000:]}", flush=True)
        return self.why is None

    def call(self, *what):
        """None when it failed; then the way is given up."""
        try:
            return self.remote.call(*what) if self.why is None else None
        except (RuntimeError, EOFError, OSError) as why:
            self.why = why
            print(f"  {self.way}: {what[0]} failed\n{str(why)[-3000:]}", flush=True)
            return None

    def close(self):
        self.starting.join()
        if self.remote:
            self.remote.__exit__(Waived)
        if self.daemon:
            self.daemon.__exit__(Waived)


def hits(way, length):
    """([cold], [own], [loaded], equal, tokens that were loaded), or None."""
    cold, own, loaded, equal, elsewhere = [], [], [], True, 0
    for r in range(-1, REPEATS):
        seed = length * 100 + r
        found = [way.call("one", seed, length, False) for _ in range(2)]
        way.call("settled", way.socket)
        found.append(way.call("one", seed, length, True))
        if None in found:
            return None
        (a, _, _), (b, mine, cached), (c, other, elsewhere) = found
        equal = equal and mine == other and cached > 0
        if r >= 0:
            cold.append(a)
            own.append(b)
            loaded.append(c)
    return cold, own, loaded, equal, elsewhere


def hit_rows(name, ways, output):
    rows = []
    for way in ways:
        for length in LENGTHS:
            found = hits(way, length)
            output[f"{name} {way.way} {length}"] = found
            if found is None:
                break
            cold, own, loaded, equal, elsewhere = found
            rows.append([
                name, way.way, length, kit.spread(cold, 1e3), kit.spread(own, 1e3),
                kit.spread(loaded, 1e3), f"{kit.median(loaded) / kit.median(own):.2f}", elsewhere,
                "" if not elsewhere else "yes" if equal else "NO"])
            print("   ", *rows[-1], flush=True)
    return rows


def arrivals(name, ways, rounds, output):
    """{way: (TTFT, gaps, tokens a second)}."""
    found = {way.way: ([], [], []) for way in ways}
    for way in ways:
        way.call("arrivals", name, 1)
    for r in range(rounds):
        for way in ways if r % 2 == 0 else reversed(ways):
            one = way.call("arrivals", name, 100 + r)
            if one is not None:
                ttft, gaps, rate = one
                for have, new in zip(found[way.way], (ttft, gaps, [rate])):
                    have += new
                print(f"    {way.way}: TTFT p50 {kit.median(ttft) * 1e3:.1f} ms, gap p99 "
                      f"{kit.quantile(gaps, 0.99) * 1e3:.2f} ms, {rate:.0f} tokens/s", flush=True)
    output[f"{name} arrivals"] = found
    return {way: v for way, v in found.items() if v[0]}


def run(name, said, wanted, output):
    ways = [Way(name, way, said.eager) for way in said.ways]
    try:
        usable = [way for way in ways if way.ready()]
        for way in usable:
            output[f"{name} {way.way}"] = way.call("about")
            print(f"  {name}, {way.way}: {output[f'{name} {way.way}']}", flush=True)
        rows = hit_rows(name, usable, output) if "hits" in wanted else []
        if rows:
            kit.table(
                f"vLLM: ms to the first token; {kit.machine()}; {REPEATS} repeats",
                ["model", "way", "tokens", "computed", "own prefix cache", "loaded", "over own",
                 "tokens not computed", "tokens equal"], rows)
        if "arrivals" in wanted:
            some = [way for way in usable if way.way != "kvcached on the host"]
            found = arrivals(name, some, said.rounds, output)
            if found:
                kit.table(
                    f"vLLM: prompts that arrive beside {BACKGROUND} decoding streams; "
                    f"{said.rounds} rounds",
                    ["model", "way", "TTFT p50 ms", "p95", "token/s", "gap p95 ms", "p99"],
                    arrival_rows(name, found))
        for way in usable:
            counts = output[f"{name} {way.way} counts"] = way.call("counts")
            if counts:
                print(f"  {way.way}: {counts}", flush=True)
    finally:
        for way in ways:
            way.close()


def arrival_rows(name, found):
    base = found.get("none")
    rows = []
    for way, (ttft, gaps, rates) in found.items():
        figures = (kit.quantile(ttft, 0.5) * 1e3, kit.quantile(ttft, 0.95) * 1e3,
                   kit.median(rates), kit.quantile(gaps, 0.95) * 1e3,
                   kit.quantile(gaps, 0.99) * 1e3)
        bases = figures if base is None else (
            kit.quantile(base[0], 0.5) * 1e3, kit.quantile(base[0], 0.95) * 1e3,
            kit.median(base[2]), kit.quantile(base[1], 0.95) * 1e3,
            kit.quantile(base[1], 0.99) * 1e3)
        rows.append([name, way] + [f"{f:.2f} ({(f / b - 1) * 100:+.1f} %)"
                                   for f, b in zip(figures, bases)])
    return rows


def main():
    kit.need_gpus()
    if kit.REHEARSE:
        raise Waived("vLLM needs a GPU here")
    parser = argparse.ArgumentParser()
    for flag in ("eager", "hits", "arrivals"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS)
    parser.add_argument("names", nargs="*", default=["0.5B"])
    said = parser.parse_args()
    wanted = [w for w in ("hits", "arrivals") if getattr(said, w)] or ["hits", "arrivals"]
    output = {}
    for name in said.names:
        try:
            run(name, said, wanted, output)
        finally:
            if "OUT" in os.environ:
                with open(os.path.join(os.environ["OUT"], f"vllm-{name}.json"), "w") as f:
                    json.dump(output, f)


if __name__ == "__main__":
    kit.run("vllm", main)
