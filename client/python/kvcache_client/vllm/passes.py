"""Forward passes that are timed: what prefill costs follows from them."""

from __future__ import annotations

from typing import List, Optional, Tuple

from .breakeven import STEP_TOKENS
from .streams import NoStreams, Timer

TIMED = 64  # one after the other, then one in so many


class Passes:
    """One at a time, from begin() to end(); over() later says how long it took."""

    def __init__(self, streams: NoStreams) -> None:
        self._streams = streams
        self._timing: Optional[Tuple[int, Timer]] = None  # its tokens
        self._seen, self._running = 0, False

    def begin(self, tokens: int) -> None:
        if tokens >= STEP_TOKENS and self._timing is None:
            self._seen += 1
            if self._seen <= TIMED or self._seen % TIMED == 0:
                self._timing = tokens, self._streams.timer()
                self._timing[1].begin()
                self._running = True

    def again(self) -> None:
        """The pass begins only now: what was in front of it is no part of it."""
        if self._timing is not None and self._running:
            self._timing[1].begin()

    def end(self) -> None:
        if self._timing is not None and self._running:
            self._running = False
            self._timing[1].end()

    def over(self) -> List[Tuple[int, float]]:
        """Tokens and seconds of the pass, once that is known."""
        if self._timing is None or self._running:
            return []
        tokens, timer = self._timing
        took = timer.seconds()
        if took is None:
            return []
        self._timing = None
        return [(tokens, took)]
