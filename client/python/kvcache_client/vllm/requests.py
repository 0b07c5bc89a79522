"""What the scheduler's side knows of a request: its blocks, their names, and what was done about
them."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

from .. import names
from ..leases import Lease
from ..names import KEY_BYTES
from ..parts import Rule
from . import chain
from .messages import Ids, PartInfo

NULL_BLOCK = 0  # vLLM's id of "no block"

#: (request, first token, end, where in the multimodal inputs) -> (extra keys, where next)
ExtraKeys = Callable[[Any, int, int, int], Tuple[Any, int]]


@dataclasses.dataclass
class State:
    """A request until it ends."""

    request: Any
    name: int  # of its lease
    keys: bytearray = dataclasses.field(default_factory=bytearray)
    each: List[bytes] = dataclasses.field(default_factory=list)  # the same, one by one
    parent: bytes = chain.ROOT  # of the next block's hash, in an own chain
    inputs: int = 0  # multimodal inputs passed
    blocks: List[List[int]] = dataclasses.field(default_factory=list)  # of each group
    saved: int = 0  # blocks that were ordered to be saved
    computed: int = 0  # tokens, at the last lookup
    own: int = 0  # blocks, of the engine's own prefix cache, at the last lookup
    named: Optional[float] = None  # when the first of its blocks was named to the daemon
    lease: Optional[Lease] = None
    answer: Tuple[int, int, int] = (0, 0, 0)  # to which question: from, to, of which session
    answered: float = 0.0
    fetch: int = 0  # what other daemons are asked for
    until: float = 0.0  # it is waited for
    asked: bool = False
    outdated: bool = False  # its blocks are from before a reset
    failed: bool = False  # a load: it is computed, since it would fail again
    late: bool = False  # the daemon's last answer, which nobody waited for

    @property
    def shares(self) -> bool:
        """Whether it may have blocks that it has not computed itself."""
        return not getattr(self.request, "skip_reading_prefix_cache", False)


def group_ids(
    info: PartInfo, blocks: Sequence[int], first: int, end: int, computed: int,
    *, loading: bool = False, whole: bool = True
) -> Ids:
    """Blocks first .. end - 1 of a group, when so many tokens of the request are computed: those that
    have slid out of its window may be somebody else's by now. Of states the last one is loaded; some
    engines have them only where a step ended, if that was with a whole block."""
    low = 0
    if info.rule == Rule.FULL and end <= len(blocks):
        some: Ids = list(blocks[first:end])
        if NULL_BLOCK not in some:
            return some
    if info.rule == Rule.WINDOW:
        low = (computed - info.window + 1) // info.block_tokens
    elif info.rule == Rule.STATE and (loading or info.at_ends):
        low = end - 1 if loading or whole else end
    return [
        blocks[i] if i < len(blocks) and i >= low and blocks[i] != NULL_BLOCK else None
        for i in range(first, end)
    ]


def no_extra_keys(request: Any, first: int, end: int, inputs: int) -> Tuple[Any, int]:
    """For requests of bare tokens: the adapter and the salt."""
    adapter = getattr(getattr(request, "lora_request", None), "lora_name", None)
    salt = getattr(request, "cache_salt", None) if first == 0 else None
    if getattr(request, "mm_features", None):
        raise TypeError("multimodal inputs")
    return (None if adapter is None and salt is None else (adapter, salt)), inputs


def _whose(request: Any) -> bytes:
    """Of a request with an adapter or a salt what sets its blocks apart from all others. Engines that
    put both into their hashes as bare words do not tell a salt from an adapter of that name, nor
    adapters that have the same one."""
    adapter, salt = getattr(request, "lora_request", None), getattr(request, "cache_salt", None)
    if adapter is None and not salt:
        return b""
    return chain.encode([
        None if one is None else str(one) for one in (
            getattr(adapter, "lora_name", None), getattr(adapter, "lora_path", None), salt)])


class Names:
    """own_hashes: request.block_hashes are of no use; extra_keys: belong into an own chain."""

    def __init__(self, block_tokens: int, own_hashes: bool, extra_keys: ExtraKeys) -> None:
        self.block_tokens = block_tokens
        self.own_hashes, self.extra_keys = own_hashes, extra_keys

    def known(self, state: State, n: int) -> int:
        """Names as many of the first n blocks as can be; how many have a name."""
        have = len(state.keys) // KEY_BYTES
        if have < n:
            hashes, whose = self._hashes(state, have, n), _whose(state.request)
            if whose:
                hashes = [hashlib.sha256(whose + h).digest() for h in hashes]
            some = names.each(hashes)
            state.each += some
            state.keys += b"".join(some)
        return min(n, len(state.keys) // KEY_BYTES)

    def _hashes(self, state: State, first: int, n: int) -> Iterable[bytes]:
        if not self.own_hashes:
            hashes = state.request.block_hashes
            if len(hashes) > state.request.num_tokens // self.block_tokens:
                return []  # they are of shorter pieces than blocks, and name nothing here
            return list(hashes[first:n])
        found = []
        tokens, size = state.request.all_token_ids, self.block_tokens
        for i in range(first, min(n, len(tokens) // size)):
            at, end = i * size, (i + 1) * size
            try:
                extra, state.inputs = self.extra_keys(state.request, at, end, state.inputs)
                state.parent = chain.link(state.parent, tokens[at:end], extra)
            except TypeError:
                break  # nothing from here on can be named
            found.append(state.parent)
        return found
