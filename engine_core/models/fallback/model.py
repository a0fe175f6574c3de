"""A transformers dense decoder or encoder as workers see it: its module, with the engine's attention, cache and layers.

Everything between these is torch's, row by row. The self-test at the start decides whether it is bitwise stable.
"""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig

from engine_core.attention.base import AttentionOptions
from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import ForwardContext
from engine_core.kv_cache_interface import AttentionSpec, KVCacheGroup, LayerCacheSpec
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import MOST_POSITIONS
from engine_core.media import VisionShape
from engine_core.models.fallback.assembly import assemble
from engine_core.models.fallback.modules import (
    IMPLEMENTATION,
    Head,
    LayerAttention,
    StepAttention,
    replaced,
    set_attention,
)
from engine_core.models.fallback.rows import require_separate_rows
from engine_core.models.fallback.rules import architecture_of, require_dense_decoder
from engine_core.models.fallback.trial import Outline, outline_of, refusing
from engine_core.models.language_model import LanguageModel, group_of_layers
from engine_core.models.model_config import MOST_LAYERS, ModelShape, positive
from engine_core.models.vision_model import VisionModel
from engine_core.ops.base import Greatest
from engine_core.quantization.base import QuantizationConfig
from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackConfig(ModelShape):
    """Read from a trial of the transformers module."""

    source: PretrainedConfig
    outline: Outline

    @property
    def attends_both_ways(self) -> bool:
        return self.outline.encodes

    def groups_of(self, layers: Sequence[int]) -> tuple[KVCacheGroup, ...]:
        if self.outline.encodes:
            return (KVCacheGroup(tuple(range(len(layers)))),)
        return ModelShape.groups_of(self, layers)

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        return tuple(AttentionSpec(layer.num_kv_heads, layer.widest_head) for layer in self.outline.layers)

    @property
    def is_plainly_attending(self) -> bool:
        return self.has_plain_layers and all(
            layer.scale == layer.head_dim**-0.5 and layer.logit_softcap is None and layer.sinks is None
            for layer in self.outline.layers
        )


class TransformersModel(LanguageModel):
    """Built from transformers' installed classes, never from a checkpoint's code."""

    config: FallbackConfig

    @classmethod
    @abstractmethod
    def class_of(cls, config: PretrainedConfig) -> str:
        """The class of transformers for ``config``."""

    def __init__(self, config: FallbackConfig, parts: PartFactory, max_model_len: int) -> None:
        """Build the module, without weights."""
        super().__init__(config, parts, max_model_len)
        with refusing(self.class_of(config.source)):
            self._assembly = assemble(config.source, parts, IMPLEMENTATION, encodes=config.outline.encodes)
        self._attention = StepAttention(parts.attention_backend, parts.dtype)
        layer_prefix = f"{config.outline.path}."
        self._layer_tensors = {name for own, name in self._assembly.names.items() if own.startswith(layer_prefix)}
        self._set_layers(range(config.num_layers))

    def add_vision(
        self,
        vision: type[VisionModel],
        config: PretrainedConfig,
        preprocessor: Mapping[str, Any],
        shape: VisionShape,
        quantization: QuantizationConfig | None,
    ) -> None:
        """Raises ``UnsupportedModelError`` if pictures need more than their embeddings."""
        if shape.mrope_section or shape.num_deepstack or shape.attends_both_ways:
            raise UnsupportedModelError(
                "pictures of this model need Ringline's own layers: leave out --model-impl transformers, or set "
                "--language-model-only"
            )
        super().add_vision(vision, config, preprocessor, shape, quantization)

    @property
    def numerics(self) -> tuple[str, ...]:
        return (f"transformers {transformers.__version__}",)

    def is_redundant(self, name: str) -> bool:
        """True also for tensors that transformers ignores."""
        module, tied = self._assembly.module, self._assembly.tied
        ignored = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
        return name in tied or name.endswith(".rotary_emb.inv_freq") or any(re.search(each, name) for each in ignored)

    def repeats(self, name: str) -> str | None:
        return self._assembly.tied.get(name)

    def is_of_layer(self, name: str) -> bool:
        return name in self._layer_tensors

    def layer_kind(self, index: int) -> Hashable:
        layer, prefix = self.config.outline.layers[index], f"{self.config.outline.path}.{index}."
        shapes = {
            name.removeprefix(prefix): shape for name, shape in self._assembly.shapes.items() if name.startswith(prefix)
        }
        window = self.config.sliding_windows[index]
        return window, layer.scale, layer.logit_softcap, layer.sinks is None, frozenset(shapes.items())

    def load(self, weights: Weights) -> None:
        """Load, then raise ``UnsupportedModelError`` if rows depend on each other."""
        super().load(weights)
        module = self._assembly.module
        for index, layer in enumerate(self.config.outline.layers):
            sinks = None if layer.sinks is None else module.get_parameter(layer.sinks).float()
            window, both_ways = self.config.sliding_windows[index], index in self.config.both_ways
            options = AttentionOptions(layer.scale, window, layer.logit_softcap, sinks, both_ways=both_ways)
            width = self._factory.backend.padded(layer.widest_head)
            own = LayerAttention(index, width, options, self._attention)
            set_attention(module.get_submodule(layer.module), own)
        require_separate_rows(self.one_layer_of_each_kind(), self._attention.backend, self._factory.device)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        caches = zip(context.kv_caches, (context.metadata[group] for group in self._groups), strict=True)
        layers = dict(zip(self._layer_indices, caches, strict=True))
        with self._attention.step(layers):
            output = self._decoder(**self._inputs(input_ids, context), position_ids=positions[None])
        hidden: torch.Tensor = output.last_hidden_state[0].contiguous()
        return self._factory.backend.select_rows(hidden, context.rows)

    @abstractmethod
    def _inputs(self, input_ids: torch.Tensor, context: ForwardContext) -> dict[str, Any]:
        """Arguments of the module besides positions."""

    def _set_layers(self, indices: Sequence[int]) -> None:
        super()._set_layers(indices)
        self._groups = group_of_layers(self.kv_cache_groups)
        self._decoder = self._assembly.decoder
        if len(indices) < self.config.num_layers:
            prefix = f"{self._assembly.decoder_path}." if self._assembly.decoder_path else ""
            path = self.config.outline.path.removeprefix(prefix).split(".")
            self._decoder = _cut(self._decoder, path, indices)


class TransformersForCausalLM(TransformersModel):
    """A decoder."""

    @classmethod
    def class_of(cls, config: PretrainedConfig) -> str:
        return architecture_of(config)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> FallbackConfig:
        architecture = architecture_of(config)
        require_dense_decoder(config, architecture)
        return read_outline(config, architecture)

    def __init__(self, config: FallbackConfig, parts: PartFactory, max_model_len: int) -> None:
        """Build the module, without weights."""
        super().__init__(config, parts, max_model_len)
        self._with_head = self._assembly.with_head_alone()

    @property
    def _head(self) -> Head:
        assert self._assembly.head is not None
        return self._assembly.head

    def _inputs(self, input_ids: torch.Tensor, context: ForwardContext) -> dict[str, Any]:
        if (media := context.media) is None:
            return {"input_ids": input_ids[None], "use_cache": False}
        embedded: torch.Tensor = self._decoder.get_input_embeddings()(input_ids)  # type: ignore[operator]
        return {"inputs_embeds": embedded.index_copy(0, media.rows, media.embeddings)[None], "use_cache": False}

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._with_head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0]

    @property
    def masks_argmax(self) -> bool:
        return self.config.outline.is_head_plain and self._head.masks_argmax

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        if self.config.outline.is_head_plain:
            return self._head.greatest(hidden, allowed)
        return super().greatest(hidden, allowed)


def read_outline(config: PretrainedConfig, architecture: str, *, encodes: bool = False) -> FallbackConfig:
    """The shape that a trial shows of the class ``architecture``. Raises ``UnsupportedModelError``."""
    _limited(config, "num_hidden_layers", MOST_LAYERS, architecture)
    longest = _limited(config, "max_position_embeddings", MOST_POSITIONS, architecture)
    outline = outline_of(config, architecture, encodes=encodes)
    first, *_ = outline.layers
    return FallbackConfig(
        vocab_size=outline.vocab_size,
        hidden_size=outline.hidden_size,
        intermediate_size=outline.intermediate_size,
        num_layers=len(outline.layers),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.widest_head,
        max_position_embeddings=longest,
        sliding_windows=tuple(layer.sliding_window for layer in outline.layers),
        both_ways=frozenset(range(len(outline.layers)) if encodes else ()),
        source=config,
        outline=outline,
    )


def _limited(config: PretrainedConfig, name: str, most: int, architecture: str) -> int:
    """A required size of the configuration, at most ``most``."""
    if not hasattr(config, name):
        raise UnsupportedModelError(f"{architecture} does not run through transformers: config.json has no {name}")
    return positive(config, name, most)


def _cut(decoder: nn.Module, path: Sequence[str], indices: Sequence[int]) -> nn.Module:
    """A copy that shares everything with ``decoder``, but has only the layers ``indices`` in the list at ``path``.

    Per-layer lists in configurations are cut, too: decoders look up their layers' arguments there.
    """
    layers = decoder.get_submodule(".".join(path))
    assert isinstance(layers, nn.ModuleList)
    cut = replaced(decoder, path, nn.ModuleList(layers[index] for index in indices))
    for depth in range(len(path)):
        copied: Any = cut.get_submodule(".".join(path[:depth]))
        if isinstance(config := getattr(copied, "config", None), PretrainedConfig):
            own = copy.copy(config)
            for name, value in vars(config).items():
                if isinstance(value, list) and len(value) == len(layers):
                    vars(own)[name] = [value[index] for index in indices]
            copied.config = own
    return cut
