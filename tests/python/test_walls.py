#!/usr/bin/env python3
"""The daemon within the walls of its unit, as tests/python/walls.py makes them without systemd."""

import os
import shutil
import subprocess
import sys

import support

UID = 65534
WALLS = [sys.executable, os.path.join(support.ROOT, "tests", "python", "walls.py"),
         os.path.join(support.ROOT, "systemd", "kvcached.service.in"), str(UID)]

# What is refused, and what is not.
TRIES = """
import mmap, os, socket

def attempt(what, *arguments, **keywords):
    try:
        what(*arguments, **keywords)
        return "done"
    except OSError as e:
        return "refused"

print(attempt(mmap.mmap, -1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
      attempt(mmap.mmap, -1, 4096),
      attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW),
      attempt(socket.socket, socket.AF_UNIX),
      attempt(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)),
      attempt(os.unshare, 0x10000000) if hasattr(os, "unshare") else "refused",
      attempt(os.open, "/etc/kvcached-walls", os.O_CREAT | os.O_WRONLY),
      attempt(os.kill, os.getppid(), 0), os.getuid(), os.umask(0))
"""


class Walled(support.Daemon):
    def start(self):
        if self._command[0] != WALLS[0]:
            self._command = [*WALLS, "--", *self._command]
        super().start()


class Walls(support.Case):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root")
        for program in ("gcc", "systemd-analyze"):
            if not shutil.which(program):
                self.skipTest(f"{program} is not installed")
        first = self.within(os.path.join(support.BUILD, "kvcached"), "--version")
        if first.returncode != 0:
            self.skipTest("no walls here: " + (first.stderr.strip() or "?").splitlines()[-1])
        os.chown(self.folder, UID, UID)

    def within(self, *command):
        return subprocess.run([*WALLS, "--", *command], capture_output=True, text=True)

    def test_the_walls_stand(self):
        done = self.within(os.path.realpath("/usr/bin/python3"), "-c", TRIES)
        self.assertEqual(done.stdout.split(), ["refused", "done"] * 2 + ["refused"] * 4 +
                         [str(UID), str(0o77)], done.stderr)

    def test_the_daemon_does_all_its_work_within_them(self):
        daemon = Walled(self.folder)
        trace = subprocess.run(["awk", "-f", "scripts/demo-trace"], capture_output=True, text=True,
                               cwd=support.ROOT, check=True).stdout
        for copy in ("worker", "daemon"):
            said = subprocess.run(
                [os.path.join(support.BUILD, "kvcachectl"), "--socket", daemon.socket, "replay",
                 "-", "--limit", "300", "--verify", "--copy", copy],
                input=trace, capture_output=True, text=True)
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertIn(" 0 mismatches", said.stdout)
        daemon.stop()


support.main(__name__)
