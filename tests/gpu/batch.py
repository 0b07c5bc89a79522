"""The small engine of serve.py with requests that come and go: blocks from a pool, prefixes of its
own cache and of a daemon's."""

import time

import serve
from pool import Pool

SUFFIXES = (64, 128)  # further sizes of a prefill step
LIMIT_S = 30  # without a step: what hangs says where it is


class Request(serve.Sequence):
    """at: when it arrives, s; cancel: tokens after which it is abandoned."""

    def __init__(self, tokens, keys, output, at=0.0, cancel=0):
        super().__init__(-1, tokens, keys, output, at)
        self.cancel = cancel
        self.ids = []
        self.own = self.gpu = self.host = 0  # blocks that were not computed, by where they were
        self.loading = self.judge = self.behind = None
        self.cancelled = False


class Batch(serve.Engine):
    """rows: requests at a time; most: blocks of each; blocks: of the pool."""

    def __init__(self, shape, rows, most, blocks, **how):
        self.blocks = blocks
        super().__init__(shape, rows, most, total=blocks + 1, more=SUFFIXES, **how)
        self.pool = None
        self.renew(blocks, True)

    def renew(self, blocks, caching):
        """An empty cache of so many blocks. Block 0 is for padding."""
        self.pool = Pool(1, blocks, caching)
        self.unused = list(range(self.rows))
        self.leaving = []  # their blocks are still read
        self.hides = float("inf")  # seconds that a step may wait for a load

    def place(self, s):
        self.lists[s.row] = s.ids
        ids = s.ids + [0] * (self.most - len(s.ids))
        self._put(self.tables[s.row], ids)

    def _admit(self, s, now):
        """Whether there was room."""
        n = (s.prompt - 1) // self.size
        own = self.pool.match(s.keys, n)
        need = -(-(s.prompt + s.output) // self.size)
        ids = self.pool.take(s.keys, own, need)
        if ids is None:
            return False
        s.row, s.ids, s.own, s.computed = self.unused.pop(), ids, own, own * self.size
        self.place(s)
        if self.hook is not None:
            self.hook.admitted(self, s, own, n)
            if s.loading is None and s.judge is None:
                self._fill(s, own * self.size)
        return True

    def _end(self, s):
        self.unused.append(s.row)
        self.leaving.append(s)
        self._leave()

    def _leave(self):
        for s in list(self.leaving):
            if self.hook is None or not self.hook.reads(s):
                self.leaving.remove(s)
                self.pool.give(s.ids)

    def _fill(self, s, first):
        for i in range(first // self.size, s.computed // self.size):
            self.pool.filled(s.keys[i * 16 : i * 16 + 16], s.ids[i])

    def _step(self, ready, running):
        """One chunk of the first that is ready, and a token of all that run; whether the chunk was
        the prompt's last. Enqueued so that a load has the time of the decoding."""
        s, b = ready[0] if ready else None, 0
        size = self.put_prefill(s) if s else 0
        if running:
            b = self.put_decode(running)
            self.decode[b]()
        done = False
        if s:
            if self.hook is not None:
                self.hook.before(self, s)
            before = s.computed
            done = self.go_prefill(s, size)
            self._fill(s, before)
        return done, self.d_next[:b].tolist()  # waits for the step

    def run(self, requests, most):
        """Serves them all, at most so many at a time. Seconds, and the times between two tokens of
        who decodes; each request has `first`, its time to the first token counted from its arrival,
        and its tokens."""
        begin = time.perf_counter()
        waiting, loading, ready, running = list(requests), [], [], []
        gaps, before, since = [], None, 0.0
        while waiting or loading or ready or running or self.leaving:
            self._leave()
            now = time.perf_counter() - begin
            if now - since > LIMIT_S:
                raise RuntimeError(f"no step since {since:.1f} s: {len(waiting)} wait, "
                                   f"{len(loading)} load, {len(ready)} prefill, {len(running)} "
                                   f"decode, of {len(self.leaving)} blocks are read; {self.pool}")
            while waiting and waiting[0].at <= now and (
                    len(loading) + len(ready) + len(running) < most) and self.unused:
                s = waiting[0]
                s.at = s.at or now  # one that waits for nothing else waits for blocks from now on
                if not self._admit(s, now):
                    break
                waiting.pop(0)
                (loading if s.loading else ready).append(s)
            for s in list(loading):
                if self.hook.arrived_at(self, s):
                    self._fill(s, s.own * self.size)
                    loading.remove(s)
                    ready.append(s)
            if not running:
                self.hides = float("inf")  # nobody else waits
            if not ready and not running:
                before = None
                if not loading and not self.leaving and waiting:
                    if waiting[0].at <= now:
                        raise RuntimeError(f"a request is larger than the engine; {self.pool}")
                    time.sleep(max(0.0, waiting[0].at - now))
                continue
            at = time.perf_counter()
            done, made = self._step(ready, running)
            first = int(self.p_next) if done else 0
            if done and ready[0].judge is not None:
                self.hook.judged(self, ready[0])  # before anybody sees the token
            self.hides = (time.perf_counter() - at) / 2
            now = since = time.perf_counter() - begin
            if running and before is not None:
                gaps.append(now - before)
            before = now if running or done else None
            self._decoded(running, made)
            if done:
                s = ready.pop(0)
                if s.judge is not None:
                    self._fill(s, s.own * self.size)
                s.tokens.append(first)
                s.first, s.made = now - s.at, 1
                if s.made >= s.output:
                    self._end(s)
                else:
                    running.append(s)
        return time.perf_counter() - begin, gaps

    def _decoded(self, running, made):
        for s, token in zip(list(running), made):
            s.tokens.append(token)
            s.made += 1
            s.cancelled = 0 < s.cancel <= s.made
            if s.made >= s.output or s.cancelled:
                running.remove(s)
                self._end(s)
