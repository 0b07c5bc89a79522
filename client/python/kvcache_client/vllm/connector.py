"""What vLLM calls. Every call goes to the scheduler's or to the worker's side, and none of them
fails a request: what goes wrong is a miss, or a block not saved."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import platform
import time
from typing import Any, Callable, Dict, Iterable, Optional, Set, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from . import hosts, layout, multi, repairs, resets
from .messages import RankInfo, StepOrders, StepReport
from .options import Options, options_of
from .scheduler import SchedulerSide
from .stats import NOW, KvcacheMetrics, KvcacheStats, known_by_name
from .streams import NoStreams, TorchStreams
from .worker import WorkerSide

log = logging.getLogger("kvcache_client.vllm")

SEEN = "0.26."  # the version of vLLM in which the repair of loads that fail before a step ran on a GPU

# Why an engine goes without: what is said of its layout, where vLLM has other fields than those that
# are known, or there is no libkvcache (OSError).
NOT_USED = (layout.LayoutError, ValueError, TypeError, LookupError, AttributeError, OSError)


class KvcacheMetadata(KVConnectorMetadata):
    """The orders of one step."""

    def __init__(self, orders: StepOrders) -> None:
        self.orders = orders


class KvcacheHandshake(KVConnectorHandshakeMetadata):
    """What a worker says about itself once."""

    def __init__(self, info: RankInfo) -> None:
        self.info = info


class KvcacheWorkerMetadata(KVConnectorWorkerMetadata):
    """What the workers say after a step."""

    def __init__(self, report: StepReport) -> None:
        self.report = report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "KvcacheWorkerMetadata":
        assert isinstance(other, KvcacheWorkerMetadata)
        self.report.add(other.report)
        return self


def _log_as_vllm() -> None:
    """vLLM has handlers for its own loggers only: what is said here would be seen from warnings on,
    and without a time."""
    ours, theirs = logging.getLogger("kvcache_client"), logging.getLogger("vllm")
    if not ours.hasHandlers() and theirs.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.getEffectiveLevel())


def _options(transfer: Any) -> Options:
    """Of the role, too: kv_producer, kv_consumer, or kv_both."""
    said = options_of(transfer.kv_connector_extra_config or {})
    role = getattr(transfer, "kv_role", None)
    return dataclasses.replace(
        said, save=said.save and role != "kv_consumer", load=said.load and role != "kv_producer")


def _pieces(config: Any) -> bool:
    """Whether vLLM was told to hash shorter pieces than blocks. 0.20 has another word for it, which
    later versions use for what comes of it."""
    cache = config.cache_config
    return getattr(cache, "prefix_match_unit", getattr(cache, "hash_block_size", None)) is not None


def _writes_early(config: Any, cache: Any) -> bool:
    """Whether new blocks are written to when a step begins, before the connector is called: cleared,
    or given a copy of a block of which a piece was found."""
    return _pieces(config) or bool(getattr(cache, "needs_kv_cache_zeroing", False))


def _hashing(config: Any, own: Optional[bool]) -> Tuple[bool, str]:
    """Whether blocks are hashed here, and what names the hashes: engines that agree on it give
    equal blocks equal hashes."""
    algorithm = str(getattr(config.cache_config, "prefix_caching_hash_algo", "builtin"))
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None and "xxhash" not in algorithm:
        # Later versions have a fixed one.
        from vllm.v1.core import kv_cache_utils

        seed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    if own is None:
        # Hashes of pieces that are shorter than blocks do not name blocks.
        own = seed is None or _pieces(config) or not config.cache_config.enable_prefix_caching
    if own:
        return True, "kvcache_client chain 1"
    # Hashes of pickled tuples are those of one kind of Python.
    pickled = "" if "cbor" in algorithm else f" {platform.python_version_tuple()[:2]}"
    return False, f"{algorithm} {seed}{pickled}"


def _one_step(config: Any) -> bool:
    """Whether vLLM's first runner runs each step when all is known of the last one."""
    if getattr(getattr(config, "scheduler_config", None), "async_scheduling", False):
        return False
    v2 = getattr(config, "use_v2_model_runner", None)
    if v2 is None:
        from vllm import envs

        v2 = getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False)
    return not v2


def _begins_again(config: Any) -> bool:
    """Whether requests are computed rightly of which a load fails when a step has run on it: not known
    of pipelines, with more steps in flight, nor of models that make no tokens. Where they are to fail
    they do, and a step that waits only makes more of them fail."""
    transfer = getattr(config, "kv_transfer_config", None)
    return (config.parallel_config.pipeline_parallel_size == 1
            and getattr(config.model_config, "runner_type", "generate") == "generate"
            and repairs.waited_loads()  # also where they fail, for steps that are told to wait
            and getattr(transfer, "kv_load_failure_policy", "recompute") == "recompute")


def _seen(config: Any) -> bool:
    """Whether a GPU has shown that, in the V2 runner and under asynchronous scheduling."""
    import vllm

    return (str(getattr(vllm, "__version__", "")).startswith(SEEN)
            and config.parallel_config.world_size == 1
            and getattr(config, "speculative_config", None) is None)


def _waits(config: Any, asked: Optional[bool]) -> bool:
    """Whether steps wait for loads from the GPU tier."""
    if asked is None:
        return (_one_step(config) or _seen(config)) and _begins_again(config)
    if asked and not _begins_again(config):
        log.warning("kvcached: a load that fails before a step makes wrong tokens in this vLLM")
    return asked


def _extra_keys(request: Any, first: int, end: int, inputs: int) -> Tuple[Any, int]:
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

    return generate_block_hash_extra_keys(request, first, end, inputs)


def _rank(config: Any) -> layout.Rank:
    from vllm.distributed import parallel_state

    p = config.parallel_config

    def rank_in(group: str, size: int) -> int:
        return int(getattr(parallel_state, f"get_{group}_group")().rank_in_group) if size > 1 else 0

    context = getattr(p, "decode_context_parallel_size", 1)
    return layout.Rank(
        rank_in("tp", p.tensor_parallel_size), p.tensor_parallel_size,
        rank_in("pp", p.pipeline_parallel_size), p.pipeline_parallel_size,
        rank_in("dcp", context), context,
    )


def _agreement(config: Any) -> Optional[Callable[[bool], bool]]:
    """Whether something is so on any rank: a question that all of them ask in the same step. None:
    one rank, or pipeline stages, which are not in the same step."""
    from vllm.distributed import parallel_state

    p = config.parallel_config
    group = getattr(parallel_state.get_tp_group(), "cpu_group", None) if (
        1 < p.tensor_parallel_size == p.world_size) else None
    if group is None:
        return None
    import torch

    said = torch.zeros(1, dtype=torch.int32, device="cpu")

    def agree(here: bool) -> bool:
        said[0] = int(here)
        try:
            torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MAX, group=group)
        except RuntimeError as error:  # a rank has gone, and vLLM ends the engine
            log.warning("kvcached: ranks do not answer: %s", error)
            return True
        return bool(said[0])

    return agree


class KvcacheConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM makes one in the scheduler and one in each worker."""

    def __init__(
        self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _log_as_vllm()
        multi.told_apart()
        self._options = _options(vllm_config.kv_transfer_config)
        self._config, self._cache = vllm_config, kv_cache_config
        self._own_hashes, self._hashes = _hashing(vllm_config, self._options.own_hashes)
        self._model = self._options.model or str(vllm_config.model_config.model)
        self._scheduler: Optional[SchedulerSide] = None
        self._worker: Optional[WorkerSide] = None
        self._said: Dict[str, int] = {}
        self._seen: Dict[str, int] = {}
        self._logged, self._logged_at = {}, time.monotonic()  # type: Dict[str, int], float
        self._orders = StepOrders()
        groups = getattr(kv_cache_config, "kv_cache_groups", None) or ()
        self._several = len(groups) > 1
        # Of several groups vLLM wants to be told which requests lack something, where it has a way.
        self._by_request = self._several and hasattr(KVConnectorBase_V1, "get_transfer_results")
        if role == KVConnectorRole.SCHEDULER:
            if kv_cache_config is not None and getattr(kv_cache_config, "has_mamba_layers", False):
                repairs.common_prefixes(KVConnectorBase_V1)
            resets.of_the_engine()
            self._scheduler = self._make_scheduler()

    def _make_scheduler(self) -> Optional[SchedulerSide]:
        try:
            tokens = layout.block_tokens(self._config, self._cache)
        except NOT_USED as why:
            log.error("kvcached: not used: %s", why)
            return None
        if self._several and not self._by_request and not repairs.failed_loads():
            log.error("kvcached: not used: this version of vLLM is not known to go on when a load "
                      "fails in a model with several KV cache groups")
            return None
        drafter = getattr(self._config, "speculative_config", None)
        return SchedulerSide(
            self._options, tokens, own_hashes=self._own_hashes, extra_keys=_extra_keys,
            looks_ahead=drafter is not None and bool(drafter.use_eagle()),
            # Without any cache of its own vLLM numbers them in each engine.
            inputs_named=bool(self._config.cache_config.enable_prefix_caching),
        )

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        return not self._options.layer_by_layer

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Dict[str, Any]) -> bool:
        return options_of(extra_config or {}).layer_by_layer  # said before weights are read

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is dropped is a miss later on

    # The workers.

    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        self._make_worker(kv_caches, None)

    def register_cross_layers_kv_cache(self, kv_cache: Any, attn_backend: Any) -> None:
        self._make_worker({}, kv_cache)

    def _make_worker(self, tensors: Dict[str, Any], cross_layer: Any) -> None:
        some = cross_layer if cross_layer is not None else next(iter(tensors.values()), None)
        device = getattr(some, "device", None)
        on_gpu = getattr(device, "type", "cpu") == "cuda"
        self._why = ""
        try:
            groups = layout.groups_of(
                self._config, self._cache, tensors, _rank(self._config), self._model, self._hashes,
                cross_layer,
            )
        except NOT_USED as why:
            log.error("kvcached: not used: %s", why)
            groups, self._why = [], str(why)
        self._worker = WorkerSide(
            self._options, groups, host=hosts.here(),
            streams=TorchStreams(device) if on_gpu else NoStreams(),
            gpu=device if on_gpu else None,
            run_ahead=2 + self._config.parallel_config.pipeline_parallel_size,
            agree=_agreement(self._config),
            early=_writes_early(self._config, self._cache),
        )
        resets.of_the_worker(self._worker)

    def get_handshake_metadata(self) -> Optional[KvcacheHandshake]:
        if self._worker is None:
            return None
        info = self._worker.info()
        return KvcacheHandshake(dataclasses.replace(info, why=self._why))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, KvcacheMetadata)
        self._orders = connector_metadata.orders
        # Versions that start loads behind a forward pass that does not need them do this before it.
        if self._worker is not None:
            self._worker.begin(self._orders)

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        self._orders = StepOrders()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.start(self._orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._worker is not None:
            self._worker.layer_needed(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        if self._worker is not None:
            self._worker.layer_computed(layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.finish(self._orders)

    def get_finished(
        self, finished_req_ids: Set[str]
    ) -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        if self._worker is None:
            return None, None
        self._log_line()
        # wait_for_save comes later behind a drafter, and in some versions not without a forward pass.
        self._worker.judge()
        done, self._failed_blocks, self._failed_requests = self._worker.poll()
        return None, done or None

    _failed_blocks: Set[int] = set()
    _failed_requests: Set[str] = set()

    def get_transfer_results(self, finished_req_ids: Set[str]) -> Any:
        """In place of get_finished, which it calls, where the base class has it."""
        results = super().get_transfer_results(finished_req_ids)
        if self._by_request:
            results.failed_recving |= self._failed_requests
        return results

    def get_block_ids_with_load_errors(self) -> Set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return set() if self._by_request else failed

    def build_connector_worker_meta(self) -> Optional[KvcacheWorkerMetadata]:
        report = self._worker.report() if self._worker is not None else StepReport()
        return KvcacheWorkerMetadata(report) if report else None

    # The scheduler.

    def one_of_several(self, transfer: Any) -> None:
        """By multi.py: what the engine does about failed loads is said of all its connectors."""
        self._config = copy.copy(self._config)
        self._config.kv_transfer_config = transfer
        if self._scheduler is not None:
            self._scheduler.others.on = True

    def set_xfer_handshake_metadata(self, metadata: Dict[Any, Any]) -> None:
        if self._scheduler is None:
            return
        policy = getattr(self._config.kv_transfer_config, "kv_load_failure_policy", "recompute")
        if policy != "recompute":
            log.warning("kvcached: kv_load_failure_policy is not recompute: a block that cannot be "
                        "loaded fails its request; set it in --kv-transfer-config")
        self._scheduler.synchronous = _waits(self._config, self._options.synchronous)
        infos = [m.info for _, m in sorted(metadata.items()) if isinstance(m, KvcacheHandshake)]
        world = self._config.parallel_config.world_size
        self._scheduler.set_ranks([*infos, *[None] * (world - len(infos))])

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Dict[Any, Any]) -> None:
        self.set_xfer_handshake_metadata(metadata)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> Tuple[Optional[int], bool]:
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._scheduler is None:
            return KvcacheMetadata(StepOrders())
        self._log_line()
        return KvcacheMetadata(self._scheduler.build(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is None:
            return
        said = getattr(connector_output, "kv_connector_worker_meta", None)
        report = said.report if isinstance(said, KvcacheWorkerMetadata) else None
        self._scheduler.reported(
            report, connector_output.invalid_block_ids or (),
            getattr(connector_output, "failed_recving", None) or ())

    def request_finished(
        self, request: Any, block_ids: Any
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        if self._scheduler is not None:
            self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: Any
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return self.request_finished(request, block_ids)

    def admitted_beside_loads(self) -> Set[str]:
        """For the repair of loads that fail before a step."""
        return self._scheduler.handed.admitted() if self._scheduler is not None else set()

    def begun_again(self, names: Set[str]) -> None:
        """By that repair."""
        if self._scheduler is not None:
            self._scheduler.handed.begun_again(names)

    def reset_cache(self) -> Optional[bool]:
        return self._scheduler.reset() if self._scheduler is not None else None

    # Both.

    def _counts(self) -> Dict[str, int]:
        side = self._scheduler or self._worker
        prefix = "scheduler" if self._scheduler is not None else "worker"
        return {f"{prefix}_{k}": n for k, n in side.counts.items()} if side else {}

    def _figures(self) -> Dict[str, int]:
        if self._scheduler is None:
            return {}
        figures = {**self._scheduler.break_even.figures(),
                   "synchronous": int(not self._scheduler.break_even.beside)}
        return {f"scheduler{NOW}{k}": n for k, n in figures.items()}

    def get_kv_connector_stats(self) -> Optional[KvcacheStats]:
        """What was counted since the last call. Asked in every step: figures of now are told with
        the next count."""
        side = self._scheduler or self._worker
        if side is None or side.counts == self._seen:
            return None
        self._seen = dict(side.counts)
        counts = self._counts()
        new = {k: n - self._said.get(k, 0) for k, n in counts.items() if n != self._said.get(k, 0)}
        figures = self._figures()
        new.update((k, n) for k, n in figures.items() if n != self._said.get(k))
        self._said = {**counts, **figures}
        return KvcacheStats(data=new) if new else None

    @classmethod
    def build_kv_connector_stats(
        cls, data: Optional[Dict[str, Any]] = None
    ) -> KvcacheStats:
        return KvcacheStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> KvcacheMetrics:
        return KvcacheMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _log_line(self, last: bool = False) -> None:
        now, every = time.monotonic(), self._options.log_s
        if not every or not last and now < self._logged_at + every:
            return
        counts = self._counts()
        if counts != self._logged and any(counts.values()):
            said = {**counts, **self._figures()}
            log.info("kvcached: %s", " ".join(f"{k}={n}" for k, n in said.items() if n))
        self._logged, self._logged_at = counts, now

    def take_events(self) -> Iterable[Any]:
        return ()

    def shutdown(self) -> None:
        self._log_line(last=True)
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()


known_by_name("KvcacheConnector", "kvcache_client.vllm")
