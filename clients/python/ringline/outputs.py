"""What a request delivers: the admitted request, its choices, and the partial answer that an error carries."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ringline.options import Message, Options
from ringline.parts import ParseError, ToolCall


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
    """Rank in the vocabulary; 1 is the most likely token."""
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
    reasoning_tokens: int = 0
    """The completion tokens that are reasoning or its markers; counted only if the request asked for parts."""
    media_tokens: int = 0
    """The prompt tokens that stand for pictures."""
    accepted_draft_tokens: int = 0
    """The completion tokens that an engine had guessed ahead; see ``speculation``."""
    rejected_draft_tokens: int = 0
    """Tokens that it had guessed wrong."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A model's fine-tuning, kept apart from its weights."""

    name: str
    digest: str
    """Of its contents: equal for adapters that add the same to the model. A name may come to stand for another one."""


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
    """The request's id in the logs and traces of the first server; a server that resumes it uses another."""
    adapter: Adapter | None = None
    """What is computed beside the model; None: nothing."""


@dataclass(frozen=True)
class Choice:
    """One choice, complete or as far as delivered."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    """None: the choice did not end."""
    stop: int | str | None
    """The stop token's id, or the stop string, that ended the choice, if any."""
    logprobs: Sequence[TokenLogprob] | None
    """One for each token."""
    content: str
    """The answer without reasoning and tool calls; the whole text if the request did not ask for parts."""
    reasoning: str | None = None
    """None: the answer has no reasoning, or the request did not ask for parts."""
    tool_calls: tuple[ToolCall, ...] = ()
    read_json: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)
    """Parser of the content; None if the request gave no ``json_schema`` or ``json_object``."""

    beam_score: float | None = None
    """None unless ``beam_search`` was given."""

    @cached_property
    def parsed(self) -> Any:
        """The content parsed as JSON; an instance if the schema was a pydantic model class.

        None if neither ``json_schema`` nor ``json_object`` was given, or the answer is only tool calls. Raises
        ParseError for an incomplete answer, such as one that ``max_tokens`` cut, or one that the model class refuses.
        """
        if self.read_json is None or (self.tool_calls and not self.content):
            return None
        try:
            return self.read_json(self.content)
        except (ValueError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
            where = f"choice {self.index}"
            if self.finish_reason is FinishReason.STOP:
                raise ParseError(f"{where} cannot be read: {error}") from error
            ended = self.finish_reason or "its stream was lost"
            cut = f"was cut off after {len(self.token_ids)} tokens ({ended}), so its JSON is not whole"
            raise ParseError(f"{where} {cut}; content has what there is") from None

    def message(self) -> Message:
        """The choice as an assistant message, to continue the conversation."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class Partial:
    """What had been delivered when a request failed."""

    choices: tuple[Choice, ...]
    request: Admitted
    usage: Usage | None
    """None: the stream was lost before the server sent it."""
