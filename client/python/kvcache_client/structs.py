"""The structures of ``kvcache.h`` as ctypes sees them.

A test compiles the header and compares sizes and offsets, so that the two cannot drift apart.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Type

KEY_BYTES = 16
NAMESPACE_BYTES = 32
TOKEN_BYTES = 16
KEYS_MAX = 1024  # keys of a save
LOADS_MAX = 64  # packets' worth of loads under way
NO_BLOCK = 0xFFFFFFFF


class Options(ctypes.Structure):
    _fields_ = [
        ("socket", c_char_p),
        ("name", c_char_p),
        ("role", c_int),
        ("connect_ms", c_uint32),
        ("lookup_ms", c_uint32),
        ("save_ms", c_uint32),
        ("load_ms", c_uint32),
        ("remote_ms", c_uint32),
    ]


class NamespaceFields(ctypes.Structure):
    _fields_ = [
        ("model", c_char_p),
        ("weights", c_char_p),
        ("dtype", c_char_p),
        ("kv_dtype", c_char_p),
        ("quantization", c_char_p),
        ("rope", c_char_p),
        ("hash", c_char_p),
        ("block_tokens", c_uint32),
        ("first_layer", c_uint32),
        ("last_layer", c_uint32),
        ("tensor_rank", c_uint32),
        ("tensor_size", c_uint32),
        ("pipeline_rank", c_uint32),
        ("pipeline_size", c_uint32),
        ("context_rank", c_uint32),
        ("context_size", c_uint32),
    ]


class SliceStruct(ctypes.Structure):
    _fields_ = [
        ("base", c_void_p),
        ("stride", c_uint64),
        ("bytes", c_uint32),
        ("dtype", c_uint8),
    ]


class MemoryStruct(ctypes.Structure):
    _fields_ = [("fd", c_int), ("base", c_void_p), ("bytes", c_uint64), ("offset", c_uint64)]


class PartDesc(ctypes.Structure):
    _fields_ = [
        ("namespace_digest", c_uint8 * NAMESPACE_BYTES),
        ("name", c_char_p),
        ("block_tokens", c_uint32),
        ("rule", c_int),
        ("window", c_uint32),
        ("slices", POINTER(SliceStruct)),
        ("n_slices", c_uint32),
        ("n_blocks", c_uint32),
        ("family", c_char_p),
        ("copy", c_int),
        ("memories", POINTER(MemoryStruct)),
        ("n_memories", c_uint32),
    ]


class LeaseStruct(ctypes.Structure):
    _fields_ = [
        ("id", c_uint64),
        ("token", c_uint8 * TOKEN_BYTES),
        ("blocks", c_uint32),
        ("ms", c_uint32),
        ("gpu", c_uint32),
        ("host", c_uint32),
        ("pending", c_uint32),
        ("remote", c_uint32),
        ("fetch", c_uint64),
    ]


class LoadArgs(ctypes.Structure):
    _fields_ = [
        ("lease", c_uint64),
        ("part", c_uint32),
        ("first", c_uint32),
        ("count", c_uint32),
        ("blocks", c_void_p),
        ("stream", c_void_p),
        ("no_verify", c_int),
        ("valid", c_void_p),
        ("load", POINTER(c_uint64)),
        ("first_slice", c_uint32),
        ("n_slices", c_uint32),
        ("sums", c_void_p),
        ("release", c_int),
    ]


class SaveEntryStruct(ctypes.Structure):
    _fields_ = [
        ("part", c_uint32),
        ("keys", c_char_p),
        ("blocks", c_void_p),
        ("n_keys", c_uint32),
        ("states", c_void_p),
    ]


@functools.lru_cache(maxsize=64)
def save_entries(n: int) -> Type["ctypes.Array[SaveEntryStruct]"]:
    """The type of so many: ctypes makes one again when nothing is left of the last, which takes
    longer than filling it in."""
    return SaveEntryStruct * n


class SaveArgs(ctypes.Structure):
    _fields_ = [
        ("entries", POINTER(SaveEntryStruct)),
        ("n_entries", c_uint32),
        ("stream", c_void_p),
        ("no_checksums", c_int),
        ("first_slice", c_uint32),
        ("n_slices", c_uint32),
        ("more_of", c_uint64),
        ("to_host", c_int),
        ("no_wait", c_int),
    ]


class OutcomeStruct(ctypes.Structure):
    _fields_ = [("status", c_int), ("published", c_uint32), ("dropped", c_uint32)]


class Figure(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_uint64)]


# The C name of each, for the test.
C_NAMES = {
    "kvc_options": Options,
    "kvc_namespace": NamespaceFields,
    "kvc_slice": SliceStruct,
    "kvc_memory": MemoryStruct,
    "kvc_part_desc": PartDesc,
    "kvc_lease": LeaseStruct,
    "kvc_load_args": LoadArgs,
    "kvc_save_entry": SaveEntryStruct,
    "kvc_save_args": SaveArgs,
    "kvc_outcome": OutcomeStruct,
    "kvc_figure": Figure,
}
