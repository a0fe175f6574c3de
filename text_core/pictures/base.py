"""What a family does with a picture: ``PictureProcessor`` plans its views and the text that stands for it.

A *picture* of the sender becomes one or more *items*, each a run of equal tokens in the prompt and the unit that an
engine encodes; an item consists of *views*, each a rectangle of pixels.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

FACTS = "picture_facts"
"""The name of ``PictureFacts`` in errors: the engine's field that brings them."""


class PictureError(ValueError):
    """A picture cannot be used; the text says why, for its sender."""


class Resample(enum.IntEnum):
    """Filters, with Pillow's numbers."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3


class Alpha(enum.Enum):
    """What becomes of transparency."""

    WHITE = "white"
    """The picture is laid over white."""
    DROPPED = "dropped"
    """The colours stay as they are, as ``Image.convert("RGB")`` leaves them."""


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """One view: a part of the picture is resized, then a part of that is cut out, then that is laid on a canvas."""

    width: int
    """Of the resized picture, pixels; like ``height``."""
    height: int
    resample: Resample
    source: tuple[int, int, int, int] | None = None
    """Left, top, right, bottom of the part that is resized; None: the whole picture."""
    through: tuple[tuple[int, int], ...] = ()
    """Widths and heights that it is resized to first, one after the other."""
    crop: tuple[int, int, int, int] | None = None
    """Left, top, right, bottom."""
    canvas: tuple[int, int] | None = None
    """Width and height."""
    canvas_at: tuple[int, int] = (0, 0)
    """Left and top of the picture on the canvas."""
    canvas_color: tuple[int, int, int] = (0, 0, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the view."""
        if self.canvas is not None:
            return self.canvas
        if self.crop is not None:
            left, top, right, bottom = self.crop
            return right - left, bottom - top
        return self.width, self.height


@dataclass(frozen=True, slots=True)
class ItemPlan:
    """One run of tokens; fields as in the contract's MediaHeader."""

    views: tuple[ViewPlan, ...]
    num_tokens: int
    rows: int = 0
    columns: int = 0
    token_rows: int = 0
    token_columns: int = 0


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """What one picture becomes."""

    items: tuple[ItemPlan, ...]
    text: str
    """Takes the place of the placeholder in the rendered prompt; has the item token once for each item, in order. After
    tokenization each becomes as many as the item has tokens."""


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """A model's facts that its processor needs: ``GetModelResponse.picture_facts``."""

    architecture: str
    """The multimodal class, as in config.json."""
    config: Mapping[str, Any]
    """Fields of config.json."""
    preprocessor: Mapping[str, Any]
    """preprocessor_config.json, or processor_config.json's ``image_processor``; may be empty."""
    limit: int
    """Most pictures of a prompt."""
    max_tokens: int
    """Most tokens of an item that the engine takes."""
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of the tokenizer's added tokens by their text."""


class PictureProcessor(ABC):
    """Of one model. Made from facts; raises ``ValueError`` naming the file and field if they are not usable."""

    placeholder: str
    """What a chat template writes for a picture. Senders' texts must not hold it, nor the item token."""
    item_token: str
    item_token_id: int
    alpha: ClassVar[Alpha] = Alpha.WHITE

    @abstractmethod
    def __init__(self, facts: PictureFacts) -> None: ...

    @abstractmethod
    def plan(self, width: int, height: int) -> PicturePlan:
        """For a picture of ``width`` × ``height`` pixels, upright. Raises ``PictureError``."""
