"""Maps each tensor of a checkpoint in transformers' format to a tensor of a GGUF file, or to rows of it.

This undoes what convert_hf_to_gguf.py (llama.cpp) does: it reorders rows of queries and keys into neighbouring pairs,
adds 1 to Gemma's norms, joins experts in one tensor, and splits latent attention's projection in two. A tensor of
queries, keys and values is split where the model has three.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.architectures.base import RecurrentOrder, TensorNames
from engine_core.model_loader.gguf.reader import GgufFile, GgufTensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Those of each layer."""

    queries: int
    keys: int
    rotated: int
    """Numbers of a head that are rotated."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the file's fields say that there is."""

    layers: int
    """Those that predict further tokens among them."""
    used: int
    """The first ones; the others are left out."""
    experts: int
    """Of a layer."""


@dataclass(frozen=True, slots=True)
class HeadOrder:
    """The order of rows within each head, where it is not the checkpoint's."""

    size: int
    """Rows of a head."""
    rotated: int
    """Its first rows, which are in another order."""
    is_paired: bool
    """Whether the halves that a checkpoint has are interleaved; else the pairs that it has are halves."""


@dataclass(frozen=True, slots=True)
class TiledColumns:
    """Columns of heads stored tiled: ``RecurrentOrder``."""

    groups: int
    per_group: int
    size: int
    """Columns of a head."""

    def fits_blocks(self, tensor: GgufTensor) -> bool:
        """Whether no block has columns of two heads."""
        return self.size % tensor.type.block_size == 0


@dataclass(frozen=True, slots=True)
class GgufRows:
    """Neighbouring rows of a tensor; of a vector, neighbouring numbers."""

    tensor: GgufTensor
    shape: tuple[int, ...]
    """[rows, inputs], or [numbers]."""
    first: int = 0
    """Index of the first row, with all dimensions but the last flattened."""
    order: HeadOrder | None = None
    """None: rows are in the checkpoint's order."""
    added: float = 0.0
    """The converter added this to each number."""
    is_rate: bool = False
    """Whether a number x became −exp(x)."""
    columns: TiledColumns | None = None
    """The order of a row's numbers, where it is not the checkpoint's."""


@dataclass(frozen=True, slots=True)
class GgufLatents:
    """The projection from latents to keys and values, split in two tensors."""

    keys: GgufTensor
    """[heads, latents, keys]"""
    values: GgufTensor
    """[heads, values, latents]"""

    @property
    def shape(self) -> tuple[int, ...]:
        """[heads · (keys + values), latents]: per head, keys and then values."""
        heads, latents, keys = self.keys.shape
        return heads * (keys + self.values.shape[1]), latents


@dataclass(frozen=True, slots=True)
class GgufJoined:
    """Several tensors, one after the other."""

    parts: tuple[GgufRows, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, inputs], or [numbers]."""
        return sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:]


Source = GgufRows | GgufLatents | GgufJoined

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names common to most architectures, without ``blk.0.`` and ``model.layers.0.``, ``.weight`` and ``.bias``."""
_UNUSED = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight|(.*\.)?attn_rot_embd(\.weight)?")
"""RoPE tensors, which ``config`` reads."""
_IN_LAYER = re.compile(r"blk\.(?P<layer>\d{1,5})\.(?P<part>.+?)(?P<kind>\.weight|\.bias)?")
_BARE = (".sinks", ".e_score_correction_bias", ".expert_bias", "layer_scalar", ".A_log", ".D", ".dt_bias")
"""Ends of names without ``.weight`` and ``.bias``."""
_ONE_ROW = ("mlp.shared_expert_gate.weight", "mlp.moe_statics.e_score_correction_bias")
"""Vectors that a checkpoint has as a row."""
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
}
_CONVOLUTIONS = ("conv.conv.weight", "conv1d.weight")
"""Which a checkpoint has as [channels, 1, taps]."""
_VECTORS = (".A_log", ".D", "mamba.norm.weight", "mixer.norm.weight")
"""Which a file may have as a column, or with a row for each group."""
_RATES = ".A_log"
_EXPERT_PART = re.compile(r"ffn_(gate|up|down|gate_up)_exps")
_ONE_EXPERT = re.compile(r"ffn_(gate|up|down)\.(\d{1,4})")
"""As files of 2023 have them."""
_FUSED = "attn_qkv"
_RECURRENT = "linear_attn."
_LATENT_PARTS = {"attn_k_b": "keys", "attn_v_b": "values"}
_REORDERED = ("attn_q", "attn_k")
_EXPANDED = "F32"
"""Said of a tensor whose numbers cannot be reordered in their type."""
_MOST_EXPERTS = 4096
_MOST_ROWS = 1024
"""That are tensors."""
_MOST_SOURCES = 2**18
"""A model of 100 layers with 512 experts each has some 155,000. Each costs more memory than a hostile file's bytes."""


def sources_of(
    file: GgufFile, names: TensorNames, heads: Heads, counts: Counts, recurrence: RecurrentOrder | None = None
) -> dict[str, Source]:
    """Each tensor by its name in transformers' format; unknown tensors keep their names.

    Raises ``CheckpointError``, also for tensors of more layers or experts than ``counts``.
    """
    found: dict[str, Source] = {}
    for name, source in _sources(file, names, heads, counts, recurrence):
        if name in found:
            raise CheckpointError(f"{file.path}: two tensors are {name}: {tensors_of(source)[0].name} is one")
        found[name] = source
        if len(found) > _MOST_SOURCES:
            raise CheckpointError(f"{file.path} has tensors for more than {_MOST_SOURCES} weights")
    return found


def _sources(
    file: GgufFile, names: TensorNames, heads: Heads, counts: Counts, recurrence: RecurrentOrder | None
) -> Iterator[tuple[str, Source]]:
    for name, tensor in file.tensors.items():
        if _UNUSED.fullmatch(name):
            continue
        if (outer := names.outer.get(name) or _OUTER.get(name)) is not None:
            yield outer, GgufRows(tensor, tensor.shape, added=_added(names, outer))
        elif (found := _IN_LAYER.fullmatch(name)) is None:
            yield name, GgufRows(tensor, tensor.shape)
        elif (layer := int(found["layer"])) >= counts.layers:
            raise CheckpointError(f"{file.path}: {name} is of layer {layer}, but block_count is {counts.layers}")
        elif layer < counts.used:
            prefix, part, kind = f"{names.layers}.{layer}", found["part"], found["kind"] or ""
            if (expert := _EXPERT_PART.fullmatch(part)) is not None:
                yield from _experts(names, prefix, expert[1], kind, tensor, counts.experts)
            elif (one := _ONE_EXPERT.fullmatch(part)) is not None:
                if int(one[2]) >= counts.experts:
                    raise CheckpointError(f"{file.path}: {name} is beyond the expert_count, {counts.experts}")
                own = f"{prefix}.{names.experts}.{int(one[2])}.{names.projections[one[1]]}{kind}"
                yield own, GgufRows(tensor, tensor.shape)
            elif part in _LATENT_PARTS:
                yield from _latents(file, prefix, found["layer"], tensor)
            elif (joined := next((own for own, parts in names.joined.items() if part in parts), None)) is not None:
                if part == names.joined[joined][0]:
                    yield f"{prefix}.{joined}{kind}", _join(file, tensor, part, names.joined[joined])
            elif (rows := names.rows.get(part)) is not None:
                yield from _each_row(f"{prefix}.{rows}", kind, tensor)
            elif part == _FUSED and part not in names.layer:
                yield from _split(prefix, kind, tensor, heads)
            else:
                own = names.layer.get(part) or _LAYER.get(part, part)
                kind = "" if own.endswith(_BARE) else kind
                stored = _rows(tensor, part, f"{own}{kind}", names, heads)
                order = recurrence if own.startswith(_RECURRENT) else None
                yield f"{prefix}.{own}{kind}", stored if order is None else _untiled(f"{own}{kind}", stored, order)


def _rows(tensor: GgufTensor, part: str, own: str, names: TensorNames, heads: Heads) -> GgufRows:
    shape, order = tensor.shape, None
    if own in _ONE_ROW and len(shape) == 1:
        shape = (1, *shape)
    elif own.endswith(_CONVOLUTIONS) and len(shape) == 2:
        shape = (shape[0], 1, shape[1])
    elif own.endswith(_VECTORS):
        shape = (math.prod(shape),)
    if part in _REORDERED and (names.is_paired or names.is_halved):
        count = heads.queries if part == "attn_q" else heads.keys
        order = _order(tensor, count, None if names.is_paired else heads.rotated)
    return GgufRows(tensor, shape, order=order, added=_added(names, own), is_rate=own.endswith(_RATES))


def _order(tensor: GgufTensor, heads: int, halved: int | None) -> HeadOrder:
    """Of ``heads`` heads, in pairs; or with that many rows of each ``halved``."""
    rows = tensor.shape[0]
    size = rows // heads if heads > 0 else 0
    rotated = size if halved is None else halved
    if heads < 1 or rows % heads or not 2 <= rotated <= size or rotated % 2:
        raise CheckpointError(f"{tensor.file}: {tensor.name} has {rows} rows, which are not {heads} even heads")
    return HeadOrder(size, rotated, is_paired=halved is None)


def _added(names: TensorNames, own: str) -> float:
    """What the converter added to the numbers of ``own``."""
    is_norm = "norm" in own and own.endswith(".weight") and own.removesuffix(".weight") not in names.norms_kept
    return names.norms_added if is_norm else 0.0


def _untiled(own: str, rows: GgufRows, order: RecurrentOrder) -> Source:
    """What belongs to value heads, in the checkpoint's order."""
    name, groups, per_group = own.removesuffix(".weight").removeprefix(_RECURRENT), order.keys, order.values_per_key
    if per_group == 1 or name == "norm":
        return rows
    if name == "out_proj":
        _require(rows, rows.shape[-1], groups * per_group * order.value_dim, "columns")
        return replace(rows, columns=TiledColumns(groups, per_group, order.value_dim))
    before = 2 * groups * order.key_dim if name in ("in_proj_qkv", "conv1d") else 0
    size = order.value_dim if before or name == "in_proj_z" else 1
    _require(rows, rows.shape[0], before + groups * per_group * size, "rows")
    heads = (number * groups + group for group in range(groups) for number in range(per_group))
    parts = [_slice(rows, before + head * size, size) for head in heads]
    return GgufJoined((*([_slice(rows, 0, before)] if before else []), *parts))


def _slice(rows: GgufRows, first: int, count: int) -> GgufRows:
    return replace(rows, shape=(count, *rows.shape[1:]), first=rows.first + first)


def _require(rows: GgufRows, found: int, expected: int, what: str) -> None:
    """Raise ``CheckpointError`` for a number of rows or columns that the fields of ``ssm.`` do not say."""
    if found != expected:
        raise CheckpointError(
            f"{rows.tensor.file}: {rows.tensor.name} has {found} {what}: expected {expected}, as ssm.inner_size, "
            "ssm.state_size, ssm.group_count and ssm.time_step_rank say"
        )


def _join(file: GgufFile, tensor: GgufTensor, part: str, parts: tuple[str, ...]) -> GgufJoined:
    """``tensor``, which is the first of ``parts``, and the others of its layer."""
    named = [tensor.name.replace(f".{part}.", f".{each}.") for each in parts]
    found = [each for name in named if (each := file.tensors.get(name)) is not None]
    if len(found) != len(named) or len({each.shape[1:] for each in found}) != 1:
        raise CheckpointError(f"{tensor.file}: {' and '.join(named)} are not of one width, or one is missing")
    return GgufJoined(tuple(GgufRows(each, each.shape) for each in found))


def _each_row(prefix: str, kind: str, tensor: GgufTensor) -> Iterator[tuple[str, Source]]:
    count, size = tensor.shape if len(tensor.shape) == 2 else (1, tensor.shape[-1])
    if count > _MOST_ROWS:
        raise CheckpointError(f"{tensor.file}: {tensor.name} has {count} rows: expected at most {_MOST_ROWS}")
    for index in range(count):
        yield f"{prefix}.{index}{kind}", GgufRows(tensor, (size,), index * size)


def _split(prefix: str, kind: str, tensor: GgufTensor, heads: Heads) -> Iterator[tuple[str, Source]]:
    """Queries, keys and values of a tensor that has all of them."""
    total = heads.queries + 2 * heads.keys
    if min(heads.queries, heads.keys) < 1 or tensor.shape[0] % total:
        raise CheckpointError(f"{tensor.file}: {tensor.name} has {tensor.shape[0]} rows, which are not {total} heads")
    size, first = tensor.shape[0] // total, 0
    for each, count in (("q", heads.queries), ("k", heads.keys), ("v", heads.keys)):
        yield f"{prefix}.self_attn.{each}_proj{kind}", GgufRows(tensor, (count * size, *tensor.shape[1:]), first)
        first += count * size


def _experts(
    names: TensorNames, prefix: str, which: str, kind: str, tensor: GgufTensor, experts: int
) -> Iterator[tuple[str, Source]]:
    """The rows of each expert's projection, or of two projections that share a tensor."""
    projections = ["gate", "up"] if which == "gate_up" else [which]
    count, *shape = tensor.shape
    if len(shape) != (1 if kind == ".bias" else 2) or shape[0] % len(projections):
        raise CheckpointError(f"{tensor.file}: {tensor.name} is {list(tensor.shape)}, which is not as experts are")
    if count != experts or count > _MOST_EXPERTS:
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} has {count} experts, but expert_count is {experts}: expected equal numbers, "
            f"and at most {_MOST_EXPERTS}"
        )
    rows = shape[0] // len(projections)
    for expert in range(count):
        for number, projection in enumerate(projections):
            name = f"{prefix}.{names.experts}.{expert}.{names.projections[projection]}{kind}"
            yield name, GgufRows(tensor, (rows, *shape[1:]), expert * shape[0] + number * rows)


def _latents(file: GgufFile, prefix: str, layer: str, tensor: GgufTensor) -> Iterator[tuple[str, Source]]:
    """The projection that was split in two: yielded once, for its keys, and not if the file has the whole, too."""
    parts = [file.tensors.get(f"blk.{layer}.{part}.weight") for part in ("attn_kv_b", *_LATENT_PARTS)]
    whole, keys, values = parts
    if whole is not None or tensor is not keys:
        return
    shapes = [each.shape for each in (keys, values) if each is not None and len(each.shape) == 3]
    if len(shapes) != 2 or values is None or shapes[0][:2] != (shapes[1][0], shapes[1][2]):
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is {list(tensor.shape)}, and {tensor.name.replace('k_b', 'v_b')} does not "
            "fit it: expected [heads, latents, keys] and [heads, values, latents]"
        )
    yield f"{prefix}.self_attn.kv_b_proj.weight", GgufLatents(keys, values)


def tensors_of(source: Source) -> tuple[GgufTensor, ...]:
    """The stored tensors that have its numbers."""
    match source:
        case GgufRows():
            return (source.tensor,)
        case GgufLatents():
            return source.keys, source.values
        case GgufJoined():
            return tuple({part.tensor.name: part.tensor for part in source.parts}.values())


def types_of(sources: Mapping[str, Source]) -> dict[str, str]:
    """The type of each tensor.

    ``GgufLatents`` have an entry for ``.keys`` and for ``.values``, ``GgufJoined`` one for each part if they differ.
    """
    types: dict[str, str] = {}
    for name, source in sources.items():
        found = [tensor.type.name for tensor in tensors_of(source)]
        if isinstance(source, GgufRows) and source.columns and not source.columns.fits_blocks(source.tensor):
            types[name] = _EXPANDED
        elif isinstance(source, GgufLatents):
            types |= {f"{name}.keys": found[0], f"{name}.values": found[1]}
        elif len(set(found)) > 1:
            types |= {f"{name}.{index}": each for index, each in enumerate(found)}
        else:
            types[name] = found[0]
    return types
