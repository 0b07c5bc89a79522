"""A daemon that comes and goes: a client while there is one, and attempts to reach it in a thread
of their own, so that nobody in the engine waits for it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, Optional

from ..client import Client
from ..errors import DeniedError, DisconnectedError, KvcacheError, NoDeviceError, VersionError

log = logging.getLogger("kvcache_client.vllm")

PAUSE_S, PAUSE_MAX_S = 0.01, 1.0  # behind answers that did not come, doubled each time
AGAIN_S = 60.0  # until a reason that has not changed is said again

# What to look at.
HINTS = {
    DeniedError: "May this user connect (group kvcache, or the setting allow)?",
    DisconnectedError:
        "Is kvcached running, and is this its socket (option socket, else KVCACHE_SOCKET)?",
    VersionError:
        "Are kvcached and libkvcache of one release, and was kvcached restarted since?",
    NoDeviceError: "Does the daemon see the GPU of this engine (its log, and --gpus)?",
}


class Link:
    """make: connects. setup: called whenever there is a connection, before anybody uses it; parts
    outlast a reconnect. retry_s: between attempts, which go on while the engine is idle, too.

    get() is called by one thread. One that is there and does not answer is left alone for a while
    (ready()), so that waiting for it costs an engine little however long that goes on.
    """

    def __init__(
        self, make: Callable[[], Client], setup: Callable[[Client], None], retry_s: float
    ) -> None:
        self._make, self._setup, self._retry_s = make, setup, retry_s
        self._client: Optional[Client] = None
        self._up = False
        self._closed = threading.Event()
        self._next = 0.0
        self._thread: Optional[threading.Thread] = None
        self._late, self._asked_again = 0, 0.0
        self._said, self._said_at = "", 0.0  # why there is no daemon
        self.losses = 0

    def open(self) -> bool:
        """The first attempt, which waits at most the connect time-out."""
        if not self._trying() and not self._attempt():
            self._begin(lambda: False)
        return self._up

    def get(self) -> Optional[Client]:
        """The client, or None while there is no daemon."""
        if self._up:
            return self._client
        if not self._trying() and not self._closed.is_set() and time.monotonic() >= self._next:
            self._begin(self._attempt)
        return None

    def renew(self) -> None:
        """What was set up is not valid any more (StaleError): it is set up again, and until then
        there is no client."""
        if self._up and not self._closed.is_set():
            self._up = False
            self._begin(self._set_up)

    def _trying(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self, first: Callable[[], bool]) -> None:
        """Goes on until there is a client, since an idle engine calls nothing here."""

        def attempts() -> None:
            up = first()
            while not up and not self._closed.wait(max(self._retry_s, PAUSE_S)):
                up = self._attempt()

        self._thread = threading.Thread(target=attempts, name="kvcached", daemon=True)
        self._thread.start()

    def ready(self) -> Optional[Client]:
        """The client, unless the last answers of the daemon did not come in time."""
        return None if self._late > 1 and time.monotonic() < self._asked_again else self.get()

    def late(self) -> None:
        """An answer did not come. The first time that is taken for chance."""
        self._late += 1
        pause = min(PAUSE_S * 2 ** min(self._late, 16), PAUSE_MAX_S)
        self._asked_again = time.monotonic() + pause

    def away_s(self) -> float:
        """How long there will be no client for sure, or not one that is asked."""
        until = self._asked_again if self._up else self._next
        return max(PAUSE_S, until - time.monotonic())

    def pause(self, seconds: float) -> None:
        """Asking is of no use for so long."""
        if seconds > 0:
            self._late = max(self._late, 2)
            self._asked_again = max(self._asked_again, time.monotonic() + seconds)

    def answered(self) -> None:
        self._late = 0

    def lost(self, error: Exception) -> None:
        """A call failed in a way that ends the session."""
        if self._up:
            self._up = False
            self.losses += 1
            self._next = 0.0
            log.warning("kvcached: %s; going on without the cache", error)

    def close(self) -> None:
        self._closed.set()
        self._up = False
        if self._thread is not None:
            self._thread.join()
        if self._client is not None:
            self._client.close()

    def _attempt(self) -> bool:
        try:
            if self._client is None:
                self._client = self._make()
            else:
                self._client.reconnect()
            if self._set_up():
                log.info("kvcached: connected, device %s", self._client.device)
                return True
        except (KvcacheError, OSError) as error:
            self._failed(error)
        return False

    def _set_up(self) -> bool:
        assert self._client is not None
        try:
            self._setup(self._client)
            self._up, self._said = True, ""
            return True
        except (KvcacheError, OSError) as error:
            self._failed(error)
        return False

    def _failed(self, error: Exception) -> None:
        now, why = time.monotonic(), str(error)
        self._next = now + self._retry_s
        if why != self._said or now >= self._said_at + AGAIN_S:
            self._said, self._said_at = why, now
            hint = next((f". {h}" for kind, h in HINTS.items() if isinstance(error, kind)), "")
            log.warning("kvcached: %s; trying again every %g s, without the cache until then%s",
                        error, self._retry_s, hint)
