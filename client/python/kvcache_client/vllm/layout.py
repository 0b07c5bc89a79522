"""vLLM's configuration as groups: which bytes make a block of each KV cache group, and under which
namespace they are stored. Everything is looked at by its fields; nothing of vLLM is imported.

What is not known here is refused (LayoutError), so that the engine runs without the cache instead
of with a wrong one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from typing import Any, Dict, List, Sequence, Tuple

from ..memory import Slice, tensor_slices
from ..names import Namespace
from ..parts import Rule
from .layers import Layer
from .messages import PartInfo
from .worker import Group

NAME_BYTES = 63


class LayoutError(Exception):
    """Why this engine's KV cache cannot be stored."""


@dataclasses.dataclass(frozen=True)
class Rank:
    """Where a worker is among the workers."""

    tensor: int = 0
    tensors: int = 1
    pipeline: int = 0
    pipelines: int = 1
    context: int = 0
    contexts: int = 1


def _kinds(spec: Any) -> List[str]:
    return [kind.__name__ for kind in type(spec).__mro__]


def rule_of(spec: Any) -> Tuple[Rule, int]:
    """Which blocks of a prefix a group of this specification needs, and its window in tokens."""
    kinds = _kinds(spec)
    name = kinds[0]
    if getattr(spec, "compress_ratio", 1) != 1:
        raise LayoutError(f"{name}: compressed tokens are not known")
    if getattr(getattr(spec, "kv_quant_mode", None), "is_per_token_head", False):
        raise LayoutError(f"{name}: scales that lie outside of the blocks are not known")
    if "MambaSpec" in kinds:
        if getattr(spec, "mamba_cache_mode", "none") not in ("all", "align"):
            raise LayoutError(f"{name}: the engine keeps no states at the ends of blocks; "
                              "see --mamba-cache-mode")
        if getattr(spec, "num_speculative_blocks", 0):
            raise LayoutError(f"{name}: states beside speculative decoding are not known")
        if getattr(spec, "num_prefill_checkpoint_blocks", 0) or (
                getattr(spec, "tokens_per_state", -1) not in (-1, spec.block_size)):
            raise LayoutError(f"{name}: states at other places than the ends of blocks")
        return Rule.STATE, 0
    if "SlidingWindowSpec" in kinds:
        return Rule.WINDOW, int(spec.sliding_window)
    if name in ("FullAttentionSpec", "MLAAttentionSpec"):
        return Rule.FULL, 0
    raise LayoutError(f"{name} is not known")


def _layers_of(spec: Any, names: Sequence[str]) -> Dict[str, Any]:
    """The specification of each layer of a group."""
    if "UniformTypeKVCacheSpecs" in _kinds(spec):
        return {name: spec.kv_cache_specs[name] for name in names}
    return {name: spec for name in names}


def block_axis(shape: Sequence[int], blocks: int) -> int:
    """The axis of a layer's tensor that counts blocks, or pieces of blocks."""
    fits = [i for i, n in enumerate(shape[:2]) if n >= blocks and n % blocks == 0]
    if fits and fits[0] == 1 and shape[0] > 2:
        fits = []
    if not fits or (len(fits) == 2 and shape[0] == shape[1]):
        raise LayoutError(f"no axis of a tensor {list(shape)} counts {blocks} blocks")
    return fits[0]


def _cut(tensor: Any, axis: int, blocks: int) -> List[Slice]:
    """The kernel's blocks may be fractions of the scheduler's, side by side."""
    if tensor.shape[axis] != blocks:
        tensor = tensor.unflatten(axis, (blocks, tensor.shape[axis] // blocks))
    return tensor_slices(tensor, axis)


def arrangement(tensor: Any, axis: int, blocks: int) -> str:
    """How the numbers of a block follow each other: the axes but that of the blocks from the
    slowest to the fastest, each with its place and length. Backends of one engine differ in it
    where bytes do not."""
    if tensor.shape[axis] != blocks:
        tensor = tensor.unflatten(axis, (blocks, tensor.shape[axis] // blocks))
    axes = [(-stride, place, n) for place, (n, stride) in
            enumerate(zip(tensor.shape, tensor.stride())) if place != axis and n != 1]
    return " ".join(f"{place}:{n}" for _, place, n in sorted(axes))


def _arrangements(layers: Dict[str, Any], tensors: Dict[str, Any], blocks: int) -> str:
    """Of all layers of a group."""
    found = []
    for name, spec in layers.items():
        mine = tensors[name]
        for tensor in [mine] if hasattr(mine, "data_ptr") else list(mine):
            state = "MambaSpec" in _kinds(spec)
            axis = 0 if state else block_axis(tensor.shape, blocks)
            found.append(f"{tensor.dtype} {arrangement(tensor, axis, blocks)}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def layer_slices(name: str, tensor: Any, blocks: int, spec: Any) -> List[Slice]:
    """The slices of one layer, which must make a whole page of its specification."""
    if "MambaSpec" in _kinds(spec):
        return state_slices(name, tensor, blocks, spec)
    if not hasattr(tensor, "data_ptr"):
        raise LayoutError(f"layer {name}: not one tensor")
    slices = _cut(tensor, block_axis(tensor.shape, blocks), blocks)
    found, page = sum(s.bytes for s in slices), int(spec.page_size_bytes)
    if getattr(spec, "page_size_padded", None) is not None:
        page = int(spec.real_page_size_bytes)
    if found != page:
        raise LayoutError(f"layer {name}: {found} bytes a block, its page has {page}")
    return slices


def state_slices(name: str, tensors: Any, blocks: int, spec: Any) -> List[Slice]:
    """The slices of a layer's states, one tensor each, in pages that may be longer."""
    states = [tensors] if hasattr(tensors, "data_ptr") else list(tensors)
    if any(int(t.shape[0]) != blocks for t in states):
        raise LayoutError(f"layer {name}: its states do not count {blocks} blocks")
    slices = [piece for t in states for piece in tensor_slices(t, 0)]
    wanted = int(spec.page_size_bytes)
    if getattr(spec, "page_size_padded", None) is not None:
        wanted = sum(t.element_size() * math.prod(shape) for t, shape in zip(states, spec.shapes))
    if sum(s.bytes for s in slices) != wanted or len(states) != len(spec.shapes):
        raise LayoutError(f"layer {name}: its states are not {list(spec.shapes)}")
    return slices


def cross_layer_slices(tensor: Any, blocks: int) -> Tuple[List[Slice], int]:
    """The slices of one tensor that holds all layers, and its axis of blocks."""
    fits = [i for i, n in enumerate(tensor.shape) if n >= blocks and n % blocks == 0]
    if len(fits) != 1:
        raise LayoutError(f"no single axis of a tensor {list(tensor.shape)} counts {blocks} blocks")
    return _cut(tensor, fits[0], blocks), fits[0]


def tokens_of(config: Any, spec: Any) -> int:
    """Tokens of a block as the scheduler counts them: context parallel ranks share a block, but
    each of them has whole states, and all of what vLLM says is not divided (a drafter's, say)."""
    divided = getattr(spec, "dcp_sharded", "MambaSpec" not in _kinds(spec))
    ranks = getattr(config.parallel_config, "decode_context_parallel_size", 1)
    return int(spec.block_size * (ranks if divided else 1))


def _check_prefixes(config: Any, cache: Any) -> None:
    """Blocks have to follow from the tokens up to their end, and outputs from the blocks and what is
    computed behind them."""
    specs = [s for g in cache.kv_cache_groups
             for s in _layers_of(g.kv_cache_spec, g.layer_names).values()]
    if any(getattr(spec, "non_causal", False) for spec in specs):
        raise LayoutError("blocks of attention that is not causal follow from later tokens, too")
    if not config.cache_config.enable_prefix_caching and not getattr(
            config.model_config, "is_prefix_caching_supported", True):
        raise LayoutError("vLLM does not cache prefixes of this model either")


def block_tokens(config: Any, cache: Any) -> int:
    """The tokens of a block, which all groups have to agree on."""
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise LayoutError("scales that each engine finds for itself (calculate_kv_scales)")
    _check_prefixes(config, cache)
    for group in cache.kv_cache_groups:
        role = getattr(group, "role", None)
        if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
            raise LayoutError("groups that the engine keeps elsewhere are not known")
        if getattr(role, "value", "default") != "default":
            raise LayoutError(f"groups of the role {role} are not known")
    if getattr(config.parallel_config, "prefill_context_parallel_size", 1) != 1:
        raise LayoutError("prefill context parallel ranks are not known")
    sizes = {tokens_of(config, g.kv_cache_spec) for g in cache.kv_cache_groups}
    if len(sizes) != 1:
        raise LayoutError(f"groups with blocks of {sorted(sizes)} tokens are not known")
    return sizes.pop()


def _kv_heads(config: Any) -> int:
    """Of the layers that have most of them, the drafter's too; 0: layers differ in ways that are not
    known."""
    found = []
    drafter = getattr(config, "speculative_config", None)
    for model in (config.model_config, getattr(drafter, "draft_model_config", None)):
        heads, text = (getattr(model, f, None) for f in ("get_total_num_kv_heads", "hf_text_config"))
        if getattr(text, "block_configs", None):
            return 0
        found += [int(heads())] if heads is not None else []
        for name, value in vars(text).items() if hasattr(text, "__dict__") else ():
            if "key_value_heads" in name or "kv_heads" in name:
                found += [n for n in (value if isinstance(value, (list, tuple)) else [value])
                          if isinstance(n, int)]
    return max(found, default=0)


def _shard(config: Any, specs: Sequence[Any], rank: Rank) -> Tuple[int, int]:
    """Identical shards have one name: all of MLA, and KV heads that several ranks have. States are
    divided otherwise."""
    mla = [any("MLA" in kind for kind in _kinds(spec)) for spec in specs]
    if all(mla):
        return 0, 1
    total = 0 if any(mla) or any("MambaSpec" in _kinds(spec) for spec in specs) else (
        _kv_heads(config))
    if 0 < total < rank.tensors and rank.tensors % total == 0:
        return rank.tensor // (rank.tensors // total), total
    return rank.tensor, rank.tensors


def _dealt(config: Any, rank: Rank) -> str:
    """How the tokens of a block are dealt to context parallel ranks, if not one by one."""
    run = getattr(config.parallel_config, "cp_kv_cache_interleave_size", 1)
    return f" dealt {run}" if rank.contexts > 1 and run != 1 else ""


def _numbers(names: Sequence[str]) -> List[int]:
    found = [re.search(r"\.(\d+)\.", f".{name}.") for name in names]
    return [int(m.group(1)) for m in found if m]


def namespace(
    config: Any, model: str, hashes: str, layers: Dict[str, Any], rank: Rank, arranged: str = ""
) -> Namespace:
    """What makes the blocks of these layers interchangeable between engines. arranged: how a block
    lies in memory."""
    spec = next(iter(layers.values()))
    m, cache = config.model_config, config.cache_config
    drafter = getattr(config, "speculative_config", None)
    # As benchmarks have them, under the name of a model.
    made_up = " dummy" if str(getattr(
        getattr(config, "load_config", None), "load_format", "")).endswith("dummy") else ""
    shard, shards = _shard(config, list(layers.values()), rank)
    numbers = _numbers(list(layers)) or [0]
    names = hashlib.sha256("\n".join(sorted(layers)).encode()).hexdigest()[:16]
    text = getattr(m, "hf_text_config", None)
    rope = [getattr(text, f, None) for f in ("rope_theta", "rope_scaling", "rope_parameters",
                                             "max_position_embeddings")]
    if "longrope" in str(rope):  # other factors from some length on that an engine is made for
        rope.append(getattr(m, "max_model_len", None))
    return Namespace(
        model=model,
        weights=f"{getattr(m, 'revision', None)} layers {names} "
        f"drafter {getattr(drafter, 'model', None)}{made_up}",
        dtype=str(m.dtype),
        kv_dtype=f"{cache.cache_dtype} arranged {arranged}{_dealt(config, rank)}",
        quantization=str(getattr(m, "quantization", None)),
        rope=str(rope),
        hash=hashes,
        block_tokens=tokens_of(config, spec),
        first_layer=min(numbers),
        last_layer=max(numbers),
        tensor_rank=shard,
        tensor_size=shards,
        pipeline_rank=rank.pipeline,
        pipeline_size=rank.pipelines,
        context_rank=rank.context,
        context_size=rank.contexts,
    )


def _shown(model: str) -> str:
    """Its end, as much as the daemon takes: for people."""
    text = "".join(c if c.isprintable() else "?" for c in model)
    return text.encode()[-NAME_BYTES:].decode(errors="ignore")


def groups_of(
    config: Any, cache: Any, tensors: Dict[str, Any], rank: Rank, model: str, hashes: str,
    cross_layer: Any = None,
) -> List[Group]:
    """The groups of this rank. tensors: a layer's by its name; cross_layer: one for all instead."""
    tokens = block_tokens(config, cache)
    family = hashlib.sha256(f"{model}|{hashes}|{tokens}".encode()).digest()[:16]
    groups = []
    for group in cache.kv_cache_groups:
        layers = _layers_of(group.kv_cache_spec, group.layer_names)
        rules = {rule_of(spec) for spec in layers.values()}
        if len(rules) != 1:
            raise LayoutError("a group of layers with different windows")
        rule, window = rules.pop()
        ranges: List[Layer] = []
        if cross_layer is not None:
            slices, axis = cross_layer_slices(cross_layer, cache.num_blocks)
            arranged = f"across {arrangement(cross_layer, axis, cache.num_blocks)}"
        else:
            slices, ranges = _group_slices(layers, tensors, cache.num_blocks)
            arranged = _arrangements(layers, tensors, cache.num_blocks)
        modes = {getattr(spec, "mamba_cache_mode", "") for spec in layers.values()}
        info = PartInfo(
            namespace(config, model, hashes, layers, rank, arranged).digest(),
            tuple((s.bytes, s.dtype) for s in slices), tokens, int(rule), window, _shown(model),
            family, "align" in modes,
        )
        groups.append(Group(info, tuple(slices), int(cache.num_blocks), tuple(ranges)))
    return groups


def _group_slices(
    layers: Dict[str, Any], tensors: Dict[str, Any], blocks: int
) -> Tuple[List[Slice], List[Layer]]:
    """The slices of a group, and which of them are whose. Layers that share a cache are stored
    once, as the first of them."""
    slices: List[Slice] = []
    ranges: List[Layer] = []
    seen = set()
    for name, spec in layers.items():
        if name not in tensors:
            raise LayoutError(f"layer {name}: no tensor")
        first = tensors[name]
        if isinstance(first, (list, tuple)) and first:
            first = first[0]
        if not hasattr(first, "data_ptr"):
            raise LayoutError(f"layer {name}: not one tensor")
        if first.data_ptr() not in seen:
            seen.add(first.data_ptr())
            own = layer_slices(name, tensors[name], blocks, spec)
            ranges.append((name, len(slices), len(own)))
            slices += own
    return slices, ranges
