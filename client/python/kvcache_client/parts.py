"""Parts: one KV cache group of one shard, as it was registered."""

from __future__ import annotations

import ctypes
import enum
from typing import TYPE_CHECKING, Any, Optional, Sequence

from . import structs
from .memory import Memory, Slice

if TYPE_CHECKING:
    from .client import Client


class Rule(enum.IntEnum):
    """Which blocks of a prefix a part needs, so that the rest can be computed."""

    FULL = 0  #: all of them
    WINDOW = 1  #: the last ceil((window - 1) / block_tokens): sliding window attention
    STATE = 2  #: the last one: a recurrent state at the boundary


class Copy(enum.IntEnum):
    """Who copies a part's blocks; kvcache.h says what it means for the caller."""

    WORKER = 0
    DAEMON = 1


class Part:
    """A registered part. Made by Client.register(); valid until unregister(), across reconnects.

    It keeps alive what its slices lie in. Of the same thread rule as its client.
    """

    def __init__(
        self, client: "Client", desc: structs.PartDesc, owners: Sequence[Any], slices: int
    ) -> None:
        self.client = client
        self.handle = 0
        self.n_slices = slices
        self.blocks = int(desc.n_blocks)
        self.block_tokens = int(desc.block_tokens)
        self.rule = Rule(desc.rule)
        self._desc = desc
        self._owners = list(owners)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all slices together."""
        return sum(int(self._desc.slices[i].bytes) for i in range(self.n_slices))

    def renew(self) -> None:
        """Registers it again: what StaleError asks for. The handle stays."""
        handle = ctypes.c_uint32()
        self.client._check(
            "kvc_register", ctypes.byref(self._desc), ctypes.byref(handle)
        )
        self.handle = handle.value

    def unregister(self) -> None:
        """Ends it; its memory is not used any more. Harmless without a connection."""
        self.client._check("kvc_unregister", self.handle)
        self._owners.clear()


def describe(
    digest: bytes,
    slices: Sequence[Slice],
    *,
    blocks: int,
    block_tokens: int,
    rule: Rule,
    window: int,
    name: Optional[str],
    family: Optional[bytes],
    copy: Copy,
    memories: Sequence[Memory],
) -> structs.PartDesc:
    """The C description; the arrays that it points to live as long as it does."""
    if len(digest) != structs.NAMESPACE_BYTES:
        raise ValueError(f"namespace: {len(digest)} bytes, not {structs.NAMESPACE_BYTES}")
    if family is not None and len(family) != 16:
        raise ValueError(f"family: {len(family)} bytes, not 16")
    desc = structs.PartDesc(
        name=None if name is None else name.encode(),
        block_tokens=block_tokens,
        rule=rule,
        window=window,
        n_slices=len(slices),
        n_blocks=blocks,
        family=None if family is None else bytes(family),
        copy=copy,
        n_memories=len(memories),
    )
    desc.namespace_digest[:] = digest
    desc.slices = (structs.SliceStruct * len(slices))(
        *(structs.SliceStruct(s.address or None, s.stride, s.bytes, s.dtype) for s in slices)
    )
    desc.memories = (structs.MemoryStruct * len(memories))(
        *(structs.MemoryStruct(m.fd, m.address, m.bytes, m.offset) for m in memories)
    )
    return desc
