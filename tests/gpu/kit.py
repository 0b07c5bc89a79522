"""What the tests and benchmarks with torch share: a daemon, workers that are processes of their
own, and tables.

Every program is WAIVED (exit status 77), with the reason, where there is no torch or no GPU. With
KVC_REHEARSE=1 it runs on the CPU with the host device and tiny shapes instead: figures then mean
nothing, but every line of it has run.
"""

import argparse
import concurrent.futures
import contextlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("KVC_TEST_BUILD", "build"))
REHEARSE = os.environ.get("KVC_REHEARSE") == "1"
DEVICE = "cpu" if REHEARSE else "cuda"
WAIVED = 77
MS = 20000

if REHEARSE:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("KVCACHE_LIBRARY", os.path.join(BUILD, "libkvcache.so.0"))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
sys.dont_write_bytecode = True


class Waived(Exception):
    pass


def need_gpus(n=1):
    """torch, or Waived."""
    try:
        import torch
    except ImportError:
        raise Waived("no torch") from None
    if REHEARSE:
        if n > 1:
            raise Waived("a rehearsal has no GPUs")
        return torch
    if not torch.cuda.is_available():
        raise Waived("torch finds no GPU")
    if torch.cuda.device_count() < n:
        raise Waived(f"fewer than {n} GPUs")
    return torch


class Daemon:
    """A private kvcached; as a context manager it is stopped, and its log shown when it failed.
    `under`: words of a command that runs it, as the user `uid`.
    """

    def __init__(self, *arguments, under=(), uid=0):
        self.folder = tempfile.mkdtemp(prefix="kvc-gpu-")
        os.chown(self.folder, uid or -1, -1)
        self.socket = os.path.join(self.folder, "s")
        self.log = os.path.join(self.folder, "log")
        device = "host" if REHEARSE else "cuda"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*under, os.path.join(BUILD, "kvcached"), "--socket", self.socket, "--device", device,
                 "--metrics", "off", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        try:
            self.wait_for("ready version")
        except BaseException:
            self.process.kill()
            raise

    def kill(self):
        self.process.kill()
        self.process.wait()

    def again(self, *arguments):
        """Started once more, on the same socket."""
        command = self.process.args[: self.process.args.index("off") + 1]
        os.truncate(self.log, 0)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_for("ready version")

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def wait_for(self, line):
        end = time.monotonic() + 60
        while line not in self.text():
            text = self.text()
            if "no CUDA driver" in text or "finds no GPU" in text:
                raise Waived("no CUDA driver, or no GPU")
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"kvcached: no '{line}' in\n{text}")
            time.sleep(0.01)

    def configure(self, name, value):
        subprocess.run(
            [os.path.join(BUILD, "kvcachectl"), "--socket", self.socket, "config", "set", name,
             value],
            check=True, stdout=subprocess.DEVNULL,
        )

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if status != 0 or (kind is not None and kind is not Waived):
            print(f"kvcached ended with {status}, its log:\n{self.text()[-4000:]}")
        shutil.rmtree(self.folder, ignore_errors=True)
        if status != 0 and kind is None:
            raise RuntimeError("kvcached did not stop well")


def _serve(pipe, kind, arguments, environment):
    """The worker's process: answers calls of methods."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = kind(*arguments)
        pipe.send((True, None))
        while True:
            call = pipe.recv()
            if call is None:
                break
            name, args, kwargs = call
            pipe.send((True, getattr(worker, name)(*args, **kwargs)))
        if hasattr(worker, "close"):
            worker.close()
        pipe.send((True, None))
    except Waived as reason:
        pipe.send((False, Waived(str(reason))))
    except EOFError:
        pass
    except BaseException:
        pipe.send((False, RuntimeError(traceback.format_exc())))


class Remote:
    """An object of `kind` in a process of its own (CUDA is not used across a fork): its methods are
    called by name, and what they return comes back. limit_s: the longest wait for an answer, start_s
    for the object. A process with children of its own is no daemon."""

    limit_s = start_s = None
    daemon = True

    def __init__(self, kind, *arguments, **environment):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(other, kind, arguments, environment), daemon=self.daemon
        )
        self.process.start()
        other.close()
        try:
            self._answer(self.start_s)
        except BaseException:
            self.kill()
            raise

    def _answer(self, limit_s):
        try:
            if limit_s is not None and not self._pipe.poll(limit_s):
                raise RuntimeError(f"no answer within {limit_s} s")
            good, value = self._pipe.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(f"a worker ended with {self.process.exitcode}") from None
        if not good:
            raise value
        return value

    def begin(self, name, *arguments, **keywords):
        """Starts a call; end() has its result."""
        self._pipe.send((name, arguments, keywords))

    def end(self):
        return self._answer(self.limit_s)

    def call(self, name, *arguments, **keywords):
        self.begin(name, *arguments, **keywords)
        return self.end()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self._pipe.send(None)
            self._answer(self.limit_s)
            self.process.join(60)
        self.kill()

    def kill(self):
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _children(pid):
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as f:
                found += map(int, f.read().split())
    return found


class Tree(Remote):
    """One whose process has children: none of them outlives it."""

    daemon = False

    def descendants(self):
        found, new = [], _children(self.process.pid)
        while new:
            found += new
            new = [p for pid in new for p in _children(pid)]
        return found

    def kill(self):
        left = self.descendants()
        super().kill()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# Figures.


def quantile(values, q):
    """Between two values where it lies between them, so that the median of two is not the larger."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    below = ordered[int(at)]
    return below + (ordered[min(int(at) + 1, len(ordered) - 1)] - below) * (at - int(at))


def median(values):
    return quantile(values, 0.5)


def spread(values, scale=1.0, digits=2):
    """ "median (p10 to p90)"."""
    a, b, c = (quantile(values, q) * scale for q in (0.5, 0.1, 0.9))
    return f"{a:.{digits}f} ({b:.{digits}f} to {c:.{digits}f})"


def table(title, columns, rows):
    cells = [[str(c) for c in columns]] + [[str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in cells) for i in range(len(columns))]
    print(title)
    for row in cells:
        line = "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))
        )
        print("  " + line.rstrip())
    sys.stdout.flush()


def machine():
    import torch

    if REHEARSE:
        return "a rehearsal on the CPU: the figures mean nothing"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, torch {torch.__version__}"


def fresh_keys(n, _counter=[random.getrandbits(40)]):
    """Keys that nobody has used."""
    _counter[0] += 1
    prompt = _counter[0].to_bytes(8, "little")
    return b"".join(prompt + i.to_bytes(8, "little") for i in range(n))


def sync(torch):
    if not REHEARSE:
        torch.cuda.synchronize()


class Clock:
    """Time on a stream between begin() and end(), in ms; on the CPU the time between the calls."""

    def __init__(self, torch):
        self.torch = torch
        if not REHEARSE:
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def begin(self):
        if REHEARSE:
            self.at = time.perf_counter()
        else:
            self.events[0].record()

    def end(self):
        if REHEARSE:
            return (time.perf_counter() - self.at) * 1000
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1])


    def mark(self):
        """An end that nobody waits for; between() is the time to it."""
        if REHEARSE:
            self.ms = (time.perf_counter() - self.at) * 1000
        else:
            self.events[1].record()

    def between(self):
        if REHEARSE:
            return self.ms
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1])


def hold(torch, us):
    """What is enqueued on the current stream from now on waits for so long, so that it then runs
    without waiting for the host."""
    if not REHEARSE:
        torch.cuda._sleep(int(us * 1900))


# Programs.


def some_of(names):
    """The type of an option: some of these names, with commas between them."""

    def some(text):
        unknown = set(text.split(",")).difference(names)
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)} among {', '.join(names)}")
        return text.split(",")

    return some


def run(name, function):
    """One benchmark: exit status 0, 1 or 77."""
    try:
        function()
    except Waived as reason:
        print(f"WAIVED {name}: {reason}")
        sys.exit(WAIVED)
    sys.exit(0)


@contextlib.contextmanager
def limited(seconds):
    """An AssertionError after so many seconds, where this thread is then; None: no limit."""

    def late(*_):
        raise AssertionError(f"longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late) if seconds else None
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if seconds:
            signal.signal(signal.SIGALRM, before)


def run_tests(tests, limit_s=lambda test: None):
    """Each a function: prints PASS, FAIL or WAIVED with its reason. Arguments name some. limit_s: of a
    test."""
    passed = failed = waived = 0
    for test in tests:
        name = re.sub("_", " ", test.__name__)
        if len(sys.argv) > 1 and not any(a in name for a in sys.argv[1:]):
            continue
        try:
            with limited(limit_s(test)):
                test()
            print(f"PASS {name}")
            passed += 1
        except Waived as reason:
            print(f"WAIVED {name}: {reason}")
            waived += 1
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {name}")
            failed += 1
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed, {waived} waived")
    sys.exit(1 if failed else 0 if passed or not waived else WAIVED)


def side_by_side(*makers):
    """What they return, all called at a time: processes that take long to start."""
    with concurrent.futures.ThreadPoolExecutor(len(makers)) as threads:
        return [f.result() for f in [threads.submit(make) for make in makers]]


@contextlib.contextmanager
def several(*managers):
    """All of them entered, in order."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(m) for m in managers]
