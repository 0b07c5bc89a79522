"""Block hashes from token ids, equal in every process, Python and engine: SHA-256 over the parent's
hash, the block's tokens as 32-bit little-endian numbers, and what else decides about its content
(adapter, images and their places, salt). PROTOCOL.md says which bytes these are.

For engines whose own hashes are random in each process.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Sequence

ROOT = hashlib.sha256(b"kvcache_client chain 1").digest()


def encode(value: Any) -> bytes:
    """A value as bytes, such that different values give different bytes."""
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        text = str(value).encode()
        return b"i" + struct.pack("<I", len(text)) + text
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"s" + struct.pack("<I", len(text)) + text
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"y" + struct.pack("<I", len(bytes(value))) + bytes(value)
    if isinstance(value, (tuple, list)):
        return b"t" + struct.pack("<I", len(value)) + b"".join(encode(v) for v in value)
    raise TypeError(f"extra keys: {type(value).__name__} has no fixed encoding")


def link(parent: bytes, tokens: Sequence[int], extra: Any = None) -> bytes:
    """The 32-byte hash of a full block. parent: of the block before it, ROOT of the first. TypeError
    for what has no fixed encoding."""
    try:
        body = struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens)
    except struct.error as why:
        raise TypeError(f"token ids: {why}") from None
    return hashlib.sha256(parent + body + encode(extra)).digest()
