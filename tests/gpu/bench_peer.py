#!/usr/bin/env python3
"""Blocks of another daemon: two daemons on one machine as if they were two hosts, each with a GPU of
its own, linked by UCX.

Over TCP on loopback a block that its source has only in GPU memory goes by pinned memory of the
source's host, the wire, the asker's host tier and, with the worker's load, into the other GPU. With
a UCX that was built with CUDA (KVC_UCX_CUDA) it goes from GPU to GPU. Beside them:
cudaMemcpyPeerAsync of the same bytes (what the hardware does at best), and NIXL (nixl-cu13, where it
is installed) and ucx_perftest (of that UCX, in its bin) reading the same bytes from one GPU into the
other.

Every trial's target is cleared before, and what arrived is compared. Lines appear as they are
measured.

    bench_peer.py [COPIES [COPIES BY VIEWS]]

KVC_UCX names the daemons' libucp, where it is not the system's; or several, with commas between.
KVC_BENCH_WAYS: which of gpu, exact, bare, nixl, perftest, views are measured, in this order.
KVC_BENCH_GPUS=1: both daemons are on one GPU, so that changes can be compared where there is one.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time

import kit
from kit import MS, Daemon, Remote

FULL = 64  # blocks
WARM_UP = 10 if kit.REHEARSE else 20
TRIALS = 3 if kit.REHEARSE else 7
SLICES = 64
SIZES = {"192 KiB": 3072, "2 MiB": 256 if kit.REHEARSE else 32768}  # of a slice
BYTES = (16 if kit.REHEARSE else 192) << 20  # of a fetch for the throughput
KINDS = {"always full": (FULL,), "alternating": (1, FULL), "sustained small": (1,)}
GPUS = int(os.environ.get("KVC_BENCH_GPUS", "2"))
BEGAN = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


def device(gpu):
    return "cpu" if kit.REHEARSE else f"cuda:{gpu % GPUS}"


def keys(first, n):
    return b"".join(b"block" + (first + i).to_bytes(11, "little") for i in range(n))


class Side:
    """A process with a GPU: a worker of one daemon, and one end of the other ways."""

    def __init__(self, gpu):
        self.torch = torch = kit.need_gpus(1 if kit.REHEARSE else GPUS)
        self.on_gpu = 0
        self.number, self.gpu, self.device = gpu, gpu % GPUS, device(gpu)
        torch.zeros(1, device=self.device)
        if not kit.REHEARSE:
            torch.cuda.set_device(self.gpu)
        self.client = None

    def machine(self):
        return kit.machine()

    def close(self):
        self.disconnect()

    # A worker of a daemon.

    def connect(self, socket, remote_ms):
        from kvcache_client import Client

        where = {} if kit.REHEARSE else {"gpu": self.gpu}
        self.client = Client(
            socket, connect_ms=MS, lookup_ms=MS, save_ms=MS, load_ms=MS, remote_ms=remote_ms,
            **where,
        )

    def disconnect(self):
        if self.client is not None:
            self.client.close()
        self.client = None

    def begin(self, size, blocks):
        from kvcache_client import Namespace

        self.size = size
        self.cache = [
            self.torch.zeros((blocks, size), dtype=self.torch.uint8, device=self.device)
            for _ in range(SLICES)
        ]
        self.part = self.client.register_tensors(
            Namespace(model=f"peer {size}"), self.cache, block_tokens=16
        )

    def end(self):
        self.part.unregister()
        del self.cache

    def _values(self, n, s):
        """What slice s of blocks 0 .. n - 1 has."""
        torch = self.torch
        at = torch.arange(self.size, device=self.device, dtype=torch.int64)
        block = torch.arange(n, device=self.device, dtype=torch.int64)
        return ((block[:, None] * 7919 + s * 131 + at[None, :]) * 2654435761 >> 12).to(torch.uint8)

    def put(self, n):
        """How many lie in the GPU's memory."""
        for s, tensor in enumerate(self.cache):
            tensor[:n] = self._values(n, s)
        for at in range(0, n, FULL):
            ids = list(range(at, min(n, at + FULL)))
            outcome = self.client.save(self.part, keys(at, len(ids)), ids).wait(MS)
            assert outcome.status == 0, outcome
        with self.client.lookup(self.part, keys(0, n)) as lease:
            return lease.gpu

    def fetch(self, n):
        """Seconds until they can be leased; None: they did not come."""
        names = keys(0, n)
        at = time.perf_counter()
        lease = self.client.lookup(self.part, names)
        blocks = self.client.remote(lease.fetch, MS) if lease.fetch else 0
        seconds = time.perf_counter() - at
        return seconds if blocks == n else None

    def wait_linked(self, into_gpu):
        end = time.monotonic() + 20
        while True:
            came = self.fetch(1) is not None
            if came:
                self.check(1)
                self.drop(1)
            if came and (self.on_gpu > 0 or not into_gpu):
                return
            assert time.monotonic() < end, "the daemons do not find each other" if not came else (
                "what comes does not come into the GPU")
            time.sleep(0.05)

    def check(self, n):
        """Seconds from the lookup until they are in the worker's memory."""
        for tensor in self.cache:
            tensor.fill_(0xA5)
        kit.sync(self.torch)
        at = time.perf_counter()
        lease = self.client.lookup(self.part, keys(0, n))
        assert lease.blocks == n, lease
        self.on_gpu = lease.gpu
        load = self.client.load(lease, self.part, list(range(n)))
        kit.sync(self.torch)
        seconds = time.perf_counter() - at
        assert load.wait(MS) == []
        lease.release()
        for s, tensor in enumerate(self.cache):
            assert bool((tensor[:n] == self._values(n, s)).all()), (n, s)
        return seconds

    def drop(self, n):
        self.client.flush_keys(self.part, keys(0, n))

    def trial(self, n):
        """(until leased, and then until loaded, and how many came into the GPU)"""
        fetched = self.fetch(n)
        assert fetched is not None, "they did not come"
        loaded = self.check(n)
        self.drop(n)
        return fetched, loaded, self.on_gpu

    def copies(self, sizes, n):
        """Microseconds of n copies of so many blocks by turns; every 50th is compared."""
        times = []
        for i in range(WARM_UP + n):
            blocks = sizes[i % len(sizes)]
            seconds = self.fetch(blocks)
            assert seconds is not None, "they did not come"
            if i % 50 == 0:
                self.check(blocks)
            self.drop(blocks)
            if i >= WARM_UP:
                times.append(seconds * 1e6)
        return sum(times) / len(times), kit.median(times)

    # NIXL.

    def nixl_open(self, size, n):
        try:
            import nixl_cu13 as nixl
        except ImportError as error:
            raise kit.Waived(f"no NIXL: {error}") from None
        torch = self.torch
        self.memory = torch.randint(256, (n, size), dtype=torch.uint8, device=self.device)
        kit.sync(torch)
        self.agent = nixl.nixl_agent(f"side{self.number}-{size}", nixl.nixl_agent_config(backends=["UCX"]))
        self.kind, on = ("DRAM", 0) if kit.REHEARSE else ("VRAM", self.gpu)
        address = self.memory.data_ptr()
        self.agent.register_memory([(address, self.memory.numel(), on, "")], self.kind)
        self.rows = [(address + i * size, size, on) for i in range(n)]
        return self.agent.get_agent_metadata(), self.rows, int(self.memory.sum())

    def nixl_copies(self, metadata, rows, total, kinds, n):
        name = self.agent.add_remote_agent(metadata)
        result = {}
        for kind, sizes in kinds.items():
            descs = {
                k: [self.agent.get_xfer_descs(r[:k], self.kind) for r in (self.rows, rows)]
                for k in sizes
            }
            self.memory.zero_()
            kit.sync(self.torch)
            times = []
            for i in range(WARM_UP + n):
                at = time.perf_counter()
                handle = self.agent.initialize_xfer("READ", *descs[sizes[i % len(sizes)]], name)
                state = self.agent.transfer(handle)
                while state == "PROC":
                    assert time.perf_counter() - at < MS / 1000, "NIXL hangs"
                    state = self.agent.check_xfer_state(handle)
                seconds = time.perf_counter() - at
                assert state == "DONE", state
                self.agent.release_xfer_handle(handle)
                if i >= WARM_UP:
                    times.append(seconds * 1e6)
            kit.sync(self.torch)
            if len(self.rows) in sizes:
                assert int(self.memory.sum()) == total, "what came is wrong"
            result[kind] = sum(times) / len(times), kit.median(times)
        return result

    # A bare copy.

    def bare(self, size, n_blocks, n):
        """Microseconds of a copy of the blocks in one piece, and of one of each."""
        torch = self.torch
        a = torch.randint(256, (n_blocks, size), dtype=torch.uint8, device=device(0))
        b = torch.zeros((n_blocks, size), dtype=torch.uint8, device=device(1))
        result = []
        for each in (False, True):
            b.zero_()
            times = []
            for i in range(WARM_UP + n):
                self.sync_both()
                at = time.perf_counter()
                if each:
                    for k in range(n_blocks):
                        b[k].copy_(a[k], non_blocking=True)
                else:
                    b.copy_(a, non_blocking=True)
                self.sync_both()
                if i >= WARM_UP:
                    times.append((time.perf_counter() - at) * 1e6)
            assert bool((b.cpu() == a.cpu()).all())
            result.append(kit.median(times))
        return result

    def sync_both(self):
        if not kit.REHEARSE:
            for gpu in range(GPUS):
                self.torch.cuda.synchronize(gpu)


def sides():
    """Two of them; torch takes its time to start, so at once."""
    made = [None, None]

    def make(gpu):
        try:
            made[gpu] = Remote(Side, gpu)
        except BaseException as error:
            made[gpu] = error

    threads = [threading.Thread(target=make, args=(gpu,)) for gpu in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for side in made:
        if isinstance(side, BaseException):
            raise side
    return made


@contextlib.contextmanager
def hosts(transfer, library, a, b, transports="tcp"):  # no memory that two hosts would not share
    """Two daemons, each with a side as its worker; the asker."""
    port = 21000 + os.getpid() % 10000
    room = "64M" if kit.REHEARSE else "640M"
    memory = "legacy" if "cuda" in transports else "auto"
    own = [["--gpu-bytes", room, "--host-bytes", room, "--transfer", transfer, "--gpu-memory", memory]
           for _ in range(2)]
    if not kit.REHEARSE:
        out = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True, text=True, check=True,
        )
        names = out.stdout.split()
        for gpu, arguments in enumerate(own):
            arguments += ["--gpus", names[gpu % GPUS]]
    own = [arguments + ["--ucx", library] for arguments in own]
    os.environ["UCX_TLS"] = transports
    try:
        with kit.several(
            Daemon(*own[0], "--peer-listen", f"127.0.0.1:{port}"),
            Daemon(*own[1], "--peers", f"127.0.0.1:{port}"),
        ) as daemons:
            del os.environ["UCX_TLS"]
            for daemon in daemons:
                daemon.wait_for("memory is populated")
            a.call("connect", daemons[0].socket, 0)
            b.call("connect", daemons[1].socket, MS)
            say(f"two daemons are up, transfer = {transfer}, {library}, {transports}")
            yield daemons[1]
            a.call("disconnect")
            b.call("disconnect")
    finally:
        os.environ.pop("UCX_TLS", None)


def row_of(asker):
    """The asked daemon in `kvcachectl peers`."""
    out = subprocess.run(
        [os.path.join(kit.BUILD, "kvcachectl"), "--socket", asker.socket, "--json", "peers"],
        capture_output=True, text=True, check=True,
    )
    return next(r for r in json.loads(out.stdout) if r["way"] == "serves")


def difference(before, after, name):
    return int(after[name]) - int(before[name])


@contextlib.contextmanager
def blocks_at(a, b, size, n, into_gpu):
    a.call("begin", size, n)
    b.call("begin", size, n)
    on_gpu = a.call("put", n)
    b.call("wait_linked", into_gpu)
    yield on_gpu
    b.call("end")
    a.call("end")


def measure(asker, a, b, n_copies, into_gpu=False):
    for name, size in SIZES.items():
        n = min(BYTES // (size * SLICES), 1024)
        with blocks_at(a, b, size, n, into_gpu) as on_gpu:
            b.call("trial", n)
            before = row_of(asker)
            trials = [b.call("trial", n) for _ in range(TRIALS)]
            after = row_of(asker)
        fetched, loaded, came = (kit.median([t[i] for t in trials]) for i in (0, 1, 2))
        row, total = row_of(asker), n * size * SLICES / 1e9
        say(f"{row['mode']} over {row['lanes']} ({row['reason']}), {n} blocks of {name}, {on_gpu} "
            f"of them only on the source's GPU, {came} came into the asker's: "
            f"{total / fetched:.2f} GB/s until leased, "
            f"{total / (fetched + loaded):.2f} GB/s until in the other GPU, "
            f"{difference(before, after, 'registrations')} registrations")
    with blocks_at(a, b, SIZES["192 KiB"], FULL, into_gpu):
        for kind, sizes in KINDS.items():
            before = row_of(asker)
            mean, median = b.call("copies", sizes, n_copies)
            after = row_of(asker)
            ratio = difference(before, after, "wire_bytes") / max(
                1, difference(before, after, "useful_bytes"))
            say(f"{after['mode']}, {n_copies} copies, {kind}: {mean / 1e3:.3f} ms a copy (median "
                f"{median / 1e3:.3f}), {difference(before, after, 'registrations')} "
                f"registrations, wire / useful {ratio:.2f}")


def nixl_of(a, b, size, n, kinds, n_copies):
    there = a.call("nixl_open", size, n)
    b.call("nixl_open", size, n)
    return b.call("nixl_copies", *there, kinds, n_copies)


def nixl(a, b, n_copies):
    try:
        result = nixl_of(a, b, SIZES["192 KiB"] * SLICES, FULL, KINDS, n_copies)
        for kind, (mean, median) in result.items():
            say(f"NIXL, read, {n_copies} copies, {kind}: {mean / 1e3:.3f} ms a copy (median "
                f"{median / 1e3:.3f})")
        for name, slice_bytes in SIZES.items():
            size = slice_bytes * SLICES
            n = min(BYTES // size, 1024)
            result = nixl_of(a, b, size, n, {"all": (n,)}, TRIALS)
            say(f"NIXL, read, {n} blocks of {name}: {n * size / result['all'][1] / 1e3:.2f} GB/s")
    except (kit.Waived, RuntimeError) as reason:
        say(f"NIXL: {str(reason)[-600:]}")


def perftest(library):
    """Gets of blocks, 64 of them at a time, between two processes, each on a GPU."""
    program = os.path.join(os.path.dirname(library), "..", "bin", "ucx_perftest")
    if not os.access(program, os.X_OK):
        say("ucx_perftest: none")
        return
    path = ":".join([os.path.dirname(library)] + os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    own = dict(os.environ, UCX_TLS="tcp" if kit.REHEARSE else "tcp,cuda_copy,cuda_ipc",
               UCX_CUDA_IPC_ENABLE_GET_ZCOPY="on", UCX_WARN_UNUSED_ENV_VARS="n", LD_LIBRARY_PATH=path)
    port = 32000 + os.getpid() % 20000
    memory = "host" if kit.REHEARSE else "cuda"
    for name, slice_bytes in SIZES.items():
        size, port = slice_bytes * SLICES, port + 1
        for window in (1, FULL):
            port += 1
            what = ["-p", str(port), "-t", "ucp_get", "-m", memory, "-s", str(size), "-O", str(window),
                    "-n", "20" if kit.REHEARSE else "4000", "-w", "20", "-f"]
            server = subprocess.Popen([program, *what[:2]], env=dict(own, CUDA_VISIBLE_DEVICES="0"),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
            time.sleep(0.5)
            try:
                out = subprocess.run([program, "127.0.0.1", *what], capture_output=True, text=True,
                                     env=dict(own, CUDA_VISIBLE_DEVICES=str(GPUS - 1)), timeout=20).stdout
                line = [x for x in out.splitlines() if re.match(r"^\s*[0-9]", x)]
                say(f"ucx_perftest, get of {name}, {window} at a time: "
                    f"{' '.join(line[-1].split()) if line else out[-300:]}")
            except subprocess.TimeoutExpired:
                say(f"ucx_perftest, get of {name}: hangs")
            finally:
                server.kill()
                server.wait()


def bare(b):
    for name, slice_bytes in SIZES.items():
        block = slice_bytes * SLICES
        n = min(BYTES // block, 1024)
        whole, each = b.call("bare", block, n, TRIALS)
        say(f"cudaMemcpyPeerAsync, {n} blocks of {name}: {n * block / whole / 1e3:.2f} GB/s in one "
            f"piece, {n * block / each / 1e3:.2f} GB/s each block by itself")
    for n in (FULL, 1):
        whole, each = b.call("bare", SIZES["192 KiB"] * SLICES, n, 50)
        say(f"cudaMemcpyPeerAsync, {n} blocks of 192 KiB: {whole / 1e3:.3f} ms in one piece, "
            f"{each / 1e3:.3f} ms each by itself")


def main():
    copies = [int(word) for word in sys.argv[1:]] or [60 if kit.REHEARSE else 1000]
    say("starts")
    libraries = os.environ.get("KVC_UCX", "libucp.so.0").split(",")
    cuda = os.environ.get("KVC_UCX_CUDA")
    ways = os.environ.get("KVC_BENCH_WAYS", "gpu exact bare nixl perftest views").split()
    a, b = sides()
    with kit.several(a, b):
        say(b.call("machine"))
        if "gpu" in ways and cuda:
            with hosts("exact", cuda, a, b, "tcp,cuda_copy,cuda_ipc") as asker:
                measure(asker, a, b, copies[0], into_gpu=not kit.REHEARSE)
        for library in libraries if "exact" in ways else []:
            with hosts("exact", library, a, b) as asker:
                measure(asker, a, b, copies[0])
        if "bare" in ways:
            bare(b)
        if "nixl" in ways:
            nixl(a, b, copies[0])
        if "perftest" in ways and cuda:
            perftest(cuda)
        if "views" in ways:
            with hosts("views", libraries[0], a, b) as asker:
                measure(asker, a, b, copies[-1])


if __name__ == "__main__":
    sys.exit(kit.run("bench_peer", main))
