"""Finding libkvcache and declaring its functions.

Looked for in this order: the file that the environment variable ``KVCACHE_LIBRARY`` names (and then
nothing else), ``libkvcache.so.0`` beside this package, the dynamic loader's paths.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from . import structs

FILE = "libkvcache.so.0"

# Of the symbols whose structs are those of structs.py: where a struct grows, the library keeps the
# calls that take the old one under the old version.
SYMBOLS = "KVCACHE_0"

# Name -> result and arguments. A pointer that may be NULL or an array is a c_void_p.
_PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    "kvc_connect": (c_int, [POINTER(structs.Options), POINTER(c_void_p)]),
    "kvc_connect_why": (
        c_int,
        [POINTER(structs.Options), POINTER(c_void_p), c_void_p, c_size_t],
    ),
    "kvc_close": (None, [c_void_p]),
    "kvc_reconnect": (c_int, [c_void_p]),
    "kvc_fd": (c_int, [c_void_p]),
    "kvc_dispatch": (c_int, [c_void_p]),
    "kvc_error": (c_char_p, [c_void_p]),
    "kvc_version": (c_char_p, []),
    "kvc_text": (c_char_p, [c_int]),
    "kvc_session": (c_uint64, [c_void_p]),
    "kvc_boot_epoch": (c_uint64, [c_void_p]),
    "kvc_device": (c_char_p, [c_void_p]),
    "kvc_ping": (c_int, [c_void_p]),
    "kvc_key": (None, [c_char_p, c_size_t, c_void_p]),
    "kvc_namespace_digest": (None, [POINTER(structs.NamespaceFields), c_void_p]),
    "kvc_register": (c_int, [c_void_p, POINTER(structs.PartDesc), POINTER(c_uint32)]),
    "kvc_unregister": (c_int, [c_void_p, c_uint32]),
    "kvc_lookup": (
        c_int,
        [c_void_p, c_uint64, c_void_p, c_uint32, c_char_p, c_uint32, c_uint32,
         POINTER(structs.LeaseStruct)],
    ),
    "kvc_remote": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(c_uint32)]),
    "kvc_decline": (c_int, [c_void_p, c_uint64]),
    "kvc_probe": (
        c_int,
        [c_void_p, c_void_p, c_uint32, c_char_p, c_uint32, POINTER(c_uint32)],
    ),
    "kvc_extend": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(c_uint32)]),
    "kvc_release": (c_int, [c_void_p, c_uint64]),
    "kvc_adopt": (
        c_int,
        [c_void_p, c_char_p, c_uint32, c_uint32, POINTER(structs.LeaseStruct)],
    ),
    "kvc_load": (c_int, [c_void_p, POINTER(structs.LoadArgs)]),
    "kvc_load_result": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p]),
    "kvc_save": (c_int, [c_void_p, POINTER(structs.SaveArgs), POINTER(c_uint64)]),
    "kvc_wait": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(structs.OutcomeStruct)]),
    "kvc_cancel": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(structs.OutcomeStruct)]),
    "kvc_drain": (c_int, [c_void_p]),
    "kvc_flush": (c_int, [c_void_p, c_uint32, POINTER(c_uint64)]),
    "kvc_flush_keys": (c_int, [c_void_p, c_uint32, c_char_p, c_uint32, POINTER(c_uint64)]),
    "kvc_pin": (c_int, [c_void_p, c_uint32, c_char_p, c_uint32, c_uint32, POINTER(c_uint32)]),
    "kvc_unpin": (c_int, [c_void_p, c_uint32, c_char_p, c_uint32, POINTER(c_uint32)]),
    "kvc_suspend": (c_int, [c_void_p, c_uint32, c_uint32]),
    "kvc_resume": (c_int, [c_void_p, c_uint32]),
    "kvc_figures": (c_int, [c_void_p, c_void_p, c_uint32, POINTER(c_uint32)]),
}


def find() -> str:
    """The path, or the bare name for the loader, of the library that would be used."""
    named = os.environ.get("KVCACHE_LIBRARY")
    if named:
        return named
    beside = Path(__file__).with_name(FILE)
    return str(beside) if beside.exists() else FILE


_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def _bind(loaded: ctypes.CDLL, path: str) -> None:
    """Makes the calls attributes of the library. Raises OSError where one is missing."""
    versioned = ctypes.CDLL(None).dlvsym
    versioned.restype = c_void_p
    versioned.argtypes = [c_void_p, c_char_p, c_char_p]
    for name, (result, arguments) in _PROTOTYPES.items():
        address = versioned(loaded._handle, name.encode(), SYMBOLS.encode())
        if not address:
            raise OSError(f"{path} has no {name} of {SYMBOLS}: it is no libkvcache that goes with "
                          "this package")
        setattr(loaded, name, ctypes.CFUNCTYPE(result, *arguments)(address))


def library() -> ctypes.CDLL:
    """The library, loaded at the first call. Calls release the interpreter's lock.

    Raises OSError, with what was tried, when it cannot be loaded or is another release's.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            path = find()
            try:
                loaded = ctypes.CDLL(path)
            except OSError as error:
                how = (
                    "that is what KVCACHE_LIBRARY says" if os.environ.get("KVCACHE_LIBRARY")
                    else f"set KVCACHE_LIBRARY to the path of {FILE}, unless the loader finds it"
                )
                raise OSError(f"cannot load {path} ({how}): {error}") from error
            _bind(loaded, path)
            _loaded = loaded
        return _loaded


def version() -> str:
    """The library's version."""
    return str(library().kvc_version().decode())


def fold_key(data: bytes) -> bytes:
    """kvc_key: an engine's block hash, folded to 16 bytes."""
    if len(data) >= structs.KEY_BYTES:
        return data[: structs.KEY_BYTES]  # as the library does, without a call for each block
    key = ctypes.create_string_buffer(structs.KEY_BYTES)
    library().kvc_key(data, len(data), key)
    return key.raw


def digest(fields: structs.NamespaceFields) -> bytes:
    """kvc_namespace_digest."""
    out = ctypes.create_string_buffer(structs.NAMESPACE_BYTES)
    library().kvc_namespace_digest(byref(fields), out)
    return out.raw
