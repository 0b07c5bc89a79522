#!/usr/bin/env python3
"""Loads that fail when a step has waited for them, in the scheduler of the vLLM that is installed. Its
runners are played: what each of them keeps of a request and what it takes from the scheduler, one step
at a time and with a step ahead. Tokens follow from the rows that a step attends to, so that one which is
wrong makes wrong tokens, and wrong rows.

scripts/check-vllm runs this; make check does not. $KVC_TEST_SEEDS [6]: of each kind of engine.
"""

import contextlib
import hashlib
import os
import random
from unittest import mock

import real_vllm
import support
from real_vllm import HEADS, LAYERS, SIZE, TOKENS

SEEDS = int(os.environ.get("KVC_TEST_SEEDS", 6))
WRONG = 999  # a token
MADE = 9


def names_of(tokens):
    """Of each position: what its row follows from."""
    name, names = b"", []
    for token in tokens:
        name = hashlib.blake2b(name + token.to_bytes(4, "little"), digest_size=16).digest()
        names.append(name)
    return names


def token_behind(tokens):
    return names_of(tokens)[-1][0] + 3


def made_behind(prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(token_behind(tokens))
    return tokens[len(prompt):]


class State:
    """What a runner knows of a request."""

    def __init__(self, tokens, computed, blocks):
        self.tokens, self.computed, self.blocks = list(tokens), computed, list(blocks)
        self.prompt = len(self.tokens)


class Engine(real_vllm.Engine):
    """runner: vLLM's first or second. ahead: a step is scheduled and run before the tokens of the last
    one are known."""

    def __init__(self, socket, folder, runner, ahead):
        from vllm.v1.core.sched import async_scheduler, scheduler

        kind = async_scheduler.AsyncScheduler if ahead else scheduler.Scheduler
        with mock.patch.object(scheduler, "Scheduler", kind):
            super().__init__(socket, folder, ahead=ahead, synchronous=True)
        self.ahead, self.take = ahead, self.take_second if runner == 2 else self.take_first
        self.scheduler.use_v2_model_runner = runner == 2
        self.known, self.batch, self.flying, self.rows = {}, set(), [], {}
        self.fails, self.some = 0.0, random.Random(1)
        start, side = self.worker._worker._start, self.worker._worker

        def failing(order, sliced):
            away = self.some.random() < self.fails
            with mock.patch.object(side._link, "ready", lambda: None) if away else (
                    contextlib.nullcontext()):
                return start(order, sliced)

        side._start = failing

    # What the runners take from the scheduler.

    def take_first(self, output):
        cached = output.scheduled_cached_reqs
        scheduled = set(output.num_scheduled_tokens) - set(cached.resumed_req_ids)
        for name in output.finished_req_ids:
            self.known.pop(name, None)
        self.batch &= scheduled
        for new in output.scheduled_new_reqs:
            self.known[new.req_id] = State(
                new.prompt_token_ids, new.num_computed_tokens, new.block_ids[0])
        for i, name in enumerate(cached.req_ids):
            state, new, made = self.known[name], cached.new_block_ids[i], cached.num_output_tokens[i]
            state.computed = cached.num_computed_tokens[i]
            if name in cached.resumed_req_ids:
                state.blocks = list(new[0])
            elif new is not None:
                state.blocks += new[0]
            del state.tokens[state.prompt + made:]
            if name not in self.batch and made:
                state.tokens[state.prompt:] = cached.all_token_ids[name][-made:]
        self.batch = set(output.num_scheduled_tokens)

    def take_second(self, output):
        cached = output.scheduled_cached_reqs
        for name in {*output.finished_req_ids, *(output.preempted_req_ids or ())}:
            self.known.pop(name, None)
        for new in output.scheduled_new_reqs:
            self.known[new.req_id] = State(
                new.prefill_token_ids, new.num_computed_tokens, new.block_ids[0])
        for i, name in enumerate(cached.req_ids):
            if cached.new_block_ids[i] is not None:
                self.known[name].blocks += cached.new_block_ids[i][0]

    # A forward pass.

    def row_of(self, name, layer):
        row = self.rows.get((name, layer))
        if row is None:
            data = hashlib.shake_128(name + bytes([layer])).digest(HEADS * 2 * SIZE * 2)
            row = self.torch.frombuffer(bytearray(data), dtype=self.torch.int16)
            row = self.rows[name, layer] = row.view(HEADS, 2 * SIZE)
        return row

    def put(self, state, first, end, wrong=0):
        names = names_of(state.tokens[:end])
        for layer, tensor in enumerate(self.tensors.values()):
            for p in range(first, end):
                block = tensor.view(self.torch.int16)[state.blocks[p // TOKENS], :, p % TOKENS]
                block.copy_(self.row_of(names[p], layer) ^ wrong)

    def right(self, state, end):
        names = names_of(state.tokens[:end])
        return all(
            self.torch.equal(
                tensor.view(self.torch.int16)[state.blocks[p // TOKENS], :, p % TOKENS],
                self.row_of(names[p], layer))
            for p in range(end) for layer, tensor in enumerate(self.tensors.values()))

    def forward(self, output):
        self.take(output)
        parts = {name: (self.known[name], self.known[name].computed, n)
                 for name, n in output.num_scheduled_tokens.items()}
        for state, first, n in parts.values():
            state.tokens += [WRONG] * (first + n - len(state.tokens))  # it reads what is not there
            self.put(state, first, first + n)
        wrong = set()
        for _ in parts:  # whoever shares with who is wrong
            more = {name for name, (state, first, n) in parts.items()
                    if name not in wrong and not self.right(state, first)}
            for name in more:
                state, first, n = parts[name]
                self.put(state, first, first + n, 1)
            wrong |= more
            if not more:
                break
        self.tokens = {}
        for name, (state, first, n) in parts.items():
            state.computed = first + n
            if state.computed >= len(state.tokens):
                token = WRONG if name in wrong else token_behind(state.tokens)
                state.tokens.append(token)
                self.tokens[name] = [token]
        for name, tensor in self.tensors.items():
            self.worker.save_kv_layer(name, tensor, None)

    def sampled(self, name):
        return self.tokens.get(name, [])

    def step(self):
        output = self.scheduler.schedule()
        if output.total_num_scheduled_tokens == 0:
            self.take(output)
        self.flying.append((output, self.run(output)))
        if not self.ahead or len(self.flying) > 1 or not output.total_num_scheduled_tokens:
            self.scheduler.update_from_output(*self.flying.pop(0))

    def drain(self):
        while self.flying:
            self.scheduler.update_from_output(*self.flying.pop(0))

    def scene(self, prompts, run, aborts=0, resets=0):
        """All of them, one or some a step. {number: what was made}, without those that were aborted."""
        from vllm.v1.request import RequestStatus

        self.scheduler.reset_prefix_cache()
        waiting, given_up = list(enumerate(prompts)), set()
        while waiting or self.scheduler.has_unfinished_requests():
            for _ in range(min(len(waiting), self.some.choice((0, 0, 1, 1, 2)))):
                number, tokens = waiting.pop(0)
                self.request(f"{run} {number}", tokens, MADE + number % 4)
            self.step()
            if self.requests and self.some.random() < aborts:
                name = self.some.choice(sorted(self.requests))
                if not self.requests[name].is_finished():
                    self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                    given_up.add(int(name.split()[1]))
            if self.some.random() < resets:
                self.reset()
        return {number: made for number, made in self.ended().items() if number not in given_up}

    def reset(self):
        """Of the engine's cache, beside requests that run."""
        with contextlib.suppress(RuntimeError):  # while blocks of a step in flight are kept
            self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def ended(self):
        """{number: what was made}"""
        while self.scheduler.has_unfinished_requests():
            self.step()
        self.drain()
        self.step()
        self.drain()
        requests, self.requests = self.requests, {}
        return {int(name.split()[1]): list(r.output_token_ids) for name, r in requests.items()}


class Again(support.Case):
    def engine(self, daemon, **how):
        engine = Engine(daemon.socket, self.folder, **how)
        self.addCleanup(engine.close)
        return engine

    def saved(self, daemon):
        support.until(lambda: self.client(daemon, role="operator").statistics()[
            "filling_slots"] == 0, "not published")

    def failing(self, runner):
        """An engine with a step in flight that lacks something of a request, 0; its tokens."""
        from kvcache_client.vllm import repairs

        if not repairs.waited_loads():
            self.skipTest("this version is not known, so that no step waits")
        daemon, tokens = self.daemon(), list(range(3, 3 + 5 * TOKENS))
        engine = self.engine(daemon, runner=runner, ahead=True)
        engine.scene([tokens], "saved")
        self.saved(daemon)
        engine.scheduler.reset_prefix_cache()
        engine.fails = 1.0
        engine.request("failing 0", tokens, MADE)
        engine.step()
        return engine, tokens

    def test_an_abort_while_a_step_is_in_flight_that_lacks_something(self):
        """Also where vLLM fails requests with their loads, and steps are told to wait for them."""
        from vllm.v1.request import RequestStatus

        for recompute in (True, False):
            engine, tokens = self.failing(2)
            engine.scheduler.recompute_kv_load_failures = recompute
            engine.scheduler.finish_requests("failing 0", RequestStatus.FINISHED_ABORTED)
            engine.fails = 0.0
            engine.step()
            engine.request("behind 1", [*tokens, 3], MADE)
            self.assertEqual(engine.ended()[1], made_behind([*tokens, 3], MADE))

    def test_a_reset_while_a_step_is_in_flight_that_lacks_something(self):
        """It does not clear the engine's cache, and the request runs again without the block that the
        step completed, which others find there."""
        for runner in (1, 2):
            engine, tokens = self.failing(runner)
            engine.reset()
            engine.fails = 0.0
            engine.step()
            self.assertEqual(engine.worker._worker.counts["failed_loads"], 1)
            engine.request("behind 1", [*tokens, 3], MADE)
            self.assertEqual(engine.ended(), {
                0: made_behind(tokens, MADE), 1: made_behind([*tokens, 3], MADE)})

    def all_right(self, runner, ahead, blocks):
        from kvcache_client.vllm import repairs

        if not repairs.waited_loads():
            self.skipTest("this version is not known, so that no step waits")
        daemon = self.daemon()
        with mock.patch.object(real_vllm, "BLOCKS", blocks):
            engine = self.engine(daemon, runner=runner, ahead=ahead)
        worker = engine.worker._worker
        failed = 0
        for seed in range(SEEDS):
            some = engine.some = random.Random(seed)
            shared = [some.choices(range(3, 900), k=some.randrange(40, 330)) for _ in range(3)]
            prompts = [
                some.choice(shared)[:some.randrange(17, 330)] + some.choices(
                    range(3, 900), k=some.choice((1, 3, 20, 150))) for _ in range(10)]
            engine.fails = 0.0
            engine.scene(prompts, f"saved-{seed}")
            self.saved(daemon)
            engine.fails, before = 0.5, worker.counts["failed_loads"]
            found = engine.scene(
                prompts, f"failing-{seed}", some.choice((0, 0.1)), some.choice((0, 0.2)))
            failed += worker.counts["failed_loads"] - before
            for number, made in found.items():
                self.assertEqual(
                    made, made_behind(prompts[number], MADE + number % 4), (seed, number))
            engine.fails = 0.0
            self.assertEqual(engine.scheduler.connector._scheduler.handed.admitted(), set())
            self.assertTrue(engine.scheduler.reset_prefix_cache())
        self.assertGreater(failed, SEEDS)


def of(runner, ahead, blocks):
    return lambda self: self.all_right(runner, ahead, blocks)


for number, runner in enumerate(("first", "second"), 1):
    for ahead in (False, True):
        for few, blocks in (("", 200), ("_with_few_blocks", 60)):
            setattr(Again, f"test_the_{runner}_runner{'_ahead' * ahead}{few}",
                    of(number, ahead, blocks))


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    support.LIMIT_S = 300
    support.main("__main__")
