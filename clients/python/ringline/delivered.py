"""What a request was taken as and what was delivered of it: what an answer tells, and an error in its place."""

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
    """Among the vocabulary; 1 is the likeliest."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens as (token id, logprob), likeliest first; as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took. Exact: the ids delivered are the ids counted."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's, found in the prefix cache."""
    completion_tokens: int
    """Over all choices."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request as the server took it."""

    model: str
    prompt_tokens: int
    prompt_token_ids: tuple[int, ...] | None
    """If ``return_prompt_token_ids``."""
    options: Options
    """Every option with its resolved value, the seed included: given again, they repeat the request."""
    server_request_id: str = field(compare=False)
    """The server's own id of the request, which its logs and traces have; another one after a resume elsewhere."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer, or what was delivered of it."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    """None: it was cut before its end."""
    stop: int | str | None
    """What stopped it, if it was a token id or a stop string."""
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True)
class Partial:
    """What had been delivered when a request failed."""

    choices: tuple[Choice, ...]
    request: Admitted
    usage: Usage | None
    """None: the request was cut before the server counted."""
