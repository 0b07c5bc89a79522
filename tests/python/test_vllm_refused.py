#!/usr/bin/env python3
"""What is not known of a KV cache is refused by its name, however much of it is."""

import types

import support
from stand_in import TOKENS, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm_case import Case

from kvcache_client.vllm.layout import LayoutError, Rank, block_tokens, groups_of, rule_of

space = types.SimpleNamespace


def having(spec, **fields):
    vars(spec).update(fields)
    return spec


class Refused(Case):
    def test_specifications(self):
        states = {"mamba_cache_mode": "all"}
        for spec, said in (
            (having(FullAttentionSpec(), compress_ratio=4), "compressed tokens"),
            (having(FullAttentionSpec(), kv_quant_mode=space(is_per_token_head=True)),
             "scales that lie outside"),
            (MambaSpec(), "keeps no states at the ends"),
            (MambaSpec(**states, num_speculative_blocks=1), "beside speculative decoding"),
            (having(MambaSpec(**states), num_prefill_checkpoint_blocks=1), "at other places"),
            (having(MambaSpec(**states), tokens_per_state=TOKENS // 2), "at other places"),
            (type("ChunkedLocalAttentionSpec", (FullAttentionSpec,), {})(), "is not known"),
        ):
            with self.assertRaisesRegex(LayoutError, said):
                rule_of(spec)
        for spec in (having(FullAttentionSpec(), compress_ratio=1),
                     having(FullAttentionSpec(), kv_quant_mode=space(is_per_token_head=False)),
                     having(MambaSpec(**states), tokens_per_state=TOKENS)):
            rule_of(spec)

    def test_groups(self):
        engine = self.engine(self.daemon())
        (group,) = engine.cache.kv_cache_groups
        group.role = space(value="default")
        self.assertEqual(block_tokens(engine.config, engine.cache), TOKENS)
        group.role = space(value="draft")
        with self.assertRaisesRegex(LayoutError, "role"):
            block_tokens(engine.config, engine.cache)
        del group.role
        names = group.layer_names
        group.kv_cache_spec = having(
            type("UniformTypeKVCacheSpecs", (FullAttentionSpec,), {})(), kv_cache_specs={
                names[0]: SlidingWindowSpec(), names[1]: SlidingWindowSpec(sliding_window=99)})
        with self.assertRaisesRegex(LayoutError, "different windows"):
            groups_of(engine.config, engine.cache, engine.tensors[0], Rank(), "m", "h")


support.main(__name__)
