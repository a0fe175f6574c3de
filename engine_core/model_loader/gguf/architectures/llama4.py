"""Llama 4's text model. What its files do not say is as in the published sizes, and as llama.cpp has it."""

from __future__ import annotations

from typing import Any

from engine_core.errors import UnsupportedModelError
from engine_core.model_loader.gguf.architectures.base import Architecture, TensorNames, num_layers, windows
from engine_core.model_loader.gguf.metadata import Metadata

_CHUNK = 8192
"""Tokens that attend to each other, and positions from which queries grow, where heads are not rotated."""
_QUERY_SCALE = 0.1
_WITHOUT_NORMS = 128
"""The number of experts of the size that does not normalize queries and keys."""


def _llama4(metadata: Metadata) -> dict[str, Any]:
    if metadata.has("attention.sliding_window"):
        raise UnsupportedModelError(f"{metadata.file.path} is a Llama 4 without chunks, which is not supported")
    experts = metadata.integer("expert_count")
    is_full = [kind == "full_attention" for kind in windows(num_layers(metadata), 4)]
    return {
        "intermediate_size": metadata.integer("expert_feed_forward_length"),
        "intermediate_size_mlp": metadata.integer("feed_forward_length"),
        "num_local_experts": experts,
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "interleave_moe_layer_step": metadata.integer("interleave_moe_layer_step"),
        "attention_chunk_size": metadata.integer("attention.chunk_size", _CHUNK),
        "layer_types": ["full_attention" if each else "chunked_attention" for each in is_full],
        "no_rope_layers": [int(not each) for each in is_full],
        "attn_temperature_tuning": True,
        "attn_scale": _QUERY_SCALE,
        "floor_scale": _CHUNK,
        "use_qk_norm": experts != _WITHOUT_NORMS,
    }


ARCHITECTURES = {
    "llama4": Architecture(
        name="Llama4ForCausalLM",
        model_type="llama4_text",
        models="Llama 4 (its text model)",
        fields=_llama4,
        names=TensorNames(
            {"ffn_gate_inp": "feed_forward.router"}
            | {f"ffn_{each}": f"feed_forward.{each}_proj" for each in ("gate", "up", "down")}
            | {f"ffn_{each}_shexp": f"feed_forward.shared_expert.{each}_proj" for each in ("gate", "up", "down")},
            experts="feed_forward.experts",
        ),
        separates_experts=True,
    ),
}
