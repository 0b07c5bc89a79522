"""Leases that nobody needs any more, and what other daemons are asked for. They end at once; where the
daemon is late with its answers, in later steps or by their time, so that a step waits for one of them
at most, however many end in it."""

from __future__ import annotations

import os
import time
from typing import Callable, List, Optional, Sequence

from ..errors import DeadlineError, KvcacheError, StaleError
from ..leases import Lease
from ..names import KEY_BYTES
from ..parts import Part
from .link import Link
from .requests import State

LATE_S = 0.1  # behind an answer that was late
NOBODYS = os.urandom(KEY_BYTES)  # names no block


class Endings:
    """failed: told of other errors."""

    def __init__(self, link: Link, failed: Callable[[KvcacheError], None]) -> None:
        self._link, self._failed = link, failed
        self._leases: List[Lease] = []
        self._states: List[State] = []  # ended, perhaps with a lease that nobody knows
        self._at = 0.0

    def release(self, lease: Optional[Lease]) -> None:
        if not lease or self._link.get() is None:
            return
        if self._waits():
            self._leases.append(lease)
            return
        try:
            lease.release()
        except DeadlineError:  # it ends when the daemon has come to it
            self._late()
        except KvcacheError as error:
            self._failed(error)

    def decline(self, fetch: int) -> None:
        client = self._link.get()
        if client is None or not fetch or self._waits():
            return
        try:
            client.decline(fetch)
        except DeadlineError:
            self._late()
        except KvcacheError as error:
            self._failed(error)

    def ended(self, state: State) -> None:
        """A request has. An answer that nobody waited for may have been a lease: by its name it is
        found."""
        if state.late:
            self._states.append(state)

    def step(self, parts: Sequence[Part]) -> None:
        """Some of what is left, until an answer is late again. parts: of every lease."""
        while self._leases and not self._waits():
            self.release(self._leases.pop())
        if self._states and not self._waits():
            self._end(self._states[-1].name, parts)

    def _end(self, name: int, parts: Sequence[Part]) -> None:
        """A lookup under that name which finds nothing ends its lease, and is no hit."""
        client = self._link.ready()
        try:
            if client is None:
                self._late()
                return
            client.lookup(parts, NOBODYS, request=name)
        except DeadlineError:
            self._link.late()
            self._late()
            return
        except StaleError:
            pass  # a flush has ended it
        except KvcacheError as error:
            self._failed(error)
        self._states.pop()

    def _waits(self) -> bool:
        return time.monotonic() < self._at

    def _late(self) -> None:
        self._at = time.monotonic() + LATE_S
