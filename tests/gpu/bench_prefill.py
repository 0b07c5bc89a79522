#!/usr/bin/env python3
"""Time to the first token of an 8k-token prompt, and whether what comes after it is the same.

One process computes the prompt and saves its KV cache; another, with equal weights, loads it and
computes only the last block. Both then go on from an own cache and from a loaded one: the logits of
the next tokens must be equal bit by bit.

    bench_prefill.py [0.5B] [8B]

Medians (p10 to p90) in ms from the call until the token is on the host; cold with and without
saving take turns, each after the same rest. "copies": of these, between two events around the save.
"usable": from the lookup until all blocks can be used on the stream. "tier": saved and loaded
through a daemon whose only tier it is. The last block's forward pass is a CUDA graph, as engines
have them for small batches.
"""

import sys
import time

import kit
from kit import MS, Daemon, Remote, fresh_keys

PROMPT = 8192
REPEATS = 9
NEXT = 8  # tokens compared


class Engine:
    """One model, one sequence, one client."""

    def __init__(self, shape_name, prompt):
        kit.need_gpus()
        import model
        import torch

        self.torch = torch
        shape = {"0.5B": model.SMALL, "8B": model.LARGE, "tiny": model.TINY}[shape_name]
        self.n = prompt // model.TOKENS
        self.prompt, self.tokens = prompt, model.TOKENS
        self.model = model.Model(shape, self.n + 8, kit.DEVICE)
        self.client = self.part = None
        self.own_table = torch.zeros(self.n, dtype=torch.long, device=kit.DEVICE)
        self.rest = torch.zeros(self.tokens, dtype=torch.long, device=kit.DEVICE)
        self.clock = kit.Clock(torch)
        self.tail = self._capture_tail()

    def _capture_tail(self):
        """Computes the last block of self.rest behind what the blocks of self.own_table hold; the
        token is in self.token then."""
        torch, at = self.torch, (self.n - 1) * self.tokens

        def tail():
            logits = self.model.logits(self.model.prefill(self.rest, self.own_table, at))
            self.logits, self.token = logits, logits[-1:].argmax(-1)

        self.own_table.copy_(torch.arange(self.n))
        tail()
        if kit.REHEARSE:
            return tail
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            tail()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            tail()
        return graph.replay

    def connect(self, socket):
        from kvcache_client import Client, Namespace

        if self.client is not None:
            self.client.close()
        where = {} if kit.REHEARSE else {"gpu": 0}
        self.client = Client(socket, connect_ms=MS, lookup_ms=MS, save_ms=1000, **where)
        self.part = self.client.register_tensors(
            Namespace(model=self.model.shape.name), self.model.cache, block_axis=1, block_tokens=16
        )

    def close(self):
        self.client.close()

    def begin(self, seed):
        """A prompt of its own, and blocks in an order of its own."""
        generator = self.torch.Generator().manual_seed(seed)
        vocab, blocks = self.model.shape.vocab, self.model.blocks
        self.input = self.torch.randint(vocab, (self.prompt,), generator=generator).to(kit.DEVICE)
        self.table = self.torch.randperm(blocks, generator=generator)
        self.ids = self.table[: self.n].tolist()
        self.table = self.table.to(kit.DEVICE)
        self.own_table.copy_(self.table[: self.n])
        self.rest.copy_(self.input[-self.tokens :])
        for cache in self.model.cache:
            cache.fill_(100.0)  # what is masked out may be anything but NaN
        kit.sync(self.torch)

    def cold(self, seed, keys=None):
        """ms to the first token; with keys all blocks are saved behind the forward pass, and the
        ms that takes on the stream."""
        self.begin(seed)
        time.sleep(0.01 if kit.REHEARSE else 0.4)  # the clocks of a GPU depend on what it did
        at = time.perf_counter()
        hidden = self.model.prefill(self.input, self.table[: self.n])
        save, copies = None, 0
        if keys is not None:
            self.clock.begin()
            save = self.client.save(self.part, keys, self.ids)
            self.clock.mark()
        int(self.model.logits(hidden[-1]).argmax())
        ms = (time.perf_counter() - at) * 1000
        if save is not None:
            outcome = save.wait(MS)
            assert (outcome.status, outcome.published) == (0, self.n), outcome
            copies = self.clock.between()
        return ms, copies

    def warm(self, seed, keys):
        """ms to the first token when all blocks but the last are loaded, and known to be right."""
        self.begin(seed)
        n = self.n - 1
        at = time.perf_counter()
        with self.client.lookup(self.part, keys[: n * 16]) as lease:
            assert lease.blocks == n, lease
            load = self.client.load(lease, self.part, self.ids[:n])
        self.tail()
        int(self.token)
        bad = load.wait(MS)
        ms = (time.perf_counter() - at) * 1000
        assert bad == [], bad
        return ms

    def usable(self, seed, keys):
        """ms from the lookup's call until all blocks can be used on the stream."""
        self.begin(seed)
        at = time.perf_counter()
        with self.client.lookup(self.part, keys) as lease:
            assert lease.blocks == self.n
            load = self.client.load(lease, self.part, self.ids)
            kit.sync(self.torch)
            ms = (time.perf_counter() - at) * 1000
            assert load.wait(MS) == []
        return ms

    def flush(self):
        self.client.flush(self.part)

    def renew(self):
        """After a flush by the other."""
        self.part.renew()

    def reference(self, seed):
        """After cold(seed): what the next steps give with this process's own cache."""
        return self._after()

    def loaded(self, seed, keys):
        """The same after loading."""
        self.warm(seed, keys)
        return self._after()

    def _after(self):
        """Logits of the last block's tokens, computed again on what is in the cache, and of NEXT
        decoding steps."""
        self.tail()
        seen = [self.logits.clone()]
        token = seen[0][-1:].argmax(-1)
        for i in range(NEXT):
            lengths = self.torch.tensor([self.prompt + i], device=kit.DEVICE)
            logits = self.model.logits(self.model.decode(token, self.table[None], lengths))
            seen.append(logits)
            token = logits.argmax(-1)
        bits = self.torch.cat(seen).view(self.torch.int16).cpu().numpy().tobytes()
        assert not any(bool(x.isnan().any()) for x in seen)
        return bits


def measure(name, prompt, repeats, daemons):
    found = {"cold": [], "saving": [], "copies": [], "same": True}
    with Remote(Engine, name, prompt) as first, Remote(Engine, name, prompt) as second:
        for tier, arguments in daemons:
            warm, usable = found.setdefault(tier, ([], []))
            with Daemon(*arguments) as d:
                d.wait_for("memory is populated")
                first.call("connect", d.socket)
                second.call("connect", d.socket)
                for r in range(-2, repeats):
                    one_round(first, second, prompt, r, found, warm, usable, tier == "gpu")
                first.call("close")
                second.call("close")
    return found


def one_round(first, second, prompt, r, found, warm, usable, counts):
    first.call("flush")
    second.call("renew")
    keys, seed = fresh_keys(prompt // 16), r + 100
    without = first.call("cold", seed)[0] if r % 2 else None
    saving, copies = first.call("cold", seed, keys)
    if r == -2:
        own, other = first.call("reference", seed), second.call("loaded", seed, keys)
        found["same"] = found["same"] and own == other
    times = second.call("warm", seed, keys), second.call("usable", seed, keys)
    if without is None:
        without = first.call("cold", seed)[0]
    if r < 0:
        return
    warm.append(times[0])
    usable.append(times[1])
    if counts:
        found["saving"].append(saving)
        found["copies"].append(copies)
        found["cold"].append(without)


def row(name, found):
    cold = kit.median(found["cold"])
    (gpu, gpu_usable), (host, host_usable) = found["gpu"], found["host"]
    return [
        name, kit.spread(found["cold"], digits=1), kit.spread(found["saving"], digits=1),
        f"{(kit.median(found['saving']) / cold - 1) * 100:+.2f} %", kit.spread(found["copies"]),
        kit.spread(gpu), kit.spread(host), f"1/{cold / kit.median(gpu):.1f}",
        kit.spread(gpu_usable), kit.spread(host_usable), "yes" if found["same"] else "NO",
    ]


def main():
    kit.need_gpus()
    names = sys.argv[1:] or (["tiny"] if kit.REHEARSE else ["0.5B", "8B"])
    prompt, repeats = (128, 3) if kit.REHEARSE else (PROMPT, REPEATS)
    room = "256M" if kit.REHEARSE else "3G"
    daemons = [
        ("gpu", ("--gpu-bytes", room, "--host-bytes", "0")),
        ("host", ("--gpu-bytes", "0", "--host-bytes", room)),
    ]
    rows = [row(name, measure(name, prompt, repeats, daemons)) for name in names]
    kit.table(
        f"time to the first token of {prompt} tokens, ms; {repeats} repeats; {kit.machine()}",
        ["model", "cold", "cold and saving", "saving adds", "copies",
         "warm, gpu tier", "warm, host tier",
         "gpu/cold", "usable, gpu tier", "usable, host tier", "logits equal"],
        rows,
    )
    if any(r[-1] != "yes" for r in rows):
        sys.exit("the logits differ")


if __name__ == "__main__":
    kit.run("prefill", main)
