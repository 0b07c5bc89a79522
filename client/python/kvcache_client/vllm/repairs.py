"""What versions of vLLM do beside a connector that is wrong beside this one."""

from __future__ import annotations

import functools
import logging
from types import SimpleNamespace
from typing import Any, Iterable, List, Mapping, Set, Tuple

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
