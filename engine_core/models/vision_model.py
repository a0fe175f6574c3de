"""The part of a multimodal model that turns a picture into embeddings: a tower and a projector.

A family is one file of ``engine_core.vision`` and a line in its registry.

Symbols in shapes: N tokens of a picture, H hidden size of the language model with the backend's padding, D layers that
take deepstack features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import PretrainedConfig

from engine_core.layers.part_factory import PartFactory
from engine_core.media import Picture, VisionShape


@dataclass(frozen=True, slots=True)
class Encoded:
    """The embeddings of one picture."""

    embeddings: torch.Tensor
    """[N, H], of the model's type."""
    deepstack: torch.Tensor | None = None
    """[D, N, H], or None."""

    @property
    def nbytes(self) -> int:
        return self.embeddings.nbytes + (0 if self.deepstack is None else self.deepstack.nbytes)

    @property
    def is_finite(self) -> bool:
        """Whether it has neither a NaN nor an infinity."""
        tensors = (self.embeddings,) if self.deepstack is None else (self.embeddings, self.deepstack)
        return all(bool(each.isfinite().all()) for each in tensors)


class VisionModel(ABC):
    """Made of parts of the same factory as the language model, so that its weights are loaded, counted and hashed with
    that model's. Each picture is computed by itself, so its bits depend on nothing else.
    """

    shape: VisionShape
    model_type: ClassVar[str]
    """``model_type`` in config.json, of the whole checkpoint."""
    numerics: ClassVar[tuple[str, ...]] = ()
    """What determines the bits of embeddings besides the backend of layers, and torch."""

    @classmethod
    @abstractmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        """Read the checkpoint's configuration, which is that of the whole model, and its ``preprocessor_config.json``.

        Raises ``CheckpointError``, ``UnsupportedModelError``.
        """

    @classmethod
    @abstractmethod
    def renamed(cls, name: str) -> str | None:
        """The name of a tensor in ``tensors()`` of this model's parts, from that in a file, whatever layout the file
        has; None if the tensor is not this model's.
        """

    @abstractmethod
    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        """Make the parts, by ``parts``, which gives every rank all outputs. The rest is as for ``read_shape``."""

    @abstractmethod
    def encode(self, picture: Picture) -> Encoded:
        """The embeddings of ``picture``. Raises ``InvalidRequestError`` if it does not have the shape that the family
        makes.
        """

    @abstractmethod
    def check(self, picture: Picture) -> None:
        """Raise ``InvalidRequestError`` (field ``media``) unless views and shape are such as the family makes: nothing
        that a peer sends may fail later.
        """

    @abstractmethod
    def example(self, num_tokens: int) -> Picture:
        """A picture of about ``num_tokens`` tokens, but at most the largest, to measure memory and time with."""
