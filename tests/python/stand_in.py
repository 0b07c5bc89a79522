"""Small stand-ins for as much of vLLM as the connector touches, and an engine that makes its calls
in vLLM's order: one scheduler and the ranks of one model, in this process, on host memory.

Rows of the KV cache follow from the tokens up to them, so that a forward pass can tell whether
every row that it would attend to is right.
"""

import collections
import ctypes
import dataclasses
import enum
import hashlib
import itertools
import sys
import types

from stand_in_figures import KVConnectorFactory, KVConnectorPromMetrics, KVConnectorStats
from stand_in_scheduler import RequestStatus, Scheduler

TOKENS = 4  # of a block
ROW = 24  # bytes of a token in a layer


def _module(name, **content):
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            _module(parent)
        setattr(sys.modules[parent], last, module)


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorBase_V1:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._connector_metadata = None

    def bind_connector_metadata(self, connector_metadata):
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def get_transfer_results(self, finished_req_ids):
        _, over = self.get_finished(finished_req_ids)
        return types.SimpleNamespace(finished_recving=set(over or ()), failed_recving=set())


def generate_block_hash_extra_keys(request, start_token_idx, end_token_idx, start_mm_idx):
    extra = ([request.adapter] if request.adapter else []) + (
        [request.cache_salt] if start_token_idx == 0 and request.cache_salt else [])
    return tuple(extra) or None, start_mm_idx


def install(fixed_seed=True):
    """Puts them where `import vllm` finds them."""
    base = "vllm.distributed.kv_transfer.kv_connector.v1"
    _module(
        base + ".base", KVConnectorBase_V1=KVConnectorBase_V1, KVConnectorRole=KVConnectorRole,
        SupportsHMA=type("SupportsHMA", (), {}), KVConnectorMetadata=type("M", (), {}),
        KVConnectorHandshakeMetadata=type("H", (), {}),
        KVConnectorWorkerMetadata=type("W", (), {}),
    )
    _module(base + ".metrics", KVConnectorStats=KVConnectorStats,
            KVConnectorPromMetrics=KVConnectorPromMetrics)
    _module(base[: -len(".v1")] + ".factory", KVConnectorFactory=KVConnectorFactory)
    _module("vllm.distributed.parallel_state")
    _module("vllm.v1.core.sched.scheduler", Scheduler=type("Scheduler", (Scheduler,), {}))
    _module("vllm.v1.request", RequestStatus=RequestStatus)
    _module("vllm.v1.engine.core", EngineCore=type("EngineCore", (), {}))
    content = {"DEFAULT_NONE_HASH_SEED": "fixed"} if fixed_seed else {}
    _module(
        "vllm.v1.core.kv_cache_utils",
        generate_block_hash_extra_keys=generate_block_hash_extra_keys, **content,
    )


# Configuration.


@dataclasses.dataclass
class FullAttentionSpec:
    block_size: int = TOKENS
    page_size_bytes: int = TOKENS * ROW


class MLAAttentionSpec(FullAttentionSpec):
    pass


@dataclasses.dataclass
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int = 2 * TOKENS + 1


@dataclasses.dataclass
class MambaSpec(FullAttentionSpec):
    """A state at the end of each block ("all"), or where a step ended ("align")."""

    page_size_bytes: int = 3 * ROW
    shapes: tuple = ((ROW,), (2, ROW))
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0


def config(extra, ranks=1, kv_heads=None, drafter=False, runner=1, ahead=False, **transfer):
    space = types.SimpleNamespace
    return space(
        scheduler_config=space(async_scheduling=ahead), use_v2_model_runner=runner == 2,
        speculative_config=space(model="drafter", use_eagle=lambda: True) if drafter else None,
        kv_transfer_config=space(
            kv_connector_extra_config=extra,
            **{"kv_load_failure_policy": "recompute", **transfer}),
        model_config=space(
            model="stand-in", dtype="torch.float16", revision=None, quantization=None,
            get_total_num_kv_heads=lambda: kv_heads or ranks),
        cache_config=space(
            cache_dtype="auto", prefix_caching_hash_algo="sha256_cbor",
            enable_prefix_caching=True),
        parallel_config=space(
            tensor_parallel_size=ranks, pipeline_parallel_size=1, world_size=ranks),
    )


class Tensor:
    """[blocks, TOKENS, ROW] bytes of host memory."""

    def __init__(self, shape, memory=None, strides=None):
        self.shape = tuple(shape)
        self.dtype = "torch.uint8"
        self.device = types.SimpleNamespace(type="cpu")
        size = 1
        natural = []
        for n in reversed(shape):
            natural.insert(0, size)
            size *= n
        self.strides = tuple(strides or natural)
        self.memory = memory or (ctypes.c_uint8 * size)()

    def stride(self):
        return self.strides

    def element_size(self):
        return 1

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def unflatten(self, axis, sizes):
        shape, strides = list(self.shape), list(self.strides)
        st = strides[axis]
        shape[axis : axis + 1] = sizes
        strides[axis : axis + 1] = [st * sizes[1], st]
        return Tensor(shape, self.memory, strides)

    def row(self, block, token):
        at = (block * TOKENS + token) * ROW
        return bytes(self.memory[at : at + ROW])

    def set_row(self, block, token, content):
        at = (block * TOKENS + token) * ROW
        self.memory[at : at + ROW] = content


# Requests and steps.


class Request:
    _numbers = itertools.count()

    def __init__(self, tokens, *, own=False, adapter=None, salt=None, seed=b"fixed", **fields):
        self.request_id = f"r{next(Request._numbers)}"
        self.all_token_ids = list(tokens)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.adapter, self.cache_salt, self._seed = adapter, salt, seed
        self.lora_request = adapter and types.SimpleNamespace(lora_name=adapter, lora_path="/" + adapter)
        self.kv_transfer_params = None
        self.skip_reading_prefix_cache = False
        self.mm_features = []
        vars(self).update(fields)

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    @property
    def block_hashes(self):
        hashes, parent = [], hashlib.sha256(self._seed).digest()
        for i in range(self.num_tokens // TOKENS):
            block = self.all_token_ids[i * TOKENS : (i + 1) * TOKENS]
            extra, _ = generate_block_hash_extra_keys(self, i * TOKENS, (i + 1) * TOKENS, 0)
            parent = hashlib.sha256(parent + repr((block, extra)).encode()).digest()
            hashes.append(parent)
        return hashes


def step(new=(), cached=(), scheduled=None, drafts=None, resumed=(), preempted=()):
    """A SchedulerOutput. new: (request id, blocks of each group, computed); cached: the same."""
    space = types.SimpleNamespace
    return space(
        scheduled_new_reqs=[
            space(req_id=r, block_ids=tuple(map(list, b)), num_computed_tokens=n)
            for r, b, n in new
        ],
        scheduled_cached_reqs=space(
            req_ids=[r for r, _, _ in cached], resumed_req_ids=set(resumed),
            new_block_ids=[b and tuple(map(list, b)) for _, b, _ in cached],
            num_computed_tokens=[n for _, _, n in cached],
        ),
        num_scheduled_tokens=scheduled or {},
        scheduled_spec_decode_tokens=drafts or {},
        finished_req_ids=set(), preempted_req_ids=set(preempted),
    )


class Wrong(AssertionError):
    """A forward pass would attend to a row that is not what it must be."""


class Engine:
    """specs: of each group, which has `layers` layers. Blocks are used again only after all others
    have been.

    how: runner: vLLM's, 1 or 2; ahead: asynchronous scheduling. Neither recovers when a step has
    computed on what did not arrive. loads_behind: a step that no load is for starts its loads behind the forward pass, as vLLM 0.33
    does. saves_behind: wait_for_save comes last, as beside a drafter. agree: ranks ask each other."""

    loads_behind = saves_behind = False

    def __init__(self, extra, specs=None, ranks=1, layers=2, blocks=400, pieces=1, agree=True, **how):
        from kvcache_client.vllm import KvcacheConnector

        self.specs = specs or [FullAttentionSpec()]
        space = types.SimpleNamespace
        self.cache = space(num_blocks=blocks, kv_cache_groups=[
            space(kv_cache_spec=spec, layer_names=[f"model.layers.{g * layers + i}.attn"
                                                   for i in range(layers)])
            for g, spec in enumerate(self.specs)
        ])
        self.config = config(extra, ranks, **how)
        self.scheduler = KvcacheConnector(self.config, KVConnectorRole.SCHEDULER, self.cache)
        self.workers, self.tensors = [], []
        for rank in range(ranks):
            group = space(rank_in_group=rank)
            sys.modules["vllm.distributed.parallel_state"].get_tp_group = lambda g=group: g
            tensors = {
                name: [Tensor((blocks, *shape)) for shape in g.kv_cache_spec.shapes]
                if isinstance(g.kv_cache_spec, MambaSpec)
                else Tensor((blocks * pieces, TOKENS // pieces, ROW))
                for g in self.cache.kv_cache_groups for name in g.layer_names
            }
            worker = KvcacheConnector(self.config, KVConnectorRole.WORKER, self.cache)
            worker.register_kv_caches(tensors)
            if ranks > 1 and agree:
                worker._worker.agree = self._any_rank
            self.workers.append(worker)
            self.tensors.append(tensors)
        self.introduce()
        self.free = itertools.cycle(range(1, blocks))  # 0 is the null block
        self.tables = {}
        self._over, self._lacking = collections.Counter(), set()
        self.failed = set()  # requests whose loads beside the steps are over
        self.settle = lambda: None  # at the end of each request

    def introduce(self):
        said = {(0, r): w.get_handshake_metadata() for r, w in enumerate(self.workers)}
        self.scheduler.set_xfer_handshake_metadata_pp_aware(said)

    def close(self):
        for connector in [self.scheduler, *self.workers]:
            connector.shutdown()

    # The model.

    def row(self, request, position, layer, rank):
        prefix = repr((request.all_token_ids[: position + 1], request.adapter)).encode()
        return hashlib.shake_128(prefix + f"{layer} {rank}".encode()).digest(ROW)

    def _layers(self):
        for g, group in enumerate(self.cache.kv_cache_groups):
            for layer, name in enumerate(group.layer_names):
                yield g, layer, name

    def _rank(self, rank):
        """MLA computes the same on every rank."""
        return 0 if isinstance(self.specs[0], MLAAttentionSpec) else rank

    def check(self, request, end):
        """Every row that token `end` attends to is there and right, on every rank."""
        for rank, tensors in enumerate(self.tensors):
            for g, layer, name in self._layers():
                spec = self.specs[g]
                if isinstance(spec, MambaSpec):
                    self._check_state(request, end, tensors[name], g, layer, rank)
                    continue
                first = 0
                if isinstance(spec, SlidingWindowSpec):
                    first = max(0, end - spec.sliding_window + 1)
                for p in range(first, end):
                    block = self.tables[request.request_id][g][p // TOKENS]
                    have = tensors[name].row(block, p % TOKENS)
                    if have != self.row(request, p, layer + 10 * g, self._rank(rank)):
                        raise Wrong(f"{request.request_id} position {p} rank {rank} {name}")

    # States: of the tokens up to a place, in the block of the last of them.

    def _state(self, request, place, tensors, g, layer, rank):
        """Where a state is, and what it must be."""
        block = self.tables[request.request_id][g][(place - 1) // TOKENS]
        prefix = repr((request.all_token_ids[:place], request.adapter, layer + 10 * g, rank))
        content = hashlib.shake_128(prefix.encode()).digest(3 * ROW)
        return [(tensors[0], block * ROW, content[:ROW]),
                (tensors[1], 2 * block * ROW, content[ROW:])]

    def _check_state(self, request, place, tensors, g, layer, rank):
        if place == 0:
            return
        for tensor, at, content in self._state(request, place, tensors, g, layer, rank):
            if bytes(tensor.memory[at : at + len(content)]) != content:
                raise Wrong(f"{request.request_id}: the state of {place} tokens")

    def _write_states(self, request, first, end, tensors, g, layer, rank):
        places = {end}
        if self.specs[g].mamba_cache_mode == "all":
            places.update(range(first // TOKENS * TOKENS + TOKENS, end, TOKENS))
        for place in places if end > first else ():
            for tensor, at, content in self._state(request, place, tensors, g, layer, rank):
                tensor.memory[at : at + len(content)] = content

    def forward(self, request, first, end, lacks=False):
        """lacks: what it attends to on some rank is not there, and so all of them compute nonsense."""
        for rank, tensors in enumerate(self.tensors):
            for g, layer, name in self._layers():
                if isinstance(self.specs[g], MambaSpec):
                    self._write_states(request, first, end, tensors[name], g, layer, rank)
        for p in range(first, end):
            for rank, tensors in enumerate(self.tensors):
                for g, layer, name in self._layers():
                    if isinstance(self.specs[g], MambaSpec):
                        continue
                    block = self.tables[request.request_id][g][p // TOKENS]
                    content = self.row(request, p, layer + 10 * g, self._rank(rank))
                    tensors[name].set_row(block, p % TOKENS, bytes(ROW) if lacks else content)

    def _any_rank(self, here):
        """All ranks are behind the same forward pass."""
        for worker in self.workers:
            worker._worker.judge()
            here = here or worker._worker._lost
        self.lost = self.lost or here
        return self.lost

    # vLLM's calls.

    def admit(self, request, local=0, give=None):
        """From the waiting queue: what is found, blocks for all of it (of which `local` tokens are
        there from the engine's own cache). give: what the engine takes of what was found."""
        found, beside = self.scheduler.get_num_new_matched_tokens(request, local)
        assert found is not None and (found > 0 or not beside)
        external = found if give is None else give
        n = -(-request.num_tokens // TOKENS)
        old = self.tables.get(request.request_id)
        self.tables[request.request_id] = [
            (old[g][: local // TOKENS] if old and local else [])
            + [next(self.free) for _ in range(n - (local // TOKENS if old else 0))]
            for g in range(len(self.specs))
        ]
        self._allocated(request, external)
        return found, beside

    def _allocated(self, request, external):
        table = tuple(map(list, self.tables[request.request_id]))
        blocks = types.SimpleNamespace(get_block_ids=lambda: table)
        self.scheduler.update_state_after_alloc(request, blocks, external)

    def run(self, output, forward=()):
        """A step on all workers. forward: (request, first, end) to compute. The blocks that did not
        arrive, and requests whose loads are over."""
        meta = self.scheduler.build_connector_meta(output)
        behind = self.loads_behind and all(order.asynchronous for order in meta.orders.loads)
        self.lost = False
        invalid, done, said = set(), set(), None
        for rank, worker in enumerate(self.workers):
            worker.bind_connector_metadata(meta)
            if not behind:
                worker.start_load_kv(None)
            if rank == len(self.workers) - 1:
                self.bad = {b for w in self.workers for b in w._worker._invalid}
                for w in self.workers if forward else ():
                    for _, _, name in self._layers():
                        w.wait_for_layer_load(name)
                for request, first, end in forward:
                    table = self.tables[request.request_id]
                    lacks = any(b in self.bad for ids in table for b in ids)
                    if not lacks:
                        self.check(request, first)
                    self.forward(request, first, end, lacks)
        for worker in self.workers:
            if forward:
                for _, _, name in self._layers():
                    worker.save_kv_layer(name, None, None)
            if behind:
                worker.start_load_kv(None)
            if forward and not self.saves_behind:
                worker.wait_for_save()
            results = worker.get_transfer_results(set())
            self._over.update(results.finished_recving)
            self._lacking |= results.failed_recving
            invalid |= worker.get_block_ids_with_load_errors()
            one = worker.build_connector_worker_meta()
            said = one if said is None else said.aggregate(one) if one else said
            if forward and self.saves_behind:
                worker.wait_for_save()
            worker.clear_connector_metadata()
        done = {name for name, n in self._over.items() if n == len(self.workers)}
        failed = self._lacking & done
        self._over = collections.Counter({n: i for n, i in self._over.items() if n not in done})
        self._lacking -= failed
        self.failed |= failed
        if invalid and len(self.specs) > 1:
            raise RuntimeError("vLLM ends: blocks do not say whose load failed")
        if self.config.use_v2_model_runner or self.config.scheduler_config.async_scheduling:
            for request, _, _ in forward:
                if invalid & {b for ids in self.tables[request.request_id] for b in ids}:
                    raise Wrong(f"{request.request_id} goes on behind what is not there")
        self.scheduler.update_connector_output(types.SimpleNamespace(
            invalid_block_ids=invalid, failed_recving=failed, kv_connector_worker_meta=said))
        return invalid, done

    def serve(self, request, chunk=1000, decode=0, local=0, finish=True):
        """A request from its arrival to its end; how many tokens were loaded."""
        found, beside = self.admit(request, local)
        computed = local + found
        while beside:
            invalid, done = self.run(step())
            while request.request_id not in done:
                more, done = self.run(step())
                invalid |= more
            computed, beside = self.loaded(request, computed, invalid, local)
        first = True
        end_of_prompt = request.num_tokens
        while computed < end_of_prompt + decode:
            end = min(computed + chunk, request.num_tokens)
            name, table = request.request_id, self.tables[request.request_id]
            output = (step(new=[(name, table, computed)], scheduled={name: end - computed}) if first
                      else step(cached=[(name, None, computed)], scheduled={name: end - computed}))
            invalid, _ = self.run(output, [(request, computed, end)])
            first = False
            if invalid:
                # The outputs are thrown away; it goes on behind the last good block.
                computed = self._valid(request, computed, invalid)
                continue
            computed = end
            if computed == request.num_tokens and computed < end_of_prompt + decode:
                request.all_token_ids.append(1000 + computed)
                if computed % TOKENS == 0:
                    more = [[next(self.free)] for _ in self.specs]
                    for ids, new in zip(self.tables[name], more):
                        ids.extend(new)
                    out = step(cached=[(name, more, computed)], scheduled={})
                    self.run(out)
        self.check(request, computed)
        if finish:
            self.finish(request)
            self.settle()
        return found

    def loaded(self, request, computed, invalid, local=0):
        """A load beside the steps is over: what is computed, and whether another one has begun, since
        one that failed starts from nothing."""
        if request.request_id in self.failed:
            self.failed.remove(request.request_id)
            found, beside = self.admit(request, local)
            return local + found, beside
        computed = self._valid(request, computed, invalid)
        self._allocated(request, 0)
        return computed, False

    def _valid(self, request, computed, invalid):
        for ids in self.tables[request.request_id]:
            for i, block in enumerate(ids):
                if block in invalid:
                    computed = min(computed, i * TOKENS)
        return computed

    def finish(self, request):
        table = tuple(map(list, self.tables.get(request.request_id, [[]] * len(self.specs))))
        assert self.scheduler.request_finished_all_groups(request, table) == (False, None)

    def counts(self, side="worker"):
        one = self.scheduler._scheduler if side == "scheduler" else self.workers[0]._worker
        return one.counts
