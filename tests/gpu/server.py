"""The engine of batch.py in a process of its own, for kit.Remote."""

import collections
import faulthandler
import os
import time

import batch
import kit
import ways
from kit import Waived

HANGS_S = 240  # it then says where
Served = collections.namedtuple("Served", "first tokens own gpu host shared")
Ran = collections.namedtuple("Ran", "requests seconds gaps figures")


class Server:
    """pool: blocks of GPU memory, those of a daemon's tier too; most: of a request; rows: requests
    at a time."""

    def __init__(self, name, rows, most, pool, gpu=0):
        kit.need_gpus()
        import model
        import torch

        if not kit.REHEARSE:
            torch.cuda.set_device(gpu)
        self.name, self.gpu, self.pool = name, gpu, pool
        shape = {"0.5B": model.SMALL, "8B": model.LARGE, "tiny": model.TINY}[name]
        self.engine = batch.Batch(shape, rows, most, pool)
        self.hook = None

    def close(self):
        if self.hook is not None:
            self.hook.close()
        self.hook = self.engine.hook = None

    def use(self, way, socket, tier, host=0, **how):
        """An empty engine, with what the tier's blocks leave of the pool. host: blocks of the other
        tier. Why the way cannot be had, or None."""
        self.close()
        self.tier = tier if way not in ("none", "own") else 0
        self.engine.renew(self.pool - self.tier, way != "none")
        try:
            self.hook = self.engine.hook = ways.make(
                way, self.engine, socket, self.name, self.gpu, (tier, host), **how)
        except Waived as why:
            return str(why)
        return None

    def forget(self):
        """The engine's own prefixes; nothing is left of their bytes."""
        self.engine.renew(self.pool - self.tier, True)
        for cache in self.engine.model.cache:
            cache.fill_(100.0)

    def serve(self, prompts, most):
        vocab = self.engine.model.shape.vocab
        requests = [batch.Request(p.tokens(vocab), p.keys(), p.output, p.at, p.cancel)
                    for p in prompts]
        kit.sync(self.engine.torch)
        faulthandler.dump_traceback_later(HANGS_S)
        seconds, gaps = self.engine.run(requests, most)
        faulthandler.cancel_dump_traceback_later()
        served = [Served(s.first, s.tokens[s.prompt :], s.own, s.gpu, s.host, p.shared)
                  for s, p in zip(requests, prompts)]
        figures = self.hook.figures() if hasattr(self.hook, "figures") else {}
        return Ran(served, seconds, gaps, figures)

    def waited(self, keys):
        """Until all of them are published."""
        end = time.monotonic() + 20
        while (self.hook.client.probe(self.hook.part, keys) < len(keys) // 16
               and time.monotonic() < end):
            time.sleep(0.001)

    def statistics(self):
        return self.hook.client.statistics() if hasattr(self.hook, "client") else {}

    def moved(self):
        """Bytes kept, and bytes between tiers, up to now."""
        return self.hook.moved() if self.hook is not None else (0, 0)

    def held(self):
        return held("self")


def held(process):
    """Descriptors and KiB of a process."""
    with open(f"/proc/{process}/status") as f:
        memory = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{process}/fd")), memory
