"""Workloads of requests that come and go. names: begins the name of every part, so that workloads
of different names have nothing in common; seed: workloads of one seed have the same shape."""

import collections
import hashlib
import json
import random

TOKENS = 16
SCALE = 2  # blocks for each id of a trace, whose own blocks have 512 tokens


class Prompt:
    """parts: (name, blocks) one behind the other; equal names are equal tokens."""

    def __init__(self, parts, output, at=0.0, cancel=0):
        self.parts, self.output, self.at, self.cancel = parts, output, at, cancel

    @property
    def shared(self):
        """Blocks before its last part."""
        return sum(n for _, n in self.parts[:-1])

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
    """Requests behind shared prefixes, chosen evenly; the rest of each is its own. names: of one
    seed's rests; prefixes are the same for all seeds."""
    chosen = random.Random(seed)
    return [
        Prompt([(f"{names} prefix {chosen.randrange(prefixes)}", blocks),
                (f"{names} {seed} rest {i}", rest)], output)
        for i in range(n)
    ]


def prefixes(n, blocks, names):
    """Each of warm()'s once."""
    return [Prompt([(f"{names} prefix {i}", blocks)], 1) for i in range(n)]


def cancelled(streams, blocks, output, names):
    """Streams that are abandoned in their middle."""
    return [Prompt([(f"{names} stream {i}", blocks)], output, cancel=output // 2)
            for i in range(streams)]


def chat(n, most, output, names, seed, trace=None):
    """Turns of conversations, each the last one's prompt and more, at most so many blocks. trace:
    JSON lines with hash_ids; without, conversations are made up."""
    if trace:
        return [Prompt([(f"{names} {seed} {h}", SCALE) for h in ids[: most // SCALE]], output)
                for ids in turns(trace)[:n]]
    made, talks, chosen = [], [], random.Random(seed)
    while len(made) < n:
        if not talks or chosen.random() < 0.25:
            talks.append([(f"{names} {seed} system", min(8, most // 2))])
        talk = chosen.choice(talks[-24:])
        talk.append((f"{names} {seed} turn {len(made)}", chosen.randint(1, max(1, most // 6))))
        if sum(b for _, b in talk) > most:
            talks.remove(talk)
            continue
        made.append(Prompt(list(talk), output))
    return made


def turns(trace):
    """The hash_ids of the turns of conversations that have three or more, in the trace's order. The
    first id is the same in many, the second is a conversation's."""
    with open(trace) as f:
        found = [json.loads(line)["hash_ids"] for line in f]
    count = collections.Counter(tuple(ids[:2]) for ids in found)
    return [ids for ids in found if len(ids) > 1 and count[tuple(ids[:2])] >= 3]
