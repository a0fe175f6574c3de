"""Maps each tensor of a checkpoint in transformers' format to a tensor of a GGUF file, or to rows of it.

This undoes what convert_hf_to_gguf.py (llama.cpp) does: it reorders rows of queries and keys into neighbouring pairs,
adds 1 to Gemma's norms, joins experts in one tensor, and splits latent attention's projection in two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.reader import GgufFile, GgufTensor


@dataclass(frozen=True, slots=True)
class GgufRows:
    """Neighbouring rows of a tensor; of a vector, neighbouring numbers."""

    tensor: GgufTensor
    shape: tuple[int, ...]
    """[rows, inputs], or [numbers]."""
    first: int = 0
    """Index of the first row, with all dimensions but the last flattened."""
    paired_heads: int | None = None
    """Number of heads whose halves' rows are interleaved; None: rows are in the checkpoint's order."""
    added: float = 0.0
    """The converter added this to each number."""


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


Source = GgufRows | GgufLatents

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
_EXPERTS = {"ffn_gate_inp": "mlp.gate"}
_SHARED_EXPERTS = {f"ffn_{each}_shexp": f"mlp.shared_experts.{each}_proj" for each in ("gate", "up", "down")}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MLA = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
_FUSED_GATE_UP = {"ffn_up": "mlp.gate_up_proj"}
_UNUSED = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight|(.*\.)?attn_rot_embd(\.weight)?")
"""RoPE tensors, which ``config`` reads."""
_IN_LAYER = re.compile(r"blk\.(?P<layer>\d{1,5})\.(?P<part>.+?)(?P<kind>\.weight|\.bias)?")


@dataclass(frozen=True, slots=True)
class NamesOfArchitecture:
    """How an architecture's names and tensors differ from Llama's."""

    layer: Mapping[str, str] = field(default_factory=dict)
    """Additional and overriding names."""
    is_paired: bool = False
    """Whether rows of queries and keys were reordered into pairs."""
    norms_added: float = 0.0
    """The converter added this to norms' weights."""
    experts: str = "mlp.experts"
    projections: Mapping[str, str] = field(
        default_factory=lambda: {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    )


NAMES: dict[str, NamesOfArchitecture] = {
    "llama": NamesOfArchitecture(is_paired=True),
    "mixtral": NamesOfArchitecture(
        {"ffn_gate_inp": "block_sparse_moe.gate"},
        is_paired=True,
        experts="block_sparse_moe.experts",
        projections={"gate": "w1", "up": "w3", "down": "w2"},
    ),
    "qwen2": NamesOfArchitecture(),
    "qwen2moe": NamesOfArchitecture(
        _EXPERTS
        | {f"ffn_{each}_shexp": f"mlp.shared_expert.{each}_proj" for each in ("gate", "up", "down")}
        | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
    ),
    "qwen3": NamesOfArchitecture(),
    "qwen3moe": NamesOfArchitecture(_EXPERTS),
    "gemma2": NamesOfArchitecture(_GEMMA, norms_added=1.0),
    "gemma3": NamesOfArchitecture(_GEMMA, norms_added=1.0),
    "phi3": NamesOfArchitecture({"attn_qkv": "self_attn.qkv_proj"} | _FUSED_GATE_UP),
    "olmo2": NamesOfArchitecture(
        {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    ),
    "granite": NamesOfArchitecture(is_paired=True),
    "smollm3": NamesOfArchitecture(is_paired=True),
    "glm4": NamesOfArchitecture(
        {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"} | _FUSED_GATE_UP
    ),
    "glm4moe": NamesOfArchitecture(
        _EXPERTS
        | _SHARED_EXPERTS
        | {"post_attention_norm": "post_attention_layernorm", "exp_probs_b": "mlp.gate.e_score_correction_bias"}
    ),
    "deepseek2": NamesOfArchitecture(
        _EXPERTS | _SHARED_EXPERTS | _MLA | {"exp_probs_b": "mlp.gate.e_score_correction_bias"}
    ),
    "gpt-oss": NamesOfArchitecture(
        {
            "ffn_gate_inp": "mlp.router",
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
        }
    ),
}
"""By ``general.architecture``, except Mixtral, which is a ``llama`` with experts."""
_BARE = ("self_attn.sinks", "mlp.gate.e_score_correction_bias")
"""Names without ``.weight`` and ``.bias``."""
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


_EXPERT_PART = re.compile(r"ffn_(gate|up|down|gate_up)_exps")
_LATENT_PARTS = {"attn_k_b": "keys", "attn_v_b": "values"}
_PAIRED_PARTS = {"attn_q": 0, "attn_k": 1}
"""Index of a projection's head count in ``heads``."""
_MOST_EXPERTS = 4096
_MOST_SOURCES = 2**20


def sources_of(file: GgufFile, architecture: str, heads: tuple[int, int]) -> dict[str, Source]:
    """Each tensor by its name in transformers' format; unknown tensors keep their names.

    ``architecture`` is one of ``NAMES``; ``heads`` counts query and key heads. Raises ``CheckpointError``.
    """
    names = NAMES[architecture]
    found: dict[str, Source] = {}
    for name, source in _sources(file, names, heads):
        if name in found:
            raise CheckpointError(f"{file.path}: two tensors are {name}: {_name_of(source)} is one")
        found[name] = source
        if len(found) > _MOST_SOURCES:
            raise CheckpointError(f"{file.path} has tensors for more than {_MOST_SOURCES} weights")
    return found


def _sources(file: GgufFile, names: NamesOfArchitecture, heads: tuple[int, int]) -> Iterator[tuple[str, Source]]:
    for name, tensor in file.tensors.items():
        if _UNUSED.fullmatch(name):
            continue
        if (outer := _OUTER.get(name)) is not None:
            yield outer, GgufRows(tensor, tensor.shape, added=names.norms_added if "norm" in name else 0.0)
        elif (found := _IN_LAYER.fullmatch(name)) is None:
            yield name, GgufRows(tensor, tensor.shape)
        else:
            prefix, part, kind = f"model.layers.{int(found['layer'])}", found["part"], found["kind"] or ""
            if (expert := _EXPERT_PART.fullmatch(part)) is not None:
                yield from _experts(names, prefix, expert[1], kind, tensor)
            elif part in _LATENT_PARTS:
                yield from _latents(file, prefix, found["layer"], tensor)
            else:
                own = names.layer.get(part) or _LAYER.get(part, part)
                kind = "" if own in _BARE else kind
                yield f"{prefix}.{own}{kind}", _rows(tensor, part, own, names, heads)


def _rows(tensor: GgufTensor, part: str, own: str, names: NamesOfArchitecture, heads: tuple[int, int]) -> GgufRows:
    shape = tensor.shape
    if own == "mlp.shared_expert_gate" and len(shape) == 1:
        shape = (1, *shape)
    paired = heads[_PAIRED_PARTS[part]] if names.is_paired and part in _PAIRED_PARTS else None
    if paired is not None and (paired < 1 or shape[0] % (2 * paired)):
        raise CheckpointError(f"{tensor.file}: {tensor.name} has {shape[0]} rows, which are not {paired} even heads")
    return GgufRows(tensor, shape, paired_heads=paired, added=names.norms_added if "norm" in own else 0.0)


def _experts(
    names: NamesOfArchitecture, prefix: str, which: str, kind: str, tensor: GgufTensor
) -> Iterator[tuple[str, Source]]:
    """The rows of each expert's projection, or of two projections that share a tensor."""
    projections = ["gate", "up"] if which == "gate_up" else [which]
    count, *shape = tensor.shape
    if len(shape) != (1 if kind == ".bias" else 2) or shape[0] % len(projections) or count > _MOST_EXPERTS:
        raise CheckpointError(f"{tensor.file}: {tensor.name} is {list(tensor.shape)}, which is not as experts are")
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


def _name_of(source: Source) -> str:
    return source.tensor.name if isinstance(source, GgufRows) else source.keys.name


def types_of(sources: Mapping[str, Source]) -> dict[str, str]:
    """The type of each tensor; ``GgufLatents`` have an entry for ``.keys`` and for ``.values``."""
    types: dict[str, str] = {}
    for name, source in sources.items():
        if isinstance(source, GgufRows):
            types[name] = source.tensor.type.name
        else:
            types |= {f"{name}.keys": source.keys.type.name, f"{name}.values": source.values.type.name}
    return types
