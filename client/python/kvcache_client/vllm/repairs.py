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
