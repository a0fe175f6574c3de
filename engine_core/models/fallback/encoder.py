"""A transformers encoder as workers see it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import ForwardContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.classifiers import DenseClassifier
from engine_core.models.encoder_model import ends_of_inputs
from engine_core.models.fallback.model import FallbackConfig, TransformersModel, read_outline
from engine_core.models.fallback.rules import ENCODERS, encoder_of, require_static_ropes
from engine_core.pooling.config import PoolingType
from engine_core.pooling.pooler import Head

_TYPES = "token_type_ids"
_CLASSIFIERS = {
    "DistilBertModel": ("pre_classifier", "ReLU", "classifier"),
    "ElectraModel": ("classifier.dense", "GELU", "classifier.out_proj"),
    "ErnieModel": ("ernie.pooler.dense", "Tanh", "classifier"),
}
"""Of whole inputs: the dense layer, its activation, and the layer of labels."""


_UNUSED = ("cls.", "discriminator_predictions.", "generator_", "lm_head.", "pooler.", "vocab_")
"""Beginnings of tensors' names."""


class TransformersEncoder(TransformersModel):
    """One of ``ENCODERS``, whose layers see whole inputs."""

    default_pooling = PoolingType.CLS

    @classmethod
    def class_of(cls, config: PretrainedConfig) -> str:
        return encoder_of(config)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> FallbackConfig:
        architecture = encoder_of(config)
        require_static_ropes(config, architecture)
        return read_outline(config, architecture, encodes=True)

    def __init__(self, config: FallbackConfig, parts: PartFactory, max_model_len: int) -> None:
        """Build the module, without weights."""
        super().__init__(config, parts, max_model_len)
        self._types = int(getattr(config.source, "type_vocab_size", 1))
        if _TYPES not in inspect.signature(self._decoder.forward).parameters:
            self._types = 1

    @classmethod
    def renamed(cls, name: str) -> str:
        """Without the prefix that the model has in a class with a head."""
        prefix, _, rest = name.partition(".")
        return rest if prefix in ENCODERS.values() else name

    def is_redundant(self, name: str) -> bool:
        """True also for heads that training needs, and for a pooler that no classifier takes."""
        return name.startswith(_UNUSED) or super().is_redundant(name)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        [metadata] = context.metadata
        whole = replace(metadata, visible_until=ends_of_inputs(metadata, len(positions)))
        seeing = replace(context, metadata=[whole])
        return super().forward(input_ids, positions, seeing)

    def _inputs(self, input_ids: torch.Tensor, context: ForwardContext) -> dict[str, Any]:
        inputs = {"input_ids": input_ids[None]}
        if self._types > 1:
            types = torch.zeros_like(input_ids) if context.token_types is None else context.token_types
            inputs[_TYPES] = types[None]
        return inputs

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states in float32: there is no head."""
        return hidden.float()

    def make_classifier(self, parts: PartFactory, architecture: str, num_labels: int, *, per_token: bool) -> Head:
        """The classifier of transformers' class."""
        hidden, known = self.config.hidden_size, _CLASSIFIERS.get(encoder_of(self.config.source))
        if per_token:
            return parts.float32_linear("classifier", hidden, num_labels, bias=True)
        if known is None:
            return super().make_classifier(parts, architecture, num_labels, per_token=False)
        dense, activation, output = known
        layer = parts.float32_linear(self.renamed(dense), hidden, hidden, bias=True)
        return DenseClassifier(parts, layer, activation, parts.float32_linear(output, hidden, num_labels, bias=True))
