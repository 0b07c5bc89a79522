#!/usr/bin/env python3
"""Slices of tensors and of buffers."""

import ctypes
import itertools
import mmap
import types

import support

from kvcache_client import Slice, buffer_slice, tensor_slices, tensors_slices


class Tensor:
    """As much of a torch tensor as is asked for, over host memory."""

    def __init__(self, shape, strides=None, size=2, dtype="torch.bfloat16", base=4096):
        self.shape, self.size, self.dtype, self.base = tuple(shape), size, dtype, base
        if strides is None:
            strides, run = [], 1
            for n in reversed(shape):
                strides.insert(0, run)
                run *= n
        self.strides = tuple(strides)

    def stride(self):
        return self.strides

    def element_size(self):
        return self.size

    def data_ptr(self):
        return self.base


def addresses_of(tensor, axis, block):
    """Every byte of a block, the slow way."""
    ranges = [range(n) for n in tensor.shape]
    ranges[axis] = [block]
    found = set()
    for index in itertools.product(*ranges):
        at = tensor.base + tensor.size * sum(i * s for i, s in zip(index, tensor.strides))
        found.update(range(at, at + tensor.size))
    return found


class Tensors(support.Case):
    def check(self, tensor, axis, n_slices):
        slices = tensor_slices(tensor, axis)
        self.assertEqual(len(slices), n_slices)
        for block in range(tensor.shape[axis]):
            found = [
                a
                for s in slices
                for a in range(s.address + block * s.stride, s.address + block * s.stride + s.bytes)
            ]
            self.assertEqual(len(found), len(set(found)))
            self.assertEqual(set(found), addresses_of(tensor, axis, block))

    def test_block_major(self):
        self.check(Tensor((5, 2, 4, 2, 8)), 0, 1)

    def test_keys_and_values_apart(self):
        self.check(Tensor((2, 5, 4, 2, 8)), 1, 2)
        first, second = tensor_slices(Tensor((2, 5, 4, 2, 8)), 1)
        self.assertEqual((first.stride, first.bytes, first.dtype), (128, 128, 4))
        self.assertEqual(second.address - first.address, 5 * 128)

    def test_permuted_and_strided_views(self):
        # Heads outside of tokens in memory, tokens outside in the shape.
        self.check(Tensor((5, 4, 2, 8), (64, 8, 32, 1)), 0, 1)
        # Rows with a gap behind each.
        self.check(Tensor((3, 4, 8), (64, 16, 1)), 0, 4)
        # The blocks' axis last of all but the elements.
        self.check(Tensor((2, 3, 4, 8), (96, 32, 8, 1)), 2, 6)
        # A block's axis of one element.
        self.check(Tensor((1, 5, 4), (999, 4, 1)), 1, 1)

    def test_negative_axis_and_single_bytes(self):
        self.check(Tensor((4, 6), size=1, dtype="torch.float8_e4m3fn"), -1, 4)

    def test_a_group_layer_by_layer(self):
        tensors = [Tensor((2, 5, 4, 2, 8), base=4096 * (i + 1)) for i in range(3)]
        slices, blocks = tensors_slices(tensors, 1)
        self.assertEqual((len(slices), blocks), (6, 5))
        self.assertIs(slices[2].owner, tensors[1])
        self.assertEqual(slices[2].address, tensors[1].base)

    def test_what_is_refused(self):
        for tensor, axis in (
            (Tensor((2, 3)), 2),
            (Tensor((2, 0)), 0),
            (Tensor((2, 3), (3, 0)), 0),
            (Tensor((2, 3), dtype="torch.complex64"), 0),
        ):
            with self.assertRaises(ValueError):
                tensor_slices(tensor, axis)
        with self.assertRaises(ValueError):
            tensors_slices([])
        with self.assertRaises(ValueError):
            tensors_slices([Tensor((2, 3)), Tensor((3, 3))])


    def test_where_a_tensor_is(self):
        for kind in (None, "cpu", "cuda"):
            tensor = Tensor((4, 3))
            if kind:
                tensor.device = types.SimpleNamespace(type=kind)
            self.assertEqual([s.on_gpu() for s in tensor_slices(tensor)], [kind == "cuda"])
            self.assertFalse(tensor_slices(tensor)[0].without_memory().on_gpu())


class Buffers(support.Case):
    def test_addresses_of_buffers(self):
        array = (ctypes.c_uint32 * 64)()
        s = buffer_slice(array, stride=32, bytes=16, offset=8)
        self.assertEqual(s.address, ctypes.addressof(array) + 8)
        with mmap.mmap(-1, 4096) as pages:
            s = buffer_slice(pages, stride=512, bytes=512)
            ctypes.memset(s.address + 512, 7, 1)
            self.assertEqual(pages[512], 7)
            del s

    def test_a_buffer_stays_while_its_slice_lives(self):
        data = bytearray(64)
        s = buffer_slice(data, stride=8, bytes=8)
        with self.assertRaises(BufferError):
            data.extend(b"more")
        del s
        data.extend(b"more")

    def test_read_only_buffers_are_refused(self):
        with self.assertRaises(TypeError):
            buffer_slice(b"constant", stride=8, bytes=8)

    def test_a_schedulers_slice_has_no_address(self):
        self.assertEqual(Slice(4096, 64, 32, 4).without_memory(), Slice(0, 64, 32, 4))


support.main(__name__)
