"""A decoder-only transformer with a paged KV cache of 16-token blocks, in plain torch: random
weights, bf16, grouped-query attention, rotary positions, SwiGLU, as Qwen2 and Llama have them.

The cache is one tensor a layer, [2, blocks, 16, kv heads, head size]: keys and values of a block
are one contiguous piece each.
"""

import dataclasses
import math
import mmap
import os

import torch
import torch.nn.functional as F

TOKENS = 16  # of a block


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocab: int

    @property
    def block_bytes(self):
        return self.layers * 2 * TOKENS * self.kv_heads * self.head * 2


SMALL = Shape("0.5B", 24, 896, 14, 2, 64, 4864, 151936)  # Qwen2.5-0.5B
LARGE = Shape("8B", 32, 4096, 32, 8, 128, 14336, 128256)  # Llama-3.1-8B
TINY = Shape("tiny", 2, 64, 4, 2, 16, 128, 256)


class Model:
    """Weights follow from the seed: processes on the same kind of device have equal ones."""

    def __init__(self, shape, blocks, device, seed=1):
        self.shape, self.device, self.blocks = shape, device, blocks
        generator = torch.Generator(device).manual_seed(seed)

        def weights(*size):
            w = torch.empty(size, dtype=torch.bfloat16, device=device)
            return w.normal_(0, 0.02, generator=generator)

        s = shape
        rows = (s.heads + 2 * s.kv_heads) * s.head
        self.embedding = weights(s.vocab, s.hidden)
        self.layers = [
            (weights(rows, s.hidden), weights(s.hidden, s.heads * s.head),
             weights(2 * s.ffn, s.hidden), weights(s.hidden, s.ffn))
            for _ in range(s.layers)
        ]
        self.ones = torch.ones(s.hidden, dtype=torch.bfloat16, device=device)
        layer = (2, blocks, TOKENS, s.kv_heads, s.head)
        self.shared = None  # the cache's file and its mapping, which a daemon may map too
        if str(device) == "cpu":
            self.cache = self._in_a_file(s.layers, layer)
        else:
            self.cache = [
                torch.zeros(layer, dtype=torch.bfloat16, device=device) for _ in range(s.layers)]
        half = torch.arange(0, s.head, 2, device=device, dtype=torch.float32) / s.head
        angles = torch.outer(
            torch.arange(blocks * TOKENS, device=device, dtype=torch.float32), 10000.0**-half
        )
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def _in_a_file(self, layers, layer):
        size = -(-2 * math.prod(layer) // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create("cache", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, layers * size)
        mapping = mmap.mmap(fd, layers * size)
        self.shared = fd, mapping
        return [
            torch.frombuffer(mapping, dtype=torch.bfloat16, count=math.prod(layer), offset=i * size)
            .view(layer) for i in range(layers)]

    def _rotate(self, x, positions):
        """x: [..., tokens, heads, size]; positions: [..., tokens]."""
        cos, sin = self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def _project(self, layer, x, positions):
        s = self.shape
        qkv = F.linear(F.rms_norm(x, (s.hidden,), self.ones), layer[0])
        q, k, v = qkv.unflatten(-1, (-1, s.head)).split((s.heads, s.kv_heads, s.kv_heads), -2)
        return self._rotate(q, positions), self._rotate(k, positions), v

    def _finish(self, layer, x, attention):
        s = self.shape
        x = x + F.linear(attention.flatten(-2), layer[1])
        gate, up = F.linear(F.rms_norm(x, (s.hidden,), self.ones), layer[2]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer[3])

    def _attend(self, q, k, v, mask):
        """Few queries over a long context, without repeating keys for the heads of a group. q:
        [batch, n, heads, size]; k, v: [batch, context, kv heads, size]; mask: of the last tokens of
        the context, all before them are seen by all."""
        s = self.shape
        q = (q * s.head**-0.5).unflatten(2, (s.kv_heads, -1)).permute(0, 2, 3, 1, 4)
        b, kv, group, n, size = q.shape  # batch, kv heads, heads of each, tokens, size
        k, v = k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        scores = (q.reshape(b, kv, group * n, size) @ k).view(b, kv, group, n, -1)
        scores[..., -mask.shape[-1] :].masked_fill_(~mask, float("-inf"))
        out = (scores.softmax(-1).view(b, kv, group * n, -1) @ v).view(b, kv, group, n, size)
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def logits(self, x):
        return F.linear(F.rms_norm(x, (self.shape.hidden,), self.ones), self.embedding)

    @torch.inference_mode()
    def prefill(self, tokens, table, start=0):
        """Hidden states of tokens [n] at positions start.., whose KV goes into the blocks of table
        (a tensor of block ids, of the whole context); start is a multiple of 16."""
        n = len(tokens)
        positions = torch.arange(start, start + n, device=self.device)
        end = start + n
        own = table[start // TOKENS : (end + TOKENS - 1) // TOKENS]
        slots = (own[:, None] * TOKENS + torch.arange(TOKENS, device=self.device)).flatten()[:n]
        mask = torch.ones(n, n, dtype=torch.bool, device=self.device).tril()
        x = self.embedding[tokens]
        for layer, cache in zip(self.layers, self.cache):
            q, k, v = self._project(layer, x, positions)
            flat = cache.view(2, -1, *cache.shape[3:])
            flat[0].index_copy_(0, slots, k)
            flat[1].index_copy_(0, slots, v)
            if start > 0:
                k, v = (c[table].flatten(0, 1)[None, :end] for c in cache)
                out = self._attend(q[None], k, v, mask)[0]
            else:
                out = F.scaled_dot_product_attention(
                    *(t.transpose(0, 1)[None] for t in (q, k, v)), is_causal=True, enable_gqa=True
                )[0].transpose(0, 1)
            x = self._finish(layer, x, out)
        return x

    @torch.inference_mode()
    def decode(self, tokens, tables, lengths, context=0):
        """Hidden states of one more token of each of a batch: tokens [b], tables [b, blocks],
        lengths [b], the context's before it. Everything on the device: a CUDA graph can hold it.

        context: all lengths, where each sequence's blocks lie one behind the other from the
        cache's beginning; then attention reads them in place, as a paged kernel would.
        """
        b, most = tables.shape
        rows = torch.arange(b, device=self.device)
        slots = tables[rows, lengths // TOKENS] * TOKENS + lengths % TOKENS
        mask = torch.arange(most * TOKENS, device=self.device) <= lengths[:, None]
        x = self.embedding[tokens][:, None]
        for layer, cache in zip(self.layers, self.cache):
            q, k, v = self._project(layer, x, lengths[:, None])
            flat = cache.view(2, -1, *cache.shape[3:])
            flat[0].index_copy_(0, slots, k[:, 0])
            flat[1].index_copy_(0, slots, v[:, 0])
            if context > 0:
                k, v = (c[: b * most].view(b, -1, *c.shape[2:])[:, : context + 1] for c in cache)
                out = F.scaled_dot_product_attention(
                    *(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True
                ).transpose(1, 2)
            else:
                k, v = (c[tables].flatten(1, 2) for c in cache)
                out = self._attend(q, k, v, mask[:, None, None, None])
            x = self._finish(layer, x, out)
        return x[:, 0]

    @torch.inference_mode()
    def extend(self, tokens, positions, tables):
        """Hidden states [b, n, hidden] of n more tokens of each of a batch at any positions, behind
        what the blocks of tables [b, blocks] hold; tokens, positions: [b, n]. Everything on the
        device: a CUDA graph can hold it. Attention looks at whole tables and masks."""
        slots, mask = self.places(positions, tables)
        return self.through(0, self.shape.layers, self.embedding[tokens], positions, tables, slots,
                            mask)

    def places(self, positions, tables):
        """Where the KV of these positions goes, and what each of them sees."""
        slots = (tables.gather(1, positions // TOKENS) * TOKENS + positions % TOKENS).flatten()
        mask = torch.arange(tables.shape[1] * TOKENS, device=self.device) <= positions[..., None]
        return slots, mask

    @torch.inference_mode()
    def through(self, first, end, x, positions, tables, slots, mask):
        """extend() through some of the layers."""
        for layer, cache in zip(self.layers[first:end], self.cache[first:end]):
            q, k, v = self._project(layer, x, positions)
            flat = cache.view(2, -1, *cache.shape[3:])
            flat[0].index_copy_(0, slots, k.flatten(0, 1))
            flat[1].index_copy_(0, slots, v.flatten(0, 1))
            k, v = (c[tables].flatten(1, 2) for c in cache)
            x = self._finish(layer, x, self._attend(q, k, v, mask[:, None, None]))
        return x
