"""What runs in each worker of a vLLM engine of several ranks: weights that are the same model however
many ranks share it, and questions to this rank. vLLM imports it by name (worker_extension_cls)."""

import os
import zlib

import kit


def checkpoint(config):
    """Names and tensors of a Qwen 2 or Llama model, equal in every process; such that attention is
    not the same for all tokens."""
    import torch

    heads, kv, hidden = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    size = getattr(config, "head_dim", None) or hidden // heads
    inner, biases = config.intermediate_size, config.model_type == "qwen2"

    def some(name, *shape, scale=None):
        generator = torch.Generator(kit.DEVICE).manual_seed(zlib.crc32(name.encode()))
        scale = scale or shape[-1] ** -0.5
        return name, torch.empty(shape, dtype=torch.bfloat16, device=kit.DEVICE).normal_(
            0, scale, generator=generator)

    def norm(name):
        return name, torch.ones(hidden, dtype=torch.bfloat16, device=kit.DEVICE)

    yield some("model.embed_tokens.weight", config.vocab_size, hidden, scale=0.02)
    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}"
        for letter, n in ("q", heads), ("k", kv), ("v", kv):
            yield some(f"{at}.self_attn.{letter}_proj.weight", n * size, hidden,
                       scale=1.5 * hidden ** -0.5)
            if biases:
                yield some(f"{at}.self_attn.{letter}_proj.bias", n * size, scale=0.01)
        yield some(f"{at}.self_attn.o_proj.weight", hidden, heads * size)
        yield some(f"{at}.mlp.gate_proj.weight", inner, hidden)
        yield some(f"{at}.mlp.up_proj.weight", inner, hidden)
        yield some(f"{at}.mlp.down_proj.weight", hidden, inner)
        yield norm(f"{at}.input_layernorm.weight")
        yield norm(f"{at}.post_attention_layernorm.weight")
    yield norm("model.norm.weight")
    if not config.tie_word_embeddings:
        yield some("lm_head.weight", config.vocab_size, hidden)


def _load(loader, model, model_config):
    model.load_weights(checkpoint(model_config.hf_config))


class Rank:
    """Its methods are the worker's, beside vLLM's own."""

    def _kvcached(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        group = get_kv_transfer_group() if has_kv_transfer_group() else None
        return getattr(group, "_worker", None)

    def kvcached_rank(self):
        """Its process, its parts' names, its slices, and what its side of the connector counted."""
        side = self._kvcached()
        groups = getattr(side, "groups", ())
        return (os.getpid(), [g.info.digest.hex()[:16] for g in groups],
                [len(g.slices) for g in groups], dict(getattr(side, "counts", {})))

    def kvcached_away(self, rank):
        """That rank finds no daemon, until nobody is (-1)."""
        side, found = self._kvcached(), getattr(self, "_ready", None)
        if found is None:
            self._ready = found = side._link.ready
        side._link.ready = (lambda: None) if self.rank == rank else found


def install():
    from vllm.model_executor.model_loader import dummy_loader

    dummy_loader.DummyModelLoader.load_weights = _load


install()
