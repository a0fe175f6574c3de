"""The formats by name, and which of them a chat template writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial

from services.text.parsing import deepseek, harmony, hermes, llama3_json, mistral, pythonic, think
from services.text.parsing.parts import ParseOptions, PartWriter, call_id
from services.text.parsing.reasoning_meter import ReasoningMeter
from services.text.parsing.text_parser import Plain, TextParser

NONE = "none"
"""Name that stands for no format."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls of tools."""

    parser: Callable[[PartWriter, Set[str]], TextParser]
    """Makes a parser of content and calls; it is given the names of the tools."""
    markers: tuple[str, ...]
    """Markers, which may be special tokens."""
    is_in: Callable[[str], bool]
    """Whether a template writes calls in this format."""
    call_id: Callable[[bytes, int, int], str] = call_id
    """Makes the id of a call, of seed, choice and number."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model writes its reasoning."""

    parser: Callable[[PartWriter, TextParser, ReasoningMeter, bool], TextParser]
    """Makes a parser of reasoning, which hands the rest to the next parser; the flag: the answer begins inside."""
    markers: tuple[str, ...]
    """Markers, which may be special tokens."""
    is_in: Callable[[str], bool]
    """Whether a template writes reasoning in this format."""
    opening: str
    """The text that begins the reasoning."""
    closing: str
    """The text between the reasoning and the answer."""


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "harmony": ToolFormat(harmony.call_parser, harmony.MARKERS, harmony.is_in),
    "deepseek": ToolFormat(deepseek.DeepseekParser, deepseek.MARKERS, deepseek.is_in),
    "mistral": ToolFormat(mistral.MistralParser, mistral.MARKERS, mistral.is_in, mistral.mistral_call_id),
    "hermes": ToolFormat(hermes.HermesParser, hermes.MARKERS, hermes.is_in),
    "pythonic": ToolFormat(pythonic.PythonicParser, pythonic.MARKERS, pythonic.is_in),
    "llama3_json": ToolFormat(llama3_json.Llama3JsonParser, llama3_json.MARKERS, llama3_json.is_in),
}
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "harmony": ReasoningFormat(
        harmony.reasoning_parser, harmony.MARKERS, harmony.is_in, harmony.OPENING, harmony.CLOSING
    ),
    "think": ReasoningFormat(think.ThinkParser, think.MARKERS, think.is_in, *think.MARKERS),
}


def detect(template_text: str) -> tuple[str, str]:
    """Names of the formats in which a chat template writes calls of tools and reasoning; ``none`` if it writes none."""
    calls = (name for name, form in TOOL_FORMATS.items() if form.is_in(template_text))
    reasoning = (name for name, form in REASONING_FORMATS.items() if form.is_in(template_text))
    return next(calls, NONE), next(reasoning, NONE)


def begins_in_reasoning(reasoning: str, prompt_tail_text: str) -> bool:
    """Whether a prompt that ends like this has opened the reasoning."""
    form = REASONING_FORMATS.get(reasoning)
    return form is not None and prompt_tail_text.rstrip().endswith(form.opening)


def make_parser(options: ParseOptions, writer: PartWriter, meter: ReasoningMeter) -> TextParser:
    """A parser of one choice; raises ``ValueError`` for an unknown format."""
    tools, reasoning = _formats(options)
    answer: TextParser = Plain(writer) if tools is None else tools.parser(writer, frozenset(options.tool_names))
    return answer if reasoning is None else reasoning.parser(writer, answer, meter, options.begins_in_reasoning)


def marker_texts(options: ParseOptions) -> tuple[str, ...]:
    """Markers of the formats, which may be special tokens."""
    return tuple(marker for form in _formats(options) if form is not None for marker in form.markers)


def call_ids(options: ParseOptions, choice: int) -> Callable[[int], str]:
    """A function from a call's number to its id."""
    tools, _ = _formats(options)
    make = call_id if tools is None else tools.call_id
    return partial(make, options.call_id_seed, choice)


def _formats(options: ParseOptions) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    tools, reasoning = options.tool_calls, options.reasoning
    check_format("tool_calls", tools, TOOL_FORMATS)
    check_format("reasoning", reasoning, REASONING_FORMATS)
    return TOOL_FORMATS.get(tools), REASONING_FORMATS.get(reasoning)


def check_format(field: str, name: str, formats: Mapping[str, object]) -> None:
    """Raise ``ValueError`` if there is no format of that name."""
    if name != NONE and name not in formats:
        raise ValueError(f"{field}: there is no format {name!r}: expected one of {', '.join(formats)}, {NONE}")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that may be called."""

    name: str
    parameters: dict[str, object]
    strict: bool = False
