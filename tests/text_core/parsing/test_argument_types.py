"""The types of arguments, from schemas, and what text becomes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_core.parsing.argument_types import ALL, TEXT, ArgumentTypes, JsonType, TypeReader, json_of, listed_types

S, N, I, B, O, A, Z = JsonType  # noqa: E741


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, ALL),
        (True, ALL),
        ({"type": "string"}, {S}),
        ({"type": "number"}, {N, I}),
        ({"type": ["string", "null"]}, {S, Z}),
        ({"type": "integer", "nullable": True}, {I, Z}),
        ({"enum": ["a", 1, None, 2.5]}, {S, I, Z, N}),
        ({"const": {"a": 1}}, {O}),
        ({"type": "string", "enum": ["a", 1]}, {S}),
        ({"anyOf": [{"type": "array"}, {"type": "boolean"}]}, {A, B}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["string", "array"]}]}, {S}),
        ({"$ref": "#/$defs/x"}, {B}),
        ({"$ref": "#/$defs/itself"}, ALL),
        ({"$ref": "#/$defs/missing"}, ALL),
        ({"type": "any"}, ALL),
        ({"anyOf": []}, ALL),
    ],
)
def test_types_that_a_schema_allows(schema: Any, types: set[JsonType]) -> None:
    definitions = {"x": {"type": "boolean"}, "itself": {"$ref": "#/$defs/itself"}}
    assert TypeReader({"$defs": definitions}).types(schema) == types


def test_wide_and_deep_schemas_are_read_in_part() -> None:
    wide: dict[str, Any] = {"type": "string"}
    for _ in range(20):
        wide = {"anyOf": [wide] * 20}
    assert TypeReader(wide).types(wide) == ALL


def test_types_within_arguments() -> None:
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    schema: dict[str, Any] = {
        "$defs": {"node": node},
        "properties": {
            "o": {"anyOf": [{"type": "object", "properties": {"s": {"type": "string"}, "n": {}}}, {"type": "null"}]},
            "l": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
            "p": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False},
            "any": {"type": ["object", "string"]},
            "m": {
                "type": "object",
                "properties": {"s": {"type": "string"}},
                "additionalProperties": {"type": "boolean"},
            },
            "node": {"$ref": "#/$defs/node"},
        },
    }
    types = ArgumentTypes(listed_types({"f": schema}, depth=3))
    within: dict[str, object] = {
        "o": {O, Z},
        "o s": {S},
        "o n": ALL,
        "o n x y": ALL,
        "o x": {S},
        "l item": {A},
        "l item item": {S},
        "p item": {I, Z},
        "any": {O, S},
        "any x": ALL,
        "any x y": ALL,
        "m s": {S},
        "m x": {B},
        "node v": {I},
        "node next next v": {I},
        "node next next next next v": ALL,
        "x y": {S},
    }
    assert {path: types.within("f", path.split()) for path in within} == within
    assert ArgumentTypes(listed_types({"f": schema}, depth=0)).within("f", ("o", "s")) == ALL
    assert ArgumentTypes(listed_types({"f": {}}, depth=0)).within("f", ("o", "s")) == ALL
    wide: dict[str, Any] = {"type": "object"}
    for _ in range(20):
        wide = {"anyOf": [wide] * 20}
    assert listed_types({"f": {"properties": {"a": wide}}}, depth=9)


def test_types_within_what_is_not_described_by_name() -> None:
    texts = {"type": "array", "items": {"type": "string"}}
    member = {"type": "object", "properties": {"s": {"type": "string"}, "l": texts}}
    map_of_texts = {"type": "object", "additionalProperties": {"type": "string"}}
    schema: dict[str, Any] = {
        "properties": {
            "m": {"type": "object", "additionalProperties": member, "properties": {"n": {"type": "integer"}}},
            "mm": {"type": "object", "additionalProperties": map_of_texts},
        },
        "additionalProperties": member,
    }
    types = ArgumentTypes(listed_types({"f": schema, "any": {}}, depth=3))
    within: dict[str, object] = {
        "m n": {I},
        "m x": {O},
        "m x s": {S},
        "m x l": {A},
        "m x l item": {S},
        "mm x y": {S},
        "x": {O},
        "x s": {S},
        "x l item": {S},
        "x y": ALL,
    }
    assert {path: types.within("f", path.split()) for path in within} == within
    assert types.within("any", ("x", "s")) == types.within("any", ("m", "x", "s")) == ALL


def test_what_is_not_listed_is_text() -> None:
    tools: dict[str, dict[str, Any]] = {
        "f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "m": {"type": "integer"}}},
        "g": {"properties": {"a": {"type": "string"}, "n": {"type": "string"}}, "additionalProperties": True},
        "h": {"properties": {"m": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
        "o": {},
    }
    listed = listed_types(tools)
    types = ArgumentTypes(listed)
    assert [types.of("f", name) for name in ("a", "n", "m", "x")] == [TEXT, {I}, {I}, TEXT]
    assert [types.of("g", name) for name in ("a", "n", "x")] == [TEXT, TEXT, ALL]
    assert [types.of("h", name) for name in ("m", "x")] == [{I}, {B}]
    assert types.of("o", "x") == types.of("o", "m") == ALL
    assert types.of("unknown", "x") == TEXT
    assert len([each for each in listed if each.name == "m"]) == 1
    by_tool = ArgumentTypes(listed_types(tools, by_tool=True))
    names = [(tool, name) for tool in (*tools, "unknown") for name in ("a", "n", "m", "x")]
    assert [by_tool.of(*each) for each in names] == [types.of(*each) for each in names]
    assert [sorted(by_tool.names_of(tool)) for tool in tools] == [["a", "m", "n"], ["a", "n"], ["m"], []]


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("5", {I}, "5"),
        (" 5\n", {I}, "5"),
        ("5", {S}, None),
        ("5", {S, I}, "5"),
        ("5.0", {S, I}, None),
        ("5e3", {S, N, I}, "5e3"),
        ("null", {S, Z}, "null"),
        ("None", {S, Z}, None),
        ("None", {O, Z}, "null"),
        ("True", {B}, "true"),
        ("{'a': [1, None]}", {O}, '{"a": [1, null]}'),
        ('{"a": 1}', {O, S}, '{"a": 1}'),
        ('{"a": 1', {O, S}, None),
        (r'{"a": "C:\Users"}', {O}, r'{"a": "C:\\Users"}'),
        (r'{"a": "C:\Users"}', {O, S}, None),
        (r'{"a": "it\'s"}', {O}, '{"a": "it\'s"}'),
        ("[1] [2]", {A}, None),
        ("1, x=2", {I}, None),
        ('"x"', {S, Z}, None),
        ("", {I}, None),
        ("", {S, Z}, None),
        ("nan", {N}, None),
        ("01", {I}, None),
    ],
)
def test_what_text_becomes(text: str, types: set[JsonType], expected: str | None) -> None:
    assert json_of(text, frozenset(types)) == expected


@given(
    text=st.text(alphabet="{}[]\"':,.0123eE-+ truefalsnNoTF\\\n", max_size=30), types=st.sets(st.sampled_from(JsonType))
)
def test_what_is_made_of_text_is_json_of_a_type_that_is_allowed(text: str, types: set[JsonType]) -> None:
    made = json_of(text, frozenset(types))
    if made is not None:
        value = json.loads(made, parse_constant=lambda name: pytest.fail(name))
        if S in types:
            number = {N, I} if isinstance(value, int) and not isinstance(value, bool) else {N}
            kinds = {dict: {O}, list: {A}, bool: {B}, type(None): {Z}}.get(type(value), number)
            assert kinds & types
