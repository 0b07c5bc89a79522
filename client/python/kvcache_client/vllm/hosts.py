"""Which host this is: one daemon serves the processes of one."""

from __future__ import annotations

import socket

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def here() -> str:
    """The same in all processes of a host, and in no other's: hosts may have one name, and the
    containers of a host have several."""
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()
