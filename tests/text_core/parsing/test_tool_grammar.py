"""What a format's grammar lets a model write is what the format's parser reads: calls whose arguments fit."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from tests.text_core.parsing.call_templates import CALL_TEMPLATES
from tests.text_core.parsing.parsing import merged, parse, shown
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.grammar.checker import GrammarChecker
from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_formats import FORMATS
from text_core.parsing.argument_types import listed_types
from text_core.parsing.choice_parser import ChoiceParser
from text_core.parsing.formats import TOOL_FORMATS
from text_core.parsing.parts import Content, ParseOptions, Part, Reasoning, ToolCallPiece
from text_core.parsing.tool_grammar import ToolSpec
from text_core.tokenizer import Tokenizer

TINY = "checkpoints/tiny"
TOOLS = [
    ToolSpec(
        "f",
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 99}, "b": {"enum": ["x", 'é"\n']}},
            "required": ["a"],
            "additionalProperties": False,
        },
        strict=True,
    ),
    ToolSpec(
        "get_weather",
        {
            "properties": {"s": {"type": "string", "maxLength": 3}, "n": {"$ref": "#/$defs/n"}},
            "required": ["n"],
            "additionalProperties": False,
            "$defs": {"n": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 2}},
        },
        strict=True,
    ),
    ToolSpec(
        "both",
        {
            "properties": {
                "a": {"anyOf": [{"type": "string", "pattern": "^[a-c0-9]{1,2}$"}, {"type": "integer", "minimum": 7}]},
                "b": {"type": ["string", "null", "boolean"], "maxLength": 2},
                "c": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}], "default": None},
                "d": {"type": "string", "format": "ipv4"},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"c": {"enum": ["x", "null", "1"]}},
        },
        strict=True,
    ),
]
TRIGGERS = {
    "hy3": "Hi <tool_calls:opensource>",
    "functionary": "Hi <function=",
    "functionary_v32": "Hi >>>",
    "gigachat3_roles": "Hi<|message_sep|>\n\nfunction call<|role_sep|>\n",
    "gigachat3": "Hi <|function_call|>",
    "gemma4": "Hi <|tool_call>",
    "functiongemma": "Hi <start_function_call>",
    "kimi_k3": "Hi <|open|>tools<|sep|>",
    "kimi_k2": "Hi <|tool_calls_section_begin|>",
    "cohere": "Hi <|START_ACTION|>",
    "lfm2": "Hi <|tool_call_start|>",
    "olmo3": "Hi <function_calls>",
    "apertus": "Hi <|tools_prefix|>",
    "nemotron_json": "Hi <TOOLCALL>",
    "hunyuan_a13b": "Hi <tool_calls>",
    "phi4_mini_json": "Hi <|tool_call|>",
    "internlm2": "Hi <|action_start|><|plugin|>",
    "granite": "Hi <|tool_call|>",
    "functools": "Hi functools",
    "minimax_m1": "Hi <tool_calls>",
    "qwen3_coder": "Hi <tool_call>",
    "glm45": "Hi <tool_call>",
    "deepseek_v32": "Hi <｜DSML｜function_calls>",
    "minimax_m2": "Hi <minimax:tool_call>",
    "minimax_m3": "Hi ]<]minimax[>[<tool_call>",
    "seed_oss": "Hi <seed:tool_call>",
    "minicpm5": 'Hi <function name="',
    "solar_open": "Hi <|tool_calls|>",
    "harmony": " to=functions.",
    "deepseek": "Hi <｜tool▁calls▁begin｜>",
    "mistral": "Hi [TOOL_CALLS]",
    "hermes": "Hi <tool_call>",
    "pythonic": "[f(",
    "xlam": '[{"name": "',
    "llama3_json": '{"name": "',
}
"""How an answer may begin that goes on with a call."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(TINY)


@pytest.fixture(scope="module")
def checker(tokenizer: Tokenizer) -> GrammarChecker:
    return GrammarChecker(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


@pytest.fixture(scope="module")
def masks(tokenizer: Tokenizer) -> LLTokenizer:
    text = Path(TINY, "tokenizer.json").read_text()
    return LLTokenizer(text, eos_token=sorted(tokenizer.eos_token_ids), slices=[])


def walk(masks: LLTokenizer, grammar: str, beginning: Sequence[int], seed: int) -> list[int]:
    """Ids of a random answer: short tokens, so that it ends; at most 2,000."""
    chance = random.Random(seed)
    matcher = LLMatcher(masks, grammar, log_level=0)
    assert matcher.consume_tokens(list(beginning)), matcher.get_error()
    ids = list(beginning)
    while len(ids) < 2000:
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in range(masks.vocab_size) if mask >> token & 1]
        if set(allowed) <= set(masks.eos_tokens) or (matcher.is_accepting() and chance.random() < 0.4):
            break
        allowed = [token for token in allowed if token not in masks.eos_tokens]
        chosen = chance.choice(sorted(allowed, key=lambda token: len(masks.decode_str([token])))[:60])
        assert matcher.consume_token(chosen), matcher.get_error()
        ids.append(chosen)
    assert matcher.is_accepting(), masks.decode_str(ids)
    return ids


def parsed(tokenizer: Tokenizer, name: str, ids: Sequence[int]) -> list[Part]:
    types = tuple(listed_types({tool.name: tool.parameters for tool in TOOLS}, depth=3))
    reasoning = "harmony" if name == "harmony" else "none"
    options = ParseOptions(name, reasoning, False, tuple(tool.name for tool in TOOLS), types)
    decode = DecodeOptions()
    parser = ChoiceParser(tokenizer, options, 0, decode, skip_special_tokens=True)
    delta = ChoiceDecoder(tokenizer.pieces(), decode).finish(ids)
    return merged([*parser.feed(delta, last=True), *parser.finish()])


def check_calls(parts: list[Part]) -> int:
    """Check the arguments of all calls; returns how many there are."""
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    calls = [part for part in parts if isinstance(part, ToolCallPiece)]
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    return len(calls)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_demanded_calls(checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str) -> None:
    for single in (True, False):
        tools = [replace(tool, strict=True) for tool in TOOLS]
        grammar = TOOL_FORMATS[name].grammar(tools, required=True, single=single, marker=checker.marker)
        checker.check(grammar)
        for seed in range(2):
            parts = parsed(tokenizer, name, walk(masks, grammar, (), seed))
            assert not [part for part in parts if isinstance(part, Content)]
            count = check_calls([part for part in parts if not isinstance(part, Reasoning)])
            assert count == 1 if single else count


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_formats_of_texts_can_be_demanded(checker: GrammarChecker, name: str) -> None:
    properties = {f"p{index}": {"type": "string", "format": each} for index, each in enumerate(FORMATS)}
    tool = ToolSpec("f", {"type": "object", "properties": properties, "required": list(properties)}, strict=True)
    checker.check(TOOL_FORMATS[name].grammar([tool], required=True, single=True, marker=checker.marker))


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_once_begun(checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str) -> None:
    grammar = TOOL_FORMATS[name].grammar(TOOLS, required=False, single=True, marker=checker.marker)
    assert check_calls(parsed(tokenizer, name, walk(masks, grammar, tokenizer.encode(TRIGGERS[name]), 1))) == 1
    free = tokenizer.encode("Hello, [you] {there}" if name != "harmony" else "<|channel|>final<|message|>Hello")
    matcher = LLMatcher(masks, grammar, log_level=0)
    assert matcher.consume_tokens(free)
    assert matcher.is_accepting()


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_tool_without_properties_takes_no_arguments(
    checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str
) -> None:
    tool = ToolSpec("f", {"type": "object", "properties": {}}, strict=True)
    grammar = TOOL_FORMATS[name].grammar([tool], required=True, single=True, marker=checker.marker)
    calls = parsed(tokenizer, name, walk(masks, grammar, (), 0))
    assert [call.arguments for call in calls if isinstance(call, ToolCallPiece)] == ["{}"]


NESTED = ToolSpec(
    "get_weather",
    {
        "properties": {
            "place": {"$ref": "#/$defs/place"},
            "days": {
                "type": "array",
                "items": {"anyOf": [{"type": "string", "pattern": "^[0-9x]$"}, {"type": "integer", "minimum": 10}]},
                "minItems": 1,
                "maxItems": 2,
            },
            "more": {"type": ["object", "null"], "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
            "names": {"type": ["array", "integer"], "items": {"enum": ["5", "x"]}, "maxItems": 2},
        },
        "required": ["place", "days"],
        "$defs": {
            "place": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 2},
                    "within": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
                },
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    },
    strict=True,
)


@pytest.mark.parametrize("name", ["minimax_m3", "gemma4", "functiongemma"])
def test_objects_and_lists_within_arguments(
    checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str
) -> None:
    grammar = TOOL_FORMATS[name].grammar([NESTED], required=True, single=True, marker=checker.marker)
    checker.check(grammar)
    types = tuple(listed_types({NESTED.name: NESTED.parameters}, depth=4))
    decode = DecodeOptions()
    for seed in range(4):
        options = ParseOptions(name, tool_names=(NESTED.name,), argument_types=types)
        parser = ChoiceParser(tokenizer, options, 0, decode, skip_special_tokens=True)
        delta = ChoiceDecoder(tokenizer.pieces(), decode).finish(walk(masks, grammar, (), seed))
        (call,) = merged([*parser.feed(delta, last=True), *parser.finish()])
        assert isinstance(call, ToolCallPiece)
        jsonschema.validate(json.loads(call.arguments), NESTED.parameters)


ANNOTATIONS: dict[str, object] = {
    "$comment": "x",
    "default": {"a": {"$ref": "#/nothing"}},
    "examples": [{"$ref": "#/nothing"}],
    "markdownDescription": "x",
    "title": "x",
    "type_": "integer",
    "x-order": 1,
}
ANNOTATED: dict[str, object] = {
    "type": "object",
    "properties": {
        "a": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]},
        "b": {"type": ["boolean", "integer"]},
        "title": {"type": "array", "items": {"$ref": "#/$defs/c"}, "maxItems": 2},
        "d": {"type": "object", "properties": {"e": {"enum": ["x", 1]}}, "required": ["e"]},
        "f": {"allOf": [{"$ref": "#/$defs/c"}]},
        "g": {},
    },
    "required": ["a"],
    "$defs": {"c": {"type": "object", "properties": {"default": {"type": "string"}}, "required": ["default"]}},
}


def annotated(schema: object) -> object:
    """``schema`` with annotations at every depth."""
    if not isinstance(schema, dict):
        return [annotated(each) for each in schema] if isinstance(schema, list) else schema
    own = {
        keyword: {name: annotated(each) for name, each in value.items()}
        if keyword in ("properties", "$defs")
        else annotated(value)
        for keyword, value in schema.items()
    }
    return {**ANNOTATIONS, **own}


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_annotations_restrict_nothing(checker: GrammarChecker, name: str) -> None:
    grammars = []
    beside = {"$id": "https://example.com/x", "definitions": "none"}
    with_annotations = annotated(ANNOTATED)
    assert isinstance(with_annotations, dict)
    for parameters in (ANNOTATED, {**with_annotations, **beside}):
        tool = ToolSpec("f", parameters, strict=True)
        grammars.append(TOOL_FORMATS[name].grammar([tool], required=True, single=True, marker=checker.marker))
    assert grammars[0] == grammars[1]


BY_ARGUMENT = (
    *("qwen3_coder", "glm45", "hy3", "deepseek_v32", "gemma4", "minimax_m2", "minimax_m3", "seed_oss"),
    *("pythonic", "lfm2", "olmo3"),
)
"""Formats whose grammars describe arguments one by one."""
WHOLE_NUMBERS: dict[str, object] = {"type": "object", "additionalProperties": {"type": "integer"}}
Case = tuple[dict[str, Any], list[Any], list[Any]]
"""A schema, values that it allows, and others."""
OPEN: list[Case] = [
    ({"type": "object"}, [{}, {"zz": 5}, {"zz": "x", "y": True, "a": None}], []),
    (WHOLE_NUMBERS, [{}, {"zz": 5, "y": 6}], [{"zz": "x"}, {"zz": 5, "y": True}]),
    (
        {"properties": {"a": {"type": "string"}, "ab": {"type": "boolean"}}, "required": ["a"], **WHOLE_NUMBERS},
        [{"a": "x"}, {"a": "5", "zz": 5}, {"a": "x", "ab": True, "abc": 1, "z": 2}],
        [{}, {"zz": 5}, {"a": "x", "ab": 5}, {"a": "x", "zz": True}],
    ),
    (
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        [{}, {"a": 5}, {"zz": "x"}, {"a": 5, "zz": True, "y": "true y"}],
        [{"a": "x"}],
    ),
    (
        {"properties": {}, "additionalProperties": {"$ref": "#/$defs/b"}, "$defs": {"b": {"enum": [1, "x"]}}},
        [{"z": "x"}, {"z": 1, "y": "x"}],
        [{"z": 2}],
    ),
    (
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
        [{"a": 5}],
        [{"zz": 5}, {"a": 5, "z": 6}],
    ),
]
WITHIN: list[Case] = [
    (WHOLE_NUMBERS, [{}, {"New York": 5, "é-1.x": 6}], [{"zz": "x"}, {"zz": 5, "y": True}]),
    (
        {"type": "object", "additionalProperties": {"type": "string", "maxLength": 4}},
        [{"zz": "5", "y": "true"}],
        [{"zz": "xxxxx"}, {"zz": {"y": "x"}}],
    ),
    ({"type": "object", "additionalProperties": WHOLE_NUMBERS}, [{"zz": {"y": 5}}, {"zz": {}}], [{"zz": {"y": "x"}}]),
    (
        {"type": "object", "additionalProperties": {"properties": {"s": {"type": "string"}}, "type": "object"}},
        [{"zz": {"s": "5"}, "y": {"s": "x"}}],
        [{"zz": {"z": "x"}}],
    ),
    (
        {"properties": {"a": {"type": "boolean"}, "b": {"type": "string"}}, "required": ["b"], **WHOLE_NUMBERS},
        [{"b": "5"}, {"a": True, "b": "x", "zz": 5}],
        [{"a": True}, {"b": "x", "a": 5}, {"b": "x", "zz": True}],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        [{"zz": "x"}, {"a": 5}],
        [{"a": "x"}],
    ),
    ({"type": "array", "items": WHOLE_NUMBERS}, [[{"z": 5}, {"y": 6}]], [[{"z": "x"}]]),
]
ARGUMENTS: list[Case] = [
    ({"type": ["string", "null"]}, [None, "x", "null y", "nul", "nu<ll", "[null]"], []),
    ({"type": ["string", "null", "boolean"]}, [None, True, False, "x", "true y", "5", "falsehood"], []),
    ({"anyOf": [{"enum": ["x", "true y"]}, {"const": True}]}, ["x", "true y", True], [False, "y"]),
    ({}, [None, True, "x", 5, [True, None]], []),
]


def written(name: str, arguments: object) -> str:
    """A call of ``f`` as the format's template shows it."""
    environment = jinja2.Environment()
    environment.filters["tojson"] = environment.filters["string"] = partial(json.dumps, ensure_ascii=False)
    call = {"id": "a1b2c3d4e5", "function": {"name": "f", "arguments": arguments}}
    template = environment.from_string(CALL_TEMPLATES[name])
    return template.render(messages=[{"role": "assistant", "tool_calls": [call]}]).split("<|assistant|>")[1].strip()


def check_case(
    checker: GrammarChecker,
    masks: LLTokenizer,
    tokenizer: Tokenizer,
    name: str,
    case: Case,
    argument: str = "",
    *,
    strict: bool = True,
) -> None:
    """Check what a grammar accepts as the arguments of a call, or as one ``argument``, and that it is read back."""
    schema, allowed, others = case
    if argument:
        schema = {"type": "object", "properties": {argument: schema}, "required": [argument]}
    tool = ToolSpec("f", schema, strict=strict)
    grammar = TOOL_FORMATS[name].grammar([tool], required=True, single=True, marker=checker.marker)
    checker.check(grammar)
    tools = {"f": schema, "g": {"properties": {"zz": {"type": "null"}}}}
    options = ParseOptions(name, tool_names=("f",), argument_types=tuple(listed_types(tools, depth=8)))
    for index, value in enumerate(allowed + others):
        arguments = {argument: value} if argument else value
        text = written(name, arguments)
        matcher, ids = LLMatcher(masks, grammar, log_level=0), tokenizer.encode(text)
        accepted = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert accepted == (index < len(allowed)), text
        if accepted:
            (call,) = shown(parse([text], options)[-1])
            assert (call[0], json.loads(call[1])) == ("f", arguments)


@pytest.mark.parametrize("name", BY_ARGUMENT)
def test_open_schemas_take_what_they_allow(
    checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str
) -> None:
    for case in OPEN:
        check_case(checker, masks, tokenizer, name, case)


@pytest.mark.parametrize("name", ["gemma4", "minimax_m3"])
def test_maps_hold_what_their_schemas_allow(
    checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str
) -> None:
    for case in WITHIN:
        check_case(checker, masks, tokenizer, name, case, "e")


@pytest.mark.parametrize("name", BY_ARGUMENT)
def test_words_are_json_where_text_is_allowed_too(
    checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str
) -> None:
    for case in ARGUMENTS:
        check_case(checker, masks, tokenizer, name, case, "e")


NAMES = ("ok", "-A", "$top", "größe", "a b", "@timestamp", "a/b", "x" * 200)
"""Names that tools have for their arguments."""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", [*BY_ARGUMENT, "functiongemma", "kimi_k3", "minicpm5", "hermes"])
def test_names_of_arguments_can_be_written(
    checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str, strict: bool
) -> None:
    schema = {"properties": {each: {"type": "integer"} for each in NAMES}}
    check_case(checker, masks, tokenizer, name, (schema, [{each: 5} for each in NAMES], []), strict=strict)


@pytest.mark.parametrize("name", [name for name in BY_ARGUMENT if name not in ("pythonic", "lfm2", "olmo3")])
def test_other_names_may_have_what_does_not_end_a_name(
    checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str
) -> None:
    allowed = [{each: 5} for each in (*NAMES[:-1], "ns:a" if name != "gemma4" else "x")]
    case = ({"type": "object"}, allowed, [{"x" * 65: 5}, {"a\nb": 5}])
    for strict in (False, True):
        check_case(checker, masks, tokenizer, name, case, strict=strict)


@pytest.mark.parametrize("name", ["gemma4", "functiongemma", "minimax_m3"])
def test_names_in_free_objects(checker: GrammarChecker, masks: LLTokenizer, tokenizer: Tokenizer, name: str) -> None:
    allowed = [{each: 5} for each in NAMES[:-1]]
    for strict in (False, True):
        check_case(checker, masks, tokenizer, name, ({"type": "object"}, allowed, []), "body", strict=strict)


def test_parameters_that_cannot_be_held_to() -> None:
    def grammar(name: str, parameters: dict[str, object]) -> str:
        tools = [ToolSpec("f", parameters, strict=True)]
        return TOOL_FORMATS[name].grammar(tools, required=True, single=True, marker=json.dumps)

    with pytest.raises(ConstraintError, match='expected "object"') as refused:
        grammar("hermes", {"type": "string"})
    assert refused.value.field == "tools[0].parameters_json"
    with pytest.raises(ConstraintError, match="anyOf: is not supported in the format pythonic"):
        grammar("pythonic", {"anyOf": [{}]})
    for wrong in ("a=b", "5a", "a\nb", " a", "a)"):
        with pytest.raises(ConstraintError, match="expected a name without ="):
            grammar("pythonic", {"properties": {wrong: {}}})
    with pytest.raises(ConstraintError, match="expected a name without ,"):
        grammar("gemma4", {"properties": {"a,b": {}}})
    with pytest.raises(ConstraintError, match=r"'#/properties/b' is not supported in the format pythonic"):
        grammar("pythonic", {"properties": {"a": {"items": {"$ref": "#/properties/b"}}, "b": {}}})
    problems: list[tuple[dict[str, object], str]] = [
        ({"properties": {"a>b": {}}}, "expected a name without <, >"),
        ({"properties": {"a": {"type": "object", "minProperties": 1}}}, "minProperties: not supported beside type"),
        ({"properties": {"a": {"enum": [{}]}}}, "objects and lists in enum or const: not supported"),
        ({"properties": {"a": {"allOf": [{}, {}]}}}, "allOf: several schemas are not supported"),
    ]
    for parameters, problem in problems:
        with pytest.raises(ConstraintError, match=problem):
            grammar("minimax_m3", parameters)
    many = {f"p{i}": {"$ref": "#/$defs/d"} for i in range(250)}
    with pytest.raises(ConstraintError, match="bytes with a copy for each of 250 properties"):
        grammar("pythonic", {"properties": many, "$defs": {"d": {"const": "x" * 9999}}})
    for name in TOOL_FORMATS:
        for parameters in ({"properties": {"a": 5}}, {"properties": []}, {"required": "a"}, {"pattern": 1}):
            with pytest.raises(ConstraintError) as refused:
                grammar(name, parameters)
            assert refused.value.field == "tools[0].parameters_json"
