"""A small serving engine: continuous batching, chunked prefill, greedy decoding, a prefix cache of
its own for one shared template, CUDA graphs for both kinds of step. What becomes of the blocks that
a prompt has filled is a hook's business.
"""

import time

import kit

CHUNK = 512  # tokens of a prefill step
BUCKETS = (8, 16, 24, 32, 40)  # sizes of decoding batches
STREAM = 1024  # tokens of a background stream
PIECES = 8  # that a pass is cut into where layers are loaded while others run


class Sequence:
    def __init__(self, row, tokens, keys, output, at):
        self.row, self.keys, self.output, self.at = row, keys, output, at
        self.tokens = list(tokens)
        self.prompt = len(self.tokens)
        self.computed = 0
        self.layers = None  # what its next pass has to wait for, piece by piece
        self.first = None  # when the first token was there
        self.made = 0


class Engine:
    """rows: sequences at a time; most: blocks of each, the last of which is for padding. total:
    blocks, where they are not each row's own; more: sizes of prefill steps besides a block's and a
    chunk's."""

    def __init__(self, shape, rows, most, chunk=CHUNK, buckets=BUCKETS, total=0, more=()):
        import model
        import torch

        self.torch, self.rows, self.most, self.chunk = torch, rows, most, chunk
        self.buckets = [b for b in buckets if b < rows] + [rows]
        self.size = model.TOKENS
        self.model = model.Model(shape, total or (rows + 1) * most, kit.DEVICE)
        order = torch.randperm((rows + 1) * most, generator=torch.Generator().manual_seed(5))
        order = torch.zeros_like(order) if total else order
        self.lists = order.view(rows + 1, most).tolist()
        self.tables = order.view(rows + 1, most).to(kit.DEVICE)
        make = {"dtype": torch.long, "device": kit.DEVICE}
        self.p_tokens, self.p_positions = torch.zeros(2, 1, chunk, **make)
        self.p_row, self.p_last = torch.zeros(2, 1, **make)
        self.d_tokens, self.d_positions = torch.zeros(2, rows, 1, **make)
        self.d_rows = torch.zeros(rows, **make)
        self.d_next = torch.zeros(rows, **make)
        self.p_next = torch.zeros(1, **make)
        sizes = sorted({self.size, chunk, *more})
        self.prefill = {n: self._graph(lambda n=n: self._prefill(n)) for n in sizes}
        self.decode = {b: self._graph(lambda b=b: self._decode(b)) for b in self.buckets}
        self.pieces = {}
        self.template = 0  # blocks of row `rows` - 1 that all prompts begin with
        self.hook = None

    def _prefill(self, n):
        tables = self.tables[self.p_row]
        hidden = self.model.extend(self.p_tokens[:, :n], self.p_positions[:, :n], tables)
        self.p_next.copy_(self.model.logits(hidden[0, self.p_last]).argmax(-1))

    def cut(self):
        """Short prefill steps can be run in pieces from now on."""
        for n in self.prefill:
            if n < self.chunk and n not in self.pieces:
                self.pieces[n] = self._cut(n)

    def _cut(self, n):
        positions, hidden, made = self.p_positions[:, :n], [None] * (PIECES + 1), []
        where = []

        def piece(i):
            if i == 0:
                tables = self.tables[self.p_row]
                where[:] = positions, tables, *self.model.places(positions, tables)
                hidden[0] = self.model.embedding[self.p_tokens[:, :n]]
            hidden[i + 1] = self.model.through(*self.piece(i), hidden[i], *where)
            if i == PIECES - 1:
                self.p_next.copy_(self.model.logits(hidden[-1][0, self.p_last]).argmax(-1))

        for i in range(PIECES):
            made.append(self._graph(lambda i=i: piece(i)))
            if not kit.REHEARSE:
                made[-1]()  # the next one reads what this one makes, on another stream
                kit.sync(self.torch)
        return made

    def piece(self, i):
        """The first layer of a piece, and of the next one."""
        layers = self.model.shape.layers
        return i * layers // PIECES, (i + 1) * layers // PIECES

    def _decode(self, b):
        tables = self.tables[self.d_rows[:b]]
        hidden = self.model.extend(self.d_tokens[:b], self.d_positions[:b], tables)
        self.d_next[:b].copy_(self.model.logits(hidden[:, 0]).argmax(-1))

    def _graph(self, step):
        torch = self.torch
        with torch.inference_mode():
            if kit.REHEARSE:
                return step
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        return graph.replay

    def _put(self, tensor, values):
        tensor.copy_(self.torch.tensor(values, dtype=self.torch.long).view(tensor.shape))

    def blocks_of(self, sequence, first, end):
        return self.lists[sequence.row][first:end]

    def share(self, row, keeper, blocks):
        """The row's first blocks are the keeper's: an own prefix hit."""
        self.lists[row] = self.lists[keeper][:blocks] + self.lists[row][blocks:]
        self.tables[row, :blocks] = self.tables[keeper, :blocks]

    def step_prefill(self, s):
        """One chunk; whether the prompt is done, with its first token on the host."""
        return self.go_prefill(s, self.put_prefill(s))

    def put_prefill(self, s):
        """What go_prefill() reads; the size of the pass."""
        end = min(s.computed + self.chunk, s.prompt)
        n = end - s.computed
        size = next(size for size in self.prefill if size >= n)
        pad, last = size - n, self.most * self.size - 1
        self._put(self.p_tokens[:, :size], s.tokens[s.computed : end] + [0] * pad)
        self._put(self.p_positions[:, :size], list(range(s.computed, end)) + [last] * pad)
        self._put(self.p_row, [s.row])
        self._put(self.p_last, [n - 1])
        return size

    def go_prefill(self, s, size):
        end = min(s.computed + self.chunk, s.prompt)
        n = end - s.computed
        if self.hook is not None:
            self.hook.starts(self, s, n)
        self._pass(s, size)
        if self.hook is not None:
            self.hook.computed(self, s, s.computed // self.size, end // self.size,
                               end == s.prompt)
        s.computed = end
        return end == s.prompt

    def _pass(self, s, size):
        layers, s.layers = s.layers, None
        if layers is None or size not in self.pieces:
            if layers is not None:
                layers.end()
            self.prefill[size]()
            return
        for i, run in enumerate(self.pieces[size]):
            layers.needed(f"piece.{i}.")
            run()

    def step_decode(self, running):
        b = self.put_decode(running)
        self.decode[b]()
        return b

    def put_decode(self, running):
        """What decode[b] reads; b."""
        b = next(b for b in self.buckets if b >= len(running))
        pad = b - len(running)
        self._put(self.d_tokens[:b], [s.tokens[-1] for s in running] + [0] * pad)
        last = self.most * self.size - 1
        self._put(self.d_positions[:b], [len(s.tokens) - 1 for s in running] + [last] * pad)
        self._put(self.d_rows[:b], [s.row for s in running] + [self.rows] * pad)
        return b

    def serve(self, background, incoming):
        """Runs until all of incoming are done. incoming: sequences whose `at` is when they arrive;
        background: sequences that decode all the while. The gaps between tokens of the background,
        tokens made, and seconds."""
        gaps, tokens, now = [], 0, 0.0
        begin = time.perf_counter()
        waiting, running, prefilling = list(incoming), list(background), None
        while waiting or prefilling or len(running) > len(background):
            at = time.perf_counter() - begin
            if prefilling is None and waiting and waiting[0].at <= at:
                prefilling = waiting.pop(0)
                if self.hook is not None:
                    self.hook.arrived(self, prefilling)
            done = self.step_prefill(prefilling) if prefilling is not None else False
            b = self.step_decode(running)
            made = self.d_next[:b].tolist()  # waits for the step
            first = int(self.p_next) if done else 0
            before, now = now, time.perf_counter() - begin
            gaps.append(now - before)
            for s, token in zip(running, made):
                s.tokens.append(token)
                s.made += 1
            tokens += len(running)
            for s in background:
                if len(s.tokens) >= min(s.prompt + STREAM, (self.most - 1) * self.size):
                    del s.tokens[s.prompt :]  # another stream begins
            running = [s for s in running if s in background or s.made < s.output]
            if done:
                prefilling.tokens.append(first)
                prefilling.first = now
                prefilling.made = 1
                tokens += 1
                running.append(prefilling)
                prefilling = None
        return gaps, tokens, time.perf_counter() - begin
