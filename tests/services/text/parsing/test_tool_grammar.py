"""What a format's grammar lets a model write is what the format's parser reads: calls whose arguments fit."""

from __future__ import annotations

import json
from collections.abc import Sequence

import jsonschema
import pytest

from services.text.choice_decoder import ChoiceDecoder, DecodeOptions
from services.text.grammar.constraints import ConstraintError
from services.text.parsing.choice_parser import ChoiceParser
from services.text.parsing.formats import TOOL_FORMATS
from services.text.parsing.parts import Content, ParseOptions, Part, Reasoning, ToolCallPiece
from services.text.parsing.tool_grammar import ToolSpec
from tests.services.text.grammar.matching import Compiled, bundled, checker
from tests.services.text.parsing.parsing import merged

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
]
TRIGGERS = {
    "harmony": " to=functions.",
    "deepseek": "Hi <｜tool▁calls▁begin｜>",
    "mistral": "Hi [TOOL_CALLS]",
    "hermes": "Hi <tool_call>",
    "pythonic": "[f(",
    "llama3_json": '{"name": "',
}
"""How an answer may begin that goes on with a call."""


def compiled(name: str, tools: Sequence[ToolSpec], *, required: bool = True, single: bool = True) -> Compiled:
    grammar = TOOL_FORMATS[name].grammar(tools, required=required, single=single, marker=checker().marker)
    checker().check(grammar)
    return Compiled(grammar)


def parsed(name: str, ids: Sequence[int] | None) -> list[Part]:
    assert ids is not None, "the answer did not end"
    options = ParseOptions(name, "harmony" if name == "harmony" else "none", False, tuple(tool.name for tool in TOOLS))
    decode = DecodeOptions()
    parser = ChoiceParser(bundled(), options, 0, decode, skip_special_tokens=True)
    delta = ChoiceDecoder(bundled().pieces(), decode).finish(ids)
    return merged([*parser.feed(delta, last=True), *parser.finish()])


def check_calls(parts: list[Part]) -> int:
    """Check the arguments of all calls; returns how many there are."""
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    calls = [part for part in parts if isinstance(part, ToolCallPiece)]
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    return len(calls)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_demanded_calls(name: str) -> None:
    for single in (True, False):
        grammar = compiled(name, TOOLS, single=single)
        for seed in range(2):
            parts = parsed(name, grammar.walked(seed))
            assert not [part for part in parts if isinstance(part, Content)]
            count = check_calls([part for part in parts if not isinstance(part, Reasoning)])
            assert count == 1 if single else count


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_once_begun(name: str) -> None:
    grammar = compiled(name, TOOLS, required=False)
    assert check_calls(parsed(name, grammar.walked(1, TRIGGERS[name]))) == 1
    free = "Hello, [you] {there}" if name != "harmony" else "<|channel|>final<|message|>Hello"
    assert grammar.accepts(free)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_tool_without_properties_takes_no_arguments(name: str) -> None:
    tool = ToolSpec("f", {"type": "object", "properties": {}}, strict=True)
    calls = parsed(name, compiled(name, [tool]).walked(0))
    assert [call.arguments for call in calls if isinstance(call, ToolCallPiece)] == ["{}"]


def test_parameters_that_cannot_be_held_to() -> None:
    def grammar(name: str, parameters: dict[str, object]) -> str:
        tools = [ToolSpec("f", parameters, strict=True)]
        return TOOL_FORMATS[name].grammar(tools, required=True, single=True, marker=json.dumps)

    with pytest.raises(ConstraintError, match='expected "object"') as refused:
        grammar("hermes", {"type": "string"})
    assert refused.value.field == "tools[0].parameters_json"
    with pytest.raises(ConstraintError, match="anyOf: is not supported in the format pythonic"):
        grammar("pythonic", {"anyOf": [{}]})
    with pytest.raises(ConstraintError, match="expected a name that Python allows"):
        grammar("pythonic", {"properties": {"a-b": {}}})
    with pytest.raises(ConstraintError, match=r"'#/properties/b' is not supported in the format pythonic"):
        grammar("pythonic", {"properties": {"a": {"items": {"$ref": "#/properties/b"}}, "b": {}}})
    many = {f"p{i}": {"$ref": "#/$defs/d"} for i in range(250)}
    with pytest.raises(ConstraintError, match="bytes with a copy for each of 250 properties"):
        grammar("pythonic", {"properties": many, "$defs": {"d": {"const": "x" * 9999}}})
    for name in TOOL_FORMATS:
        for parameters in ({"properties": {"a": 5}}, {"properties": []}, {"required": "a"}, {"pattern": 1}):
            with pytest.raises(ConstraintError) as refused:
                grammar(name, parameters)
            assert refused.value.field == "tools[0].parameters_json"
