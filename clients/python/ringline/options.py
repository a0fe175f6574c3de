"""The options of a request: the contract's fields as keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, Required, TypedDict


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


class PillowImage(Protocol):
    """A picture of Pillow, or of a library that is used like it."""

    @property
    def mode(self) -> str:
        """How its pixels are stored, such as RGB."""

    def save(self, fp: Any, format: str | None = None) -> None:
        """Write the picture into a file."""


Picture = bytes | bytearray | memoryview | os.PathLike[str] | PillowImage
"""The bytes of a file such as a PNG or JPEG, the path of one, or a picture of Pillow, which is sent as PNG."""


class ImagePart(TypedDict, total=False):
    """A part of a message's content that is a picture."""

    type: Required[Literal["image"]]
    image: Required[Picture | str]
    """A text is a ``data:`` URL; a path is a ``pathlib.Path``."""
    mime_type: str | None
    """The type that the file must have, such as image/png. Default: any that the server takes."""


class ImageUrl(TypedDict, total=False):
    """Of an ``ImageUrlPart``."""

    url: Required[str]
    """A ``data:`` URL in base64."""
    detail: str | None
    """auto, high or original, which change nothing."""


class ImageUrlPart(TypedDict):
    """A picture in OpenAI's form."""

    type: Literal["image_url"]
    image_url: ImageUrl | str


class Message(TypedDict, total=False):
    """One message of a conversation."""

    role: Required[str]
    """For example system, user, assistant or tool."""
    content: str | Sequence[TextPart | ImagePart | ImageUrlPart | Picture | str] | None
    """Text, possibly empty; or parts, which are texts and pictures in order, as themselves or as dicts with a type.
    Texts are joined as they are. None or absent only with tool_calls."""
    tool_calls: Sequence[MessageToolCall] | None
    reasoning: str | None
    """The reasoning before an assistant's content, for templates that show it."""
    tool_call_id: str
    """The tool call that a tool's message answers."""
    name: str


class StructuralTag(TypedDict, total=False):
    """A part of free text with a fixed form, such as ``<add>{"a": 1}</add>``."""

    begin: Required[str]
    """The text that begins the part."""
    json_schema: Mapping[str, Any] | str | bool | type[Any] | None
    """The schema of what follows, as in ``Options``. Default: any JSON object."""
    end: str | None
    trigger: str | None
    """The prefix of ``begin`` after which the rest is enforced. Default: all of ``begin``."""


class StructuralTags(TypedDict, total=False):
    """Free text in which each tag begins a part with a fixed form."""

    tags: Required[Sequence[StructuralTag]]
    required: bool | None
    """The answer begins with a tag. Default: False."""
    single: bool | None
    """The answer ends with its first tag. Default: False."""


class ToolCalls(TypedDict, total=False):
    """A server's resolved ``tools`` and ``tool_choice``, for a request that has neither."""

    tools: Required[Sequence[Mapping[str, Any]]]
    """The tools that may be called: name, parameters, strict."""
    required: bool | None
    """The answer is only calls. Default: False."""
    single: bool | None
    """At most one call. Default: False."""


class Parse(TypedDict, total=False):
    """How an answer is divided into parts. Absent formats are derived from the model's chat template."""

    tool_calls: str | None
    """Format of tool calls: hermes, llama3_json, pythonic, mistral, deepseek, harmony or none."""
    reasoning: str | None
    """Format of the reasoning: think, harmony or none."""
    begins_in_reasoning: bool | None
    """Whether the answer begins inside the reasoning. Default: as the prompt ends."""
    tool_names: Sequence[str] | None
    """Names of the tools that may be called. Default: those of ``tools``."""
    content_tokens: bool | None
    """Whether ``Content.tokens`` is set. Default: False."""


class NoRepeatNgram(TypedDict, total=False):
    """A rule against loops: no token completes a run of ``ngram_size`` tokens that the last ``window_size`` tokens of
    the output have already.
    """

    ngram_size: Required[int]
    """From 1 to 1024."""
    window_size: Required[int]
    """From 1 to 65536. The prompt does not count."""
    allowed_token_ids: Sequence[int] | None
    """Ids that may be drawn all the same, such as those of table cells; at most 1024."""


class BeamSearch(TypedDict, total=False):
    """A search for the most likely answers, as transformers' ``generate(num_beams=…)`` makes it."""

    width: Required[int]
    """Continuations kept side by side: 1 to 64, at least ``n``."""
    length_penalty: float | None
    """A continuation's score is the sum of its log probabilities, divided by its length to this power. Default: 1."""
    early_stopping: bool | Literal["never"] | None
    """True: the search ends once ``width`` continuations have ended. False, the default: once the best that goes on is
    no better, taken at its present length. never: once none can become better at any length."""


class TokenizeOptions(TypedDict, total=False):
    """Options of tokenization. Absent or None: the contract's default."""

    model: str | None
    timeout: float | None
    """Seconds until the call ends with DeadlineExceeded. Absent: the client's; None: no limit."""
    add_special_tokens: bool | None

    tools: Sequence[Mapping[str, Any] | type[Any]] | None
    """For messages: tools that the model may call. Each is a dict with name, description, parameters (a JSON Schema)
    and strict, directly or in OpenAI's form; or a pydantic model class. Others go to the model's template unchanged.
    """
    tool_choice: str | Mapping[str, Any] | None
    """auto, none, required, or the name of the tool that must be called; OpenAI's dict form is accepted too."""
    parallel_tool_calls: bool | None
    """False: at most one call."""
    template_args: Mapping[str, Any] | None
    """For messages: further variables for the template."""
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    template_name: str | None


class Options(TokenizeOptions, total=False):
    """Options of a generation. Absent or None: the default documented at the protobuf field.

    They are fields of ``GenerateRequest``, ``Constraint``, ``SamplingParams``, ``StoppingParams``, ``OutputParams`` and
    ``Chat``.
    """

    adapter: str | None
    """Name of one of the model's adapters; or ``model`` names it, alone or behind the model's name and a colon."""
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
    speculation: bool | None
    """False: the engine guesses no tokens ahead. The tokens are the same."""
    truncate_prompt_tokens: int | None
    """Use only the end of the prompt, at most this many tokens."""

    json_schema: Mapping[str, Any] | str | bool | type[Any] | None
    """The answer is JSON that this schema accepts: a dict, a JSON text, a bool, or a pydantic model class, of which
    ``Choice.parsed`` is then an instance. At most one of this and the next six options may be given."""
    json_object: bool | None
    """The answer is a JSON object."""
    regex: str | None
    """The whole answer matches this pattern."""
    choice: Sequence[str] | None
    """The answer is one of these."""
    grammar: str | None
    """The answer matches this grammar: Lark's notation with a rule ``start``, or GBNF with a rule ``root``."""
    structural_tags: StructuralTags | Sequence[StructuralTag] | None
    """Parts of the answer have a fixed form."""
    tool_calls: ToolCalls | None
    """The answer has tool calls, as in ``Admitted.options``. ``tools``, if also given, take precedence."""
    any_whitespace: bool | None
    """JSON may have any white space, not only one blank after each comma and colon."""
    after_reasoning: bool | None
    """The form begins after the model's reasoning. Default: True if ``parse`` has a reasoning format."""
    parse: bool | Parse | None
    """Divide the answer into content, reasoning and tool calls. True: in the formats of the model's chat template,
    which is the default with ``tools``."""

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
    no_repeat_ngram: NoRepeatNgram | None
    seed: int | None
    n: int | None
    """Number of choices."""
    beam_search: BeamSearch | None
    """Search in place of sampling: the choices are the ``n`` best, and come whole."""

    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    include_stop_str_in_output: bool | None
    stop_in_reasoning: bool | None
    max_reasoning_tokens: int | None
    """Tokens of reasoning after which its end is forced; 0: none. Needs ``parse`` or ``tools``."""
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    bad_words: str | Sequence[str] | None

    logprobs: int | None
    """Alternatives reported per output token; 0 reports only the token's own logprob."""
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    return_prompt_token_ids: bool | None
    prefill_progress: bool | None


class PoolingOptions(TypedDict, total=False):
    """Options of requests for vectors, scores and labels. Absent or None: the contract's default."""

    model: str | None
    adapter: str | None
    """Name of one of the model's adapters; or ``model`` names it, alone or behind the model's name and a colon."""
    timeout: float | None
    """Seconds until the call ends with DeadlineExceeded. Absent: the client's; None: no limit."""
    truncate: bool | Literal["end", "start"] | None
    """Cut inputs that are too long, at their end (so does True) or start; of a pair, the document. Default: they are
    refused."""
    max_input_tokens: int | None
    """Most tokens of an input, special tokens included. Default: what the model takes."""
    add_special_tokens: bool | None
    """False: texts get no special tokens from the tokenizer."""
    priority: int | None
    """Requests with a lower number run first."""
    cache_salt: str | None
    """Cached prefixes are shared only between requests with the same salt."""
    requires: Sequence[str] | None
    """Names from ``Model.capabilities``; a server that lacks one refuses the request."""
    traceparent: str | None
    """The caller's place in a distributed trace (W3C Trace Context)."""


class EmbedOptions(PoolingOptions, total=False):
    """Options of ``embed``."""

    dimensions: int | None
    """Numbers of a vector: the leading ones, for models that were trained to have fewer. Default: all."""
    normalize: bool | None
    """Whether vectors are scaled to a length of 1. Default: as the model does."""
    per_token: bool | None
    """A vector for each token in place of one for each input."""
    prompt_name: str | None
    """Name of one of the model's prompts (``Model.pooling``), which is put before each text, such as query."""


class ScoreOptions(PoolingOptions, total=False):
    """Options of ``score`` and ``rerank``."""

    activation: bool | None
    """False: the numbers before the head's activation."""
    instruction: str | None
    """What a match means, for models whose template shows it."""


class ClassifyOptions(PoolingOptions, total=False):
    """Options of ``classify``."""

    activation: bool | None
    """False: the numbers before the head's activation, which are no probabilities."""
    per_token: bool | None
    """Labels for each token in place of labels for each input."""
