"""Mamba-2 (https://arxiv.org/abs/2405.21060): no layer attends, so that a sequence of any length takes one state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation
from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import MOST_POSITIONS
from engine_core.models.causal_lm import CausalLM
from engine_core.models.mamba2_mixer import (
    Mamba2Mixer,
    MambaConfig,
    MambaNames,
    check_inner_size,
    read_mamba,
    read_step_limits,
)
from engine_core.models.model_config import MOST_LAYERS, positive, read_norm_eps

_NAMES = MambaNames("num_heads", "head_dim")
_DEFAULT_LENGTH = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Config(MambaConfig):
    """``num_heads``, ``num_kv_heads`` and ``head_dim`` are the recurrence's."""

    @property
    def default_length(self) -> int:
        """Configurations name no length; buffers for the longest possible one would be large."""
        return _DEFAULT_LENGTH


class Mamba2Layer:
    """A mixer, with a norm before it and a residual."""

    def __init__(self, config: MambaConfig, index: int, prefix: str, parts: PartFactory) -> None:
        assert config.mamba is not None
        hidden, eps = config.hidden_size, config.norm_eps
        self.mixer = Mamba2Mixer(config.mamba, hidden, f"{prefix}.mixer", parts, eps=eps)
        self.norm = parts.rms_norm(f"{prefix}.norm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        return self.mixer(self.norm(hidden), context, residual=hidden)


class Mamba2ForCausalLM(CausalLM):
    """The residual stream has the model's type, also with ``residual_in_fp32``, which matters only below float32."""

    model_type = "mamba2"
    prefix = "backbone"
    embedding_name = "embeddings"
    norm_name = "norm_f"
    layer_class = Mamba2Layer
    config: Mamba2Config

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_inner_size(raw, _NAMES, "expand")

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Mamba2Config:
        hidden, num_layers = positive(config, "hidden_size"), positive(config, "num_hidden_layers", MOST_LAYERS)
        shape = read_mamba(config, _NAMES, read_step_limits(config))
        check_inner_size(config.to_dict(), _NAMES, "expand")
        return Mamba2Config(
            vocab_size=positive(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=0,
            num_layers=num_layers,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_groups,
            head_dim=shape.head_dim,
            activation=Activation.SILU,
            norm_eps=read_norm_eps(config, "layer_norm_epsilon"),
            max_position_embeddings=MOST_POSITIONS,
            tie_word_embeddings=bool(config.tie_word_embeddings),
            ropes=(None,) * num_layers,
            sliding_windows=(None,) * num_layers,
            mamba=shape,
            mamba_names=_NAMES,
            has_mixer=(True,) * num_layers,
            attends=(False,) * num_layers,
        )

    @classmethod
    def renamed(cls, name: str) -> str:
        """Checkpoints converted by early releases have one embedding."""
        return name.replace(f"{cls.prefix}.embedding.", f"{cls.prefix}.{cls.embedding_name}.")
