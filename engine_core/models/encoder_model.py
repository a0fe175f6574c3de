"""The base class of encoders: every token sees those before and after it, in some layers only the nearest.

All of an input is in one step, so a layer's keys and values are read by that layer alone, in the step that writes them.
Symbols in shapes: T rows of a step, S sequences, R wanted rows, H hidden size with the backend's padding.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from transformers import PretrainedConfig

from engine_core.activation import read_activation
from engine_core.attention.base import AttentionMetadata
from engine_core.errors import CheckpointError
from engine_core.forward_context import ForwardContext, IntermediateTensors
from engine_core.kv_cache_interface import KVCacheGroup
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import MOST_POSITIONS
from engine_core.models.layered_model import LayeredModel
from engine_core.models.model_config import (
    MOST_HEADS,
    MOST_LAYERS,
    ArchitectureConfig,
    positive,
    read_norm_eps,
)
from engine_core.pooling.config import PoolingType


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(ArchitectureConfig):
    """A window reaches as far ahead as behind: with ``sliding_windows`` of n, a token sees 2 · n − 1 tokens.

    Its layers, which have one kind of cache, are one group without a window: no block is freed before its input ends.
    """

    @property
    def attends_both_ways(self) -> bool:
        return True

    def groups_of(self, layers: Sequence[int]) -> tuple[KVCacheGroup, ...]:
        return (KVCacheGroup(tuple(range(len(layers)))),)


class EncoderModel(LayeredModel):
    """An embedding and a family's layers, perhaps a norm; or one of its pipeline stages.

    It has no head: what is made of hidden states comes behind it.
    """

    config: EncoderConfig
    default_pooling = PoolingType.CLS
    own_modules: ClassVar[tuple[str, ...]]
    """First parts of the names of the model's tensors, below the prefix: a checkpoint of the model by itself has none
    of the prefix."""
    unused: ClassVar[tuple[str, ...]]
    """Beginnings of the names of tensors that training needs, or that no hidden state depends on."""

    def __init__(self, config: EncoderConfig, parts: PartFactory, max_model_len: int) -> None:
        """Make the parts, in loading order."""
        super().__init__(config, parts, max_model_len)
        if self.is_first_stage:
            self.make_embedding(parts)
        self.add_layers(parts)

    @abstractmethod
    def make_embedding(self, parts: PartFactory) -> None:
        """Make the parts that ``embed`` needs."""

    def make_norm(self, parts: PartFactory) -> Callable[[torch.Tensor], torch.Tensor]:
        """By default nothing: the last layer ends with a norm."""
        return _as_it_is

    @classmethod
    def renamed(cls, name: str) -> str:
        return f"{cls.prefix}.{name}" if name.split(".", 1)[0] in cls.own_modules else name

    def is_redundant(self, name: str) -> bool:
        """True for what ``unused`` lists, and for buffers that older releases of transformers saved."""
        return name.startswith(self.unused) or name.endswith((".position_ids", ".token_type_ids", ".inv_freq"))

    def forward_stage(
        self, given: IntermediateTensors, positions: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        [metadata] = context.metadata
        ends = ends_of_inputs(metadata, len(positions))
        of_windows = [
            replace(metadata, group=place, visible_until=_within(ends, positions, window))
            for place, window in enumerate(self._windows)
        ]
        return super().forward_stage(given, positions, replace(context, metadata=of_windows))

    def metadata_of_layers(self) -> list[int | None]:
        """Layers with the same window have the same metadata, made in ``forward_stage``."""
        windows = self.config.sliding_windows
        return [self._windows.index(windows[index]) for index in self._layer_indices]

    @property
    def _windows(self) -> tuple[int | None, ...]:
        """The windows of this stage's layers, each once."""
        return tuple(dict.fromkeys(self.config.sliding_windows[index] for index in self._layer_indices))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states in float32: there is no head."""
        return hidden.float()


def _as_it_is(hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def ends_of_inputs(metadata: AttentionMetadata, rows: int) -> torch.Tensor:
    """[T] int32: the end of the sequence of each of a step's ``rows``, which sees all of it."""
    return metadata.seq_lens.repeat_interleave(metadata.query_starts.diff(), output_size=rows)


def _within(ends: torch.Tensor, positions: torch.Tensor, window: int | None) -> torch.Tensor:
    """[T] int32: the end of what each row sees of its sequence, in layers with this window."""
    return ends if window is None else torch.minimum(ends, positions.int() + window)


def encoder_fields(
    config: PretrainedConfig, *, activation: str = "hidden_act", norm_eps: str = "layer_norm_eps"
) -> dict[str, Any]:
    """The fields of ``EncoderConfig`` that most encoders name alike, for layers that see the whole input and have no
    rotation; ``activation`` and ``norm_eps`` name fields. Raises ``CheckpointError``, ``UnsupportedModelError``.
    """
    hidden_size, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads", MOST_HEADS)
    if hidden_size % num_heads:
        raise CheckpointError(f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_heads}")
    num_layers = positive(config, "num_hidden_layers", MOST_LAYERS)
    return {
        "vocab_size": positive(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": positive(config, "intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "activation": read_activation(activation, getattr(config, activation)),
        "norm_eps": read_norm_eps(config, norm_eps),
        "max_position_embeddings": positive(config, "max_position_embeddings", MOST_POSITIONS),
        "tie_word_embeddings": False,
        "ropes": (None,) * num_layers,
        "sliding_windows": (None,) * num_layers,
        "both_ways": frozenset(range(num_layers)),
    }
