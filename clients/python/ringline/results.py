"""Events of a stream and results of calls, and their construction from protobuf messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from google.protobuf.message import Message as ProtoMessage

from ringline.beams import beam_options
from ringline.errors import Cancelled, DeadlineExceeded, FailedPrecondition, RingError, ServerError, from_status
from ringline.inference.v1 import inference_pb2 as pb
from ringline.options import Message, Options
from ringline.outputs import Adapter, Admitted, Choice, FinishReason, TokenLogprob, Usage
from ringline.parts import Content, Part, Reasoning, ToolCall, ToolCallPiece
from ringline.types.v1 import adapter_pb2, constraint_pb2, output_pb2, part_pb2, pooling_pb2


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress of the prefill, in prompt tokens."""

    computed_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of prompt tokens from index 1 on (the first has none); a long prompt's come in parts."""

    offset: int
    """Number of entries in earlier parts."""
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens of one choice and the text they complete."""

    choice: int
    position: int
    """Output position of the first token: the number of the choice's ids delivered before."""
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    """One per token; None unless asked for."""
    parts: tuple[Part, ...] = ()
    """Additions to the content, the reasoning and the tool calls, if the request asked for parts. They may lag behind
    the text: the last delta of a choice may have parts alone."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a choice."""

    choice: int
    reason: FinishReason
    stop: int | str | None
    """The stop token's id or the stop string, if the reason is STOP and one ended the choice."""
    error: RingError | None
    """Set unless the reason is STOP or LENGTH."""
    reasoning_tokens: int = 0
    """As in ``Usage``, for this choice."""
    beam_score: float | None = None
    """None unless ``beam_search`` was given."""


@dataclass(frozen=True, slots=True)
class Started:
    """Informational: an engine starts to compute the request; sent again after every move to another engine."""

    model_digest: str
    """Equal for equal models, weights included."""
    numerics: str
    """Equal values mean that equal requests get bit-identical tokens."""
    identical: bool
    """Whether the tokens are the same as without the move."""
    reason: str
    """Why the request moved; empty at its first start."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Informational: the connection or the server was lost, and the library resumed the request."""

    reason: str


Event = Admitted | Prefill | PromptLogprobs | Delta | Finished | Started | Resumed


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer: every choice ended with STOP or LENGTH."""

    choices: tuple[Choice, ...]
    usage: Usage
    request: Admitted
    prompt_logprobs: tuple[TokenLogprob, ...] | None
    """Log probabilities of the prompt tokens from index 1 on; None unless asked for."""
    resumed: int
    """How often the library resumed the request."""

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first choice's token ids."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def stop(self) -> int | str | None:
        """The stop token's id, or the stop string, that ended the first choice, if any."""
        return self.choices[0].stop

    @property
    def logprobs(self) -> Sequence[TokenLogprob] | None:
        """The first choice's log probabilities, one per token; None unless asked for."""
        return self.choices[0].logprobs

    @property
    def content(self) -> str:
        """The first choice's text without reasoning and tool calls."""
        return self.choices[0].content

    @property
    def reasoning(self) -> str | None:
        """The first choice's reasoning, if it has any."""
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The first choice's tool calls."""
        return self.choices[0].tool_calls

    @property
    def parsed(self) -> Any:
        """The first choice's content, parsed; see ``Choice.parsed``."""
        return self.choices[0].parsed

    def message(self) -> Message:
        """The first choice as an assistant message, to continue the conversation."""
        return self.choices[0].message()


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The token ids of a text or chat."""

    token_ids: tuple[int, ...]
    rendered: str
    """The chat as the template rendered it."""
    max_model_len: int
    """The model's context length, in tokens."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """What a model computes in place of tokens."""

    tasks: tuple[str, ...]
    """Of embed, token_embed, classify, token_classify; tasks of later contracts are left out."""
    dimensions: int
    """Numbers of a vector; 0: it makes none."""
    is_matryoshka: bool
    """Whether vectors can be cut to fewer dimensions."""
    matryoshka_dimensions: tuple[int, ...]
    """The numbers of dimensions that it was trained for; empty: any."""
    normalizes: bool
    """Whether vectors have a length of 1 by default."""
    labels: tuple[str, ...]
    """Empty: it has none."""
    prompts: Mapping[str, str]
    """Texts that ``prompt_name`` puts before an input, by their names."""
    default_prompt: str
    """Name of the prompt that an input gets without one; empty: none."""
    scores_pairs: bool
    """Whether it reads a query and a document together."""


@dataclass(frozen=True, slots=True)
class Model:
    """A served model."""

    name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    """Prompt and output together, in tokens."""
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    tokenizer_digest: str
    model_digest: str
    """Equal for equal models, weights included."""
    capabilities: frozenset[str]
    """Names that ``requires`` accepts."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """What a request gets that gives no sampling options, by their names; empty if the server does not tell."""
    num_parameters: int | None = None
    """Numbers that the weights consist of; None if the server does not tell."""
    pooling: Pooling | None = None
    """None: the model generates tokens."""
    adapters: tuple[Adapter, ...] = ()
    """Those that requests may name now."""


@dataclass(frozen=True, slots=True)
class ListedAdapter:
    """An adapter of a model, and how many of the server's engines have it."""

    adapter: Adapter
    engines: int
    """Engines at which the name stands for it; 0: running requests keep it."""
    loaded_engines: int
    """Engines that have its weights in memory."""


FINISH_REASONS = {
    output_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    output_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    output_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    output_pb2.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
    output_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
}

_TASKS = {
    pooling_pb2.POOLING_TASK_EMBED: "embed",
    pooling_pb2.POOLING_TASK_TOKEN_EMBED: "token_embed",
    pooling_pb2.POOLING_TASK_CLASSIFY: "classify",
    pooling_pb2.POOLING_TASK_TOKEN_CLASSIFY: "token_classify",
}


def admitted_from(message: pb.Admitted) -> Admitted:
    """The request as admitted; scalars absent from the message are absent from ``options`` too."""
    options: dict[str, object] = {}
    for params in (message.sampling, message.stopping, message.output):
        for option, value in params.ListFields():
            options[option.name] = _plain(value)
    if message.HasField("constraint"):
        options |= _constraint_options(message.constraint)
    if message.HasField("beam_search"):
        options["beam_search"] = beam_options(message.beam_search)
    return Admitted(
        message.model,
        message.prompt_tokens,
        tuple(message.prompt_token_ids) or None,
        cast(Options, options),
        message.server_request_id,
        adapter_from(message.adapter) if message.HasField("adapter") else None,
    )


def adapter_from(message: adapter_pb2.Adapter) -> Adapter:
    """An adapter as a server names it."""
    return Adapter(message.name, message.digest)


def adapters_from(message: pb.ListAdaptersResponse) -> Iterator[ListedAdapter]:
    """A page of ``ListAdapters``."""
    for each in message.adapters:
        yield ListedAdapter(adapter_from(each.adapter), each.engines, each.loaded_engines)


def _constraint_options(constraint: constraint_pb2.Constraint) -> dict[str, object]:
    options = {option.name: _plain(value) for option, value in constraint.ListFields()}
    if "choice" in options:
        options["choice"] = list(constraint.choice.texts)
    if "tool_calls" in options:
        calls = constraint.tool_calls
        tools = [
            {"name": one.name, "parameters": one.parameters_json or None, "strict": one.strict} for one in calls.tools
        ]
        form = {"form": _constraint_options(calls.form)} if calls.HasField("form") else {}
        options["tool_calls"] = {"tools": tools, "required": calls.required, "single": calls.single, **form}
    return options


def _plain(value: Any) -> object:
    """A field's value; containers are copied, because protobuf's refer to their message."""
    if isinstance(value, ProtoMessage):
        return {field.name: _plain(one) for field, one in value.ListFields()}
    if isinstance(value, Mapping):
        return dict(value)
    return list(map(_plain, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def part_from(message: part_pb2.Part) -> Part | None:
    """A piece of an answer; None for a kind that only a later contract has."""
    kind = message.WhichOneof("kind")
    if kind == "content":
        return Content(message.content, tuple(message.content_tokens))
    if kind == "reasoning":
        return Reasoning(message.reasoning)
    if kind == "tool_call":
        piece = message.tool_call
        return ToolCallPiece(piece.index, piece.id, piece.name, piece.arguments_json)
    return None


def finish_reason_of(message: pb.ChoiceFinished) -> FinishReason:
    """Why a choice ended. An unknown reason, of a later contract, counts as an error, never as success."""
    return FINISH_REASONS.get(message.finish_reason, FinishReason.ERROR)


def failure_of(reason: FinishReason, message: pb.ChoiceFinished) -> RingError | None:
    """The error of a choice that did not end well, else None."""
    if reason is FinishReason.CANCELLED:
        return Cancelled("the request was cancelled")
    if reason is FinishReason.DEADLINE:
        return DeadlineExceeded("the request's timeout passed")
    if reason is FinishReason.ERROR:
        if message.HasField("error"):
            return from_status(message.error)
        known = message.finish_reason in FINISH_REASONS
        return ServerError(
            "the server gave no reason for the failure" if known else f"unknown finish reason {message.finish_reason}"
        )
    return None


def usage_from(message: pb.Usage) -> Usage:
    """The usage of a request."""
    return Usage(
        message.prompt_tokens,
        message.cached_tokens,
        message.completion_tokens,
        message.reasoning_tokens,
        message.media_tokens,
        message.accepted_draft_tokens,
        message.rejected_draft_tokens,
    )


def tokenization_from(message: pb.TokenizeResponse) -> Tokenization:
    """The answer of ``Tokenize``."""
    return Tokenization(tuple(message.token_ids), message.rendered, message.max_model_len)


def pieces_from(message: pb.DetokenizeResponse, asked: int) -> tuple[bytes, ...]:
    """The pieces of ``asked`` tokens. Raises FailedPrecondition if the server does not support pieces."""
    if len(message.pieces) != asked:
        raise FailedPrecondition(
            "the server cannot tell the bytes of tokens: ask one whose model has the capability pieces"
        )
    return tuple(message.pieces)


def _decimal(value: float) -> float:
    """The decimal number that was meant by a float of 32 bits: 0.8 and not 0.800000011920929."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _pooling_from(message: pooling_pb2.PoolingFacts) -> Pooling:
    return Pooling(
        tuple(_TASKS[task] for task in message.tasks if task in _TASKS),
        message.dimensions,
        message.is_matryoshka,
        tuple(message.matryoshka_dimensions),
        message.normalizes,
        tuple(message.labels),
        dict(message.prompts),
        message.default_prompt,
        message.pair_form != pooling_pb2.PAIR_FORM_UNSPECIFIED,
    )


def models_from(message: pb.ListModelsResponse) -> tuple[Model, ...]:
    """The answer of ``ListModels``."""
    return tuple(
        Model(
            model.name,
            model.architecture,
            model.vocab_size,
            model.max_model_len,
            tuple(model.eos_token_ids),
            model.has_chat_template,
            model.tokenizer_digest,
            model.model_digest,
            frozenset(model.capabilities),
            {option.name: _decimal(value) for option, value in model.default_sampling.ListFields()},
            model.num_parameters or None,
            _pooling_from(model.pooling) if model.HasField("pooling") else None,
            tuple(map(adapter_from, model.adapters)),
        )
        for model in message.models
    )
