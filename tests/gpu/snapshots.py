"""What the predecessor did with a prompt's blocks, in torch: at the prompt's end they are copied,
and the engine waits for it. They go to GPU memory; what has no room there is copied to the host."""

import collections

import kit
from kit import DEVICE

BLOCKS = 64  # gathered at a time


class Snapshots:
    """packed: each layer is gathered, all are concatenated, each block is cloned; else each layer
    of each block is cloned by itself. gpu, host: blocks that are kept."""

    def __init__(self, engine, packed, gpu, host=0):
        self.torch, self.cache, self.packed = engine.torch, engine.model.cache, packed
        self.room = {"gpu": gpu, "host": host}
        self.kept = {"gpu": collections.OrderedDict(), "host": collections.OrderedDict()}
        self.shape = self.cache[0][:, 0].shape
        self.block = engine.model.shape.block_bytes
        self.saved = self.demoted = 0  # blocks

    def close(self):
        self.kept = None

    def starts(self, engine, s, n):
        pass

    def before(self, engine, s):
        pass

    def arrived(self, engine, s):
        pass

    def reads(self, s):
        return False

    def moved(self):
        """Bytes kept, and bytes that went from GPU memory to the host: of each block once, however
        often it was copied on the way."""
        return self.saved * self.block, self.demoted * self.block

    def arrived_at(self, engine, s):
        return True

    def judged(self, engine, s):
        pass

    # Saving.

    def computed(self, engine, s, first, end, last):
        if not last:
            return
        keys = [s.keys[i * 16 : i * 16 + 16] for i in range(end)]
        new = [(k, b) for k, b in zip(keys, engine.blocks_of(s, 0, end)) if not self._used(k)]
        for at in range(0, len(new), BLOCKS):
            some = new[at : at + BLOCKS]
            for (key, _), block in zip(some, self._copies([b for _, b in some])):
                self._keep("gpu", key, block)
        self.saved += len(new)
        kit.sync(self.torch)

    def _copies(self, blocks):
        if not self.packed:
            return [[c[:, b].clone() for c in self.cache] for b in blocks]
        index = self.torch.tensor(blocks, device=DEVICE)
        rows = self.torch.cat([c.index_select(1, index).transpose(0, 1).flatten(1)
                               for c in self.cache], 1)
        return [row.clone() for row in rows]

    def _used(self, key):
        """The tier that it is in; it is now the last to go there."""
        tier = next((tier for tier, kept in self.kept.items() if key in kept), None)
        if tier is not None:
            self.kept[tier].move_to_end(key)
        return tier

    def _keep(self, tier, key, block):
        self.kept[tier][key] = block
        while len(self.kept[tier]) > self.room[tier]:
            old, block = self.kept[tier].popitem(last=False)
            if tier == "gpu" and self.room["host"] > 0:
                self.demoted += 1
                self._keep("host", old, block.cpu() if self.packed else [t.cpu() for t in block])

    # Loading.

    def admitted(self, engine, s, own, n):
        keys, found = [s.keys[i * 16 : i * 16 + 16] for i in range(own, n)], []
        for key in keys:
            tier = self._used(key)
            if tier is None:
                break
            found.append((tier, self.kept[tier][key]))
        if not found:
            return
        with self.torch.inference_mode():
            self._write(s.ids[own : own + len(found)], [block for _, block in found])
        kit.sync(self.torch)
        s.gpu = sum(tier == "gpu" for tier, _ in found)
        s.host = len(found) - s.gpu
        s.computed = (own + len(found)) * engine.size

    def _write(self, ids, blocks):
        if not self.packed:
            for b, layers in zip(ids, blocks):
                for cache, layer in zip(self.cache, layers):
                    cache[:, b].copy_(layer)
            return
        index = self.torch.tensor(ids, device=DEVICE)
        rows = self.torch.stack([block.to(DEVICE) for block in blocks])
        for cache, layer in zip(self.cache, rows.chunk(len(self.cache), 1)):
            cache.index_copy_(1, index, layer.unflatten(1, self.shape).transpose(0, 1))
