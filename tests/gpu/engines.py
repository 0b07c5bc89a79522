"""vLLM engines side by side, the daemons that they use, and what their answers are compared with: for
the tests that run the connector in it."""

import json
import os
import random
import re
import signal
import threading
import time

import kit
from kit import MS, Waived
from vllm_engine import Setting

NEAR = 0.35  # of log probabilities: what another order of sums makes of one
MADE = 8
LONG = 24 if kit.REHEARSE else 200  # tokens of a load that has to outlast what happens to it
SMALL = ("--gpu-bytes", "256M", "--host-bytes", "256M")
FULL = (("min_tokens", 0), ("retry_s", 0.1), ("connect_ms", 2000))


def say(what, **figures):
    print("  " + json.dumps({"test": what, **figures}), flush=True)


class Daemon(kit.Daemon):
    """One that is stopped for a while, and asked."""

    def hang(self, seconds):
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def figures(self):
        from kvcache_client import Client

        with Client(self.socket, role="operator", connect_ms=MS) as operator:
            return operator.statistics()

    def until(self, condition, what, seconds=20):
        end = time.monotonic() + seconds
        while not condition(self.figures()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: {self.figures()}")
            time.sleep(0.01)

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self):
        """Bytes of its own memory."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"RssAnon:\s*(\d+)", f.read()).group(1)) << 10


class Engines:
    """Those that the tests use, started side by side; each has a daemon, some share one. wanted: by
    name, the shape, the daemon's name, and what else of a Setting. tiers: a daemon's options, where they
    are others."""

    def __init__(self, wanted, tiers=()):
        self.wanted = wanted
        self.daemons, self.starting, self.remotes = {}, {}, {}
        for name, (_, daemon, _) in wanted.items():
            if daemon not in self.daemons:
                self.daemons[daemon] = Daemon(*dict(tiers).get(daemon, SMALL))

    def start(self, *names):
        """All of them, or these."""
        for name in names or self.wanted:
            shape, daemon, how = self.wanted[name]
            setting = Setting(shape, "kvcached", self.daemons[daemon].socket, **{
                "gib": 0.5, "eager": True, "longest": 4096, "extra": FULL, **how})
            self.starting[name] = threading.Thread(target=self._start, args=(name, setting))
            self.starting[name].start()
        return self

    def _start(self, name, setting):
        try:
            self.remotes[name] = setting.start()
            say("start", engine=name, **self.remotes[name].call("about"))
        except (RuntimeError, Waived) as why:
            self.remotes[name] = why

    def __getitem__(self, name):
        if name not in self.starting:
            raise Waived("its engine was not started")
        self.starting[name].join()
        if not isinstance(self.remotes[name], kit.Remote):
            raise self.remotes[name]
        return self.remotes[name]

    def end(self, name):
        """Closed, as an engine that is not needed any more."""
        remote = self[name]
        del self.starting[name], self.remotes[name]
        remote.__exit__(None)

    def close(self):
        for thread in self.starting.values():
            thread.join()
        for remote in self.remotes.values():
            if isinstance(remote, kit.Remote):
                remote.__exit__(Waived)
        for daemon in self.daemons.values():
            daemon.__exit__(Waived)


# What is compared.


def differences(reference, found):
    """Answers that are not what they must be; how many took another token of two that are about as
    likely."""
    wrong, near = [], 0
    for i, ((wanted, told), (became, logs)) in enumerate(zip(reference, found)):
        for at, (a, b) in enumerate(zip(wanted, became)):
            if abs(told[at][a] - logs[at].get(a, -1e9)) > NEAR:
                wrong.append((i, at, a, b))
                break
            if a != b:
                near += 1
                break
        if len(wanted) != len(became):
            wrong.append((i, "length", len(wanted), len(became)))
    return wrong, near


def right(what, reference, found, **figures):
    wrong, near = differences(reference, found)
    say(what, requests=len(found), near=near, wrong=len(wrong), **figures)
    if wrong:
        raise AssertionError(f"{what}: {wrong}")


def prompts(n, seed, longest=900):
    """Some share their beginnings."""
    some = random.Random(seed)
    shared = [some.choices(range(3, 1000), k=512) for _ in range(6)]
    return [shared[i % 6] + some.choices(range(3, 1000), k=some.randrange(16, longest - 512))
            for i in range(n)]
