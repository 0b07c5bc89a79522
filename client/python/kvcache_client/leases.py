"""Leases: a cached prefix that stays where it is until it is loaded or released."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import structs

if TYPE_CHECKING:
    from .client import Client


class Lease:
    """The longest cached prefix of a lookup; blocks == 0 is a miss.

    id: 0 for a miss. token: 16 bytes with which another session of the tenant takes it over
    (Client.adopt). blocks: of the prefix. ms: time granted from the call on. gpu, host: where the
    first part's blocks are now. pending: blocks behind it that somebody is saving. remote: blocks
    that other daemons are asked for, at most, under the name fetch (Client.remote); 0: none.

    Ends by release(), by its time, or with its client. As a context manager it releases itself.
    """

    def __init__(self, client: "Client", struct: structs.LeaseStruct) -> None:
        self.client = client
        self.id = int(struct.id)
        self.token = bytes(struct.token)
        self.blocks = int(struct.blocks)
        self.ms = int(struct.ms)
        self.gpu = int(struct.gpu)
        self.host = int(struct.host)
        self.pending = int(struct.pending)
        self.remote = int(struct.remote)
        self.fetch = int(struct.fetch)

    def __bool__(self) -> bool:
        return self.id != 0

    def __repr__(self) -> str:
        return f"Lease(id={self.id}, blocks={self.blocks}, gpu={self.gpu}, host={self.host})"

    def extend(self, ms: int = 0) -> int:
        """Asks for so many milliseconds from now (0: the daemon's default); what was granted."""
        granted = ctypes.c_uint32()
        self.client._check("kvc_extend", self.id, ms, ctypes.byref(granted))
        self.ms = granted.value
        return self.ms

    def release(self) -> None:
        """Ends it. Idempotent; a load that is open keeps its blocks."""
        if self.id != 0:
            self.client._check("kvc_release", self.id)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()
