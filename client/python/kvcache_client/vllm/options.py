"""Options of the connector: kv_connector_extra_config."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, Dict, Mapping, Optional, Tuple

MOST = (1 << 31) - 1
TYPES: Dict[str, Tuple[Tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"), "str": ((str,), "a string"),
    "float": ((int, float), "a number"), "int": ((int,), "a whole number"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    socket: Optional[str] = None  #: of the daemon [$KVCACHE_SOCKET, else the default path]
    model: Optional[str] = None  #: names the weights, where the path would not [the model's name]
    connect_ms: int = 1000  #: the longest that a daemon that is away delays the start
    lookup_ms: int = 1  #: bound of a lookup inside a scheduling step
    remote_ms: int = 0  #: other daemons are asked for what is not here, for so long [not]
    save_ms: int = 0  #: bound on the daemon's answer to a save [the library's, 2 ms]
    lease_ms: int = 30000  #: how long a prefix is kept for a request that was told of it
    retry_s: float = 5.0  #: between attempts to reach a daemon that is away
    min_tokens: Optional[int] = None  #: a shorter gain is computed, not loaded [what was measured]
    save: bool = True  #: false: only load [kv_role]
    load: bool = True  #: false: only save [kv_role]
    save_decoded: bool = True  #: also blocks with generated tokens (multi-turn)
    save_every: int = 0  #: those of all requests together, once in so many steps [half a block]
    verify: bool = True  #: compare checksums of what is loaded
    synchronous: Optional[bool] = None  #: steps wait for the GPU tier [where known]
    layer_by_layer: bool = False  #: beside the forward pass; needs piecewise CUDA graphs
    own_hashes: Optional[bool] = None  #: hash token ids here [where vLLM's hashes are random]
    log_s: float = 60.0  #: between lines of statistics; 0: none


def options_of(extra: Mapping[str, Any]) -> Options:
    """ValueError names an option that does not exist, has the wrong type, or cannot be so large."""
    fields = {f.name: f for f in dataclasses.fields(Options)}
    for name, value in extra.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            raise ValueError(f"kv_connector_extra_config: no option {name}; "
                             + (f"did you mean {near[0]}? There are " if near else "there are ")
                             + ", ".join(sorted(fields)))
        kind = str(fields[name].type)
        wanted, called = next(of for word, of in TYPES.items() if word in kind)
        if value is None and "Optional" in kind:
            continue
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted != (bool,)):
            raise ValueError(f"kv_connector_extra_config: {name}: {value!r} is not {called}")
        least = 1 if name in ("connect_ms", "lookup_ms") else 0  # the library's own is 100 ms
        if isinstance(value, (int, float)) and not least <= value <= MOST:
            raise ValueError(
                f"kv_connector_extra_config: {name}: {value!r} is not in {least} to {MOST}")
    return Options(**extra)
