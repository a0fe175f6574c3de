"""JSON Schema as a constraint: each keyword enforced, or refused by name and place."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from llguidance import LLMatcher, LLParserLimits

from tests.text_core.grammar.bad_input import ENDLESS, SCHEMA_TEXTS, SCHEMAS
from tests.text_core.grammar.matching import Compiled, bundled, checker, converted
from text_core.grammar.constraints import ConstraintError, JsonObject, JsonSchema
from text_core.grammar.grammar_text import grammar_of
from text_core.grammar.limits import MAX_ITEMS

TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]}
PETS = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        kind: {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
        for kind in ("Cat", "Dog")
    },
}
TAGGED = {
    **PETS,
    "$defs": {
        "Cat": {
            "type": "object",
            "properties": {
                "kind": {"const": "Cat", "default": "Cat"},
                "next": {"discriminator": {"propertyName": "kind"}, "oneOf": PETS["oneOf"]},
            },
        },
        "Dog": {"type": "object", "properties": {"kind": {"const": "Dog", "default": "Dog"}}},
    },
}
"""Tags that have a default are not required."""
NESTED_TAGS = {
    "$defs": {
        "Cat": {"type": "object", "properties": {"kind": {"const": "Cat"}}},
        "Dog": {"type": "object", "properties": {"kind": {"const": "Dog"}}},
        "Pet": {
            "type": "object",
            "properties": {"kind": {"enum": ["Cat", "Dog"]}},
            "oneOf": PETS["oneOf"],
            "discriminator": {"propertyName": "kind"},
        },
        "Cow": {"type": "object", "properties": {"kind": {"const": "Cow"}}},
    },
    "discriminator": {"propertyName": "kind"},
    "oneOf": [{"$ref": "#/$defs/Pet"}, {"$ref": "#/$defs/Cow"}],
}
"""One of the schemas is a tagged union that has the tag itself, too."""
MANY_PATHS = {
    "$ref": "#/$defs/d4",
    "$defs": {
        "d0": {"anyOf": [True] * 250},
        **{f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at - 1}"}] * 250} for at in range(1, 5)},
    },
}
"""In more ways than a number of any size could say."""

ENFORCED: list[tuple[Any, list[str], list[str]]] = [
    (True, ["1", "{}", '["a", null]'], ["{", "nul"]),
    ({"type": "string"}, ['""', '"é😀\\n"'], ["1", '"\\u0061"', '"\x7f"']),
    ({"type": ["integer", "null"]}, ["1", "null", "-7"], ["1.5", "true"]),
    ({"type": "boolean"}, ["true"], ["null"]),
    ({"const": {"a": [1, "x"]}}, ['{"a": [1, "x"]}'], ['{"a": [1]}', "{}"]),
    ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2"]),
    ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13"]),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5.5}, ["4", "5"], ["3", "6"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.5", "1"], ["0", "1.1"]),
    ({"type": "integer", "multipleOf": 7}, ["-14", "0", "21"], ["20"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"éé"', '"abc"'], ['"a"', '"abcd"']),
    ({"type": "string", "pattern": r"^\D\W$"}, ['"a-"', '"é "'], ['"٣-"', '"aé"', '"a中"', '"a٣"']),
    ({"type": "string", "pattern": "^.$"}, ['"é"'], ['"\\r"', '"\u2028"']),
    ({"type": "string", "pattern": "b|^a"}, ['"ax"', '"xb"'], ['"xa"']),
    # in JSON, a class is what it is for quotes and backslashes, too
    ({"type": "string", "pattern": '^[^"]*$'}, ['"a\\\\b\\n"'], [r'"\""']),
    ({"type": "string", "pattern": r"^[^\\]*$"}, [r'"\"\t"'], [r'"\\"']),
    ({"type": "string", "pattern": r"^[\x00-!#-\[\]-~]*$"}, [r'"a\n"'], [r'"\""', r'"\\"']),
    ({"type": "string", "pattern": r"^[\W]$"}, [r'"\""', r'"\\"'], ['"a"']),
    ({"type": "string", "pattern": r'^[^\d"]$'}, [r'"\\"', '"a"'], [r'"\""', '"1"']),
    ({"type": "string", "pattern": "[a-z]{1,999}"}, ['"a"', '"1ab"'], ['""', '"1"']),  # the search needs only one
    ({"type": "string", "pattern": "^a{2,3}b?"}, ['"aa"', '"aaaa"', '"aac"'], ['"a"', '"baa"']),
    ({"type": "string", "pattern": r"^\d+$"}, ['"12"'], ['"١"', '"1a"']),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"0000-01-01"', '"2024-1-1"']),
    ({"type": "string", "format": "date-time"}, ['"2024-01-01T00:00:00Z"'], ['"2024-01-01"', '"2024-02-30T00:00:00Z"']),
    ({"type": "string", "format": "date", "pattern": "^20"}, ['"2024-02-29"'], ['"1999-01-01"']),
    ({"type": "string", "format": "ipv4"}, ['"127.0.0.1"'], ['"256.0.0.1"']),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ["[1, 2]"],
        ["[]", "[1, 2, 3]", "[1,2]"],
    ),
    ({"prefixItems": [{"type": "string"}], "items": False}, ['["a"]', "[]", "1"], ['["a", 1]', "[1]"]),
    ({"type": "array", "maxItems": 1, "uniqueItems": True}, ["[1]"], ["[1, 1]"]),
    (
        {"type": "object", "properties": {"b": {"type": "integer"}, "a": True}, "required": ["b"]},
        ['{"b": 1}', '{"b": 1, "a": 2, "c": 3}'],
        ["{}", '{"a": 2, "b": 1}', '{"b": "x"}'],
    ),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ['{"x": 1}', "{}"], ['{"x": "y"}']),
    ({"type": "object", "additionalProperties": False, "properties": {"a": True}}, ['{"a": 1}'], ['{"b": 1}']),
    ({"type": "object", "patternProperties": {"^n": {"type": "null"}}}, ['{"n1": null, "x": 1}'], ['{"n1": 1}']),
    ({"type": "object", "minProperties": 1, "maxProperties": 2}, ['{"a": 1}'], ["{}", '{"a": 1, "b": 2, "c": 3}']),
    ({"anyOf": [{"type": "null"}, {"const": "a"}]}, ["null", '"a"'], ['"b"']),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}], "type": "integer"}, ["2"], ["0", "4"]),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["1", '"a"'], ["null"]),
    ({"type": "integer", "not": {"not": {"minimum": 3}}}, ["3"], ["2"]),
    ({"type": "integer", "not": {"minimum": 3}}, ["2", "-9"], ["3", "2.5"]),
    ({"not": {"minimum": 3}}, ["2", "2.5"], ["3", '"a"', "null"]),
    ({"not": {"type": "number", "maximum": 3}}, ["4", '"a"', "null"], ["3", "2.5"]),
    ({"not": {"type": "object", "required": ["a"]}}, ["1", "{}", '{"b": 1}'], ['{"a": 1}']),
    (
        {"type": "object", "not": {"properties": {"a": {"type": "string"}}, "required": ["a"]}},
        ["{}", '{"a": 1}', '{"b": "x"}'],
        ['{"a": "x"}'],
    ),
    (
        {"not": {"properties": {"a": {"type": "string"}}, "required": ["a"], "type": "object"}},
        ["{}", '{"a": 1}', "1"],
        ['{"a": "x"}'],
    ),
    ({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "string"}}}, ["1", "{}"], ['"a"']),
    ({"type": "array", "items": {"not": {}}}, ["[]"], ["[1]"]),
    (
        {"type": "string", "format": "uri-reference"},
        ['""', '"a/b"', '"../a?b#c"', '"https://x.org:80/a%20b"', '"mailto:a@b"', '"//x/y"', '"#/$defs/a"'],
        ['"://"', '"a b"', '"%zz"', '"1a:b"', '"\\\\"'],
    ),
    ({"type": "string", "format": "iri"}, ['"https://é.org/日本?x#y"', '"a:b"'], ['"not-an-iri"', '"a:b c"']),
    ({"type": "string", "format": "idn-email"}, ['"a.b@c-d.org"'], ['"2962"', '"a@b@c"', '"a@-b"']),
    (
        {"type": "string", "format": "hostname"},
        ['"a-b.example.org"', f'"{"a" * 31}.b"'],
        ['"xn--X"', '"a..b"', '"-a"', f'"{".".join(["a" * 60] * 5)}"'],
    ),
    (
        {"type": "string", "format": "regex"},
        [r'"^a(?:b|[^c-d\\-]+)*$"'.replace("c-d", "cd"), r'"\\d{3}"', '"((a)b?)+"', '""'],
        ['"*"', '"("', r'"[\\]"', r'"\\-"', r'"\\"', '"[z-a]"', '"a**"', '"{"'],
    ),
    ({"type": "string", "format": "uri-template"}, ['"/a/{b}{?c,d*}"', '"x"'], ['"{"', '"a b"', '"{}"']),
    ({"type": "string", "format": "json-pointer"}, ['""', '"/a/~1b"'], ['"a"', '"/~2"']),
    ({"type": "string", "format": "relative-json-pointer"}, ['"0#"', '"1/a"'], ['"/a"', '"01"']),
    # schemas that overlap exclude each other by what they demand
    (
        {"properties": {"a": True, "b": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": 1}', '{"a": 1, "c": 2}'],
        ["{}", '{"a": 1, "b": 2}', "1", '{"b": "x"}', '{"b": 1, "a": 1}'],
    ),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}, {"required": ["c", "d"]}]},
        ['{"a": 1}', '{"c": 1, "d": 1}', '{"a": 1, "c": 2}'],
        ['{"a": 1, "b": 2}', '{"a": 1, "c": 2, "d": 3}', '{"c": 1}'],
    ),
    (
        {
            "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}],
            "$defs": {
                "a": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
                "b": {"allOf": [{"type": "object"}, {"required": ["y"]}]},
            },
        },
        ['{"x": 1}', '{"y": 1}', "null"],
        ['{"x": 1, "y": 2}', "{}", "1", '{"x": "a"}'],
    ),
    (
        TAGGED,
        ['{"kind": "Cat", "next": {"kind": "Dog"}}', '{"kind": "Dog"}'],
        ["{}", '{"kind": "Cow"}', '{"next": {}}'],
    ),
    (NESTED_TAGS, ['{"kind": "Cat", "x": 1}', '{"kind": "Cow"}'], ["{}", '{"kind": "Horse"}']),
    (PETS, ['{"kind": "Cat"}', '{"kind": "Dog", "x": 1}'], ['{"kind": "Cow"}']),
    ({"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 9}, ["9", "-1"], ["10"]),
    ({"type": "string", "format": "password", "maxLength": 2}, ['"ab"'], ['"abc"']),
    (
        {"type": "string", "format": "uuid4"},
        ['"01234567-89ab-4def-8123-456789abcdef"'],
        ['"01234567-89ab-1def-8123-456789abcdef"'],
    ),
    ({"type": "string", "pattern": r"^(?=.*\d)(?=[a-z])\w{2,}$"}, ['"a1"', '"abc1d"'], ['"ab"', '"1a"', '"a"']),
    ({"type": "integer", "faker": {"a": 1}, "x-y": 2, "then": False, "minContains": 3, "$id": "a"}, ["1"], ['"a"']),
    ({"items": {"id": "x", "type": "integer"}, "type": "array"}, ["[1]"], ['["a"]']),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
            "additionalProperties": False,
            "dependentRequired": {"a": ["b"], "b": []},
            "dependencies": {"c": {"properties": {"a": False}}},
        },
        ["{}", '{"b": 1}', '{"a": 1, "b": 1}', '{"c": 1}', '{"b": 1, "c": 1}'],
        ['{"a": 1}', '{"a": 1, "b": 1, "c": 1}', '{"a": 1, "c": 1}'],
    ),
    (
        {"type": "object", "properties": {"a": True, "b": True}, "not": {"required": ["a", "b"]}},
        ["{}", '{"a": 1}', '{"b": 1}'],
        ['{"a": 1, "b": 1}'],
    ),
    ({"not": {"type": ["string", "number"]}}, ["null", "true", "[1]"], ['"a"', "1", "1.5"]),
    (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        },
        ["{}", '{"c": 1}'],
        ['{"a": 1}', '{"b": 1}'],
    ),
    ({"type": "integer", "nullable": True, "example": 1}, ["1", "null"], ['"a"']),
    ({"enum": ["a"], "nullable": True}, ['"a"', "null"], ['"b"']),
    ({"minimum": 1, "exclusiveMinimum": True, "type": "number"}, ["1.5"], ["1", "0"]),
    (
        {"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}},
        ["[]", "[1, 2, 2]"],
        ["[2]", "[1, 1]"],
    ),
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
        ['{"x": 1}', "{}"],
        ['{"x": "y"}'],
    ),
    (
        {
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/k"},
            "properties": {"c": True},
            "additionalProperties": {"type": "integer"},
            "$defs": {"k": {"enum": ["a", "b"]}},
            "required": ["b"],
        },
        ['{"a": 1, "b": 2}', '{"b": 2}'],
        ['{"a": 1}', '{"b": "x"}', '{"b": 1, "c": 1}'],
    ),
    (
        {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer"}},
        ['{"ab": 1}', "{}"],
        ['{"b": 1}', '{"ab": "x"}'],
    ),
    ({"type": "object", "propertyNames": {"maxLength": 1}}, ['{"a": 1, "b": {}}'], ['{"ab": 1}']),
    (
        {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
        ['["c", "a"]', '["b", "a", "c"]', '["a"]'],
        ["[]", '["a", "a"]', '["a", "d"]'],
    ),
    # more are written in the order of the schema
    (
        {"type": "array", "items": {"enum": list(range(8))}, "uniqueItems": True},
        ["[]", "[0, 3, 7]"],
        ["[0, 0]", "[3, 0]"],
    ),
    ({"type": "array", "items": {"enum": [1, True, "1"]}, "uniqueItems": True}, ['[true, 1, "1"]'], ["[true, true]"]),
    (TREE, ['{"v": 1, "next": {"v": 2}}'], ['{"v": 1, "next": {}}']),
    ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}}, ["null"], ["1"]),
    ({"title": "t", "x-order": 1, "deprecated": True, "default": 1, "type": "null"}, ["null"], ["1"]),
]
"""Schemas, texts that fit, texts that do not."""


@pytest.mark.parametrize(("schema", "fitting", "others"), ENFORCED, ids=lambda value: json.dumps(value)[:40])
def test_what_a_schema_accepts(schema: Any, fitting: list[str], others: list[str]) -> None:
    grammar = Compiled(grammar_of(JsonSchema(json.dumps(schema))))
    assert [text for text in fitting if not grammar.accepts(text)] == []
    assert [text for text in others if grammar.accepts(text)] == []


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        # "\u0061" is "a": llguidance took it for another name, with the schema of additional properties
        ({"properties": {"a": {"type": "integer"}}, "type": "object"}, '{"a": 1}', '{"\\u0061": "x"}'),
        # a key that is there twice is one property
        ({"type": "object", "minProperties": 1}, '{"a": 1}', "{}"),
        # keywords apply whatever their order: additionalProperties knows of patternProperties after allOf
        ({"additionalProperties": False, "allOf": [True], "patternProperties": {"^a": True}}, '{"a": 1}', '{"b": 1}'),
        # an optional property that could never end is left out
        (
            {
                "type": "object",
                "properties": {"e": {"$ref": "#/$defs/e"}, "b": True},
                "$defs": {"e": {"type": "object", "properties": {"a": {"$ref": "#/$defs/e"}}, "required": ["a"]}},
            },
            '{"b": 1}',
            '{"e": 1}',
        ),
    ],
)
def test_what_llguidance_alone_gets_wrong(schema: Any, fitting: str, other: str) -> None:
    grammar = Compiled(grammar_of(JsonSchema(json.dumps(schema))))
    assert grammar.accepts(fitting)
    assert not grammar.accepts(other)


def optional(count: int, prefix: str = "p", **others: Any) -> dict[str, Any]:
    """An object of optional properties, and of ``others``."""
    return {"type": "object", "properties": {**others, **{f"{prefix}{n}": {} for n in range(count)}}}


def variants(first: Any) -> dict[str, Any]:
    """A union of 20 objects with 40 optional properties each, behind one that is demanded: ``first`` of its number."""
    return {"anyOf": [{**optional(40, kind=first(n)), "required": ["kind"]} for n in range(20)]}


WIDE = {
    "branches": {"anyOf": [optional(256, "a"), optional(256, "b")]},
    "references": {
        "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/b"}]}]},
        "$defs": {"a": optional(240, "a"), "b": optional(240, "b")},
    },
    "combinations": {"allOf": [{"oneOf": [optional(60, "a"), {"type": "null"}]}, variants(lambda n: {"const": n})]},
    "the same first": variants(lambda n: {"enum": ["a", "b"]}),
}
"""Objects of few enough properties, but too many of them at one place."""


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"anyOf": [optional(234, "a"), optional(234, "b")]}, '{"b7'),
        ({**optional(40), "additionalProperties": False, "minProperties": 1}, '{"p3'),
        ({**optional(64), "additionalProperties": False, "maxProperties": 1}, '{"p3'),
        (variants(lambda n: {"const": n}), '{"kind": 7, "p3'),
        ({"allOf": [optional(100, "a"), {"anyOf": [optional(50, "b"), optional(50, "c")]}]}, '{"a7": 0, "c3'),
    ],
    ids=["branches", "one at least", "one at most", "constants in each", "all and any"],
)
def test_properties_up_to_the_limit_can_be_followed_at_one_place(schema: Any, text: str) -> None:
    """By the engine's limit of a row, at which it would end an answer."""
    grammar = grammar_of(JsonSchema(json.dumps(schema)))
    matcher = LLMatcher(converted(), grammar, log_level=0, limits=LLParserLimits(max_items_in_row=MAX_ITEMS))
    for token in bundled().encode(text, add_special_tokens=False):
        assert matcher.consume_token(token), matcher.get_error()


JOINED_TOO_OFTEN = (
    "6 maps of 6 levels",
    "20 maps of 10 levels",
    "13 choices of maps",
    "500 names of a map of 500 names",
)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems: not supported: expected items"),
        (
            {"type": "array", "items": {"enum": list(range(12))}, "uniqueItems": True},
            "/uniqueItems: 12 values make too many arrays: expected at most 2000 values in them together",
        ),
        ({"items": {"if": {}}}, "/items/if: not supported: expected one of type, minimum"),
        ({"if": True}, "/if: not supported"),
        ({"contains": True}, "/contains: not supported"),
        ({"propertyNames": {"not": {}}}, "/propertyNames: not supported: expected no limit on names, or one of"),
        (
            {"propertyNames": {"pattern": "a"}, "properties": {"b": True}},
            "/propertyNames: not supported beside properties",
        ),
        ({"not": {"const": 1}}, "/not: not supported: expected type, required, minimum, maximum"),
        ({"not": {"minimum": True}}, "/not: not supported: expected type, required"),
        ({"not": {"type": "integer"}}, "/not: not supported: expected type, required"),
        ({"dependencies": {str(i): ["a"] for i in range(7)}}, "/dependencies: has 7 entries: expected at most 6"),
        ({"items": {"$id": "x", "items": {"$ref": "#"}}}, "/items/$id: not supported around a $ref"),
        ({"if": {}, "then": False}, "/if: not supported"),
        ({"anyOf": [True, {"unevaluatedProperties": False}]}, "/anyOf/1/unevaluatedProperties: not supported"),
        ({"$dynamicRef": "#"}, "/$dynamicRef: not supported"),
        ({"nullable": 1}, "/nullable: expected true or false"),
        ({"x-guidance": {"lenient": True}}, "/x-guidance: not supported"),
        ({"properties": {"a/b~": {"x-guidance": {}}}}, "/properties/a~1b~0/x-guidance: not supported"),
        ({"$ref": "https://example.org/x"}, '/$ref: "https://example.org/x" is not supported: expected # or #/…'),
        ({"$ref": "#/$defs/x"}, '/$ref: there is no "#/$defs/x" in this schema'),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema: expected one of"),
        ({"items": [{}], "prefixItems": [{}]}, "/items: a list is not supported beside prefixItems"),
        ({"type": "int"}, "/type: expected one of null, boolean"),
        (
            {"oneOf": [{"required": [f"p{index}"]} for index in range(256)]},
            "/oneOf: not supported: schemas 0 and 7 may accept the same value",
        ),
        (
            {"oneOf": [{"required": [f"{name}1", f"{name}2"]} for name in "abcd"]},
            "/oneOf: not supported: schemas 0 and 1 may accept the same value",
        ),
        ({"pattern": "(?=a)"}, "/pattern: look-around is not supported, at character 1"),
        ({"pattern": "1", "enum": [f"{n}" for n in range(2001)]}, "/enum: too many values beside a pattern or format"),
        ({"pattern": "^(?=a)b|c"}, "/pattern: look-around is not supported, at character 2"),
        ({"minimum": 1e300}, "/minimum: 1e+300 is too large"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "/oneOf: not supported: schemas 0 and 1 may accept"),
        ({"minProperties": 2}, "/minProperties: not supported: expected at most 1"),
        ({"properties": {"a": True}, "maxProperties": 1}, "/maxProperties: not supported beside optional properties"),
        ({**optional(41), "additionalProperties": False, "minProperties": 1}, "/minProperties: not supported beside"),
        (WIDE["branches"], "allows more than 475 optional properties at one place"),
        (WIDE["references"], "allows more than 475 optional properties at one place"),
        (WIDE["combinations"], "allows more than 475 optional properties at one place"),
        (WIDE["the same first"], "allows more than 475 optional properties at one place"),
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "/exclusiveMinimum: not supported less than 1 from the other bound"),
        ({"const": 2**53 + 1}, "/const: 9007199254740993 is too large"),
        ({"const": "a\x01"}, '/const: "a\\u0001" has the control character U+0001'),
        ({"allOf": [{"pattern": "a"}] * 4}, "demands 4 patterns, formats and limits of length for one text at once"),
        ({"allOf": [{"multipleOf": 3}, {"multipleOf": 5}]}, "demands 2 multipleOf for one number at once"),
        *((SCHEMAS[name], "would become more than 10000 schemas, as each that allOf") for name in JOINED_TOO_OFTEN),
        (ENDLESS, "nothing can match it"),
        (
            {"type": "integer", "minimum": 3, "maximum": 2},
            "nothing can match it: minimum (3) is greater than maximum (2)",
        ),
    ],
)
def test_what_is_refused_and_where(schema: Any, problem: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        checker().check(grammar_of(JsonSchema(json.dumps(schema))), "json_schema")
    assert refused.value.field == "json_schema"
    assert refused.value.problem.startswith(problem)


@pytest.mark.parametrize("name", [name for name in SCHEMA_TEXTS if "levels" not in name])
def test_text_that_is_no_json_schema(name: str) -> None:
    with pytest.raises(ConstraintError, match=r"^json_schema: "):
        grammar_of(JsonSchema(SCHEMA_TEXTS[name]))


@pytest.mark.parametrize("name", ["10^3 nested references", "10^4 properties", "product 1", "product 3"])
def test_schemas_that_would_end_the_process_are_refused_before_llguidance_sees_them(name: str) -> None:
    with pytest.raises(ConstraintError, match=r"^json_schema: "):
        grammar_of(JsonSchema(json.dumps(SCHEMAS[name])))


def test_a_place_is_read_once_however_references_spell_it() -> None:
    names = ["a%/~", *("#/$defs/a%25~1~0", "#/%24defs/a%25~1%7e0", "#/$defs/%61%25%7e1~0")]
    schema = {"$defs": {names[0]: {"enum": ["x" * 9_000, "y"]}}, "anyOf": [{"$ref": name} for name in names[1:]]}
    grammar = grammar_of(JsonSchema(json.dumps(schema)))
    assert len(grammar) < 10_000
    assert Compiled(grammar).accepts('"y"')


@pytest.mark.parametrize("value", [[], {}, ["date"], 1, None])
def test_a_format_that_is_no_text(value: object) -> None:
    with pytest.raises(ConstraintError, match="/format: expected a text"):
        grammar_of(JsonSchema(json.dumps({"format": value})))


def test_strings_that_do_not_end_are_read_once() -> None:
    began = time.thread_time()
    with pytest.raises(ConstraintError, match="is not JSON"):
        grammar_of(JsonSchema('"\\' * 100_000))
    assert time.thread_time() - began < 1


def test_ways_are_counted_no_further_than_the_limit() -> None:
    with pytest.raises(ConstraintError, match="allows more than 475"):
        grammar_of(JsonSchema(json.dumps({"allOf": [MANY_PATHS, WIDE["branches"]]} | {"$defs": MANY_PATHS["$defs"]})))


def test_white_space() -> None:
    fixed, flexible = Compiled(grammar_of(JsonObject())), Compiled(grammar_of(JsonObject(any_whitespace=True)))
    value = {"a": 1, "b": [2, {"c": None}], "d": {}, "e": []}
    assert fixed.accepts(json.dumps(value))
    for text in (json.dumps(value, indent=2), json.dumps(value, separators=(",", ":"))):
        assert flexible.accepts(text)
        assert not fixed.accepts(text)
    assert not flexible.accepts('{"a":' + " " * 129 + "1}")
    assert not fixed.accepts("[]")


def test_maps_that_are_written_twice_are_joined_once() -> None:
    """By pattern, otherwise, and once more, as some generators write them."""
    depth = 12
    definitions: dict[str, Any] = {f"d{depth}": {"type": "integer"}}
    for level in range(depth):
        inner = {"$ref": f"#/$defs/d{level + 1}"}
        own = {"type": "object", "patternProperties": {"^[a-z]+$": inner}, "additionalProperties": inner}
        definitions[f"d{level}"] = {"allOf": [own, {"type": ["object", "null"], "additionalProperties": inner}]}
    grammar = Compiled(grammar_of(JsonSchema(json.dumps({"$ref": "#/$defs/d0", "$defs": definitions}))))
    for value, fits in ((1, True), ("x", False)):
        for name in ("a", "A"):
            text = f'{{"{name}": ' * depth + json.dumps(value) + "}" * depth
            assert grammar.accepts(text) is fits
    assert not grammar.accepts("null")


def test_only_a_map_of_the_same_is_left_out() -> None:
    integers = {"type": "object", "additionalProperties": {"type": "integer"}}
    at_least = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 3}}
    named = {**at_least, "properties": {"a": {"type": "integer"}}}
    for schemas in ([integers, at_least], [at_least, integers], [named, at_least]):
        grammar = Compiled(grammar_of(JsonSchema(json.dumps({"allOf": schemas}))))
        assert grammar.accepts('{"a": 3, "b": 4}')
        assert not grammar.accepts('{"a": 2}')
