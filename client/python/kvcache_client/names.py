"""Names of blocks: keys and namespaces, derived by the C library so that all engines agree."""

from __future__ import annotations

import dataclasses
from typing import Iterable, List, Optional, Sequence, Union

from . import library, structs

KEY_BYTES = structs.KEY_BYTES

#: Keys in prompt order: 16 bytes each, one behind the other, or a sequence of such.
Keys = Union[bytes, bytearray, memoryview, Sequence[bytes]]


def key(block_hash: bytes) -> bytes:
    """The 16-byte key of an engine's block hash of any length."""
    return library.fold_key(bytes(block_hash))


def keys(block_hashes: Iterable[bytes]) -> bytes:
    """The keys of block hashes in prompt order, one behind the other."""
    return b"".join(each(block_hashes))


def each(block_hashes: Iterable[bytes]) -> List[bytes]:
    """The same, one by one."""
    return [h[:KEY_BYTES] if len(h) >= KEY_BYTES else library.fold_key(bytes(h))
            for h in block_hashes]  # as fold_key does, without a call for each


def join(some: Keys) -> bytes:
    """Keys as one bytes object; ValueError when a key is not of 16 bytes."""
    if isinstance(some, (bytes, bytearray, memoryview)):
        joined = bytes(some)
        if len(joined) % KEY_BYTES:
            raise ValueError(f"keys: {len(joined)} bytes, not a multiple of {KEY_BYTES}")
        return joined
    for one in some:
        if len(one) != KEY_BYTES:
            raise ValueError(f"keys: one of {len(one)} bytes, keys have {KEY_BYTES}")
    return b"".join(some)


@dataclasses.dataclass(frozen=True)
class Namespace:
    """What makes KV data interchangeable. None is "not given", which is not the empty string.

    The shard: replicated KV heads and MLA pass rank 0 of size 1, and so share one namespace.
    Layers are inclusive.
    """

    model: Optional[str] = None
    weights: Optional[str] = None  #: revision or digest of the weights
    dtype: Optional[str] = None  #: "bfloat16"
    kv_dtype: Optional[str] = None  #: "fp8_e4m3"
    quantization: Optional[str] = None  #: method and the scales' digest
    rope: Optional[str] = None  #: scaling parameters
    hash: Optional[str] = None  #: algorithm of the block hashes
    block_tokens: int = 0
    first_layer: int = 0
    last_layer: int = 0
    tensor_rank: int = 0
    tensor_size: int = 0
    pipeline_rank: int = 0
    pipeline_size: int = 0
    context_rank: int = 0
    context_size: int = 0

    def digest(self) -> bytes:
        """The 32 bytes by which a part names it."""
        fields = structs.NamespaceFields()
        for name in (field.name for field in dataclasses.fields(self)):
            value = getattr(self, name)
            if isinstance(value, str):
                value = value.encode()
            elif isinstance(value, int) and not 0 <= value <= 0xFFFFFFFF:
                raise ValueError(f"{name}: {value} does not fit into 32 bits")
            setattr(fields, name, value)
        return library.digest(fields)
