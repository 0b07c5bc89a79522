"""kvcache_client: workers and schedulers of kvcached in Python.

    from kvcache_client import Client, Namespace, keys

    with Client(gpu=0) as client:
        part = client.register_tensors(
            Namespace(model="m", dtype="bfloat16", block_tokens=16), kv_caches, block_tokens=16)
        with client.lookup(part, keys(block_hashes)) as lease:
            load = client.load(lease, part, block_ids[:lease.blocks])
            ...                     # prefill of the rest, on the same stream
            bad = load.wait()       # block ids that are to be computed after all
        client.save(part, keys(block_hashes), block_ids)

It is a thin layer of ctypes over libkvcache.so.0, whose manual is kvcache.h; KVCACHE_LIBRARY names
the file. Nothing but the standard library is imported; torch only where the caller passes tensors.
"""

from .client import Client, Role
from .errors import (
    BusyError,
    CancelledError,
    ChecksumError,
    DeadlineError,
    DeniedError,
    DeviceError,
    DeviceFailedError,
    DisconnectedError,
    DuplicateError,
    ExpiredError,
    ForkedError,
    InvalidError,
    KvcacheError,
    LimitError,
    MapError,
    NoDeviceError,
    NoFdsError,
    NoMemoryError,
    NoRoomError,
    PeerError,
    ProtocolError,
    RequestError,
    SessionError,
    StaleError,
    StoppingError,
    SystemCallError,
    SystemError_,
    UnknownError,
    UnsupportedError,
    VersionError,
)
from .leases import Lease
from .library import version
from .loads import Load, SlicedLoad
from .memory import Memory, Slice, buffer_slice, tensor_slices, tensors_slices
from .names import KEY_BYTES, Namespace, key, keys
from .parts import Copy, Part, Rule
from .saves import KeyState, Outcome, Save, SaveEntry
from .structs import KEYS_MAX, NO_BLOCK

__all__ = [
    "BusyError", "CancelledError", "ChecksumError", "Client", "Copy", "DeadlineError",
    "DeniedError", "DeviceError", "DeviceFailedError", "DisconnectedError", "DuplicateError",
    "ExpiredError", "ForkedError", "InvalidError", "KEYS_MAX", "KEY_BYTES", "KeyState",
    "KvcacheError", "Lease", "LimitError", "Load", "MapError", "Memory", "NO_BLOCK", "Namespace",
    "NoDeviceError", "NoFdsError", "NoMemoryError", "NoRoomError", "Outcome", "Part", "PeerError",
    "ProtocolError", "RequestError", "Role", "Rule", "Save", "SaveEntry", "SessionError", "Slice",
    "SlicedLoad", "StaleError", "StoppingError", "SystemCallError", "SystemError_", "UnknownError",
    "UnsupportedError", "VersionError", "buffer_slice", "key", "keys", "tensor_slices",
    "tensors_slices", "version",
]
