"""Workloads of requests that come and go. names: begins the name of every part, so that workloads
of different names have nothing in common; seed: workloads of one seed have the same shape."""

import hashlib
import json
import random

TOKENS = 16


class Prompt:
    """parts: (name, blocks) one behind the other; equal names are equal tokens."""

    def __init__(self, parts, output, at=0.0, cancel=0):
        self.parts, self.output, self.at, self.cancel = parts, output, at, cancel

    @property
    def blocks(self):
        return sum(n for _, n in self.parts)

    def tokens(self, vocab):
        """The tokens of its blocks, and one more."""
        found = []
        for name, n in self.parts:
            found += random.Random(f"{name}").choices(range(vocab), k=n * TOKENS)
        return found + [1]

    def keys(self):
        """16 bytes for each block: they name everything up to it."""
        parent, found = b"", []
        for name, n in self.parts:
            for i in range(n):
                parent = hashlib.blake2b(
                    parent + f"{name} {i}".encode(), digest_size=TOKENS).digest()
                found.append(parent)
        return b"".join(found)


def warm(n, prefixes, blocks, rest, output, names, seed):
    """Requests behind shared prefixes, chosen evenly; the rest of each is its own."""
    chosen = random.Random(seed)
    return [
        Prompt([(f"{names} prefix {chosen.randrange(prefixes)}", blocks),
                (f"{names} rest {i}", rest)], output)
        for i in range(n)
    ]


def cancelled(streams, blocks, output, names):
    """Streams that are abandoned in their middle."""
    return [Prompt([(f"{names} stream {i}", blocks)], output, cancel=output // 2)
            for i in range(streams)]


def chat(n, most, output, names, seed, trace=None):
    """Turns of conversations, each the last one's prompt and more. trace: JSON lines with hash_ids,
    of which each becomes one block; without, conversations are made up. most: blocks of one."""
    if trace:
        with open(trace) as f:
            lines = [json.loads(line) for _, line in zip(range(n), f)]
        return [Prompt([(f"{names} {h}", 1) for h in line["hash_ids"][:most]], output)
                for line in lines]
    made, talks, chosen = [], [], random.Random(seed)
    for i in range(n):
        if not talks or chosen.random() < 0.25:
            talks.append([(f"{names} system", 8)])
        talk = chosen.choice(talks[-24:])
        talk.append((f"{names} turn {i}", chosen.randint(2, 12)))
        if sum(b for _, b in talk) > most:
            talks.remove(talk)
            continue
        made.append(Prompt(list(talk), output))
    return made
