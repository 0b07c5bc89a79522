#!/usr/bin/env python3
"""Packing blocks: saving through kvcached beside one copy of the same bytes, beside
cudaMemcpyBatchAsync, and beside what can be written in torch:

    per layer and block   each slice of each block is cloned by itself
    packed                each layer is gathered, the layers are concatenated, each block is cloned

Microseconds, medians of many repeats, on a stream of its own, from an event before to an event
behind; the L2 cache is flushed before each, blocks are chosen anew. "busy": what is measured is
enqueued while the stream still works, as behind a forward pass; "idle": the host's part counts.
A save is more than its bytes: a launch and a completion word for each chunk of at most 16 MiB, and
checksums; "save / copy" is all of that over one bare copy. (bench_pack_gpu has the kernel alone.)
"load": of blocks in the GPU tier, compared by their checksums; the wait for its result is not in it.
Every way's bytes are checked at the beginning and at the end.
"""

import ctypes
import sys

import kit
from kit import MS, Clock, Daemon, Remote, fresh_keys

# Slices, bytes of each, blocks; whether a block's slices lie together in the engine's memory, instead
# of each slice's blocks.
LAYOUTS = [(48, 4096, 64, False), (64, 32768, 8, False), (64, 32768, 64, False),
           (61, 18432, 64, False), (32, 65536, 8, False), (32, 65536, 8, True), (61, 576, 64, False),
           (61, 576, 512, False)]
REPEATS = 31
SLOW_REPEATS = 7  # of what takes milliseconds
FLUSH = 256 << 20


class _Attributes(ctypes.Structure):
    """cudaMemcpyAttributes: order of access to the source, two hints, flags."""

    _fields_ = [("order", ctypes.c_int), ("hints", ctypes.c_int * 4), ("flags", ctypes.c_uint)]


class Packer:
    def __init__(self, socket):
        self.torch = torch = kit.need_gpus()
        from kvcache_client import Client

        where = {} if kit.REHEARSE else {"gpu": 0}
        self.client = Client(socket, connect_ms=MS, lookup_ms=MS, save_ms=1000, **where)
        self.clock = Clock(torch)
        size = 1 << 20 if kit.REHEARSE else FLUSH
        self.flush = torch.empty(size, dtype=torch.uint8, device=kit.DEVICE)
        self.stream = None
        if not kit.REHEARSE:
            self.stream = torch.cuda.Stream()
            torch.cuda.set_stream(self.stream)
            self.cudart = ctypes.CDLL("libcudart.so.13")

    def close(self):
        self.client.close()

    def begin(self, n_slices, size, n, together):
        from kvcache_client import Namespace

        torch = self.torch
        self.n = n
        make = {"dtype": torch.uint8, "device": kit.DEVICE}
        if together:
            self.cache = list(torch.randint(256, (2 * n, n_slices, size), **make).unbind(1))
        else:
            self.cache = [torch.randint(256, (2 * n, size), **make) for _ in range(n_slices)]
        self.part = self.client.register_tensors(
            Namespace(model=f"{n_slices} x {size} x {n}, {together}"), self.cache, block_tokens=16
        )
        total = n * n_slices * size
        self.flat, self.out = torch.randint(256, (total,), **make), torch.empty(total, **make)
        self.choose()
        self.original = [c.clone() for c in self.cache]
        kept = fresh_keys(n)
        self.client.save(self.part, kept, range(n)).wait(MS)
        self.lease = self.client.lookup(self.part, kept, ms=600000)
        assert self.lease.blocks == n

    def end(self):
        self.lease.release()
        self.client.flush(self.part)  # the next layout's slots are of another size
        self.part.unregister()
        del self.cache, self.original, self.flat, self.out, self.result
        if not kit.REHEARSE:
            self.torch.cuda.empty_cache()

    def choose(self):
        self.ids = self.torch.randperm(2 * self.n)[: self.n].tolist()
        self.index = self.torch.tensor(self.ids, device=kit.DEVICE)

    # The ways. Each leaves what it made in self.result, but for the saves.

    def memcpy(self):
        self.result = None
        self.out.copy_(self.flat)

    def save(self, checksums=True):
        self.saved = self.client.save(self.part, self.keys, self.ids, checksums=checksums)

    def save_plain(self):
        self.save(checksums=False)

    def load(self):
        self.loading = self.client.load(self.lease, self.part, self.ids)

    def batch(self):
        """One call with a copy for each piece, into packed blocks."""
        count = len(self.cache) * self.n
        size = self.cache[0].shape[1]
        at = self.out.data_ptr()
        to = (ctypes.c_void_p * count)(*range(at, at + count * size, size))
        bases = [c.data_ptr() for c in self.cache]
        stride = self.cache[0].stride(0)  # bytes; of slices that lie together, more than a slice
        of = (ctypes.c_void_p * count)(*(b + i * stride for i in self.ids for b in bases))
        sizes = (ctypes.c_size_t * count)(*([size] * count))
        attributes = _Attributes(order=1)
        first = ctypes.c_size_t(0)
        self.result = None
        error = self.cudart.cudaMemcpyBatchAsync(
            to, of, sizes, ctypes.c_size_t(count), ctypes.byref(attributes), ctypes.byref(first),
            ctypes.c_size_t(1), ctypes.c_void_p(self.stream.cuda_stream),
        )
        assert error == 0, f"cudaMemcpyBatchAsync: {error}"

    def each(self):
        self.result = [[c[i].clone() for c in self.cache] for i in self.ids]

    def packed(self):
        rows = self.torch.cat([c.index_select(0, self.index) for c in self.cache], 1)
        self.result = [row.clone() for row in rows]

    def time(self, way, busy):
        """us"""
        torch = self.torch
        self.keys = fresh_keys(self.n)
        self.choose()
        self.flush.random_(256)
        kit.sync(torch)
        self.flush.add_(1)
        if busy:
            kit.hold(torch, 3000)
        else:
            kit.sync(torch)
        self.clock.begin()
        getattr(self, way)()
        us = self.clock.end() * 1000
        if way.startswith("save"):
            outcome = self.saved.wait(MS)
            assert (outcome.status, outcome.published) == (0, self.n), outcome
        elif way == "load":
            assert self.loading.wait(MS) == []
        return us

    def check(self, way):
        """Poisons, runs, compares all bytes."""
        torch = self.torch
        wanted = torch.stack([c[self.index] for c in self.cache], 1)  # block, slice, byte
        self.out.fill_(0xA5)
        self.keys = fresh_keys(self.n)
        if way == "load":
            for c in self.cache:
                c.fill_(0xA5)
        getattr(self, way)()
        kit.sync(torch)
        if way == "load":
            assert self.loading.wait(MS) == []
            seen = torch.stack([c[self.index] for c in self.cache], 1)
            assert torch.equal(seen, torch.stack([c[: self.n] for c in self.original], 1))
        elif way == "memcpy":
            assert torch.equal(self.out, self.flat)
        elif way.startswith("save"):
            assert self.saved.wait(MS).published == self.n
            kept = [c.clone() for c in self.cache]
            for c in self.cache:
                c.fill_(0xA5)
            lease = self.client.lookup(self.part, self.keys)
            assert self.client.load(lease, self.part, self.ids).wait(MS) == []
            lease.release()
            assert torch.equal(torch.stack([c[self.index] for c in self.cache], 1), wanted)
            for c, k in zip(self.cache, kept):
                c.copy_(k)
        elif self.result is None:
            assert torch.equal(self.out.view_as(wanted), wanted)
        else:
            rows = [torch.cat(list(r)) if isinstance(r, list) else r for r in self.result]
            assert torch.equal(torch.stack(rows).view_as(wanted), wanted)

    def measure(self, layout, repeats, slow_repeats):
        self.begin(*layout)
        ways = [("memcpy", True, repeats), ("save_plain", True, repeats), ("save", True, repeats),
                ("save", False, repeats), ("load", True, repeats), ("batch", False, slow_repeats),
                ("packed", False, slow_repeats), ("each", False, slow_repeats)]
        if kit.REHEARSE:
            ways = [w for w in ways if w[0] != "batch"]
        times = {}
        for way, _, _ in ways:
            self.check(way)
        for r in range(-2, repeats):
            for way, busy, n in ways:
                if r < n:
                    us = self.time(way, busy)
                    if r >= 0:
                        times.setdefault((way, busy), []).append(us)
        for way, _, _ in ways:
            self.check(way)
        self.end()
        return times


def main():
    kit.need_gpus()
    layouts = [(4, 512, 8, True), (3, 576, 16, False)] if kit.REHEARSE else LAYOUTS
    repeats = (3, 2) if kit.REHEARSE else (REPEATS, SLOW_REPEATS)
    rows = []
    with Daemon("--gpu-bytes", "64M" if kit.REHEARSE else "4G", "--host-bytes", "0") as d:
        with Remote(Packer, d.socket) as packer:
            for layout in layouts:
                times = packer.call("measure", layout, *repeats)
                m = {k: kit.median(v) for k, v in times.items()}
                busy, idle = m["save", True], m["save", False]
                rows.append([
                    f"{layout[0]} x {layout[1] / 1024:g} KiB x {layout[2]}"
                    + (", together" if layout[3] else ""),
                    kit.spread(times["memcpy", True], digits=1),
                    kit.spread(times["save_plain", True], digits=1),
                    kit.spread(times["save", True], digits=1),
                    f"{busy / m['memcpy', True]:.2f}",
                    kit.spread(times["load", True], digits=1),
                    f"{m['load', True] / m['memcpy', True]:.2f}",
                    kit.spread(times["save", False], digits=0),
                    *(kit.spread(times[w, False], digits=0) if (w, False) in times else "-"
                      for w in ("batch", "packed", "each")),
                    f"{m['packed', False] / busy:.0f}", f"{m['packed', False] / idle:.1f}",
                ])
    kit.table(
        f"saving a chunk, us; medians of {repeats[0]} and {repeats[1]}; {kit.machine()}",
        ["slices x bytes x blocks", "one copy, busy", "no checksums, busy", "save, busy",
         "save / copy", "load, busy", "load / copy", "save, idle", "memcpyBatch", "torch, packed", "torch, each",
         "packed/busy", "packed/idle"],
        rows,
    )
    sys.stdout.flush()


if __name__ == "__main__":
    kit.run("packing", main)
