"""The client: one session with the daemon of this host."""

from __future__ import annotations

import array
import contextlib
import enum
import os
import sys
import threading
from ctypes import byref, c_uint32, c_uint64, c_void_p, create_string_buffer
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

from . import names, parts, structs
from .errors import NoDeviceError, error_of
from .leases import Lease
from .library import library
from .loads import Load, SlicedLoad, UnderWay, packets
from .memory import Memory, Slice, tensors_slices
from .names import Keys, Namespace
from .parts import Copy, Part, Rule
from .saves import Save, SaveEntry

Blocks = Sequence[Optional[int]]
Parts = Union[Part, Sequence[Part]]

_FIGURES_MAX = 256


class Role(enum.IntEnum):
    WORKER = 1  #: saves and loads
    READER = 2  #: loads; maps memory read-only
    SCHEDULER = 3  #: looks up, leases and hands over; maps nothing
    OPERATOR = 4  #: statistics


def _block_ids(blocks: Blocks) -> Tuple[Any, int]:
    """Block ids as the library takes them, and the address of the first."""
    if isinstance(blocks, array.array) and blocks.typecode == "I":
        ids = blocks
    else:
        try:
            ids = array.array("I", [*blocks])
        except TypeError:  # some are None
            ids = array.array("I", [structs.NO_BLOCK if b is None else b for b in blocks])
    return ids, ids.buffer_info()[0]


def _joined(keys: Keys) -> Tuple[bytes, int]:
    """Keys as the library takes them, and how many."""
    joined = names.join(keys)
    return joined, len(joined) // structs.KEY_BYTES


class Client:
    """One session. Bulk bytes never pass through Python: the library copies between the worker's
    blocks and the daemon's slots, on the caller's stream where there is a GPU.

    socket: of the daemon [$KVCACHE_SOCKET, else /run/kvcached/kvcached.sock]. name: for people.
    role: a Role or its name. gpu: the torch device (or its number) that the parts' memory is on;
    without it the GPU that is current in this thread. The rest are bounds in milliseconds on calls;
    0 is the library's default: connect_ms on connect, register and reconnect, lookup_ms on replies
    to lookups, loads and the like, save_ms on a save's reply, load_ms on loads that the daemon
    copies. remote_ms: a lookup has other daemons asked for what is not here, for so long; 0: not.

    Threads: calls from several threads take turns. A client is unusable in a forked child
    (ForkedError). Errors: KvcacheError and its children; whatever goes wrong is a miss or a block
    not saved, never wrong bytes.
    """

    def __init__(
        self,
        socket: Optional[str] = None,
        *,
        name: Optional[str] = None,
        role: Union[Role, str] = Role.WORKER,
        gpu: Any = None,
        connect_ms: int = 0,
        lookup_ms: int = 0,
        save_ms: int = 0,
        load_ms: int = 0,
        remote_ms: int = 0,
    ) -> None:
        self._lib = library()
        self._lock = threading.RLock()
        self._client = c_void_p()
        self._under_way = UnderWay()
        self._gpu = gpu
        self._role = Role[role.upper()] if isinstance(role, str) else Role(role)
        options = structs.Options(
            socket=None if socket is None else os.fsencode(socket),
            name=None if name is None else name.encode(),
            role=self._role,
            connect_ms=connect_ms,
            lookup_ms=lookup_ms,
            save_ms=save_ms,
            load_ms=load_ms,
            remote_ms=remote_ms,
        )
        with self._current_gpu():
            why = create_string_buffer(512)
            status = self._lib.kvc_connect_why(
                byref(options), byref(self._client), why, len(why)
            )
        if status != 0:
            text = self._lib.kvc_text(status).decode()
            raise error_of(status, text, why.value.decode(errors="replace"))

    # The session.

    def close(self) -> None:
        """Ends the session. Idempotent, and allowed in a forked child. Saves whose copies have
        ended are still published, others are dropped."""
        with self._lock:
            client, self._client = self._client, c_void_p()
            if client:
                self._lib.kvc_close(client)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_client", None):
            self.close()

    def reconnect(self) -> None:
        """Connects again after a SessionError. Parts stay valid; saves and leases of the old
        session are gone."""
        with self._current_gpu():
            self._check("kvc_reconnect")

    def fileno(self) -> int:
        """Readable when dispatch() has something to do; -1 when not connected."""
        with self._lock:
            return int(self._lib.kvc_fd(self._client)) if self._client else -1

    def dispatch(self) -> None:
        """Takes in what the daemon has sent; never blocks."""
        self._check("kvc_dispatch")

    def ping(self) -> None:
        self._check("kvc_ping")

    @property
    def device(self) -> str:
        """ "host" or "cuda"."""
        return self._text("kvc_device")

    @property
    def session(self) -> int:
        with self._lock:
            return int(self._lib.kvc_session(self._open()))

    @property
    def boot_epoch(self) -> int:
        """Names the daemon's start: another one after a restart."""
        with self._lock:
            return int(self._lib.kvc_boot_epoch(self._open()))

    def statistics(self) -> Dict[str, int]:
        """The daemon's figures by name ("tiers.gpu.used_bytes", "hits.host", ...)."""
        figures = (structs.Figure * _FIGURES_MAX)()
        n = c_uint32()
        self._check("kvc_figures", figures, _FIGURES_MAX, byref(n))
        return {f.name.decode(): f.value for f in figures[: min(n.value, _FIGURES_MAX)]}

    # Parts.

    def register(
        self,
        namespace: Union[Namespace, bytes],
        slices: Sequence[Slice],
        *,
        blocks: int,
        block_tokens: int,
        rule: Rule = Rule.FULL,
        window: int = 0,
        name: Optional[str] = None,
        family: Optional[bytes] = None,
        copy: Copy = Copy.WORKER,
        memories: Sequence[Memory] = (),
    ) -> Part:
        """Registers one KV cache group of one shard, and maps the tenant's memory.

        slices: in an order that engines sharing the cache agree on. blocks: block ids are 0 to
        blocks - 1 (0 for a scheduler). window: tokens, of a window part. family: 16 bytes that name
        the model, the same in all its parts on all ranks. memories: for Copy.DAEMON.
        """
        digest = namespace.digest() if isinstance(namespace, Namespace) else bytes(namespace)
        if isinstance(namespace, Namespace) and name is None:
            name = namespace.model
        if self._role in (Role.SCHEDULER, Role.OPERATOR):
            slices = [s.without_memory() for s in slices]
            blocks = 0
        # The library would copy from addresses of a GPU as if they were memory of this machine.
        if self.device == "host" and any(s.on_gpu() for s in slices):
            raise error_of(
                NoDeviceError.status, self._lib.kvc_text(NoDeviceError.status).decode(),
                'slices: on a GPU, not for a daemon whose device is "host"')
        desc = parts.describe(
            digest,
            slices,
            blocks=blocks,
            block_tokens=block_tokens,
            rule=rule,
            window=window,
            name=name,
            family=family,
            copy=copy,
            memories=memories,
        )
        part = Part(self, desc, [s.owner for s in slices], len(slices))
        part.renew()
        return part

    def register_tensors(
        self, namespace: Union[Namespace, bytes], tensors: Sequence[Any], *, block_axis: int = 0,
        **how: Any
    ) -> Part:
        """The same for a list of KV cache tensors, one a layer; block_axis is the axis whose index
        is the block id. `how`: as register(), but for blocks."""
        slices, blocks = tensors_slices(tensors, block_axis)
        return self.register(namespace, slices, blocks=blocks, **how)

    # Leases.

    def lookup(self, some: Parts, keys: Keys, *, request: int = 0, ms: int = 0) -> Lease:
        """Leases the longest prefix of the keys for which every part's rule holds: in all parts or
        in none. request: the engine's, asking again under it extends the same lease; 0 makes a new
        one. ms: how long; 0 is the daemon's default. A miss is a lease that is false."""
        handles, n = self._handles(some)
        joined, n_keys = _joined(keys)
        lease = structs.LeaseStruct()
        self._check(
            "kvc_lookup", request, handles.buffer_info()[0], n, joined, n_keys, ms, byref(lease))
        return Lease(self, lease)

    def probe(self, some: Parts, keys: Keys) -> int:
        """How many blocks lookup() would grant, without a lease."""
        handles, n = self._handles(some)
        joined, n_keys = _joined(keys)
        blocks = c_uint32()
        self._check("kvc_probe", handles.buffer_info()[0], n, joined, n_keys, byref(blocks))
        return blocks.value

    def remote(self, fetch: int, ms: int = 0) -> int:
        """Waits at most ms (0: only looks) until what a lookup had other daemons asked for
        (Lease.fetch) is over; how many blocks behind the lease came, for another lookup to lease.
        DeadlineError: not yet. It is told once."""
        blocks = c_uint32()
        self._check("kvc_remote", fetch, ms, byref(blocks))
        return blocks.value

    def decline(self, fetch: int) -> None:
        """It is not wanted any more."""
        self._check("kvc_decline", fetch)

    def adopt(self, token: bytes, part: Part, *, ms: int = 0) -> Lease:
        """Takes over one part of a lease that another session of the tenant made. Lease.token is
        what travels between the two."""
        if len(token) != structs.TOKEN_BYTES:
            raise ValueError(f"token: {len(token)} bytes, not {structs.TOKEN_BYTES}")
        lease = structs.LeaseStruct()
        self._check("kvc_adopt", bytes(token), part.handle, ms, byref(lease))
        return Lease(self, lease)

    # Copies.

    def load(
        self, lease: Union[Lease, int], part: Part, blocks: Blocks, *, first: int = 0,
        stream: Any = None, verify: bool = True, release: bool = False
    ) -> Load:
        """Enqueues copies of the lease's blocks first, first + 1, ... into the worker's `blocks`
        (distinct ids; None leaves one out). Nothing waits for them.

        release: this ends the lease too, whatever the load comes to, without a question of its own.
        stream: a torch.cuda.Stream, a cudaStream_t as a number, or None: torch's current stream if
        torch is in use, else the default one. A stream that is being captured into a graph is
        refused (BusyError). On the host device the bytes are there when it returns.
        """
        args, ids = self._load_args(lease, part, blocks, first)
        args.no_verify, args.release = not verify, release
        args.stream = self._stream(stream)
        load = Load(self, part, ids, len(ids), packets(ids))
        load._start(args)
        return load

    def load_slices(
        self, lease: Union[Lease, int], part: Part, blocks: Blocks, *, first: int = 0,
        verify: bool = True
    ) -> SlicedLoad:
        """A load layer by layer; its load() enqueues."""
        args, ids = self._load_args(lease, part, blocks, first)
        args.no_verify = not verify
        return SlicedLoad(self, part, args, ids, len(ids), verify)

    def room_for_loads(self, packets: int = 1, ms: int = 0) -> bool:
        """Whether so many packets' worth of loads (loads.packets()) can be started, of LOADS_MAX that
        may be under way; waits at most ms for each that is in the way."""
        with self._lock:
            return self._under_way.room(packets, ms)

    def save(
        self, part: Part, keys: Keys, blocks: Blocks, *, stream: Any = None, checksums: bool = True,
        slices: Optional[Tuple[int, int]] = None, to_host: bool = False,
        no_wait: bool = False
    ) -> Save:
        """Copies those of the blocks that the daemon does not have. It may wait save_ms for the
        daemon's answer, then gives up (DeadlineError: nothing is saved). Whatever comes later on
        the stream may overwrite the blocks. At most structs.KEYS_MAX keys.

        slices: (first, n): only these, Save.more() brings the others; published when all came.
        to_host: into the host tier, for keys that were SKIPPED because the GPU tier is small; on a
        stream that computing does not wait for.
        no_wait: the daemon answers at once, and does not wait a moment for room in a full GPU tier.
        """
        return self.save_entries(
            [SaveEntry(part, keys, blocks)], stream=stream, checksums=checksums, slices=slices,
            to_host=to_host, no_wait=no_wait
        )

    def save_entries(
        self, entries: Sequence[SaveEntry], *, stream: Any = None, checksums: bool = True,
        slices: Optional[Tuple[int, int]] = None, to_host: bool = False,
        no_wait: bool = False
    ) -> Save:
        """Blocks of several parts, or of several requests, in one save."""
        structures = structs.save_entries(len(entries))()
        owners, n_keys = [], []
        for structure, entry in zip(structures, entries):
            joined, n = _joined(entry.keys)
            ids, address = _block_ids(entry.blocks)
            if len(ids) != n:
                raise ValueError(f"blocks: {len(ids)}, keys: {n}")
            structure.part, structure.keys, structure.n_keys = entry.part.handle, joined, n
            structure.blocks = address
            owners.append((joined, ids))
            n_keys.append(n)
        states = array.array("B", bytes(sum(n_keys)))
        at = states.buffer_info()[0]
        for structure, n in zip(structures, n_keys):
            structure.states, at = at, at + n
        first, n_slices = slices or (0, 0)
        args = structs.SaveArgs(
            entries=structures,
            n_entries=len(entries),
            no_checksums=not checksums,
            first_slice=first,
            n_slices=n_slices,
            to_host=to_host,
            no_wait=no_wait,
        )
        save = Save(self, args, owners, n_keys, states)
        save._start(stream)
        return save

    def drain(self) -> None:
        """Says that everything this session enqueued has finished, after the caller's own
        synchronise: unproved saves end, and their slots are free at once."""
        self._check("kvc_drain")

    # Flushes and pins.

    def flush(self, part: Part) -> int:
        """Drops everything of the part's namespace, for every session of the tenant (new weights,
        reset of a prefix cache); how many blocks. Others are told StaleError."""
        blocks = c_uint64()
        self._check("kvc_flush", part.handle, byref(blocks))
        return blocks.value

    def flush_keys(self, part: Part, keys: Keys) -> int:
        """Drops the blocks of these keys of this part; how many."""
        joined, n = _joined(keys)
        blocks = c_uint64()
        self._check("kvc_flush_keys", part.handle, joined, n, byref(blocks))
        return blocks.value

    def pin(self, part: Part, keys: Keys, *, seconds: int = 0) -> int:
        """Keeps those that are there from being evicted for so many seconds (0: an hour); how
        many were there. NoRoomError when more than half of the memory would be pinned."""
        joined, n = _joined(keys)
        pinned = c_uint32()
        self._check("kvc_pin", part.handle, joined, n, seconds, byref(pinned))
        return pinned.value

    def unpin(self, part: Part, keys: Keys) -> int:
        joined, n = _joined(keys)
        unpinned = c_uint32()
        self._check("kvc_unpin", part.handle, joined, n, byref(unpinned))
        return unpinned.value

    def suspend(self, part: Part, ms: int = 1000) -> None:
        """Waits until nothing reads or writes the part's memory any more; kvcache.h says what is
        refused until resume()."""
        self._check("kvc_suspend", part.handle, ms)

    def resume(self, part: Part) -> None:
        self._check("kvc_resume", part.handle)

    # Inside.

    def _open(self) -> c_void_p:
        if not self._client:
            raise error_of(33, "the client is closed")
        return self._client

    def _text(self, call: str) -> str:
        with self._lock:
            return str(getattr(self._lib, call)(self._open()).decode())

    def _check(self, call: str, *arguments: Any) -> None:
        """A call that returns a status; raises what is not KVC_OK."""
        with self._lock:
            client = self._open()
            status = getattr(self._lib, call)(client, *arguments)
            if status == 0:
                return
            text = self._lib.kvc_text(status).decode()
            detail = self._lib.kvc_error(client).decode(errors="replace")
        raise error_of(status, text, detail)

    @staticmethod
    def _handles(some: Parts) -> Tuple["array.array[int]", int]:
        listed = [some] if isinstance(some, Part) else list(some)
        return array.array("I", [p.handle for p in listed]), len(listed)

    @staticmethod
    def _load_args(
        lease: Union[Lease, int], part: Part, blocks: Blocks, first: int
    ) -> Tuple[structs.LoadArgs, Any]:
        ids, address = _block_ids(blocks)
        args = structs.LoadArgs(
            lease=lease if isinstance(lease, int) else lease.id,
            part=part.handle,
            first=first,
            count=len(ids),
            blocks=address,
        )
        return args, ids

    def _torch(self) -> Any:
        """torch, if the caller uses it with a GPU."""
        torch = sys.modules.get("torch")
        return torch if torch is not None and torch.cuda.is_initialized() else None

    @contextlib.contextmanager
    def _current_gpu(self) -> Iterator[None]:
        """Makes self._gpu current in this thread: that is the one the library takes."""
        if self._gpu is None:
            yield
            return
        import torch

        with torch.cuda.device(self._gpu):
            torch.cuda.synchronize()  # this thread has the device's context from here on
            yield

    def _stream(self, stream: Any) -> Optional[int]:
        if stream is None:
            if self.device != "cuda":
                return None
            torch = self._torch()
            return None if torch is None else torch.cuda.current_stream(self._gpu).cuda_stream
        return int(getattr(stream, "cuda_stream", stream))

