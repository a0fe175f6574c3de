"""Nemotron-H (https://arxiv.org/abs/2504.03624) and Nemotron 3: layers of one block each, which is Mamba-2, attention
without rotation, a feed-forward block or experts. None of them has a gate; experts may compute in a narrower latent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import grouped_routing
from engine_core.models.mamba2_mixer import (
    LEGACY_KINDS,
    Mamba2Mixer,
    MambaConfig,
    MambaNames,
    read_mamba,
    read_step_limits,
)
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    layer_types,
    positive,
    read_experts,
)
from engine_core.models.stage_work import met_experts, work_of_layers
from engine_core.ops.base import Scoring
from engine_core.weights.expert_tensors import SeparateExperts

_NAMES = MambaNames("mamba_num_heads", "mamba_head_dim", state_size="ssm_state_size", activation="mamba_hidden_act")
_MAMBA, _ATTENTION, _MLP, _MOE = "linear_attention", "full_attention", "mlp", "moe"
_KINDS = (_MAMBA, _ATTENTION, _MLP, _MOE)
_LETTERS = "M*-E"
"""What ``hybrid_override_pattern`` has for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronHConfig(MambaConfig):
    """``intermediate_size`` is 0 if no layer is a dense block."""

    kinds: tuple[str, ...]
    latent_size: int | None
    """Width of the experts' inputs and outputs; None: the hidden size."""

    def _shared_widths(self, expert_parallel: bool) -> dict[str, int]:
        widths = MambaConfig._shared_widths(self, expert_parallel)
        if self.mixture is not None and self.latent_size is not None and not expert_parallel:
            widths["moe_latent_size"] = self.latent_size
        return widths

    @property
    def layer_work(self) -> list[int]:
        mixers = work_of_layers(replace(self, intermediate_size=0, mixture=None))
        return [mixer + self._feed_forward(kind) for mixer, kind in zip(mixers, self.kinds, strict=True)]

    def _feed_forward(self, kind: str) -> int:
        if kind == _MLP:
            return 2 * self.hidden_size * self.intermediate_size
        if kind != _MOE or self.mixture is None:
            return 0
        shape, shared = self.mixture.shape, self.mixture.shared_size or 0
        latents = 0 if self.latent_size is None else self.latent_size
        experts = round(met_experts(shape) * shape.intermediate_size) * shape.hidden_size
        return 2 * (experts + self.hidden_size * (shared + latents))


class NemotronHLayer:
    """A norm, a block and a residual."""

    def __init__(self, config: NemotronHConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, block = config.hidden_size, config.norm_eps, f"{prefix}.mixer"
        self.mixer: Mamba2Mixer | SelfAttention | None = None
        self.feed_forward: UngatedMLP | NemotronHMoe | None = None
        match config.kinds[index]:
            case "linear_attention":
                assert config.mamba is not None
                self.mixer = Mamba2Mixer(config.mamba, hidden, block, parts, eps=eps)
            case "full_attention":
                self.mixer = SelfAttention(config, index, block, parts)
            case "mlp":
                self.feed_forward = UngatedMLP(config, config.intermediate_size, block, parts)
            case _:
                self.feed_forward = NemotronHMoe(config, block, parts)
        self.norm = parts.rms_norm(f"{prefix}.norm", hidden, eps)
        self._select_rows = parts.backend.select_rows

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        if self.mixer is not None:
            return self.mixer(self.norm(hidden), context, residual=hidden)
        assert self.feed_forward is not None
        hidden = self._select_rows(hidden, context.rows)
        return self.feed_forward(self.norm(hidden), hidden)


class UngatedMLP:
    """down(f(up(x)))."""

    def __init__(self, config: ArchitectureConfig, inner: int, prefix: str, parts: PartFactory) -> None:
        self.up_proj = parts.linear(f"{prefix}.up_proj", config.hidden_size, inner, bias=config.mlp_bias)
        self.down_proj = parts.linear(f"{prefix}.down_proj", inner, config.hidden_size, bias=config.mlp_bias)
        self._activation = config.activation
        self._activate = parts.backend.activate

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[T, H] for ``x`` [T, H], plus ``residual``."""
        return self.down_proj(self._activate(self.up_proj(x), self._activation), residual)


class NemotronHMoe:
    """Routed experts, perhaps between two projections, and a shared one."""

    def __init__(self, config: NemotronHConfig, prefix: str, parts: PartFactory) -> None:
        mixture, hidden, latent = config.mixture, config.hidden_size, config.latent_size
        assert mixture is not None
        assert mixture.shared_size is not None
        self.fc1_latent_proj = self.fc2_latent_proj = None
        if latent is not None:
            self.fc1_latent_proj = parts.linear(f"{prefix}.fc1_latent_proj", hidden, latent, bias=config.mlp_bias)
            self.fc2_latent_proj = parts.linear(f"{prefix}.fc2_latent_proj", latent, hidden, bias=config.mlp_bias)
        router = RouterTensors(
            f"{prefix}.gate", correction_bias=f"{prefix}.gate.e_score_correction_bias", inputs=hidden
        )
        self.experts = parts.fused_moe(mixture.shape, mixture.routing, router, mixture.tensors(f"{prefix}.experts"))
        self.shared_experts = UngatedMLP(config, mixture.shared_size, f"{prefix}.shared_experts", parts)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[T, H] for ``x`` [T, H], plus ``residual``."""
        residual = self.shared_experts(x, residual)
        if self.fc1_latent_proj is None or self.fc2_latent_proj is None:
            return self.experts(x, residual)
        return self.fc2_latent_proj(self.experts(self.fc1_latent_proj(x), None, router_input=x), residual)


class NemotronHForCausalLM(CausalLM):
    """Multi-token prediction layers are skipped. The head has its own weights, also with ``tie_word_embeddings``."""

    model_type = "nemotron_h"
    prefix = "backbone"
    embedding_name = "embeddings"
    norm_name = "norm_f"
    layer_class = NemotronHLayer
    config: NemotronHConfig

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        pattern = raw.get("hybrid_override_pattern")
        if pattern is not None and not (isinstance(pattern, str) and pattern and not set(pattern) - set(_LETTERS)):
            raise UnsupportedModelError(
                f"hybrid_override_pattern={pattern!r} is not supported: expected a letter for each layer, of {_LETTERS}"
            )

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> NemotronHConfig:
        fields = common_fields(config, activation="mlp_hidden_act", norm_eps="layer_norm_epsilon", rotates=False)
        kinds = tuple(LEGACY_KINDS.get(kind, kind) for kind in layer_types(config, fields["num_layers"]))
        if others := sorted(set(kinds) - {*_KINDS}):
            raise UnsupportedModelError(
                f"layers_block_type: {', '.join(others)} is not supported: expected one of {', '.join(_KINDS)}"
            )
        if config.sliding_window is not None:
            raise UnsupportedModelError(f"sliding_window={config.sliding_window!r} is not supported: expected none")
        has_mixer = tuple(kind == _MAMBA for kind in kinds)
        unused = {} if _MLP in kinds else {"intermediate_size": 0}
        latent = None if config.moe_latent_size is None else positive(config, "moe_latent_size")
        return NemotronHConfig(
            **fields | unused | {"tie_word_embeddings": False},
            mlp_bias=bool(config.mlp_bias),
            mixture=_mixture(config, fields, kinds, latent) if _MOE in kinds else None,
            mamba=read_mamba(config, _NAMES, read_step_limits(config)) if any(has_mixer) else None,
            mamba_names=_NAMES,
            has_mixer=has_mixer,
            attends=tuple(kind == _ATTENTION for kind in kinds),
            kinds=kinds,
            latent_size=latent,
        )

    @classmethod
    def renamed(cls, name: str) -> str:
        """Checkpoints have transformers' prefix or NVIDIA's."""
        return f"{cls.prefix}.{name.removeprefix('model.')}" if name.startswith("model.") else name

    def is_redundant(self, name: str) -> bool:
        return name.startswith("mtp.") or super().is_redundant(name)


def _mixture(config: PretrainedConfig, fields: dict[str, Any], kinds: tuple[str, ...], latent: int | None) -> Mixture:
    experts = read_experts(config, fields, num_experts="n_routed_experts", intermediate_size="moe_intermediate_size")
    experts = replace(experts, hidden_size=latent or experts.hidden_size, gated=False)
    if experts.num_experts < 2 * config.n_group:
        raise CheckpointError(
            f"n_routed_experts={experts.num_experts} is not usable: expected at least two in each of "
            f"n_group={config.n_group}"
        )
    return Mixture(
        experts,
        grouped_routing(config, experts, 2, scoring=Scoring.SIGMOID, renormalize=bool(config.norm_topk_prob)),
        tuple(kind == _MOE for kind in kinds),
        positive(config, "moe_shared_expert_intermediate_size"),
        correction_bias=True,
        tensors=SeparateExperts,
    )
