"""Blocks that the daemon was asked to save, or had, a short time ago. A prefix that the engine's own
cache serves all the time is named to the daemon again only when that is some seconds ago: often
enough that it is not evicted there as if nobody used it, and not with every request."""

from __future__ import annotations

from typing import Dict, Optional

from ..names import KEY_BYTES

SECONDS = 10.0
MOST = 16384  # of each generation: what is forgotten at once is freed at once


class Lately:
    """When each block's prefix was last named, as far back as any block of it."""

    def __init__(self) -> None:
        self._new: Dict[bytes, float] = {}
        self._old: Dict[bytes, float] = {}
        self._begun = 0.0

    def add(self, keys: bytes, at: float, now: float) -> None:
        """Blocks of which some block in front, or they themselves, were named at `at`."""
        if len(self._new) >= MOST or now - self._begun > SECONDS:
            self._old, self._new, self._begun = self._new, {}, now
        self._new.update(
            (keys[i : i + KEY_BYTES], at) for i in range(0, len(keys), KEY_BYTES))

    def at(self, key: bytes, now: float) -> Optional[float]:
        """None: too long ago, or never."""
        found = self._new.get(key) or self._old.get(key)
        return found if found is not None and now - found < SECONDS else None

    def clear(self) -> None:
        """The daemon may have lost some of them."""
        self._new, self._old = {}, {}
