#!/usr/bin/env python3
"""Time to the first token of an 8k-token prompt, and whether what comes after it is the same.

One process computes the prompt and saves its KV cache; another, with equal weights, loads it and
computes only the last block. Both then go on from an own cache and from a loaded one: the logits of
the next tokens must be equal bit by bit.

    bench_prefill.py [0.5B] [8B]

Medians (p10 to p90) in ms from the call until the token is on the host; cold with and without
saving alternate. "tier": saved and loaded through a daemon whose only tier it is.
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

    def connect(self, socket):
        from kvcache_client import Client, Namespace

        if self.client is not None:
            self.client.close()
        where = {} if kit.REHEARSE else {"gpu": 0}
        self.client = Client(socket, connect_ms=MS, save_ms=1000, **where)
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
        for cache in self.model.cache:
            cache.fill_(100.0)  # what is masked out may be anything but NaN
        kit.sync(self.torch)

    def _token(self, hidden):
        return int(self.model.logits(hidden[-1]).argmax())

    def cold(self, seed, keys=None):
        """ms to the first token; with keys all blocks are saved behind the forward pass."""
        self.begin(seed)
        at = time.perf_counter()
        hidden = self.model.prefill(self.input, self.table[: self.n])
        save = None if keys is None else self.client.save(self.part, keys, self.ids)
        self._token(hidden)
        ms = (time.perf_counter() - at) * 1000
        if save is not None:
            outcome = save.wait(MS)
            assert (outcome.status, outcome.published) == (0, self.n), outcome
        return ms

    def warm(self, seed, keys):
        """ms to the first token when all blocks but the last are loaded; and the part of it until
        they could be used on the stream."""
        self.begin(seed)
        n = self.n - 1
        at = time.perf_counter()
        with self.client.lookup(self.part, keys[: n * 16]) as lease:
            assert lease.blocks == n, lease
            load = self.client.load(lease, self.part, self.ids[:n])
        rest = self.input[n * self.tokens :]
        self._token(self.model.prefill(rest, self.table[: self.n], n * self.tokens))
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
        n = self.n - 1
        rest = self.input[n * self.tokens :]
        hidden = self.model.prefill(rest, self.table[: self.n], n * self.tokens)
        seen = [self.model.logits(hidden)]
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
    cold, saving, warm, usable = [], [], {}, {}
    same = True
    with Remote(Engine, name, prompt) as first, Remote(Engine, name, prompt) as second:
        for tier, arguments in daemons:
            warm[tier], usable[tier] = [], []
            with Daemon(*arguments) as d:
                d.wait_for("memory is populated")
                first.call("connect", d.socket)
                second.call("connect", d.socket)
                for r in range(-2, repeats):
                    first.call("flush")
                    second.call("renew")
                    keys, seed = fresh_keys(prompt // 16), r + 100
                    with_it = first.call("cold", seed, keys)
                    if r == -2:
                        own = first.call("reference", seed)
                        other = second.call("loaded", seed, keys)
                        same = same and own == other
                    times = second.call("warm", seed, keys), second.call("usable", seed, keys)
                    without = first.call("cold", seed)
                    if r >= 0:
                        warm[tier].append(times[0])
                        usable[tier].append(times[1])
                        if tier == daemons[0][0]:
                            saving.append(with_it)
                            cold.append(without)
                first.call("close")
                second.call("close")
    return cold, saving, warm, usable, same


def row(name, cold, saving, warm, usable, same):
    more = kit.median([b / a for a, b in zip(cold, saving)])
    tiers = [kit.spread(warm[t]) for t in ("gpu", "host")]
    ready = [kit.spread(usable[t]) for t in ("gpu", "host")]
    return [
        name, kit.spread(cold, digits=1), kit.spread(saving, digits=1), f"{(more - 1) * 100:+.2f} %",
        *tiers, f"1/{kit.median(cold) / kit.median(warm['gpu']):.1f}", *ready,
        "yes" if same else "NO",
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
    rows = [row(name, *measure(name, prompt, repeats, daemons)) for name in names]
    kit.table(
        f"time to the first token of {prompt} tokens, ms; {repeats} repeats; {kit.machine()}",
        ["model", "cold", "cold and saving", "saving adds", "warm, gpu tier", "warm, host tier",
         "gpu/cold", "usable, gpu tier", "usable, host tier", "logits equal"],
        rows,
    )
    if any(r[-1] != "yes" for r in rows):
        sys.exit("the logits differ")


if __name__ == "__main__":
    kit.run("prefill", main)
