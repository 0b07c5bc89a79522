#!/usr/bin/env python3
"""Blocks of another daemon: two daemons on one machine as if they were two hosts, each with a GPU of
its own, linked by UCX over TCP on loopback.

A block that its source has only in GPU memory goes by pinned memory of the source's host, the wire,
the asker's host tier and, with the worker's load, into the other GPU. Beside it: cudaMemcpyPeerAsync
of the same bytes (what the hardware does at best), and NIXL (nixl-cu13, where it is installed)
reading the same blocks from one GPU into the other.

Every trial's target is cleared before, and what arrived is compared.

KVC_UCX names the daemons' libucp, where it is not the system's.
"""

import os
import subprocess
import sys
import time

import kit
from kit import MS, Daemon, Remote

FULL = 64  # blocks
COPIES = 60 if kit.REHEARSE else 1000
WARM_UP = 10 if kit.REHEARSE else 20
TRIALS = 3 if kit.REHEARSE else 7
SLICES = 64
SIZES = {"192 KiB": 3072, "2 MiB": 256 if kit.REHEARSE else 32768}  # of a slice
BYTES = (16 if kit.REHEARSE else 192) << 20  # of a fetch for the throughput


def gpu_names():
    out = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True
    )
    return out.stdout.split()


def device(gpu):
    return "cpu" if kit.REHEARSE else f"cuda:{gpu}"


def key(number):
    return b"block" + number.to_bytes(11, "little")


class Worker:
    def __init__(self, socket, gpu, size, blocks, **options):
        self.torch = torch = kit.need_gpus()
        from kvcache_client import Client, Namespace

        where = {}
        if not kit.REHEARSE:
            torch.cuda.set_device(gpu)
            where["gpu"] = gpu
        self.client = Client(
            socket, connect_ms=MS, lookup_ms=MS, save_ms=MS, load_ms=MS, **options, **where
        )
        self.size, self.device = size, device(gpu)
        self.cache = [
            torch.zeros((blocks, size), dtype=torch.uint8, device=self.device)
            for _ in range(SLICES)
        ]
        self.part = self.client.register_tensors(
            Namespace(model=f"peer {size}"), self.cache, block_tokens=16
        )

    def close(self):
        self.client.close()

    def _values(self, first, n, s):
        """What slice s of blocks first .. has."""
        torch = self.torch
        at = torch.arange(self.size, device=self.device, dtype=torch.int64)
        block = torch.arange(first, first + n, device=self.device, dtype=torch.int64)
        return ((block[:, None] * 7919 + s * 131 + at[None, :]) * 2654435761 >> 12).to(torch.uint8)

    def put(self, first, n):
        for s, tensor in enumerate(self.cache):
            tensor[:n] = self._values(first, n, s)
        for at in range(0, n, FULL):
            ids = list(range(at, min(n, at + FULL)))
            save = self.client.save(self.part, b"".join(key(first + i) for i in ids), ids)
            outcome = save.wait(MS)
            assert outcome.status == 0, outcome

    def where(self, first, n):
        with self.client.lookup(self.part, b"".join(key(first + i) for i in range(n))) as lease:
            return lease.gpu, lease.host

    def fetch(self, first, n):
        """Seconds until they can be leased."""
        keys = b"".join(key(first + i) for i in range(n))
        at = time.perf_counter()
        lease = self.client.lookup(self.part, keys)
        blocks = self.client.remote(lease.fetch, MS) if lease.fetch else 0
        seconds = time.perf_counter() - at
        return seconds if blocks == n else None

    def wait_linked(self, first):
        end = time.monotonic() + 30
        while self.fetch(first, 1) is None:
            assert time.monotonic() < end, "the daemons do not find each other"
            time.sleep(0.05)
        self.drop(first, 1)

    def load(self, first, n):
        """Seconds from the lookup until they are in the worker's memory."""
        at = time.perf_counter()
        lease = self.client.lookup(self.part, b"".join(key(first + i) for i in range(n)))
        assert lease.blocks == n, lease
        load = self.client.load(lease, self.part, list(range(n)))
        kit.sync(self.torch)
        seconds = time.perf_counter() - at
        assert load.wait(MS) == []
        lease.release()
        return seconds

    def check(self, first, n):
        """Seconds of the load."""
        for tensor in self.cache:
            tensor.fill_(0xA5)
        seconds = self.load(first, n)
        for s, tensor in enumerate(self.cache):
            assert bool((tensor[:n] == self._values(first, n, s)).all()), (first, n, s)
        return seconds

    def drop(self, first, n):
        self.client.flush_keys(self.part, b"".join(key(first + i) for i in range(n)))

    def trial(self, first, n):
        """(until leased, and then until loaded)"""
        fetched = self.fetch(first, n)
        assert fetched is not None
        loaded = self.check(first, n)
        self.drop(first, n)
        return fetched, loaded

    def copies(self, sizes, n):
        """Microseconds of n copies of so many blocks by turns; every 50th is compared."""
        times = []
        for i in range(WARM_UP + n):
            blocks = sizes[i % len(sizes)]
            seconds = self.fetch(0, blocks)
            assert seconds is not None
            if i % 50 == 0:
                self.check(0, blocks)
            self.drop(0, blocks)
            if i >= WARM_UP:
                times.append(seconds * 1e6)
        return sum(times) / len(times), kit.median(times)


class Reader:
    """NIXL: one side in a process of its own."""

    def __init__(self, gpu, size):
        self.torch = torch = kit.need_gpus()
        try:
            import nixl_cu13 as nixl
        except ImportError as error:
            raise kit.Waived(f"no NIXL: {error}") from None
        if not kit.REHEARSE:
            torch.cuda.set_device(gpu)
        self.gpu, self.size = gpu, size
        self.memory = torch.zeros((FULL, size), dtype=torch.uint8, device=device(gpu))
        self.agent = nixl.nixl_agent(f"side{gpu}", nixl.nixl_agent_config(backends=["UCX"]))
        self.kind = "DRAM" if kit.REHEARSE else "VRAM"
        self.agent.register_memory(
            [(self.memory.data_ptr(), self.memory.numel(), 0 if kit.REHEARSE else gpu, "")],
            self.kind,
        )

    def fill(self):
        self.memory.random_(256)
        kit.sync(self.torch)
        return self.agent.get_agent_metadata(), self.memory.data_ptr(), int(self.memory.sum())

    def connect(self, metadata, address, total):
        self.name = self.agent.add_remote_agent(metadata)
        self.total = total
        own, theirs = self.memory.data_ptr(), address
        there, here = 0, 0 if kit.REHEARSE else self.gpu
        self.descs = {}
        for n in (1, FULL):
            self.descs[n] = tuple(
                self.agent.get_xfer_descs(
                    [(base + i * self.size, self.size, on) for i in range(n)], self.kind
                )
                for base, on in ((own, here), (theirs, there))
            )

    def read(self, n):
        own, theirs = self.descs[n]
        at = time.perf_counter()
        handle = self.agent.initialize_xfer("READ", own, theirs, self.name)
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        seconds = time.perf_counter() - at
        assert state == "DONE", state
        self.agent.release_xfer_handle(handle)
        return seconds

    def copies(self, sizes, n):
        times = []
        self.memory.zero_()
        kit.sync(self.torch)
        for i in range(WARM_UP + n):
            seconds = self.read(sizes[i % len(sizes)])
            if i >= WARM_UP:
                times.append(seconds * 1e6)
        if FULL in sizes:
            assert int(self.memory.sum()) == self.total
        return sum(times) / len(times), kit.median(times)


class Bare:
    def __init__(self):
        self.torch = torch = kit.need_gpus()
        if not kit.REHEARSE:
            assert torch.cuda.can_device_access_peer(0, 1)

    def copies(self, size, n_blocks, n):
        """Microseconds of a copy of the blocks in one piece, and of one of each."""
        torch = self.torch
        a = torch.randint(256, (n_blocks, size), dtype=torch.uint8, device=device(0))
        b = torch.zeros((n_blocks, size), dtype=torch.uint8, device=device(1))
        result = []
        for each in (False, True):
            b.zero_()
            times = []
            for i in range(WARM_UP + n):
                self.sync()
                at = time.perf_counter()
                if each:
                    for k in range(n_blocks):
                        b[k].copy_(a[k], non_blocking=True)
                else:
                    b.copy_(a, non_blocking=True)
                self.sync()
                if i >= WARM_UP:
                    times.append((time.perf_counter() - at) * 1e6)
            assert bool((b.cpu() == a.cpu()).all())
            result.append(kit.median(times))
        return result

    def sync(self):
        if not kit.REHEARSE:
            self.torch.cuda.synchronize(0)
            self.torch.cuda.synchronize(1)


def rows_of(daemon):
    """Of `kvcachectl peers`: (mode, lanes, registrations, useful, wire)."""
    import json

    out = subprocess.run(
        [os.path.join(kit.BUILD, "kvcachectl"), "--socket", daemon.socket, "--json", "peers"],
        capture_output=True, text=True, check=True,
    )
    row = next(r for r in json.loads(out.stdout) if r["way"] == "serves")
    return row["mode"], row["lanes"], *(
        int(row[name]) for name in ("registrations", "useful_bytes", "wire_bytes")
    )


class Hosts:
    def __init__(self, transfer, size, blocks):
        names = [] if kit.REHEARSE else gpu_names()
        port = 21000 + os.getpid() % 10000
        room = "64M" if kit.REHEARSE else "2G"
        own = [["--gpu-bytes", room, "--host-bytes", room, "--transfer", transfer]] * 2
        if not kit.REHEARSE:
            own = [a + ["--gpus", names[i]] for i, a in enumerate(own)]
        if "KVC_UCX" in os.environ:
            own = [a + ["--ucx", os.environ["KVC_UCX"]] for a in own]
        os.environ["UCX_TLS"] = "tcp"  # no memory that two hosts would not share
        self.source = Daemon(*own[0], "--peer-listen", f"127.0.0.1:{port}")
        self.asker = Daemon(*own[1], "--peers", f"127.0.0.1:{port}")
        del os.environ["UCX_TLS"]
        for daemon in (self.source, self.asker):
            daemon.wait_for("memory is populated")
        self.a = Remote(Worker, self.source.socket, 0, size, blocks)
        self.b = Remote(AskingWorker, self.asker.socket, 0 if kit.REHEARSE else 1, size, blocks)
        self.a.call("put", 0, blocks)
        self.b.call("wait_linked", 0)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.b.__exit__(kind)
        self.a.__exit__(kind)
        self.asker.__exit__(kind)
        self.source.__exit__(kind)


class AskingWorker(Worker):
    def __init__(self, *arguments):
        super().__init__(*arguments, remote_ms=MS)


def throughput():
    rows = []
    for name, slice_bytes in SIZES.items():
        block = slice_bytes * SLICES
        n = min(BYTES // block, 1024)
        for transfer in ("exact", "views"):
            with Hosts(transfer, slice_bytes, n) as hosts:
                gpu, _ = hosts.a.call("where", 0, n)
                trials = [hosts.b.call("trial", 0, n) for _ in range(TRIALS)]
                mode, lanes, *_ = rows_of(hosts.asker)
            fetched, loaded = (kit.median([t[i] for t in trials]) for i in (0, 1))
            rows.append((name, n, mode, lanes, f"{gpu} of {n}", f"{n * block / fetched / 1e9:.2f}",
                         f"{n * block / (fetched + loaded) / 1e9:.2f}"))
        with Remote(Bare) as bare:
            whole, each = bare.call("copies", block, n, TRIALS)
        rows.append((name, n, "cudaMemcpyPeerAsync", "", "", f"{n * block / whole / 1e3:.2f}",
                     f"{n * block / each / 1e3:.2f} (each block)"))
    kit.table("One way, GB/s", ("blocks", "in a fetch", "mode", "lanes", "only on the source's GPU",
                                "until leased", "until in the other GPU"), rows)


def copies():
    block = SIZES["192 KiB"] * SLICES
    kinds = {"always full": (FULL,), "alternating": (1, FULL), "sustained small": (1,)}
    rows = []
    for transfer in ("exact", "views"):
        with Hosts(transfer, SIZES["192 KiB"], FULL) as hosts:
            for kind, sizes in kinds.items():
                _, _, before, useful, wire = rows_of(hosts.asker)
                mean, median = hosts.b.call("copies", sizes, COPIES)
                mode, _, after, useful_after, wire_after = rows_of(hosts.asker)
                rows.append((mode, kind, f"{mean / 1e3:.3f}", f"{median / 1e3:.3f}",
                             after - before,
                             f"{(wire_after - wire) / (useful_after - useful):.2f}"))
    try:
        with Remote(Reader, 0, block) as a, Remote(Reader, 1, block) as b:
            b.call("connect", *a.call("fill"))
            for kind, sizes in kinds.items():
                mean, median = b.call("copies", sizes, COPIES)
                rows.append(("NIXL, read", kind, f"{mean / 1e3:.3f}", f"{median / 1e3:.3f}", "",
                             ""))
    except (kit.Waived, RuntimeError) as reason:
        print(f"NIXL: {str(reason)[-600:]}")
    with Remote(Bare) as bare:
        for n in (FULL, 1):
            whole, _ = bare.call("copies", block, n, COPIES // 5)
            rows.append(("cudaMemcpyPeerAsync", f"{n} blocks", "", f"{whole / 1e3:.3f}", "", ""))
    kit.table(f"{COPIES} copies, ms a copy; a full one is {FULL} blocks of 192 KiB, a small one 1",
              ("", "copies", "mean", "median", "registrations", "wire / useful"), rows)


def main():
    kit.need_gpus(1 if kit.REHEARSE else 2)
    print(kit.machine())
    for scene in (throughput, copies):
        if len(sys.argv) < 2 or scene.__name__ in sys.argv[1:]:
            scene()


if __name__ == "__main__":
    sys.exit(kit.run("bench_peer", main))
