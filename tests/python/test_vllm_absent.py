#!/usr/bin/env python3
"""Blocks that a group does not have: vLLM gives its null block for those in front of a window, and
for states that nobody needs any more."""

import types

import support
from stand_in import TOKENS, FullAttentionSpec, MambaSpec, Request, SlidingWindowSpec
from vllm_case import Case, layer_by_layer, prompt

from kvcache_client.names import KEY_BYTES
from kvcache_client.parts import Rule
from kvcache_client.vllm.requests import NULL_BLOCK, group_ids

WINDOW = SlidingWindowSpec().sliding_window


class Lacking(Case):
    def engine(self, daemon, specs=None, **how):
        """What is loaded is all that its groups need in front of what they compute."""
        engine = super().engine(daemon, specs, **how)
        allocated = engine._allocated

        def without(request, external):
            for spec, ids in zip(engine.specs, engine.tables[request.request_id]):
                n = max(0, external - WINDOW + 1) // TOKENS
                if isinstance(spec, MambaSpec):
                    n = max(0, external // TOKENS - 1)
                if type(spec) is not FullAttentionSpec:
                    ids[:n] = [NULL_BLOCK] * n
            allocated(request, external)

        engine._allocated = without
        return engine

    def served(self, spec):
        """Where the daemon has lost what the engine does not have, nothing takes its place."""
        daemon, tokens = self.daemon(), prompt(50)
        engine = self.engine(daemon, [FullAttentionSpec(), spec])
        first = Request(tokens)
        engine.serve(first, chunk=TOKENS)
        worker = engine.workers[0]._worker
        keys = b"".join(h[:KEY_BYTES] for h in first.block_hashes)
        worker._link.get().flush_keys(worker._parts[1], keys[: 6 * KEY_BYTES])
        self.assertEqual(engine.serve(Request(tokens)), 48)
        self.assertEqual(self.figures(daemon)["blocks"], 2 * 12 - 6)
        self.assertEqual(engine.serve(Request(tokens[: 5 * TOKENS + 1])), 0)


class Absent(Lacking):
    def test_states(self):
        self.served(MambaSpec(mamba_cache_mode="all"))

    def test_a_window(self):
        self.served(SlidingWindowSpec())

    def test_of_any_group(self):
        for rule in Rule:
            info = types.SimpleNamespace(
                rule=rule, window=TOKENS * 9, block_tokens=TOKENS, at_ends=False)
            self.assertEqual(group_ids(info, [7, NULL_BLOCK, 8, 9], 0, 4, 0), [7, None, 8, 9])


AbsentByLayer = layer_by_layer(Absent)

support.main(__name__)
