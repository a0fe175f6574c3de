"""Constraints as messages become the forms that grammars are made of, or are refused by field."""

from __future__ import annotations

import pytest
from ringline.types.v1.constraint_pb2 import CallableTool, Constraint
from ringline.types.v1.part_pb2 import ParseParams

from services.common.rpc.constraint_messages import MAX_TOOLS, read_answer_form, read_tools
from text_core.answer_grammar import AnswerForm, ToolCalls
from text_core.grammar.constraints import (
    ConstraintError,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
    StructuralTags,
)
from text_core.parsing.tool_grammar import ToolSpec


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"json_schema": "{}", "any_whitespace": True}, JsonSchema("{}", any_whitespace=True)),
        ({"json_object": True}, JsonObject()),
        ({"regex": "a"}, Regex("a")),
        ({"choice": {"texts": ["a", "b"]}}, OneOf(("a", "b"))),
        ({"grammar": "start: A"}, Grammar("start: A")),
        (
            {
                "structural_tags": {
                    "tags": [{"begin": "<a>", "trigger": "<"}, {"begin": "b", "end": "e"}],
                    "single": True,
                }
            },
            StructuralTags((StructuralTag("<a>", trigger="<"), StructuralTag("b", end="e")), single=True),
        ),
        (
            {"tool_calls": {"tools": [{"name": "f", "parameters_json": '{"title": "F"}'}], "required": True}},
            ToolCalls((ToolSpec("f", {"title": "F"}),), required=True),
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_kind_is_read(constraint: dict[str, object], expected: object) -> None:
    parse = ParseParams(tool_calls="hermes", reasoning="think", begins_in_reasoning=True)
    form = read_answer_form(Constraint(after_reasoning=True, **constraint), parse)
    assert form == AnswerForm(expected, True, "think", True, "hermes")


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        ({}, ""),
        ({"json_object": False}, "json_object"),
        ({"tool_calls": {}}, "tool_calls.tools"),
        ({"tool_calls": {"tools": [{"name": "f"}, {"name": "f"}]}}, "tool_calls.tools[1].name"),
    ],
)
def test_what_asks_for_nothing_is_refused(constraint: dict[str, object], field: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        read_answer_form(Constraint(**constraint), ParseParams())
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        (CallableTool(), "name"),
        (CallableTool(name="a b"), "name"),
        (CallableTool(name="f", parameters_json="{"), "parameters_json"),
        (CallableTool(name="f", parameters_json="[]"), "parameters_json"),
        (CallableTool(name="f", parameters_json="[" * 100_000), "parameters_json"),
        (CallableTool(name="f", parameters_json='{"type": "array"}'), "parameters_json"),
        (CallableTool(name="f", parameters_json='{"properties": []}'), "parameters_json"),
    ],
)
def test_a_tool_that_cannot_be_called_is_refused(tool: CallableTool, field: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        read_tools([tool])
    assert refused.value.field == f"tools[0].{field}"


def test_tools_are_counted_before_they_are_read() -> None:
    with pytest.raises(ConstraintError, match=f"expected at most {MAX_TOOLS}"):
        read_tools([CallableTool()] * (MAX_TOOLS + 1))
