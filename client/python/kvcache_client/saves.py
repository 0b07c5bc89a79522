"""Saves: blocks on their way into the daemon's slots."""

from __future__ import annotations

import array
import ctypes
import dataclasses
import enum
import itertools
from typing import TYPE_CHECKING, Any, List, Sequence, Union

from . import structs
from .names import Keys
from .parts import Part

if TYPE_CHECKING:
    from .client import Client


class KeyState(enum.IntEnum):
    """What a save did about a key."""

    HIT = 0  #: there already, or earlier in this very save
    SAVED = 1  #: copied; published on proof
    PENDING = 2  #: another save is filling it
    SKIPPED = 3  #: no room, or None in place of a block


@dataclasses.dataclass(frozen=True)
class SaveEntry:
    """Blocks of one part. blocks: one of the worker's block ids a key, or None (or
    structs.NO_BLOCK) where the group has no such block."""

    part: Part
    keys: Keys
    blocks: Sequence[Union[int, None]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a save ended. status 0: every block that was copied is published."""

    status: int
    published: int
    dropped: int


class Save:
    """A save whose copies are enqueued. Nobody needs to wait for it to be published.

    id: 0 when there was nothing to copy. states: for each entry, one KeyState a key.
    """

    def __init__(
        self, client: "Client", args: structs.SaveArgs, owners: Sequence[Any],
        n_keys: Sequence[int], states: "array.array[int]"
    ) -> None:
        """n_keys: of each entry; states: of all entries, one behind the other."""
        self.client = client
        self.id = 0
        self._args = args
        self._owners = owners
        self._n_keys = n_keys
        self._states = states

    @property
    def states(self) -> List[List[KeyState]]:
        states = map(KeyState, self._states)
        return [list(itertools.islice(states, n)) for n in self._n_keys]

    @property
    def raw_states(self) -> bytes:
        """The same of all entries, one behind the other: a byte a key."""
        return self._states.tobytes()

    def count(self, state: KeyState) -> int:
        """How many keys of all entries are in that state."""
        return self.raw_states.count(state)

    def wait(self, ms: int = 1000) -> Outcome:
        """Waits at most ms until it has ended; DeadlineError if it has not. Once."""
        return self._end("kvc_wait", ms)

    def cancel(self, ms: int = 1000) -> Outcome:
        """Ends it: what is published stays, the rest is dropped. Answers when its copies ended."""
        return self._end("kvc_cancel", ms)

    def more(self, first_slice: int, n_slices: int = 1, stream: Any = None) -> None:
        """More slices of a save by slices (Client.save with slices=). Nothing to do when id is 0.

        Published when every slice of the part has come, each once.
        """
        if self.id == 0:
            return
        self._args.first_slice, self._args.n_slices = first_slice, n_slices
        self._args.more_of = self.id
        self._start(stream)

    def _start(self, stream: Any) -> None:
        name = ctypes.c_uint64(0)
        self._args.stream = self.client._stream(stream)
        try:
            self.client._check("kvc_save", ctypes.byref(self._args), ctypes.byref(name))
        finally:
            # Set on DeadlineError too, when a copy by the daemon may run.
            self.id = name.value or self.id

    def _end(self, call: str, ms: int) -> Outcome:
        if self.id == 0:
            return Outcome(0, 0, 0)
        out = structs.OutcomeStruct()
        self.client._check(call, self.id, ms, ctypes.byref(out))
        return Outcome(out.status, out.published, out.dropped)
