"""A request whose inputs are pooled: what is computed of each (``PoolingParams``), and the result (``Pooled``)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from engine_core.lora.request import RequestAdapter


class PoolingTask(enum.Enum):
    """What is computed of an input."""

    EMBED = "embed"
    """One vector."""
    TOKEN_EMBED = "token_embed"
    """One vector for each token."""
    CLASSIFY = "classify"
    """One number for each label."""
    TOKEN_CLASSIFY = "token_classify"
    """One number for each label and token."""

    @property
    def per_token(self) -> bool:
        """Whether each token has a result of its own."""
        return self in (PoolingTask.TOKEN_EMBED, PoolingTask.TOKEN_CLASSIFY)

    @property
    def embeds(self) -> bool:
        """Whether results are vectors; else they are numbers of labels."""
        return self in (PoolingTask.EMBED, PoolingTask.TOKEN_EMBED)


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How inputs are pooled. All defaults are resolved; validated by ``engine_core.validation``."""

    task: PoolingTask
    dimensions: int | None = None
    """Leading numbers of a vector that are kept, before it is normalized; None: all."""
    normalize: bool = False
    """Scale vectors to a length of 1."""
    activation: bool = True
    """Apply the head's activation to the numbers of labels."""


@dataclass(frozen=True, slots=True)
class PoolingInput:
    """One input."""

    token_ids: tuple[int, ...]
    """1 to ``max_model_len``."""
    second_text: int | None = None
    """Index of the first token of a second text, whose tokens are of type 1; None: all are of type 0."""


@dataclass(frozen=True, slots=True)
class PoolingRequest:
    """Inputs, each a choice of the request, that are pooled in place of generating tokens."""

    request_id: str
    inputs: Mapping[int, PoolingInput]
    """By choice; not empty."""
    params: PoolingParams
    priority: int = 0
    """As in ``Request``, like the fields below."""
    tenant: str = ""
    cache_salt: bytes = b""
    deadline: float | None = None
    adapter: RequestAdapter | None = None


@dataclass(frozen=True, slots=True)
class Pooled:
    """The result of one input."""

    values: bytes
    """Little-endian float32, row by row."""
    rows: int = 1
    """One, or one for each token."""
