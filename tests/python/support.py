"""What the tests of kvcache_client share: the frame of a test program and a private daemon.

Each test_*.py is a program: unittest cases, then `support.main(__name__)`. Tests are methods named
test_..., or S12_..., T3_..., F4_... after the acceptance line that they show. `PROGRAM name...`
runs only those. scripts/run-tests reads the result from $CK_TAP_LOG_FILE_NAME, as of a Check
program; a skipped test says `SKIP name: reason`.
"""

import array
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("KVC_TEST_BUILD", "build/debug"))
MULTIPLIER = float(os.environ.get("KVC_TEST_TIMEOUT_MULTIPLIER", "1"))
# On a busy machine what is only waited for may take so many times as long (tests/lib/check_main.h).
PATIENCE = 10
LIMIT_S = 30 * PATIENCE
MS = int(5000 * MULTIPLIER)

os.environ["KVCACHE_LIBRARY"] = os.path.join(BUILD, "libkvcache.so.0")
os.environ.pop("KVCACHE_SOCKET", None)
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
sys.dont_write_bytecode = True

_NAME = re.compile(r"(test|[STF]\d+)_")
_PR_SET_PDEATHSIG = 1


def _sanitizers():
    name = os.path.basename(BUILD)
    return name.split("-", 1)[1].split(",") if name.startswith("debug-") else []


def _prepare_sanitizer():
    """The interpreter is built without: AddressSanitizer has to be there before it."""
    if "address" not in _sanitizers() or "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    where = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    options = os.environ.get("ASAN_OPTIONS", "")
    env = dict(os.environ, LD_PRELOAD=where, ASAN_OPTIONS=options + ":detect_leaks=0")
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


class Daemon:
    """A debug kvcached on a socket of its own, which dies with the test.

    stop() fails the test when it logged a warning or an error that was not announced, or left
    anything alive.
    """

    _number = 0

    def __init__(self, folder, *arguments, expect=()):
        Daemon._number += 1
        self.socket = os.path.join(folder, f"s{Daemon._number}")
        self.log = os.path.join(folder, f"kvcached{Daemon._number}.log")
        self.expect = list(expect)
        self._command = [
            os.path.join(BUILD, "kvcached"), "--socket", self.socket, "--device", "host",
            "--gpu-bytes", "16M", "--host-bytes", "32M", "--metrics", "off", *arguments,
        ]
        self.start()

    def start(self):
        env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "JOURNAL_STREAM")}
        libc = ctypes.CDLL(None)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=ROOT,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        until(self._accepts, f"{self._command[0]} does not accept connections")

    def _accepts(self):
        if self.process.poll() is not None:
            raise AssertionError("kvcached ended: " + self.text())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            return s.connect_ex(self.socket) == 0

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        status = self.process.wait(8 * PATIENCE * MULTIPLIER)
        lines = self.text().splitlines()
        for line in lines:
            harmless = re.match(r"\d\S* (info|debug) ", line)
            if not harmless and not any(e in line for e in self.expect):
                raise AssertionError(f"unexpected in the log: {line}")
        for text in self.expect:
            if not any(text in line for line in lines):
                raise AssertionError(f"expected in the log and not there: {text}")
        if status != 0 or "exit live_allocations=0 live_bytes=0 fds=3" not in lines[-1]:
            raise AssertionError(f"kvcached ended with {status}: {lines[-1]}")


def until(condition, what, seconds=5):
    """Waits until condition() is true; fails the test when it is not in time."""
    end = time.monotonic() + seconds * PATIENCE * MULTIPLIER
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(what)
        time.sleep(0.002)


_held = []  # sockets whose names say who owns which ports


def ports(n):
    """Ports that nobody listens on now and no other test program takes (tests/lib/port.c)."""
    rows = list(range(220))
    random.shuffle(rows)
    for row in rows:
        owner = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            owner.bind(f"\0kvcached-test-ports-{row}")
        except OSError:
            owner.close()
            continue
        _held.append(owner)
        free = [p for p in range(10000 + 100 * row, 10100 + 100 * row) if _is_free(p)]
        return free[:n]
    raise AssertionError("no ports are left for a test")


def _is_free(port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Case(unittest.TestCase):
    """A test with a folder of its own, and with daemons that are stopped at its end."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvc-test.")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def daemon(self, *arguments, expect=()):
        d = Daemon(self.folder, *arguments, expect=expect)

        def end():
            if d.process.poll() is None:
                d.stop()

        self.addCleanup(end)
        return d

    def client(self, daemon, **options):
        from kvcache_client import Client

        for name in ("connect_ms", "lookup_ms", "save_ms", "load_ms"):
            options.setdefault(name, MS)
        client = Client(daemon.socket, **options)
        self.addCleanup(client.close)
        return client


class Cache:
    """A worker's KV cache in host memory: slices of their sizes, some bytes apart."""

    def __init__(self, sizes=(2048, 100, 512), blocks=64):
        from kvcache_client import buffer_slice

        self.sizes, self.blocks = sizes, blocks
        self.strides = [s + 24 for s in sizes]
        self.buffers = [bytearray(b"\xee") * (st * blocks) for st in self.strides]
        self.slices = [
            buffer_slice(b, stride=st, bytes=n)
            for b, st, n in zip(self.buffers, self.strides, sizes)
        ]

    def content(self, seed, i):
        state = (seed * 2654435761 + i * 40503 + 12345) & 0xFFFFFFFF
        word = array.array("I")
        for _ in range(self.sizes[i] // 4 + 1):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            word.append(state)
        return word.tobytes()[: self.sizes[i]]

    def fill(self, block, seed):
        for i, buffer in enumerate(self.buffers):
            at = block * self.strides[i]
            buffer[at : at + self.sizes[i]] = self.content(seed, i)

    def clear(self):
        for i, buffer in enumerate(self.buffers):
            buffer[:] = b"\xee" * len(buffer)

    def holds(self, block, seed):
        return all(
            buffer[block * st : block * st + n] == self.content(seed, i)
            for i, (buffer, st, n) in enumerate(zip(self.buffers, self.strides, self.sizes))
        )

    def untouched(self, block):
        return all(
            buffer[block * st : (block + 1) * st] == b"\xee" * st
            for buffer, st in zip(self.buffers, self.strides)
        )


def some_keys(prompt, n, first=0):
    return b"".join(
        prompt.to_bytes(8, "little") + i.to_bytes(8, "little") for i in range(first, first + n)
    )


class _Timeout(Exception):
    pass


def _alarm(*_):
    raise _Timeout(f"over {LIMIT_S} s")


def _run(test, output):
    """ "ok", "not ok" or the reason for a skip."""
    result = unittest.TestResult()
    signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S * MULTIPLIER)
    try:
        test.run(result)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    for _, text in result.errors + result.failures:
        print(text, file=output)
    if result.errors or result.failures:
        return "not ok", ""
    return ("skip", result.skipped[0][1]) if result.skipped else ("ok", "")


def _tests(module, wanted):
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind is not Case:
            for method in vars(kind):
                if _NAME.match(method) and (not wanted or method in wanted):
                    yield kind(method)


def main(name):
    """Runs the tests of the module `name`, if it is the program."""
    if name != "__main__":
        return
    _prepare_sanitizer()
    module = sys.modules[name]
    program = os.path.splitext(os.path.basename(module.__file__))[0]
    skip_all = "the interpreter does not run under ThreadSanitizer" if (
        "thread" in _sanitizers()) else ""
    lines, failed = [], 0
    for test in _tests(module, sys.argv[1:]):
        method = test.id().rsplit(".", 1)[-1]
        try:
            verdict, reason = ("skip", skip_all) if skip_all else _run(test, sys.stdout)
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            verdict, reason = "not ok", ""
        if verdict == "skip":
            print(f"SKIP {method}: {reason}")
        failed += verdict == "not ok"
        mark = "not ok" if verdict == "not ok" else "ok"
        lines.append(f"{mark} {len(lines) + 1} - {program}.py:python:{method}: {verdict}")
    tap = os.environ.get("CK_TAP_LOG_FILE_NAME")
    text = "\n".join([f"1..{len(lines)}", *lines]) + "\n"
    if tap:
        with open(tap, "w") as f:
            f.write(text)
    else:
        print(text, end="")
    sys.stdout.flush()
    sys.exit(1 if failed else 0)
