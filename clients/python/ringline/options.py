"""The options of a request: the contract's fields as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict


class ToolCall(TypedDict, total=False):
    """A tool call by the assistant; ``{"id", "function": {"name", "arguments"}}`` is accepted too."""

    id: str
    type: str
    name: str
    arguments: str | Mapping[str, Any]
    """A JSON object, as text or as a mapping."""
    function: Mapping[str, Any]


class TextPart(TypedDict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(TypedDict, total=False):
    """One message of a conversation."""

    role: Required[str]
    """For example system, user, assistant or tool."""
    content: str | Sequence[TextPart] | None
    """Text, possibly empty, or parts of type text, which are joined with newlines; None or absent only with tool_calls.
    """
    tool_calls: Sequence[ToolCall] | None
    tool_call_id: str
    """The tool call that a tool's message answers."""
    name: str


class TokenizeOptions(TypedDict, total=False):
    """Options of tokenization. Absent or None: the contract's default."""

    model: str | None
    timeout: float | None
    """Seconds until the call ends with DeadlineExceeded. Absent: the client's; None: no limit."""
    add_special_tokens: bool | None

    tools: Sequence[Mapping[str, Any]] | None
    """For messages: tools that the model may call, as its template expects them."""
    template_args: Mapping[str, Any] | None
    """For messages: further variables for the template."""
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    template_name: str | None


class Options(TokenizeOptions, total=False):
    """Options of a generation. Absent or None: the default given at the contract's field.

    They are the fields of ``GenerateRequest``, ``SamplingParams``, ``StoppingParams``, ``OutputParams`` and ``Chat``.
    """

    request_id: str | None
    """An id for the request, unique among the live ones. Default: a generated one."""
    priority: int | None
    """Requests with a lower number run first."""
    cache_salt: str | None
    """Cached prefixes are shared only between requests with the same salt."""
    requires: Sequence[str] | None
    """Names from ``Model.capabilities``; a server that lacks one refuses the request."""
    traceparent: str | None
    """The caller's place in a distributed trace (W3C Trace Context)."""
    truncate_prompt_tokens: int | None
    """Use only the end of the prompt, at most this many tokens."""

    temperature: float | None
    """0 always takes the most probable token."""
    top_k: int | None
    top_p: float | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    seed: int | None
    n: int | None
    """Number of choices."""

    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    include_stop_str_in_output: bool | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    bad_words: str | Sequence[str] | None

    logprobs: int | None
    """Alternatives reported per output token; 0 reports only the token's own."""
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    return_prompt_token_ids: bool | None
    prefill_progress: bool | None
