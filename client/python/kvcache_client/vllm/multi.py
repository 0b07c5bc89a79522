"""Beside other connectors: what vLLM's MultiConnector keeps from the connectors that it calls."""

from __future__ import annotations

import functools
import logging
import sys
from types import SimpleNamespace
from typing import Any, Dict, List, Optional

log = logging.getLogger("kvcache_client.vllm")

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"
TELLING = "set_xfer_handshake_metadata", "set_xfer_handshake_metadata_pp_aware"


class Handshakes:
    """What each of a worker's connectors says, in their order."""

    def __init__(self, each: List[Any]) -> None:
        self.each = each


def told_apart() -> None:
    """Of what a worker's connectors say about themselves MultiConnector passes on only the first word,
    and to all of the scheduler's: the others know nothing of their workers, and some (NixlConnector)
    end the engine when they are told of somebody else's. Here each is told what its own have said.

    A connector is made with its own part of the configuration, and does not see what the engine was
    told: of failed loads, say. If it has one_of_several(transfer) it is told that, too."""
    kind: Any = getattr(sys.modules.get(MODULE), "MultiConnector", None)  # no connector without it
    if kind is None or getattr(kind, "told_apart", False):
        return
    kind.told_apart = True
    if _says_first(kind):
        kind.get_handshake_metadata = _all_say
    for name in TELLING:
        if name in vars(kind):
            setattr(kind, name, _telling(name, vars(kind)[name]))


def _says_first(kind: Any) -> bool:
    """Whether vLLM's method is the one that is known to be wrong."""
    each = [SimpleNamespace(get_handshake_metadata=lambda said=said: said)
            for said in (None, "first", "second")]
    try:
        return bool(kind.get_handshake_metadata(SimpleNamespace(_connectors=each)) == "first")
    except Exception:  # it is another one
        return False


def _all_say(self: Any) -> Optional[Handshakes]:
    each = [c.get_handshake_metadata() for c in self._connectors]
    return Handshakes(each) if any(said is not None for said in each) else None


def _telling(name: str, theirs: Any) -> Any:
    @functools.wraps(theirs)
    def tell(self: Any, metadata: Dict[Any, Any]) -> None:
        for c in self._connectors:
            if hasattr(c, "one_of_several"):
                c.one_of_several(self._kv_transfer_config)
        if not all(isinstance(said, Handshakes) for said in metadata.values()):
            theirs(self, metadata)
            return
        for i, c in enumerate(self._connectors):
            own = {rank: said.each[i] for rank, said in metadata.items()}
            getattr(c, name)({rank: said for rank, said in own.items() if said is not None})

    return tell
