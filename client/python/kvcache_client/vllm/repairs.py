"""What versions of vLLM do beside a connector that is wrong beside this one."""

from __future__ import annotations

import logging
from typing import Any, Tuple

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


def failed_loads_of_groups(base: Any) -> bool:
    """Where there are several groups, versions before KVConnectorTransferResults raise an error in
    the scheduler, which ends the engine, when a block of a load is reported as failed. A request that
    waits for such a load is computed from its beginning here; none that runs waits for loads.

    base: vLLM's module of connectors. Whether something was to be repaired."""
    from vllm.v1.core.sched import scheduler

    kind: Any = scheduler.Scheduler
    update = getattr(kind, "_update_requests_with_invalid_blocks", None)
    if hasattr(base, "KVConnectorTransferResults") or update is None or hasattr(update, "repaired"):
        return False

    def of_groups(self: Any, requests: Any, invalid: Any, *more: Any, **how: Any) -> Any:
        if len(self.kv_cache_config.kv_cache_groups) == 1:
            return update(self, requests, invalid, *more, **how)
        failed, tokens = set(), 0
        for request in requests:
            groups = self.kv_cache_manager.get_block_ids(request.request_id)
            if request.status == scheduler.RequestStatus.WAITING_FOR_REMOTE_KVS and any(
                    b in invalid for ids in groups for b in ids):
                failed.add(request.request_id)
                tokens += request.num_computed_tokens
                request.num_computed_tokens = 0
        return failed, tokens, set()

    of_groups.repaired = True  # type: ignore[attr-defined]
    kind._update_requests_with_invalid_blocks = of_groups
    log.info("kvcached: requests of several groups of layers whose loads fail are computed")
    return True
