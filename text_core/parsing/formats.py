"""The formats by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from text_core.parsing import (
    apertus,
    cohere,
    deepseek,
    deepseek_v32,
    functionary,
    functionary_v32,
    functiongemma,
    functools_json,
    gemma4,
    gigachat3,
    gigachat3_roles,
    glm45,
    granite,
    harmony,
    hermes,
    hunyuan_a13b,
    hy3,
    internlm2,
    kimi_k2,
    kimi_k3,
    lfm2,
    llama3_json,
    minicpm5,
    minimax_m1,
    minimax_m2,
    minimax_m3,
    mistral,
    nemotron_json,
    olmo3,
    phi4_mini_json,
    pythonic,
    qwen3_coder,
    seed_oss,
    solar_open,
    think,
    xlam,
)
from text_core.parsing.argument_types import ArgumentTypes
from text_core.parsing.format import ReasoningFormat, ToolFormat
from text_core.parsing.parts import KnownTools, ParseOptions, PartWriter, call_id
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.parsing.text_parser import Plain, TextParser

NONE = "none"
"""Name for the absence of a format."""


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "harmony": harmony.TOOL_FORMAT,
    "qwen3_coder": qwen3_coder.TOOL_FORMAT,
    "glm45": glm45.TOOL_FORMAT,
    "hy3": hy3.TOOL_FORMAT,
    "deepseek_v32": deepseek_v32.TOOL_FORMAT,
    "gemma4": gemma4.TOOL_FORMAT,
    "functiongemma": functiongemma.TOOL_FORMAT,
    "minimax_m2": minimax_m2.TOOL_FORMAT,
    "minimax_m3": minimax_m3.TOOL_FORMAT,
    "seed_oss": seed_oss.TOOL_FORMAT,
    "minicpm5": minicpm5.TOOL_FORMAT,
    "kimi_k2": kimi_k2.TOOL_FORMAT,
    "kimi_k3": kimi_k3.TOOL_FORMAT,
    "solar_open": solar_open.TOOL_FORMAT,
    "deepseek": deepseek.TOOL_FORMAT,
    "cohere": cohere.TOOL_FORMAT,
    "lfm2": lfm2.TOOL_FORMAT,
    "olmo3": olmo3.TOOL_FORMAT,
    "apertus": apertus.TOOL_FORMAT,
    "nemotron_json": nemotron_json.TOOL_FORMAT,
    "minimax_m1": minimax_m1.TOOL_FORMAT,
    "hunyuan_a13b": hunyuan_a13b.TOOL_FORMAT,
    "phi4_mini_json": phi4_mini_json.TOOL_FORMAT,
    "internlm2": internlm2.TOOL_FORMAT,
    "granite": granite.TOOL_FORMAT,
    "functools": functools_json.TOOL_FORMAT,
    "gigachat3": gigachat3.TOOL_FORMAT,
    "gigachat3_roles": gigachat3_roles.TOOL_FORMAT,
    "functionary": functionary.TOOL_FORMAT,
    "functionary_v32": functionary_v32.TOOL_FORMAT,
    "mistral": mistral.TOOL_FORMAT,
    "hermes": hermes.TOOL_FORMAT,
    "pythonic": pythonic.TOOL_FORMAT,
    "xlam": xlam.TOOL_FORMAT,
    "llama3_json": llama3_json.TOOL_FORMAT,
}
"""Keyed by name; formats most reliably recognized in a template come first."""
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "harmony": harmony.REASONING_FORMAT,
    **think.REASONING_FORMATS,
}


_FIRST = {
    "calls": frozenset({NONE, "harmony", "deepseek", "mistral", "hermes", "pythonic", "llama3_json"}),
    "reasoning": frozenset({NONE, "harmony", "think"}),
}
"""Formats that every service with a parser knows."""


def format_capabilities(tool_calls: str, reasoning: str) -> frozenset[str]:
    """The capabilities without which a service of an earlier release does not know the formats."""
    asked = {"calls": tool_calls or NONE, "reasoning": reasoning or NONE}
    return frozenset(f"{kind}.{name}" for kind, name in asked.items() if name not in _FIRST[kind])


FORMAT_CAPABILITIES = tuple(
    sorted(
        frozenset().union(
            *(format_capabilities(name, NONE) for name in TOOL_FORMATS),
            *(format_capabilities(NONE, name) for name in REASONING_FORMATS),
        )
    )
)
"""Of a service that knows all formats."""


def begins_in_reasoning(reasoning: str, prompt_tail_text: str) -> bool:
    """Whether a prompt with this end has opened the reasoning."""
    form = REASONING_FORMATS.get(reasoning)
    return form is not None and prompt_tail_text.rstrip().endswith(form.opening)


def has_ended_reasoning(reasoning: str, prompt_tail_text: str) -> bool:
    """Whether a prompt with this end has opened and ended the reasoning, as templates do that are told to."""
    form = REASONING_FORMATS.get(reasoning)
    return form is not None and prompt_tail_text.rstrip().endswith((form.prompt_end or form.closing).rstrip())


def make_parser(options: ParseOptions, writer: PartWriter, meter: ReasoningMeter) -> TextParser:
    """A parser of one choice; raises ``ValueError`` for an unknown format."""
    tools, reasoning = _formats(options)
    answer: TextParser = Plain(writer) if tools is None else tools.parser(writer, _known(options))
    return answer if reasoning is None else reasoning.parser(writer, answer, meter, options.begins_in_reasoning)


def _known(options: ParseOptions) -> KnownTools:
    return KnownTools(frozenset(options.tool_names), ArgumentTypes(options.argument_types))


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
    """Raise ``ValueError`` if ``formats`` has no such name."""
    if name != NONE and name not in formats:
        raise ValueError(f"{field}: there is no format {name!r}: expected one of {', '.join(formats)}, {NONE}")
