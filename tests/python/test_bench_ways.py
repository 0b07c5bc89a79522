#!/usr/bin/env python3
"""Which way a prompt's blocks come in the serving benchmark (tests/gpu/ways.py)."""

import os
import sys
import types
import unittest

import support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))

import batch
import ways
from kvcache_client import KeyState
from kvcache_client.vllm.breakeven import BreakEven, LoadCost
from kvcache_client.vllm.streams import NoStreams

BLOCKS = 8  # of a prompt, of which the last token is never looked up


class Lease:
    def __init__(self, blocks, gpu):
        self.blocks, self.gpu, self.ended = blocks, gpu, 0

    def release(self):
        self.ended += 1


class Loads:
    """Of kvcache_client.Client: keeps what is asked for."""

    def __init__(self, lease):
        self.lease, self.calls, self.slices = lease, [], []

    def lookup(self, part, keys):
        self.calls.append(("lookup", len(keys) // 16))
        return self.lease

    def load(self, lease, part, ids, first=0, stream=None):
        assert not lease.ended
        self.calls.append(("load", first, list(ids)))
        return "load"

    def load_slices(self, lease, part, ids, first=0):
        assert not lease.ended
        self.calls.append(("by slices", first, list(ids)))
        return types.SimpleNamespace(
            load=lambda at, n, stream=None: self.slices.append((at, n)))

    def save_entries(self, entries, stream=None, to_host=False, no_wait=False):
        """There is room for one block in the GPU tier."""
        (entry,) = entries
        n = len(entry.blocks)
        self.calls.append((stream, to_host, no_wait or to_host, list(entry.blocks)))
        room = n if to_host else 1
        return types.SimpleNamespace(
            raw_states=bytes([KeyState.SAVED] * room + [KeyState.SKIPPED] * (n - room)))


class Side(NoStreams):
    def side(self):
        return "side"


class Ways(unittest.TestCase):
    def admitted(self, gpu, host, own=0, hides=1.0, layers=None, min_tokens=0):
        """A prompt of which so many blocks are there, and its hook."""
        hook = ways.Kvcached.__new__(ways.Kvcached)
        lease = Lease(gpu + host, gpu)
        hook.client, hook.part, hook.streams = Loads(lease), None, NoStreams()
        hook.layers, hook.declined, hook.break_even = layers, 0, BreakEven(min_tokens)
        hook.break_even.ranks([LoadCost(1e-4, 1e-6, 1e-3)])  # a host tier's block takes 16 ms
        s = batch.Request([1] * (BLOCKS * 16 + 1), bytes(BLOCKS * 16), 4)
        s.ids, s.computed = list(range(100, 100 + BLOCKS + 1)), own * 16
        hook.admitted(types.SimpleNamespace(size=16, hides=hides), s, own, BLOCKS)
        self.assertEqual(lease.ended, 1 if own < BLOCKS else 0)
        return s, hook

    def test_what_has_no_room_goes_to_the_host_tier_beside_the_steps(self):
        for spills, by_daemon, asked, kept in (
                (True, False, [(None, False, True, [4, 5, 6]), ("side", True, True, [5, 6])], 1),
                (False, False, [(None, False, True, [4, 5, 6])], 0),
                (True, True, [(None, False, False, [4, 5, 6])], 1)):
            hook = ways.Kvcached.__new__(ways.Kvcached)
            hook.client, hook.part, hook.saving = Loads(None), None, Side()
            hook.timing, hook.spills, hook.by_daemon = None, spills, by_daemon
            s = types.SimpleNamespace(keys=bytes(range(8 * 16)), saves=[])
            engine = types.SimpleNamespace(blocks_of=lambda s, first, end: list(range(first, end)))
            hook.computed(engine, s, 4, 7, False)
            self.assertEqual(hook.client.calls, asked)
            self.assertEqual(len(s.saves), kept)  # its blocks are not given to others before

    def test_a_cold_prompt_is_looked_up_when_it_arrives(self):
        hook = ways.Kvcached.__new__(ways.Kvcached)
        lease = Lease(0, 0)
        hook.client, hook.part, hook.saves = Loads(lease), None, {}
        s = types.SimpleNamespace(row=3, prompt=BLOCKS * 16 + 1, keys=bytes((BLOCKS + 1) * 16))
        hook.arrived(types.SimpleNamespace(size=16), s)
        self.assertEqual((hook.client.calls, lease.ended), ([("lookup", BLOCKS)], 1))

    def test_what_the_engine_has_is_not_looked_up(self):
        self.assertEqual(self.admitted(8, 0, own=8)[1].client.calls, [])

    def test_blocks_of_the_gpu_tier_come_before_the_pass(self):
        s, hook = self.admitted(6, 0)
        self.assertEqual((s.gpu, s.host, s.computed, s.loading, s.judge), (6, 0, 96, None, "load"))
        self.assertEqual(hook.client.calls[1], ("load", 0, [100, 101, 102, 103, 104, 105]))

    def test_only_what_the_engine_lacks_comes(self):
        s, hook = self.admitted(2, 4, own=2)
        self.assertEqual((s.gpu, s.host), (0, 4))
        self.assertEqual(hook.client.calls[1], ("load", 2, [102, 103, 104, 105]))

    def test_a_long_load_is_beside_the_steps_of_others(self):
        s, _ = self.admitted(0, 6, hides=0.05)
        self.assertEqual((s.loading, s.judge, s.computed, s.host), ("load", None, 0, 6))

    def test_a_short_load_is_hidden_by_one_step(self):
        s, _ = self.admitted(5, 1, hides=0.05)
        self.assertEqual((s.loading, s.judge, s.computed), (None, "load", 96))

    def test_layer_by_layer_where_the_pass_can_wait(self):
        layers = [("piece.0.", 0, 2), ("piece.1.", 2, 4)]
        s, hook = self.admitted(0, 6, layers=layers)
        self.assertEqual(hook.client.slices, [(0, 2), (2, 4)])
        self.assertEqual((s.loading, s.judge is None, s.computed), (None, False, 96))
        s, hook = self.admitted(0, 6, layers=layers, hides=0.05)
        self.assertEqual((hook.client.slices, s.loading), ([], "load"))

    def test_what_is_computed_sooner_is_declined(self):
        s, hook = self.admitted(0, 6, min_tokens=97)
        self.assertEqual((hook.declined, s.computed, s.gpu + s.host), (1, 0, 0))
        self.assertEqual(len(hook.client.calls), 1)


support.main(__name__)
