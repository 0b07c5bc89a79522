"""What versions of vLLM do beside a connector that is wrong beside this one."""

from __future__ import annotations

import functools
import logging
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

log = logging.getLogger("kvcache_client.vllm")


def common_prefixes(base: type) -> bool:
    """In models with states vLLM 0.24 to 0.26 counts the longest prefix that any group has in the
    engine's own cache as computed, for connectors that bring the state behind it whatever they were
    asked for. This one brings what was found; without it the engine would go on from a state that
    is not there. Later versions take what all groups have, unless a connector says otherwise.

    base: vLLM's class of connectors. Whether something was to be repaired."""
    from vllm.v1.core import kv_cache_coordinator

    kind: Any = getattr(kv_cache_coordinator, "HybridKVCacheCoordinator", None)
    if hasattr(base, "supports_divergent_local_hybrid_hits") or not hasattr(
            kind, "find_longest_cache_hit_per_group"):
        return False

    def common(self: Any, hashes: Any, longest: int) -> Tuple[Any, Tuple[int, ...]]:
        blocks, length = self.find_longest_cache_hit(hashes, longest)[:2]
        return blocks, (length,) * len(blocks)

    kind.find_longest_cache_hit_per_group = common
    log.info("kvcached: prefixes of models with states are those that all of their groups have")
    return True


def failed_loads() -> bool:
    """In models with several KV cache groups vLLM 0.20 to 0.29 ends when it is told of blocks that
    could not be loaded: it takes it that a request has those of one group. Requests that wait for
    their load are computed from the start then, as vLLM itself does when it is the first block that
    is lacking: no other place is known up to which all of their groups have what they need.

    Whether the engine goes on now."""
    from vllm.v1.core.sched import scheduler

    kind: Any = scheduler.Scheduler
    theirs: Any = getattr(kind, "_update_requests_with_invalid_blocks", None)
    if getattr(theirs, "of_several_groups", False):
        return True
    if not (_takes_one_group(kind) and _starts_again(kind)):
        return False

    @functools.wraps(theirs)
    def update(
        self: Any, requests: Iterable[Any], invalid: Set[int], scheduled: Mapping[str, int],
        evict_blocks: bool = True,
    ) -> Any:
        if len(self.kv_cache_config.kv_cache_groups) == 1:
            return theirs(self, requests, invalid, scheduled, evict_blocks)
        lacking = [r for r in requests if not invalid.isdisjoint(
            b for ids in self.kv_cache_manager.get_block_ids(r.request_id) for b in ids)]
        if lacking and evict_blocks:  # what runs on them, of another connector
            return theirs(self, lacking, invalid, scheduled, evict_blocks)
        tokens = sum(r.num_computed_tokens for r in lacking)
        for request in lacking:
            request.num_computed_tokens = 0
        return {r.request_id for r in lacking}, tokens, set()

    update.of_several_groups = True  # type: ignore[attr-defined]
    kind._update_requests_with_invalid_blocks = update
    log.info("kvcached: requests whose load fails are computed, in models with several groups, too")
    return True


def _takes_one_group(kind: Any) -> bool:
    """Whether vLLM's method is the one that is known to be wrong."""
    scheduler = SimpleNamespace(
        block_size=4,
        kv_cache_manager=SimpleNamespace(get_block_ids=lambda request: ([1, 2], [0, 3])))
    try:
        kind._update_requests_with_invalid_blocks(
            scheduler, [SimpleNamespace(request_id="", num_computed_tokens=8)], {3}, {}, False)
    except ValueError:
        return True
    except Exception:  # it is another one
        return False
    return False


def _starts_again(kind: Any) -> bool:
    """Whether vLLM's method gives back the blocks of a request that has nothing."""
    freed: List[Any] = []
    request = SimpleNamespace(request_id="r", num_computed_tokens=0, num_tokens=9)
    scheduler = SimpleNamespace(
        connector=object(), needs_kv_cache_zeroing=False, failed_recving_kv_req_ids={"r"},
        finished_recving_kv_req_ids={"r"}, kv_cache_manager=SimpleNamespace(free=freed.append))
    try:
        kind._update_waiting_for_remote_kv(scheduler, request)
    except Exception:
        return False
    return (freed == [request] and not scheduler.failed_recving_kv_req_ids
            and not scheduler.finished_recving_kv_req_ids)


def waited_loads() -> bool:
    """A load that a step waited for, and that fails, makes wrong tokens in vLLM. Its scheduler counts
    the request back to what is there. But the V2 runner keeps counts of its own, on the GPU, and takes
    the scheduler's only with a request that is new to it (its issue 49250); under asynchronous
    scheduling a step that was scheduled meanwhile goes on behind the one that failed, and its token is
    taken for the first one; and everywhere the blocks stay in the engine's own cache, where others find
    them when the request is preempted or aborted before it has computed them.

    A request that is preempted by force, as vLLM does to reset its cache beside running requests, is
    given to the runner as a new one, and what is in flight of it is dropped. So are the requests here
    that have computed on something that is not there, and the cache forgets it.

    Whether requests are computed rightly now, whatever the runner and the scheduling."""
    from vllm.v1.core.sched import scheduler

    kind: Any = scheduler.Scheduler
    theirs: Any = getattr(kind, "_handle_invalid_blocks", None)
    if getattr(theirs, "begins_again", False):
        return True
    preempt = _preempts(kind)
    if theirs is None or preempt is None:
        return False

    @functools.wraps(theirs)
    def handle(self: Any, invalid: Set[int], scheduled: Mapping[str, int]) -> Any:
        if len(self.kv_cache_config.kv_cache_groups) != 1:
            return theirs(self, invalid, scheduled)
        if self.recompute_kv_load_failures:
            return _begin_again(self, set(invalid), scheduled, preempt)
        return theirs(self, invalid, scheduled) | _forget(self, set(invalid))

    handle.begins_again = True  # type: ignore[attr-defined]
    kind._handle_invalid_blocks = handle
    log.info("kvcached: vLLM is repaired: should a load fail, its request is begun again")
    return True


_Preempt = Callable[[Any, Any, int], None]
OUTPUTS = "drop_stale_output", "num_stale_output_tokens", "async_tokens_to_discard"


def _preempts(kind: Any) -> Optional[_Preempt]:
    """How a running request is preempted whose outputs in flight mean nothing: those of this step,
    which has so many tokens of it, and of the next one. None: this version has no way that is known."""
    def dropping(self: Any, request: Any, tokens: int) -> None:
        self._preempt_request(request, time.monotonic(), drop_stale_output=True)

    def discarding(self: Any, request: Any, tokens: int) -> None:
        more = _next_token(request, tokens)  # this step's is skipped by the request's name
        self._preempt_request(request, time.monotonic())
        request.num_output_placeholders = 0
        request.async_tokens_to_discard = more

    if _preempted(kind, dropping) == {"drop_stale_output": True, "num_stale_output_tokens": 7}:
        return dropping
    if _preempted(kind, discarding) == {"async_tokens_to_discard": 1} and _discards():
        return discarding
    return None


def _next_token(request: Any, tokens: int) -> int:
    """How many the next step makes of a request that has so many tokens of this one."""
    return int(request.num_in_flight_tokens > tokens and not request.is_prefill_chunk)


def _preempted(kind: Any, preempt: _Preempt) -> Optional[Dict[str, Any]]:
    """What a request is told of its outputs, 6 tokens of this step and one of the next; None unless it
    is left without blocks, told to the runner, and first in the queue."""
    from vllm.v1.request import RequestStatus

    if not hasattr(kind, "_preempt_request"):
        return None
    freed: List[Any] = []
    queue: List[Any] = []
    nothing = SimpleNamespace(free=lambda request: None)
    scheduler = SimpleNamespace(
        _free_request_blocks=freed.append, encoder_cache_manager=nothing, _inflight_prefills=set(),
        _pending_encoder_input_ids={}, aux_output_connector=None, log_stats=False,
        waiting=SimpleNamespace(prepend_request=queue.append), reset_preempted_req_ids=set())
    scheduler._preempt_request = functools.partial(kind._preempt_request, scheduler)
    request = _Hashed(
        request_id="r", status=RequestStatus.RUNNING, num_computed_tokens=7, num_preemptions=0,
        spec_token_ids=[1], num_in_flight_tokens=7, num_output_placeholders=2,
        is_prefill_chunk=False)
    try:
        preempt(scheduler, request, 6)
    except Exception:  # it is another one
        return None
    told = {name: getattr(request, name) for name in OUTPUTS if hasattr(request, name)}
    right = (request.status == RequestStatus.PREEMPTED and request.num_computed_tokens == 0
             and not request.spec_token_ids and request.num_output_placeholders == 0
             and freed == queue == [request] and scheduler.reset_preempted_req_ids == {"r"})
    return told if right else None


class _Hashed(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def _discards() -> bool:
    """Whether vLLM leaves out an output that is told so, and counts what is in flight."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.request import Request

    request = SimpleNamespace(async_tokens_to_discard=1)
    kind: Any = AsyncScheduler
    try:
        left = kind._update_request_with_output(SimpleNamespace(), request, [1])
    except Exception:
        return False
    return (left == ([], False) and request.async_tokens_to_discard == 0
            and "num_in_flight_tokens" in Request.__init__.__code__.co_names)


def _behind(self: Any, bad: Set[int], scheduled: Mapping[str, int]) -> Tuple[Dict[str, int], Set[str]]:
    """The first bad block of each request that has one, and names of those that had some which nobody
    can tell any more: of what is scheduled, beside connectors that do not say who may. What was computed
    behind bad blocks becomes bad, too."""
    from vllm.v1.request import RequestStatus

    everybody = {name: self.kv_cache_manager.get_block_ids(name)[0] for name in self.requests}
    for name, request in self.requests.items():
        # All of that is its own. Log probabilities of a prompt come once, with the step that ends it.
        if getattr(request, "skip_reading_prefix_cache", False) and bad.isdisjoint(everybody[name]):
            del everybody[name]
    admitted: Set[str] = set()
    for one in _connectors(self.connector):
        admitted |= getattr(one, "admitted_beside_loads", lambda: set(scheduled))()
    gone = {name for name in admitted if name not in self.requests
            or self.requests[name].status not in (
                RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS)}
    if gone:
        bad.update(range(1, len(self.kv_cache_manager.block_pool.blocks)))
    return _reached(everybody, bad), gone


def _forget(self: Any, bad: Set[int]) -> Set[str]:
    """Where requests fail with their loads, so do those that have computed on them. No step waits for
    one there unless it is told to (option synchronous), or it is one of another connector."""
    first, gone = _behind(self, bad, {})
    self.kv_cache_manager.evict_blocks(bad)
    _tell(self, set(first))
    return gone.union(first)


def _begin_again(self: Any, bad: Set[int], scheduled: Mapping[str, int], preempt: _Preempt) -> Any:
    """Whoever has something of what is bad, or of what was computed behind it; names of those whose
    output of this step is skipped."""
    from vllm.v1.request import RequestStatus

    first, gone = _behind(self, bad, scheduled)
    again = [r for r in self.running if r.request_id in first]
    names = {r.request_id for r in again}
    self.running = [r for r in self.running if r.request_id not in names]
    for request in reversed(again):  # so that the first one is in front
        preempt(self, request, scheduled.get(request.request_id, 0))
    # To the V1 runner they are not those that it has in its batch.
    self.prev_step_scheduled_req_ids.difference_update(names)
    self.kv_cache_manager.evict_blocks(bad)
    for name in gone & set(self.requests) & set(scheduled):  # preempted by vLLM meanwhile
        self.requests[name].num_output_placeholders = 0
        self.requests[name].async_tokens_to_discard = _next_token(
            self.requests[name], scheduled[name])  # to reset its cache, behind the next step
    for name, block in first.items():
        request, known = self.requests[name], block * self.block_size
        if (request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
                and request.num_computed_tokens > known):
            request.num_computed_tokens = known
            self.failed_recving_kv_req_ids.add(name)
    _tell(self, names)
    if names:
        log.warning("kvcached: %d requests are begun again, since a load has failed", len(names))
    return names | gone


def _tell(self: Any, names: Set[str]) -> None:
    """The connectors, of whose blocks nothing is left."""
    for one in _connectors(self.connector):
        getattr(one, "begun_again", lambda names: None)(names)


def _connectors(connector: Any) -> List[Any]:
    """Those that vLLM's MultiConnector calls, or the one that there is."""
    return list(getattr(connector, "_connectors", ())) or [connector]


def _reached(blocks: Mapping[str, Sequence[int]], bad: Set[int]) -> Dict[str, int]:
    """The first bad block of each request that has one; what is behind it becomes bad, too."""
    first: Dict[str, int] = {}
    grown = True
    while grown:
        before = len(bad)
        for name, ids in blocks.items():
            at = next((i for i, block in enumerate(ids) if block in bad), None)
            if at is not None:
                first[name] = at
                bad.update(block for block in ids[at:] if block)  # 0 stands for none
        grown = len(bad) > before
    return first
