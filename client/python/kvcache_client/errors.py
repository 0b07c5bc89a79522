"""Exceptions, one for each kvc_status, grouped by the largest thing that is broken.

    KvcacheError
        RequestError    the request was refused and nothing changed; the session lives
        SessionError    connect again (Client.reconnect)
        DeviceError
        PeerError
        SystemError_    the daemon or this process ran out of something

None of them has to end an engine's request: whatever goes wrong is a miss, or a block not saved.
"""

from __future__ import annotations

from typing import Dict, Optional, Type


class KvcacheError(Exception):
    """status: the number of the kvc_status; text: its name for people; detail: "field: what"."""

    status = -1

    def __init__(self, text: str = "", detail: str = "", status: Optional[int] = None) -> None:
        super().__init__(f"{text} ({detail})" if detail else text)
        self.text = text
        self.detail = detail
        if status is not None:
            self.status = status
        #: Of a load that failed on its way: one byte a block, 1 where the destination is good.
        self.valid: Optional[bytes] = None


class RequestError(KvcacheError):
    pass


class InvalidError(RequestError, ValueError):
    status = 1


class LimitError(RequestError):
    status = 2


class UnsupportedError(RequestError):
    status = 3


class UnknownError(RequestError):
    status = 4


class DeniedError(RequestError):
    status = 5


class StaleError(RequestError):
    """The namespace was flushed: Part.renew() uses it anew."""

    status = 6


class ExpiredError(RequestError):
    status = 7


class NoRoomError(RequestError):
    status = 8


class DuplicateError(RequestError):
    status = 9


class CancelledError(RequestError):
    status = 10


class DeadlineError(RequestError, TimeoutError):
    status = 11


class ChecksumError(RequestError):
    status = 12


class BusyError(RequestError):
    status = 13


class SessionError(KvcacheError):
    pass


class ProtocolError(SessionError):
    status = 32


class DisconnectedError(SessionError, ConnectionError):
    status = 33


class VersionError(SessionError):
    status = 34


class ForkedError(SessionError):
    status = 35


class DeviceError(KvcacheError):
    pass


class DeviceFailedError(DeviceError):
    status = 64


class NoDeviceError(DeviceError):
    status = 65


class MapError(DeviceError):
    status = 66


class PeerError(KvcacheError):
    status = 96


class SystemError_(KvcacheError):
    pass


class NoMemoryError(SystemError_, MemoryError):
    status = 128


class NoFdsError(SystemError_):
    status = 129


class SystemCallError(SystemError_):
    status = 130


class StoppingError(SystemError_):
    status = 131


def _leaves(kind: Type[KvcacheError]) -> Dict[int, Type[KvcacheError]]:
    found = {} if kind.status < 0 else {kind.status: kind}
    for child in kind.__subclasses__():
        found.update(_leaves(child))
    return found


BY_STATUS: Dict[int, Type[KvcacheError]] = _leaves(KvcacheError)

# Where a number of a newer library belongs.
_GROUPS = ((32, RequestError), (64, SessionError), (96, DeviceError), (128, PeerError))


def error_of(status: int, text: str, detail: str = "") -> KvcacheError:
    """The exception for a status that is not 0."""
    kind = BY_STATUS.get(status)
    if kind is None:
        kind = next((group for end, group in _GROUPS if status < end), SystemError_)
    return kind(text, detail, status)
