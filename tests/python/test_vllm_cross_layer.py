#!/usr/bin/env python3
"""Engines whose KV cache is one tensor of all layers, so that a block is one piece."""

from unittest import mock

import support
from stand_in import ROW, TOKENS, Request, Tensor
from vllm_case import Case, prompt

from kvcache_client.vllm import KvcacheConnector


class Layer:
    """One layer's rows of such a tensor."""

    def __init__(self, whole, place, strides):
        self._whole, self._place = whole, place
        self._block, self._layer, self._token = strides

    def _at(self, block, token):
        return block * self._block + self._place * self._layer + token * self._token

    def row(self, block, token):
        at = self._at(block, token)
        return bytes(self._whole.memory[at : at + ROW])

    def set_row(self, block, token, content):
        at = self._at(block, token)
        self._whole.memory[at : at + ROW] = content


class CrossLayer(Case):
    def crossing(self, daemon, order="blocks layers tokens", layers=3, blocks=60):
        """An engine that offers the tensor to a connector that prefers it, as vLLM does. order: of
        its axes, as they lie in memory."""
        sizes, at, strides = {"blocks": blocks, "layers": layers, "tokens": TOKENS}, ROW, {}
        for axis in reversed(order.split()):
            strides[axis], at = at, at * sizes[axis]
        first = "blocks layers" if order.startswith("blocks") else "layers blocks"
        axes = [*first.split(), "tokens"]

        def offered(connector, tensors):
            self.assertTrue(connector.prefer_cross_layer_blocks)
            whole = Tensor((*(sizes[axis] for axis in axes), ROW),
                           strides=(*(strides[axis] for axis in axes), 1))
            for i, name in enumerate(tensors):
                tensors[name] = Layer(whole, i, [strides[a] for a in sizes])
            connector.register_cross_layers_kv_cache(whole, None)

        with mock.patch.object(KvcacheConnector, "register_kv_caches", offered):
            return self.engine(daemon, layers=layers, blocks=blocks)

    def test_a_block_is_one_piece(self):
        daemon, tokens = self.daemon(), prompt(30)
        first, second = self.crossing(daemon), self.crossing(daemon)
        (group,) = first.workers[0]._worker.groups
        self.assertEqual([s.bytes for s in group.slices], [3 * TOKENS * ROW])
        first.serve(Request(tokens))
        self.assertEqual(second.serve(Request(tokens)), 28)
        self.assertEqual(second.counts()["loaded_blocks"], 7)
        self.settled(daemon)

    def test_layers_in_front_of_blocks(self):
        daemon, tokens = self.daemon(), prompt(30)
        first, second = (self.crossing(daemon, "layers blocks tokens") for _ in range(2))
        first.serve(Request(tokens))
        self.assertEqual(second.serve(Request(tokens)), 28)

    def test_blocks_that_lie_otherwise_do_not_meet(self):
        daemon, tokens = self.daemon(), prompt(30)
        for engine in (self.crossing(daemon), self.crossing(daemon, "layers blocks tokens"),
                       self.crossing(daemon, "blocks tokens layers"), self.engine(daemon, layers=3)):
            self.assertEqual(engine.serve(Request(tokens)), 0)
            self.assertEqual(engine.serve(Request(tokens)), 28)

    def test_layer_by_layer_wants_a_tensor_each(self):
        self.by_layer = True
        engine = self.engine(self.daemon())
        self.assertFalse(engine.workers[0].prefer_cross_layer_blocks)


support.main(__name__)
