"""A GGUF file's metadata and tensors, translated to config.json and generation_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.gguf.architectures import ARCHITECTURES
from engine_core.model_loader.gguf.architectures.base import Architecture, num_layers
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.names import Counts, Heads, Source, sources_of, types_of
from engine_core.model_loader.gguf.projector import require_language_model
from engine_core.model_loader.gguf.reader import GgufFile, GgufTensor
from engine_core.model_loader.gguf.rope import check_rope_fields, rope_parameters
from engine_core.model_loader.gguf.tokenizer import eos_token_ids
from engine_core.model_loader.gguf.types import FLOAT_TYPES

_NO_POOLING = 0
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class GgufDescription:
    """A checkpoint's configuration, and where its tensors are."""

    config: dict[str, Any]
    """As in config.json."""
    generation: dict[str, Any]
    """As in generation_config.json."""
    sources: dict[str, Source]
    """By their names in transformers' format."""


def describe(file: GgufFile) -> GgufDescription:
    """Raise ``CheckpointError`` naming the file and the field, ``UnsupportedModelError`` naming the architecture."""
    metadata = Metadata.of(file)
    require_language_model(file)
    _require_generation(metadata)
    if (found := ARCHITECTURES.get(metadata.architecture)) is None:
        raise UnsupportedModelError(
            f"{file.path} has the architecture {metadata.architecture!r}, which is not supported: expected one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    architecture = found.of(metadata)
    check_rope_fields(metadata, architecture.rope_fields)
    config = _common(metadata, architecture) | architecture.fields(metadata)
    rotated = int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    heads = Heads(config["num_attention_heads"], config["num_key_value_heads"], rotated)
    layers = metadata.integer("block_count")
    counts = Counts(layers, num_layers(metadata), metadata.integer("expert_count", 0))
    recurrence = None if architecture.recurrence is None else architecture.recurrence(metadata)
    sources = sources_of(file, architecture.names, heads, counts, recurrence)
    types = types_of(sources)
    if any(each not in FLOAT_TYPES for each in types.values()) or architecture.separates_experts:
        config["quantization_config"] = {"quant_method": "gguf", "types": types}
    return GgufDescription(config | {"dtype": "bfloat16"}, _generation(metadata), sources)


def _require_generation(metadata: Metadata) -> None:
    """Raise ``UnsupportedModelError`` for a model that is made for something else, of an architecture that generates or
    of another one, such as BERT's.
    """
    if (pooling := metadata.integer("pooling_type", _NO_POOLING)) != _NO_POOLING:
        raise UnsupportedModelError(
            f"{metadata.file.path} is a model for embeddings or ranks ({metadata.key('pooling_type')}={pooling}), "
            "and of GGUF files only those that generate are read: give the checkpoint in transformers' format"
        )
    if not metadata.flag("attention.causal", True):
        raise UnsupportedModelError(
            f"{metadata.file.path}: {metadata.key('attention.causal')}=false is not supported: expected true, as no "
            "token may attend to later ones"
        )


def _common(metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    """The fields that all architectures share."""
    file, heads = metadata.file, metadata.integer("attention.head_count")
    table = _tensor(file, "token_embd.weight")
    hidden = metadata.integer("embedding_length")
    default_head_dim = hidden // heads if heads > 0 else 0

    def first(name: str, default: int) -> int:
        if name in architecture.unlike_layers and metadata.is_list(name):
            return metadata.of_layers(name, metadata.integer("block_count"))[0]
        return metadata.integer(name, default)

    if (eps := architecture.layer_norm) is None:
        norms = {"rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon")}
    else:
        norms = {eps: metadata.number("attention.layer_norm_epsilon")}
    whole = {"partial_rotary_factor": 1.0} if architecture.is_partial else {}
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": table.shape[0],
        "hidden_size": hidden,
        "intermediate_size": first("feed_forward_length", 0),
        "num_hidden_layers": num_layers(metadata),
        "num_attention_heads": heads,
        "num_key_value_heads": first("attention.head_count_kv", heads),
        "head_dim": metadata.integer("attention.key_length", default_head_dim),
        "max_position_embeddings": metadata.integer("context_length"),
        **norms,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": bool({"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & file.tensors.keys()),
        "rope_parameters": whole | rope_parameters(metadata, default_head_dim),
    }


def _tensor(file: GgufFile, name: str) -> GgufTensor:
    if (found := file.tensors.get(name)) is None:
        raise CheckpointError(f"{file.path} has no tensor {name}")
    return found


def _generation(metadata: Metadata) -> dict[str, Any]:
    """The eos tokens, and the publisher's sampling parameters."""
    sampling = {
        name: metadata.number(f"general.sampling.{key}")
        for key, name in _SAMPLING.items()
        if metadata.has(f"general.sampling.{key}")
    }
    if "top_k" in sampling:
        sampling["top_k"] = int(sampling["top_k"])
    return {"eos_token_id": eos_token_ids(metadata.file), **sampling}
