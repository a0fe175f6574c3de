"""The options of a request: the contract's fields as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict


class MessageToolCall(TypedDict, total=False):
    """A tool call in an assistant's message; ``{"id", "function": {"name", "arguments"}}`` is accepted too."""

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
    tool_calls: Sequence[MessageToolCall] | None
    reasoning: str | None
    """The reasoning before an assistant's content, for templates that show it."""
    tool_call_id: str
    """The tool call that a tool's message answers."""
    name: str


class StructuralTag(TypedDict, total=False):
    """A part of a free text that has a form, such as ``<add>{"a": 1}</add>``."""

    begin: Required[str]
    """The text that begins it."""
    json_schema: Mapping[str, Any] | str | bool | type[Any] | None
    """Of what follows, as in ``Options``. Default: any JSON object."""
    end: str | None
    trigger: str | None
    """The beginning of ``begin`` after which the rest is enforced. Default: all of it."""


class StructuralTags(TypedDict, total=False):
    """Free text in which certain texts begin a part that has a form."""

    tags: Required[Sequence[StructuralTag]]
    required: bool | None
    """The answer begins with a tag. Default: False."""
    single: bool | None
    """The answer ends with its first tag. Default: False."""


class ToolCalls(TypedDict, total=False):
    """What a server made of ``tools`` and ``tool_choice``, for a request that has neither."""

    tools: Required[Sequence[Mapping[str, Any]]]
    """Those that may be called: name, parameters, strict."""
    required: bool | None
    """Nothing but calls. Default: False."""
    single: bool | None
    """At most one. Default: False."""


class Parse(TypedDict, total=False):
    """How an answer is divided into parts; what is absent is found in the model's chat template."""

    tool_calls: str | None
    """Format of calls: hermes, llama3_json, pythonic, mistral, deepseek, harmony or none."""
    reasoning: str | None
    """Format of the reasoning: think, harmony or none."""
    begins_in_reasoning: bool | None
    """Whether the answer begins inside the reasoning. Default: as the prompt ends."""
    tool_names: Sequence[str] | None
    """Names of the tools that may be called. Default: those of ``tools``."""
    content_tokens: bool | None
    """Whether pieces of content have their tokens: ``Content.tokens``. Default: False."""


class TokenizeOptions(TypedDict, total=False):
    """Options of tokenization. Absent or None: the contract's default."""

    model: str | None
    timeout: float | None
    """Seconds until the call ends with DeadlineExceeded. Absent: the client's; None: no limit."""
    add_special_tokens: bool | None

    tools: Sequence[Mapping[str, Any] | type[Any]] | None
    """For messages: tools that the model may call. Each is a dict with name, description, parameters (a JSON Schema)
    and strict, as such or in OpenAI's form; or a pydantic model class. Others go to the model's template as they are.
    """
    tool_choice: str | Mapping[str, Any] | None
    """auto, none, required, or the name of the tool that must be called; OpenAI's dict of a name is accepted too."""
    parallel_tool_calls: bool | None
    """False: at most one call."""
    template_args: Mapping[str, Any] | None
    """For messages: further variables for the template."""
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    template_name: str | None


class Options(TokenizeOptions, total=False):
    """Options of a generation. Absent or None: the default given at the contract's field.

    They are the fields of ``GenerateRequest``, ``Constraint``, ``SamplingParams``, ``StoppingParams``, ``OutputParams``
    and ``Chat``.
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

    json_schema: Mapping[str, Any] | str | bool | type[Any] | None
    """The answer is JSON that this schema accepts: a dict, a JSON text, a bool, or a pydantic model class, of which
    ``Choice.parsed`` is then an instance. An answer has at most one form: this or one of the next six."""
    json_object: bool | None
    """The answer is a JSON object."""
    regex: str | None
    """The answer matches it as a whole."""
    choice: Sequence[str] | None
    """The answer is one of these."""
    grammar: str | None
    """The answer is a text of this grammar: Lark's notation with a rule ``start``, or GBNF with a rule ``root``."""
    structural_tags: StructuralTags | Sequence[StructuralTag] | None
    """Parts of the answer have a form."""
    tool_calls: ToolCalls | None
    """The answer has calls of tools, as ``Admitted.options`` says. Where ``tools`` are given again, these count."""
    any_whitespace: bool | None
    """JSON has white space where the model puts it, not only one blank after each comma and colon."""
    after_reasoning: bool | None
    """The form begins after the model's reasoning. Default: True if ``parse`` has a format of reasoning."""
    parse: bool | Parse | None
    """Divide the answer into content, reasoning and calls. True: as the model's chat template writes them, which is
    the default with ``tools``."""

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
    stop_in_reasoning: bool | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    bad_words: str | Sequence[str] | None

    logprobs: int | None
    """Alternatives reported per output token; 0 reports only the token's own."""
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    return_prompt_token_ids: bool | None
    prefill_progress: bool | None
