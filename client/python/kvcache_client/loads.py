"""Loads: leased blocks on their way into the worker's."""

from __future__ import annotations

import array
import ctypes
import weakref
from typing import TYPE_CHECKING, Any, List, Optional, Sequence

from . import structs
from .errors import ChecksumError, DeadlineError, KvcacheError
from .parts import Part

if TYPE_CHECKING:
    from .client import Client


SLICE_MS = 1000  # for room when a load goes slice by slice: copies of slices before it


def packets(blocks: Sequence[Optional[int]]) -> int:
    """Of a load into these blocks: runs of those that are there, cut where a packet is full."""
    if None not in blocks and structs.NO_BLOCK not in blocks:
        return -(-len(blocks) // structs.KEYS_MAX)
    found, room = 0, 0
    for block in blocks:
        if block is None or block == structs.NO_BLOCK:
            room = 0
            continue
        if room == 0:
            found, room = found + 1, structs.KEYS_MAX
        room -= 1
    return found


class UnderWay:
    """A client's loads that nobody has asked about. The library holds LOADS_MAX packets of them,
    and for room it forgets how those ended that are over: that is asked here before."""

    def __init__(self) -> None:
        self._loads: List["weakref.ref[Load]"] = []

    def add(self, load: "Load") -> None:
        self._loads.append(weakref.ref(load))

    def room(self, packets: int, ms: int) -> bool:
        """Whether so many can be started; waits at most ms for each load that is in the way."""
        loads = [load for load in (ref() for ref in self._loads) if load and not load.judged]
        left = structs.LOADS_MAX - packets - sum(load.packets for load in loads)
        for wait in (0, ms) if ms else (0,):
            for load in loads if left < 0 else ():
                if not load.judged and left < 0 and load.settle(wait):
                    left += load.packets
        self._loads = [weakref.ref(load) for load in loads if not load.judged]
        return left >= 0 or not self._loads


class Load:
    """A load whose copies are enqueued: on the host device they have been made.

    What is computed from its blocks must not be used before wait() said which of them are good.
    """

    def __init__(
        self, client: "Client", part: Part, blocks: Any, count: int, in_packets: int
    ) -> None:
        self.client = client
        self.part = part
        self.count = count
        self._ids = blocks
        self._valid = array.array("B", bytes(max(count, 1)))
        self._name = ctypes.c_uint64()
        self.packets = in_packets
        self.judged = False
        self._error: Optional[KvcacheError] = None

    @property
    def valid(self) -> bytes:
        """One byte a block: 1 where the destination holds the key's bytes. After wait()."""
        return self._valid.tobytes()[: self.count]

    def invalid_blocks(self) -> List[int]:
        """The destination block ids that do not hold their key's bytes. After wait()."""
        valid = self.valid
        if 0 not in valid:
            return []
        return [
            block for block, good in zip(self._ids, valid)
            if not good and block != structs.NO_BLOCK
        ]

    def wait(self, ms: int = 1000) -> List[int]:
        """Waits at most ms (0: only looks) until the copies are over and compares the checksums.

        Returns invalid_blocks(): [] when all is well; those are to be computed. DeadlineError: not
        over yet. Other errors: only blocks marked in `valid` may be used.
        """
        if not self.judged:
            self._judge(ms)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.invalid_blocks()

    def settle(self, ms: int) -> bool:
        """Whether it is over; wait() says how it ended."""
        try:
            self._judge(ms)
        except DeadlineError:
            return False
        except KvcacheError as error:
            self._error = error
        return True

    def _judge(self, ms: int) -> None:
        try:
            valid = self._valid.buffer_info()[0]
            self.client._check("kvc_load_result", self._name.value, ms, valid)
        except ChecksumError:
            pass
        except DeadlineError:
            raise
        except Exception as error:
            self.judged = True
            error.valid = self.valid  # type: ignore[attr-defined]
            raise
        self.judged = True

    def _start(self, args: structs.LoadArgs) -> None:
        args.valid = self._valid.buffer_info()[0]
        args.load = ctypes.pointer(self._name)
        self.client.room_for_loads(self.packets)
        try:
            self.client._check("kvc_load", ctypes.byref(args))
        except ChecksumError:
            pass  # the daemon copied: it is judged already
        except Exception as error:
            error.valid = self.valid  # type: ignore[attr-defined]
            raise
        if self._name.value == 0:
            self.judged = True
        else:
            self.client._under_way.add(self)


class SlicedLoad:
    """A load slice by slice (layer by layer), so that one can be computed while the next arrive.

    Every slice must be asked for once, in any ranges, and the part's last one last. Slices arrive
    in the order of the calls; each has when what was enqueued by its call is done. wait() compares
    the whole blocks' checksums at the end.
    """

    def __init__(
        self,
        client: "Client",
        part: Part,
        args: structs.LoadArgs,
        blocks: Any,
        count: int,
        verify: bool,
    ) -> None:
        self.client = client
        self.part = part
        self.count = count
        self._args = args
        self._ids = blocks
        self._sums: Optional[Any] = (ctypes.c_uint64 * max(count, 1))() if verify else None
        self._packets = packets(blocks)
        self._under_way: List[Load] = []
        self._last: Optional[Load] = None

    def load(self, first_slice: int, n_slices: int = 1, stream: Any = None) -> None:
        """Enqueues the copies of these slices of every block of the load."""
        if n_slices < 1:
            raise ValueError("n_slices: at least 1")
        self.client.room_for_loads(self._packets, SLICE_MS)
        args = self._args
        args.first_slice, args.n_slices = first_slice, n_slices
        args.stream = self.client._stream(stream)
        args.sums = None if self._sums is None else ctypes.addressof(self._sums)
        one = Load(self.client, self.part, self._ids, self.count, self._packets)
        one._start(args)
        self._under_way.append(one)
        self._last = one

    def wait(self, ms: int = 1000) -> List[int]:
        """As Load.wait(), for all that was asked for so far."""
        while self._under_way:
            self._under_way[0].wait(ms)
            self._under_way.pop(0)
        return self.invalid_blocks()

    def invalid_blocks(self) -> List[int]:
        """As Load.invalid_blocks()."""
        return [] if self._last is None else self._last.invalid_blocks()

    @property
    def valid(self) -> bytes:
        """As Load.valid; before the last slice it only says that copies were made."""
        return b"\0" * self.count if self._last is None else self._last.valid
