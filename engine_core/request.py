"""A request to the engine: ``Request``, its ``SamplingParams``, and how its choices end (``Finish``)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_core.lora.request import RequestAdapter
from engine_core.media import MediaItem


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """After so many tokens of reasoning its end is forced."""

    max_tokens: int
    """≥ 0; the tokens between the markers, of all reasoning together."""
    closing: tuple[int, ...]
    """The marker that ends the reasoning; its first token stands for nothing else. Not empty."""
    opening: tuple[int, ...] = ()
    """The marker that begins it, first in the output or behind ``blank``; empty as if the prompt had ``begun`` it."""
    again: tuple[int, ...] = ()
    """The marker that begins reasoning anywhere; empty if it can only come first."""
    blank: frozenset[int] = frozenset()
    """Tokens of white space, of which a few may precede ``opening``."""
    begun: bool = False
    """The prompt has begun it: ``opening`` may come all the same, and is then no token of reasoning."""


@dataclass(frozen=True, slots=True)
class NoRepeatNgram:
    """No token completes a run of ``ngram_size`` tokens that came before within the output's last ``window_size``."""

    ngram_size: int
    """In [1, 1024]."""
    window_size: int
    """In [1, 65536]; a run counts if all of it is in the window."""
    allowed_token_ids: frozenset[int] = frozenset()
    """Tokens that may be drawn all the same."""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Instead of sampling: keep the likeliest ``width`` outputs as they grow, and return the best that have ended.

    As transformers' ``generate(num_beams=width, do_sample=False)``. A score is the sum of an output's log
    probabilities, divided by (number of its tokens) ** ``length_penalty``.
    """

    width: int
    """In [1, 64], at least ``SamplingParams.n`` and at most ``max_num_seqs``: outputs that grow at the same time."""
    length_penalty: float = 1.0
    """In [-5, 5]; 0 compares sums; the greater it is, the more long outputs are preferred."""
    early_stopping: bool | None = False
    """When the search ends: True, as soon as ``width`` outputs have ended; False, when the best one that still grows
    has a lower score at its present length than all of these; None, when it could not have a better one at any length
    (transformers' "never")."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for sampling the next token, and for ending a sequence.

    All defaults are resolved. Validated by ``engine_core.validation``.
    """

    temperature: float = 1.0
    """In [0, 2^31); 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; None keeps all."""
    top_p: float = 1.0
    """In (0, 1]; keep the smallest set of tokens whose probability reaches it."""
    min_p: float = 0.0
    """In [0, 1]; drop tokens less likely than this share of the most likely one."""
    frequency_penalty: float = 0.0
    """In [-2, 2]; subtracted per occurrence in the output."""
    presence_penalty: float = 0.0
    """In [-2, 2]; subtracted once if in the output."""
    repetition_penalty: float = 1.0
    """In [2^-31, 2^31); divides (multiplies, if negative) the logit of tokens in the prompt or output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Values added to the logits, keyed by token id."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not be completed in the output. If these, or ``min_tokens``, leave no token to sample,
    both are ignored for that token."""
    allowed_token_ids: tuple[int, ...] | None = None
    """If given, only these tokens can be sampled. Not together with ``grammar``."""
    grammar: str | None = None
    """The grammar that the output must match, in llguidance's notation: Lark, or JSON with a list of grammars. Every
    eos token that it admits ends the choice, whatever ``ignore_eos`` and ``min_tokens``."""
    reasoning_budget: ReasoningBudget | None = None
    """None: reasoning has no limit of its own."""
    no_repeat_ngram: NoRepeatNgram | None = None
    """Where it bans every token that others leave, it is ignored for that token."""
    seed: int = 0
    """64-bit unsigned; with (choice, position, token id) it fixes the noise, whatever else is in the batch."""
    n: int = 1
    """Number of choices."""
    max_tokens: int = 16
    """≥ 1; output tokens per choice, resumed ones included."""
    min_tokens: int = 0
    """Neither eos nor a stop token is sampled before this many output tokens."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the choice with STOP; the token is delivered and counted."""
    ignore_eos: bool = False
    """Treat the model's eos tokens like any other."""
    logprobs: int | None = None
    """Number of top alternatives reported per output token; 0: only the sampled token; None: no log probabilities."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens; the first prompt token has no log probability."""
    beam_search: BeamSearch | None = None
    """The ``n`` choices are the best outputs that a beam search finds, the best one first. Needs a ``temperature`` of
    0; bans, ``logit_bias`` and ``repetition_penalty`` change log probabilities, as in transformers, not logits."""

    @property
    def greedy(self) -> bool:
        """Whether the argmax is taken, without noise."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and what to generate from it.

    ``resume`` continues a request begun elsewhere: the output ids so far of each unfinished choice, which count as
    output everywhere (length, penalties, positions). Empty: all ``params.n`` choices start from the prompt.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    """Requests with a lower value run first."""
    tenant: str = ""
    """Requests of one priority share the engine fairly across tenants."""
    cache_salt: bytes = b""
    """Prefix-cache blocks are shared only between requests with equal salts."""
    deadline: float | None = None
    """Seconds on the engine's monotonic clock; at this time the request ends with DEADLINE."""
    resume: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    media: tuple[MediaItem, ...] = ()
    """The prompt's pictures, by ascending offset; they do not overlap."""
    adapter: RequestAdapter | None = None
    """What is added to the model for this request; None: nothing. It stays loaded until the request has ended."""
    speculation: bool = True
    """Whether drafters may propose its tokens, which are the same without; those that a grammar forces are computed
    together all the same."""


class FinishReason(enum.Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of one choice."""

    finish_reason: FinishReason
    stop_token_id: int | None = None
    """The eos or stop token that ended the choice, if any."""
    error: str | None = None
    """Why the choice failed, for the requester; None unless the reason is ERROR."""
    error_field: str | None = None
    """The request field at fault, if any."""
