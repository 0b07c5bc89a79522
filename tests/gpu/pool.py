"""The blocks of an engine and its own prefix cache: blocks that hold a named prefix stay until
their room is needed, the least recently used first."""

import collections


class Pool:
    """Blocks first .. first + n - 1. caching: whether prefixes are found again."""

    def __init__(self, first, n, caching=True):
        self.free = list(range(first, first + n))
        self.caching = caching
        self.named = {}  # key -> block
        self.name = {}  # block -> key
        self.users = collections.Counter()
        self.idle = collections.OrderedDict()  # named blocks that nobody uses

    def match(self, keys, n):
        """How many of the first n keys, 16 bytes each, are there."""
        if not self.caching:
            return 0
        for i in range(n):
            if keys[i * 16 : i * 16 + 16] not in self.named:
                return i
        return n

    def take(self, keys, found, n):
        """The blocks of the first `found` keys and fresh ones, n in all; None when there is no
        room."""
        ids = [self.named[keys[i * 16 : i * 16 + 16]] for i in range(found)]
        room = len(self.free) + len(self.idle) - sum(b in self.idle for b in ids)
        if n - found > room:
            return None
        for b in ids:
            self.users[b] += 1
            self.idle.pop(b, None)
        for _ in range(n - found):
            if not self.free:
                b, _ = self.idle.popitem(last=False)
                del self.named[self.name.pop(b)]
                self.free.append(b)
            ids.append(self.free.pop())
            self.users[ids[-1]] += 1
        return ids

    def filled(self, key, block):
        """The block holds what the key names."""
        if self.caching and key not in self.named and block not in self.name:
            self.named[key], self.name[block] = block, key

    def give(self, ids):
        # The end of a prefix goes first.
        for b in reversed(ids):
            self.users[b] -= 1
            if self.users[b] == 0:
                del self.users[b]
                if b in self.name:
                    self.idle[b] = None
                else:
                    self.free.append(b)

    def __str__(self):
        return f"blocks: {len(self.free)} free, {len(self.idle)} idle, {len(self.users)} in use"
