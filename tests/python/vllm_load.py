"""Many requests at a time in an engine of stand-ins: admitted, computed in chunks and decoded side
by side, loaded beside the steps, computed again where a load failed. Every output is checked."""

import random

from stand_in import TOKENS, Request, step


class _Running:
    def __init__(self, request, computed, beside, decode):
        self.request, self.computed, self.beside = request, computed, beside
        self.end = request.num_tokens + decode
        self.new = True
        self.lost = set()


class Load:
    """at_once: requests that run; chunk: tokens of each in a step; decode: tokens it makes."""

    def __init__(self, engine, at_once=6, chunk=9, decode=3, seed=1):
        self.engine, self.at_once, self.chunk, self.decode = engine, at_once, chunk, decode
        self.random = random.Random(seed)
        self.waiting, self.running = [], []
        self.steps = self.ended = self.hits = 0

    def add(self, prompts):
        self.waiting += [Request(tokens) for tokens in prompts]

    def run(self, happens=None):
        """Until all have ended. happens: called with the number of each step before it."""
        while self.waiting or self.running:
            if happens is not None:
                happens(self.steps)
            self.step()
            if self.steps > 20000:
                raise AssertionError("requests do not end")

    def idle_step(self):
        """As beside requests of others, with none of its own."""
        self.engine.run(step([], [], {}), [])

    def step(self):
        self.steps += 1
        while self.waiting and len(self.running) < self.at_once:
            request = self.waiting.pop(0)
            found, beside = self.engine.admit(request)
            self.hits += found > 0
            self.running.append(_Running(request, found, beside, self.decode))
        new, cached, scheduled, forward = [], [], {}, []
        for r in self.running:
            if r.beside or self.random.random() < 0.2:
                continue
            self._schedule(r, new, cached, scheduled, forward)
        invalid, done = self.engine.run(step(new, cached, scheduled), forward)
        ends = {request.request_id: end for request, _, end in forward}
        for r in list(self.running):
            self._judge(r, ends.get(r.request.request_id), invalid, done)

    def _schedule(self, r, new, cached, scheduled, forward):
        name, table, more = r.request.request_id, self.engine.tables[r.request.request_id], None
        if r.computed == r.request.num_tokens:
            r.request.all_token_ids.append(1000 + r.computed)
            if r.computed // TOKENS >= len(table[0]):
                more = [[next(self.engine.free)] for _ in table]
                for ids, fresh in zip(table, more):
                    ids.extend(fresh)
        end = min(r.computed + self.chunk, r.request.num_tokens)
        if r.new:
            new.append((name, table, r.computed))
            r.new = False
        else:
            cached.append((name, more, r.computed))
        scheduled[name] = end - r.computed
        forward.append((r.request, r.computed, end))

    def _judge(self, r, end, invalid, done):
        r.lost |= invalid
        if r.beside:
            if r.request.request_id in done:
                r.computed, r.beside = self.engine.loaded(r.request, r.computed, r.lost)
                r.lost = set()
            return
        valid = self.engine._valid(r.request, r.computed, r.lost)
        r.lost = set()
        if valid < r.computed:
            r.computed = valid  # this step's output is thrown away
        elif end is not None:
            r.computed = end
        if r.computed >= r.end:
            self.engine.check(r.request, r.computed)
            self.engine.finish(r.request)
            self.running.remove(r)
            self.ended += 1
