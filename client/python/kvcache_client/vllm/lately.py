"""Blocks that the daemon was asked to save, or had, a short time ago: they are not named to it again.
A prefix that the engine's own cache serves all the time is, when the last time is some seconds ago:
often enough that it is not evicted there as if nobody used it, and not with every request.
"""

from __future__ import annotations

import time
from typing import Dict, Optional

from .requests import State

SECONDS = 10.0
MOST = 16384  # blocks of each generation: what is forgotten at once is freed at once


class Lately:
    """When each block was named, or one in front of it if that is longer ago.

    on: of groups other than full ones the daemon may lack some blocks in front of what it has, so
    that everything has to be named.
    """

    def __init__(self) -> None:
        self.on = False
        self._new: Dict[bytes, float] = {}
        self._old: Dict[bytes, float] = {}
        self._begun = 0.0

    def found(self, state: State, loaded: int) -> None:
        """The request's first blocks are of the engine's own cache, and so many behind them are
        loaded from the daemon."""
        if not self.on or not (state.own or loaded):
            return
        now = time.monotonic()
        at = self._at(state, state.own - 1, now) if state.own else now
        if at is not None:
            self._take(state, state.own + loaded, at)
            self._add(state, state.own, state.saved, now)

    def skip(self, state: State, n: int) -> None:
        """Of the n blocks that are about to be named, those in front that need not be: the last one
        of a prompt whose prefix was found, or those that another request has computed, too."""
        now = time.monotonic()
        while self.on and state.saved < n:
            at = self._at(state, state.saved, now)
            if at is None:
                break
            self._take(state, state.saved + 1, at)

    def ordered(self, state: State, n: int) -> None:
        """The first n blocks are named now."""
        now = time.monotonic()
        if state.named is None:
            state.named = now
        if self.on:
            self._add(state, state.saved, n, now)
        state.saved = n

    def missed(self, state: State, block: int) -> None:
        """A lookup ended in front of this one: the daemon has evicted it since, if it was named."""
        if self.on:
            state.saved = min(state.saved, block)
            if self._at(state, block, time.monotonic()) is not None:
                self.forget(state, block)

    def forget(self, state: State, first: int) -> None:
        """Blocks from there on were not taken."""
        for key in state.each[first:]:
            self._new.pop(key, None)
            self._old.pop(key, None)

    def clear(self) -> None:
        """The daemon may have lost some of them."""
        self._new, self._old = {}, {}

    def _take(self, state: State, n: int, at: float) -> None:
        state.saved = max(state.saved, n)
        state.named = at if state.named is None else min(at, state.named)

    def _at(self, state: State, block: int, now: float) -> Optional[float]:
        """When, if lately."""
        if block >= len(state.each):
            return None  # it has no name
        key = state.each[block]
        at = self._new.get(key) or self._old.get(key)
        return at if at is not None and now - at < SECONDS else None

    def _add(self, state: State, first: int, end: int, now: float) -> None:
        if len(self._new) >= MOST or now - self._begun > SECONDS:
            self._old, self._new, self._begun = self._new, {}, now
        at = state.named or now
        for key in state.each[first:end]:
            self._new[key] = at
