"""The layer with which models of some families predict a further token (multi-token prediction; DeepSeek V3's technical
report, https://arxiv.org/abs/2412.19437, section 2.2).

Its row for the token at position p takes that token's embedding and the model's final hidden state at p − 1, and
predicts the token at p + 1; its own output takes the place of a hidden state that the model has not computed yet.
Checkpoints carry it beside the model's layers, of which it has the form.

Symbols in shapes: T rows of a step, R wanted rows, H hidden size with the backend's padding, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.forward_context import ForwardContext, LayerPlace
from engine_core.kv_cache_interface import KVCacheGroup
from engine_core.layers.part import Part
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import Rotary
from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import DeepseekV3ForCausalLM
from engine_core.models.gated_delta_net import GatedDeltaNetConfig
from engine_core.models.glm4_moe import Glm4MoeForCausalLM
from engine_core.models.glm4_moe_lite import Glm4MoeLiteForCausalLM
from engine_core.models.layered_model import LayersAndNorm
from engine_core.models.model_config import ArchitectureConfig
from engine_core.models.qwen3_5 import Qwen3_5ForCausalLM
from engine_core.models.qwen3_5_moe import Qwen3_5MoeForCausalLM
from engine_core.models.qwen3_next import Qwen3NextForCausalLM
from engine_core.ops.base import Greatest
from engine_core.weights.expert_tensors import SeparateExperts, StackedExperts
from engine_core.weights.features import Features
from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Prefixes of the layer's tensors in a checkpoint."""

    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str

    @property
    def witness(self) -> str:
        """A tensor that is in every checkpoint with the layer, however it is quantized."""
        return f"{self.hidden_norm}.weight"


def _behind_layers(config: ArchitectureConfig) -> MtpNames:
    """Stored as one more of the model's layers. Of several, the first is used."""
    prefix = f"model.layers.{config.num_layers}"
    return MtpNames(prefix, f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm")


def _by_itself(config: ArchitectureConfig) -> MtpNames:
    """Stored beside the model."""
    return MtpNames("mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")


_NAMES: dict[type[CausalLM], Callable[[ArchitectureConfig], MtpNames]] = {
    DeepseekV3ForCausalLM: _behind_layers,
    Glm4MoeForCausalLM: _behind_layers,
    Glm4MoeLiteForCausalLM: _behind_layers,
    Qwen3_5ForCausalLM: _by_itself,
    Qwen3_5MoeForCausalLM: _by_itself,
    Qwen3NextForCausalLM: _by_itself,
}
"""Families whose checkpoints may have the layer, to its tensors' names."""


def mtp_names(model: CausalLM) -> MtpNames | None:
    """Where the checkpoint of ``model`` would have the layer; None: its family has none that is known."""
    names = _NAMES.get(type(model))
    return None if names is None else names(model.config)


def mtp_config(config: ArchitectureConfig, names: MtpNames, stored: Collection[str]) -> ArchitectureConfig:
    """The configuration of the layer as a model of one layer, which is like the last of ``config`` that attends.

    ``stored``: the checkpoint's tensors, which say how its experts are stored, if it has any; empty with dummy weights.
    """
    like, mixture = config.caching_layers[-1], config.mixture
    if mixture is not None:
        experts = f"{names.layer}.mlp.experts."
        is_sparse = any(name.startswith(experts) for name in stored) if stored else mixture.is_sparse[like]
        stacked = any(name.startswith(f"{experts}gate_up_proj") for name in stored)
        tensors = (StackedExperts if stacked else SeparateExperts) if stored else mixture.tensors
        mixture = replace(mixture, is_sparse=(is_sparse,), tensors=tensors)
    layer = replace(
        config,
        num_layers=1,
        sliding_windows=(config.sliding_windows[like],),
        ropes=(config.ropes[like],),
        mixture=mixture,
        tensor_parallel_size=1,
        both_ways=frozenset(),
    )
    return replace(layer, states=(None,)) if isinstance(layer, GatedDeltaNetConfig) else layer


class MultiTokenPredictor:
    """The layer, between an embedding and a head that are the target's or copies of them; never a rank's part.

    Call ``load`` once before computing.
    """

    def __init__(
        self, config: ArchitectureConfig, names: MtpNames, parts: PartFactory, target: CausalLM, *, has_shares: bool
    ) -> None:
        """``config`` is from ``mtp_config``. ``target`` is the last stage; its head is used, and its embedding, if it
        has one, unless it ``has_shares`` of them, with other ranks.
        """
        hidden, eps, offset = config.hidden_size, config.norm_eps, config.norm_offset
        self.config = config
        self._factory = parts
        self._target = target
        embedding, tied = f"{target.prefix}.{target.embedding_name}", config.tie_word_embeddings
        if has_shares:
            self.lm_head = parts.parallel_lm_head(embedding if tied else "lm_head", config.vocab_size, hidden)
        else:
            self.lm_head = target.lm_head
        if target.is_first_stage and not has_shares:
            self.embed_tokens = target.embed_tokens
        else:
            tied_to = self.lm_head if tied else None
            self.embed_tokens = parts.vocab_parallel_embedding(
                embedding, config.vocab_size, hidden, tied_to, config.embedding_scale
            )
        self.enorm = parts.rms_norm(names.embedding_norm, hidden, eps, offset)
        self.hnorm = parts.rms_norm(names.hidden_norm, hidden, eps, offset)
        self.eh_proj = parts.linear(names.projection, Features(2, hidden), hidden)
        layer = type(target).layer_class(config, 0, names.layer, parts)
        norm = parts.rms_norm(names.norm, hidden, eps, offset)
        place = LayerPlace(None if config.ropes[0] is None else 0, 0, 0)
        # On CPU this runs natively: ops/kernel_graph.py.
        self._run_layer = parts.backend.captured(LayersAndNorm([(layer, place)], norm, parts.backend.kept))
        self._rotaries: list[Rotary] = []

    @property
    def dtype(self) -> torch.dtype:
        """The type of hidden states."""
        return self._factory.dtype

    @property
    def hidden_width(self) -> int:
        """That of hidden states: H."""
        return self._factory.backend.padded(self.config.hidden_size)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its own, in loading order."""
        return tuple(self._factory.parts)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its own tensors, by name."""
        return {name: shape for part in self.parts for name, shape in part.tensors().items()}

    def load(self, weights: Weights) -> None:
        """Load its own weights, and take the target's angles, which are loaded already."""
        for part in self.parts:
            part.load(weights)
        of_target = dict(zip(self._target.config.distinct_ropes, self._target.rotaries, strict=True))
        self._rotaries = [of_target[rope] for rope in self.config.distinct_ropes]

    @property
    def expected_weight_bytes(self) -> int:
        """As in ``LanguageModel``."""
        return sum(part.weight_bytes(self._factory.dtype.itemsize) for part in self.parts)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its own loaded weights, packed and padded."""
        return sum(part.nbytes for part in self.parts)

    @property
    def num_weights(self) -> int:
        """Numbers that its own weights consist of."""
        return sum(part.num_weights for part in self.parts)

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """The cache that its layer needs."""
        (spec,), factory = self.config.cache_specs, self._factory
        assert spec is not None
        attention = factory.attention_backend
        padded = spec.padded(factory.backend.padded)
        return KVCacheSpec((padded,), block_size, factory.dtype, (KVCacheGroup((0,)),), attention.cache_dtype)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, previous: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """What the head takes, and a further row as ``previous``: [R, H] for the wanted rows, or [T, H] for all.

        ``input_ids`` and ``positions``: [T] int64. ``previous`` [T, H]: the hidden state before each of the tokens.
        """
        tokens = self.enorm(self.embed_tokens(input_ids))
        hidden = self.eh_proj(torch.cat([tokens, self.hnorm(previous)], dim=1))
        angles = [rotary.angles(positions, context.rotary_positions) for rotary in self._rotaries]
        return self._run_layer(hidden, replace(context, angles=angles))

    @property
    def masks_argmax(self) -> bool:
        """As ``LanguageModel.masks_argmax``."""
        return self.lm_head.masks_argmax

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 for hidden states [R, H]."""
        return self.lm_head.logits(hidden)

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """As ``LanguageModel.greatest``."""
        return self.lm_head.greatest(hidden, allowed)
