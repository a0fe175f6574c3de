"""What a multimodal checkpoint says of its text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextModel:
    """The text model inside a multimodal checkpoint."""

    architecture: str
    """Class of the causal language model that computes it."""
    fields: Mapping[str, Any]
    """Its config.json, as if it were published alone."""
