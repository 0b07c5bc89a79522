#!/usr/bin/env python3
"""kvcache_client with torch: streams, allocators, graphs. Workers are processes of their own."""

import kit
from kit import MS, Daemon, Remote, Waived, fresh_keys

LAYERS, BLOCKS, N = 6, 64, 24
MANY = 36000  # blocks of 1.65 GiB: torch's segments are then more pieces than a packet takes


class Worker:
    """A KV cache of LAYERS tensors [2, blocks, 16, 4, 32] bf16 on one GPU, and a client."""

    def __init__(self, socket, role="worker", gpu=0, by_daemon=False, blocks=BLOCKS):
        self.torch = torch = kit.need_gpus(gpu + 1)
        from kvcache_client import Client, Copy, Namespace

        self.device = kit.DEVICE if kit.REHEARSE else f"cuda:{gpu}"
        self.cache = [
            torch.zeros(2, blocks, 16, 4, 32, dtype=torch.bfloat16, device=self.device)
            for _ in range(LAYERS)
        ]
        where = {} if kit.REHEARSE else {"gpu": gpu}
        self.client = Client(socket, role=role, connect_ms=MS, lookup_ms=MS, save_ms=1000, **where)
        self.part = self.client.register_tensors(
            Namespace(model="test"), self.cache, block_axis=1, block_tokens=16,
            copy=Copy.DAEMON if by_daemon else Copy.WORKER,
        )
        self.by_daemon = by_daemon

    def close(self):
        self.client.close()

    def content(self, seed, n):
        """[LAYERS, 2, n, ...] of all bit patterns but those that seeds share."""
        generator = self.torch.Generator().manual_seed(seed)
        shape = (LAYERS, 2, n, 16, 4, 32)
        bits = self.torch.randint(-32768, 32768, shape, dtype=self.torch.int16, generator=generator)
        return bits.view(self.torch.bfloat16)

    def fill(self, seed, first=0, n=N):
        for cache, rows in zip(self.cache, self.content(seed, n)):
            cache[:, first : first + n].copy_(rows)

    def wrong(self, seed, first=0, n=N):
        """How many blocks do not hold the seed's bits."""
        wrong = 0
        for cache, rows in zip(self.cache, self.content(seed, n)):
            seen = cache[:, first : first + n].cpu().view(self.torch.int16)
            same = (seen == rows.view(self.torch.int16)).flatten(2).all(2).all(0)
            wrong = max(wrong, int((~same).sum()))
        return wrong

    def poison(self):
        for cache in self.cache:
            cache.fill_(-7)

    def stream(self, name):
        if kit.REHEARSE or name == "current":
            return None
        return self.torch.cuda.Stream() if name == "side" else 0

    def save(self, keys, seed, stream="current"):
        self.fill(seed)
        kit.sync(self.torch)
        save = self.client.save(self.part, keys, range(N), stream=self.stream(stream))
        # Behind the save on its stream: what overwrites the blocks does not harm.
        if stream == "current" and not self.by_daemon:
            self.poison()
        outcome = save.wait(MS)
        assert (outcome.status, outcome.published) == (0, N), outcome

    def save_behind_work(self, keys, seed):
        """The blocks are written by kernels that run long after the call has returned."""
        torch = self.torch
        side = None if kit.REHEARSE else torch.cuda.Stream()
        with kit.contextlib.nullcontext() if side is None else torch.cuda.stream(side):
            rows = self.content(seed, N).to(self.device)
            kit.hold(torch, 20000)
            for i, cache in enumerate(self.cache):
                cache[:, :N].copy_(rows[i])
            save = self.client.save(self.part, keys, range(N))  # torch's current stream
            for cache in self.cache:
                cache.fill_(3)
        assert save.wait(MS).published == N

    def load(self, keys, seed, stream="current"):
        self.poison()
        kit.sync(self.torch)
        with self.client.lookup(self.part, keys) as lease:
            if lease.blocks != N:
                return f"{lease.blocks} of {N} blocks are there"
            load = self.client.load(
                lease, self.part, range(N, 2 * N), stream=self.stream(stream)
            )
            bad = load.wait(MS)
        untouched = all(bool((c[:, :N] == -7).all()) for c in self.cache)
        return (bad, self.wrong(seed, N), untouched)

    def load_layer_by_layer(self, keys, seed):
        self.poison()
        with self.client.lookup(self.part, keys) as lease:
            load = self.client.load_slices(lease, self.part, range(N))
            seen = []
            for layer in range(LAYERS):
                load.load(2 * layer, 2)
                seen.append(self.cache[layer].clone())  # behind this layer's copies only
            bad = load.wait(MS)
        self.cache = seen
        return (bad, self.wrong(seed))

    def save_layer_by_layer(self, keys, seed):
        self.fill(seed)
        save = self.client.save(self.part, keys, range(N), slices=(0, 2))
        for layer in range(1, LAYERS):
            save.more(2 * layer, 2)
        return save.wait(MS).published

    def capture(self, keys):
        """What a save and a load on a stream that is being captured say."""
        from kvcache_client import KvcacheError

        torch = self.torch
        said = []
        lease = self.client.lookup(self.part, keys)
        graph, out = torch.cuda.CUDAGraph(), torch.zeros(8, device=self.device)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out += 1
            for call in (
                lambda: self.client.save(self.part, fresh_keys(N), range(N)),
                lambda: self.client.load(lease, self.part, range(N)),
            ):
                try:
                    call()
                    said.append("done")
                except KvcacheError as error:
                    said.append(type(error).__name__)
            out += 1
        graph.replay()
        graph.replay()
        return said, out.tolist()

    def in_a_graphs_neighbourhood(self, keys, seed):
        """Saves and loads between replays of a graph that writes the blocks."""
        torch = self.torch
        rows = self.content(seed, N).to(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i, cache in enumerate(self.cache):
                cache[:, :N].copy_(rows[i])
        self.poison()
        graph.replay()
        save = self.client.save(self.part, keys, range(N))
        self.poison()
        assert save.wait(MS).published == N
        return self.load(keys, seed)

    def in_pieces(self):
        """Whether the allocator made the cache's memory of segments that grow."""
        return any(s["is_expandable"] for s in self.torch.cuda.memory_snapshot())


def daemon():
    return Daemon("--gpu-bytes", "128M", "--host-bytes", "128M")


GOOD = ([], 0, True)


def both_ways(**environment):
    kit.need_gpus()
    with daemon() as d, Remote(Worker, d.socket, **environment) as saver:
        if not kit.REHEARSE:
            assert saver.call("in_pieces") == bool(environment)
        with Remote(Worker, d.socket, "reader", **environment) as loader:
            for seed, stream in enumerate(("current", "side", "default")):
                keys = fresh_keys(N)
                saver.call("save", keys, seed, stream)
                assert loader.call("load", keys, seed, stream) == GOOD
            keys = fresh_keys(N)
            saver.call("save_behind_work", keys, 11)
            assert loader.call("load", keys, 11) == GOOD
            keys = fresh_keys(N)
            assert saver.call("save_layer_by_layer", keys, 12) == N
            assert loader.call("load_layer_by_layer", keys, 12) == ([], 0)


def streams_of_torch_with_the_default_allocator():
    both_ways()


def streams_of_torch_with_expandable_segments():
    both_ways(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def lent(blocks=BLOCKS, **environment):
    """The daemon copies from and to torch's memory."""
    kit.need_gpus()
    if kit.REHEARSE:
        raise Waived("memory of torch on the CPU is not a memory file")
    with daemon() as d, Remote(
        Worker, d.socket, "worker", 0, True, blocks, **environment
    ) as saver:
        with Remote(
            Worker, d.socket, "reader", 0, True, blocks, **environment
        ) as loader:
            for seed, stream in enumerate(("current", "side")):
                keys = fresh_keys(N)
                saver.call("save", keys, seed, stream)
                assert loader.call("load", keys, seed, stream) == GOOD


def lent_to_the_daemon_with_the_default_allocator():
    lent()


def lent_to_the_daemon_with_expandable_segments():
    lent(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def lent_to_the_daemon_in_more_pieces_than_a_packet_takes():
    lent(MANY, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def a_captured_stream_is_refused():
    kit.need_gpus()
    if kit.REHEARSE:
        raise Waived("no graphs on the CPU")
    with daemon() as d, Remote(Worker, d.socket) as worker:
        keys = fresh_keys(N)
        worker.call("save", keys, 1)
        said, out = worker.call("capture", keys)
        assert said == ["BusyError", "BusyError"], said
        assert out == [4.0] * 8, out
        assert worker.call("load", keys, 1) == GOOD


def between_replays_of_a_graph():
    kit.need_gpus()
    if kit.REHEARSE:
        raise Waived("no graphs on the CPU")
    with daemon() as d, Remote(Worker, d.socket) as worker:
        assert worker.call("in_a_graphs_neighbourhood", fresh_keys(N), 5) == GOOD


def loaded_from_the_host_tier():
    kit.need_gpus()
    with Daemon("--gpu-bytes", "0", "--host-bytes", "128M") as d:
        with Remote(Worker, d.socket) as worker:
            keys = fresh_keys(N)
            worker.call("save", keys, 3)
            assert worker.call("load", keys, 3, "side") == GOOD


def a_worker_on_the_second_gpu():
    kit.need_gpus(2)
    with daemon() as d, Remote(Worker, d.socket) as first:
        with Remote(Worker, d.socket, "worker", 1) as second:
            keys, more = fresh_keys(N), fresh_keys(N)
            first.call("save", keys, 3)
            assert second.call("load", keys, 3) == GOOD
            second.call("save", more, 4)
            assert first.call("load", more, 4) == GOOD


if __name__ == "__main__":
    kit.run_tests([
        streams_of_torch_with_the_default_allocator,
        streams_of_torch_with_expandable_segments,
        lent_to_the_daemon_with_the_default_allocator,
        lent_to_the_daemon_with_expandable_segments,
        lent_to_the_daemon_in_more_pieces_than_a_packet_takes,
        a_captured_stream_is_refused,
        between_replays_of_a_graph,
        loaded_from_the_host_tier,
        a_worker_on_the_second_gpu,
    ])
