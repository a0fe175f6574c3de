"""The parts of an answer: the request as admitted, its choices, and the partial answer that an error carries."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ringline.options import Options


class FinishReason(enum.StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    """An eos token, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens or the model's context length was reached."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one token: log-softmax of the raw logits, before penalties and temperature."""

    logprob: float
    rank: int
    """In the vocabulary; 1 is the most likely token."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens as (token id, logprob), in descending order; as many as ``logprobs`` asked for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. They are exact: every output token counted was delivered."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    completion_tokens: int
    """Sum over all choices."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request as the server admitted it."""

    model: str
    prompt_tokens: int
    prompt_token_ids: tuple[int, ...] | None
    """None unless ``return_prompt_token_ids``."""
    options: Options
    """Every option with its resolved value, including the seed; sending them again repeats the request."""
    server_request_id: str = field(compare=False)
    """The id in the logs and traces of the server that admitted it first; a server that resumes it uses another."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice, whole or as far as it was delivered."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    """None: the choice did not end."""
    stop: int | str | None
    """The stop token's id or the stop string that ended it, if one did."""
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True)
class Partial:
    """What had been delivered when a request failed."""

    choices: tuple[Choice, ...]
    request: Admitted
    usage: Usage | None
    """None: the stream was lost before the server sent it."""
