"""Where a worker's blocks lie: slices of tensors, of buffers, or of bare addresses.

A slice is one contiguous piece of every block: that of block b lies at address + b * stride. A KV
cache tensor of shape [2, blocks, tokens, heads, size] (keys and values apart) gives two slices, one
of shape [blocks, 2, tokens, heads, size] gives one.

Nothing here needs torch: a tensor is what has data_ptr(), shape, stride() and element_size().
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from typing import Any, List, Sequence, Tuple

#: What engines that share a cache agree on; 0 is "not given".
DTYPES = {
    "uint8": 1,
    "int8": 2,
    "float16": 3,
    "bfloat16": 4,
    "float32": 5,
    "float8_e4m3fn": 6,
    "float8_e5m2": 7,
    "float8_e4m3fnuz": 8,
    "float8_e5m2fnuz": 9,
    "int32": 10,
    "int64": 11,
    "float64": 12,
    "int16": 13,
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """One contiguous piece of every block.

    address: of block 0's piece, in bytes; 0 for a scheduler, which has no memory.
    stride: bytes from one block's piece to the next one's. bytes: length of a piece.
    dtype: a number of DTYPES. owner: kept alive while the part is registered.
    """

    address: int
    stride: int
    bytes: int
    dtype: int = 0
    owner: Any = dataclasses.field(default=None, compare=False, repr=False)

    def on_gpu(self) -> bool:
        """As far as the owner, a tensor, says so."""
        device = getattr(self.owner, "device", None)
        return getattr(device, "type", "cpu") != "cpu"

    def without_memory(self) -> "Slice":
        """The same for a scheduler."""
        return Slice(0, self.stride, self.bytes, self.dtype)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory that the daemon may map (copy="daemon"): `bytes` of a memfd from offset on, which
    this process has mapped at address. All multiples of the page size, but for bytes."""

    fd: int
    address: int
    bytes: int
    offset: int = 0


def dtype_number(dtype: Any) -> int:
    """The number of a torch.dtype or of its name."""
    name = str(dtype).rsplit(".", 1)[-1]
    if name not in DTYPES:
        raise ValueError(f"dtype: {name} has no number; give slices with one that engines agree on")
    return DTYPES[name]


def buffer_slice(buffer: Any, *, stride: int, bytes: int, offset: int = 0, dtype: int = 0) -> Slice:
    """A slice of a writable buffer (bytearray, mmap, ctypes array), from byte `offset` on.

    The buffer cannot be resized while the slice, or a part made of it, lives.
    """
    view = (ctypes.c_uint8 * len(memoryview(buffer).cast("B"))).from_buffer(buffer)
    return Slice(ctypes.addressof(view) + offset, stride, bytes, dtype, owner=view)


def _pieces(
    shape: Sequence[int], strides: Sequence[int]
) -> Tuple[int, List[Tuple[int, int]]]:
    """Elements of one contiguous piece, and the (size, stride) axes that lie around it."""
    axes = sorted(((st, n) for n, st in zip(shape, strides) if n != 1), reverse=True)
    run = 1
    while axes and axes[-1][0] == run:
        run *= axes.pop()[1]
    return run, [(n, st) for st, n in axes]


def tensor_slices(tensor: Any, block_axis: int = 0) -> List[Slice]:
    """The slices of one KV cache tensor.

    block_axis: the axis of `tensor` whose index is the block id. What belongs to one block is cut
    into contiguous pieces, in the order of their addresses. Views, permuted and strided tensors are
    fine. The tensor must stay as it is while a part of it is registered (the part keeps it alive).
    """
    if block_axis < 0:
        block_axis += len(tensor.shape)
    if not 0 <= block_axis < len(tensor.shape):
        raise ValueError(f"block_axis: {block_axis} of a tensor with {len(tensor.shape)} axes")
    size = tensor.element_size()
    shape, strides = list(tensor.shape), list(tensor.stride())
    stride = strides.pop(block_axis)
    del shape[block_axis]
    if 0 in shape:
        raise ValueError("tensor: its blocks are empty")
    if any(n != 1 and st <= 0 for n, st in zip(shape, strides)):
        raise ValueError("tensor: elements share memory")
    run, around = _pieces(shape, strides)
    base, dtype = tensor.data_ptr(), dtype_number(tensor.dtype)
    return [
        Slice(base + size * sum(offsets), stride * size, run * size, dtype, owner=tensor)
        for offsets in itertools.product(*(range(0, n * st, st) for n, st in around))
    ]


def tensors_slices(tensors: Sequence[Any], block_axis: int = 0) -> Tuple[List[Slice], int]:
    """The slices of a group's tensors, layer by layer in their order, and its number of blocks."""
    if not tensors:
        raise ValueError("tensors: none")
    blocks = {int(t.shape[block_axis]) for t in tensors}
    if len(blocks) != 1:
        raise ValueError(f"tensors: different numbers of blocks: {sorted(blocks)}")
    return [s for t in tensors for s in tensor_slices(t, block_axis)], blocks.pop()
