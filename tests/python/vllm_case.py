"""What the tests of the vLLM connector share: stand-ins for vLLM, against a real daemon."""

import itertools
import os

import stand_in
import support
from stand_in import Engine
from support import MS

stand_in.install()
os.environ.pop("PYTHONHASHSEED", None)

from kvcache_client import Client  # noqa: E402
from kvcache_client.vllm.streams import Reading  # noqa: E402

_seed = itertools.count(1)


def prompt(n, seed=None):
    seed = next(_seed) if seed is None else seed
    return [seed * 1000 + i for i in range(n)]


def record(worker, recorder):
    """The worker's streams are the recorder's from now on."""
    worker._streams = worker._saving = recorder
    worker._reading = Reading(recorder)
    return recorder


class Case(support.Case):
    by_layer = False

    def engine(self, daemon, specs=None, **how):
        extra = {"layer_by_layer": self.by_layer, "socket": daemon.socket, "lookup_ms": MS,
                 "save_ms": MS, "connect_ms": MS, "retry_s": 0.05, "min_tokens": 0, "save_every": 1,
                 **how.pop("extra", {})}
        engine = Engine(extra, specs, **how)
        self.addCleanup(engine.close)

        def settle():
            if daemon.process.poll() is None:
                self.settled(daemon)

        engine.settle = settle
        return engine

    def figures(self, daemon):
        with Client(daemon.socket, role="operator", connect_ms=MS) as operator:
            return operator.statistics()

    def settled(self, daemon):
        """Every save is published, and nothing is held."""
        busy = ("filling_slots", "open_loads", "leases")
        held = {}

        def free():
            figures = self.figures(daemon)
            held.update((b, figures[b]) for b in busy)
            return not any(held.values())

        support.until(free, held)


def layer_by_layer(kind):
    """The same tests, with a connector that copies layer by layer."""
    def again(method):
        def test(self):
            self.by_layer = True
            method(self)

        return test

    names = [n for n in vars(kind) if n.startswith("test_")]
    return type(f"{kind.__name__}ByLayer", kind.__bases__,
                {f"{n}_layer_by_layer": again(vars(kind)[n]) for n in names})
