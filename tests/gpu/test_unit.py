#!/usr/bin/env python3
"""The daemon on a GPU within the walls of its unit, as tests/python/walls.py makes them where there
is no systemd. What system calls systemd's sets have is in the file $KVC_SYSCALL_SETS where there is
no systemd-analyze either: what `systemd-analyze syscall-filter` prints.
"""

import os
import shutil
import sys

import kit
from kit import Daemon, Remote, Waived, fresh_keys
from test_torch import GOOD, N, Worker

UID = 65534
SETS = os.environ.get("KVC_SYSCALL_SETS")


def walls():
    if os.geteuid() != 0:
        raise Waived("needs root")
    if not SETS and not shutil.which("systemd-analyze"):
        raise Waived("no systemd-analyze, and no $KVC_SYSCALL_SETS")
    return [sys.executable, os.path.join(kit.ROOT, "tests", "python", "walls.py"),
            os.path.join(kit.ROOT, "systemd", "kvcached.service.in"), str(UID),
            *(["--sets", SETS] if SETS else []), "--"]


def saved_and_loaded(by_daemon):
    kit.need_gpus()
    if by_daemon and kit.REHEARSE:
        raise Waived("torch's tensors on the CPU are not lent")
    with Daemon("--gpu-bytes", "64M", "--host-bytes", "128M", under=walls(), uid=UID) as d:
        with Remote(Worker, d.socket, "worker", 0, by_daemon) as worker:
            keys = fresh_keys(N)
            worker.call("save", keys, 3)
            assert worker.call("load", keys, 3) == GOOD
        warned = [w for w in d.text().splitlines() if " warning " in w or " error " in w]
        assert not warned, warned


def within_the_unit_s_walls_copies_by_the_worker():
    saved_and_loaded(False)


def within_the_unit_s_walls_copies_by_the_daemon():
    saved_and_loaded(True)


if __name__ == "__main__":
    kit.run_tests([
        within_the_unit_s_walls_copies_by_the_worker,
        within_the_unit_s_walls_copies_by_the_daemon,
    ])
