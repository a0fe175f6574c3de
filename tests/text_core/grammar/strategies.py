"""JSON Schemas of every supported keyword for Hypothesis, and values for a schema: most fit it, and some nearly."""

from __future__ import annotations

import json
import random
import re
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

Schema = Any

NAMES = ("a", "b", "name", "id", "kind", "größe", "x-y", 'no"te', "tags", "p/q")
TEXTS = (
    "",
    "a",
    "ab",
    "abc",
    "red",
    "green",
    "x1",
    "Zürich",
    "line\nbreak",
    'say "hi"',
    "back\\slash",
    "42",
    "b9",
    "naïve 😀",
)
PATTERNS = (
    "^[a-z]+$",
    "a",
    "^x[0-9]{1,3}$",
    "b|^a",
    r"^\d{2}-\w+$",
    "^(red|green)$",
    r"[^a-z]",
    "^.{2,4}$",
    r"\S",
    "e?n$",
)
NAMED: tuple[Schema, ...] = ({"type": "string"}, {"pattern": r"^[a-z]\w*$"}, {"minLength": 2, "maxLength": 4}, True)
"""Schemas of names of properties."""
FORMATTED = {
    "date": ("2024-02-29", "1999-12-31"),
    "date-time": ("2024-02-29T23:59:59Z", "2001-01-01T00:00:00.125+02:00"),
    "time": ("12:30:00Z", "23:59:59.5-01:00"),
    "email": ("joe@example.org", "a.b+c@x-y.de"),
    "hostname": ("example.org", "a-1.b"),
    "ipv4": ("127.0.0.1", "255.255.255.0"),
    "ipv6": ("::1", "2001:db8::ff00:42:8329"),
    "uuid": ("2eb8aa08-aa98-11ea-b4aa-73b441d16380",),
    "uri": ("https://example.org/a?b=c#d", "urn:isbn:0451450523"),
    "duration": ("P1Y2M3DT4H5M6S", "P2W"),
}

FORMAT_CHECKER = FormatChecker(formats=())
"""The formats that are enforced, as other libraries read them."""


@FORMAT_CHECKER.checks("date", ValueError)
def _is_date(text: Any) -> bool:
    return not isinstance(text, str) or bool(date.fromisoformat(text))


@FORMAT_CHECKER.checks("date-time", ValueError)
def _is_date_time(text: Any) -> bool:
    return not isinstance(text, str) or datetime.fromisoformat(text).tzinfo is not None


@FORMAT_CHECKER.checks("time", ValueError)
def _is_time(text: Any) -> bool:
    return not isinstance(text, str) or time_of_day.fromisoformat(text).tzinfo is not None


@FORMAT_CHECKER.checks("ipv4", ValueError)
def _is_ipv4(text: Any) -> bool:
    return not isinstance(text, str) or IPv4Address(text) is not None


@FORMAT_CHECKER.checks("ipv6", ValueError)
def _is_ipv6(text: Any) -> bool:
    return not isinstance(text, str) or IPv6Address(text) is not None


@FORMAT_CHECKER.checks("uuid", ValueError)
def _is_uuid(text: Any) -> bool:
    return not isinstance(text, str) or (bool(UUID(text)) and len(text) == 36)


@FORMAT_CHECKER.checks("uri", ValueError)
def _is_uri(text: Any) -> bool:
    return not isinstance(text, str) or bool(urlsplit(text).scheme)


@FORMAT_CHECKER.checks("email")
def _is_email(text: Any) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(r"[^@\s]+@[^@\s]+", text))


@FORMAT_CHECKER.checks("hostname")
def _is_hostname(text: Any) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(r"[A-Za-z0-9.-]+", text))


@FORMAT_CHECKER.checks("duration")
def _is_duration(text: Any) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(r"P(?!$)(\d+[YMWD])*(T(?=\d)(\d+[HMS])*)?", text))


# Bounds with two decimals and more: llguidance then demands as many digits of some numbers.
_numbers = st.one_of(st.integers(-200, 200), st.decimals(-50, 50, places=1).map(float))


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Schema:
    """A schema, its definitions with it."""
    schema = draw(_schema(depth))
    if not isinstance(schema, dict) or not draw(st.booleans()):
        return schema
    kind = draw(st.sampled_from(("reference", "recursive", "beside")))
    if kind == "reference":
        return {
            "type": "object",
            "properties": {"r": {"$ref": "#/$defs/d"}, "s": {"$ref": "#/$defs/d"}},
            "required": ["r"],
            "$defs": {"d": schema},
        }
    if kind == "recursive":
        node = {"type": "object", "properties": {"v": schema, "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
        return {
            "$ref": "#/$defs/node",
            "$defs": {"node": node | ({"additionalProperties": False} if draw(st.booleans()) else {})},
        }
    return {"$ref": "#/$defs/d", "title": "beside", "$defs": {"d": schema}}


@st.composite
def _schema(draw: st.DrawFn, depth: int) -> Schema:
    kinds = [_string, _number, _literal, _plain]
    if depth:
        kinds += [_object, _object, _array, _array, _map, _combined, _combined, _combined, _counted]
    schema = draw(draw(st.sampled_from(kinds))(depth))
    if isinstance(schema, dict) and draw(st.integers(0, 9)) == 0:
        schema = {
            **schema,
            "title": "T",
            "description": "d",
            "default": None,
            "examples": [1],
            "deprecated": True,
            "$comment": "c",
        }
    return schema


def _within(depth: int) -> st.SearchStrategy[Schema]:
    return _schema(depth - 1)


@st.composite
def _plain(draw: st.DrawFn, depth: int) -> Schema:
    return draw(
        st.sampled_from(
            (
                True,
                {},
                {"type": "null"},
                {"type": "boolean"},
                {"type": ["string", "null"]},
                {"type": ["integer", "boolean", "array"]},
            )
        )
    )


@st.composite
def _string(draw: st.DrawFn, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": "string"}
    match draw(st.integers(0, 4)):
        case 0:
            schema["format"] = draw(st.sampled_from(tuple(FORMATTED)))
        case 1 | 2:
            schema["pattern"] = draw(st.sampled_from(PATTERNS))
            if draw(st.booleans()):
                schema["maxLength"] = draw(st.integers(3, 12))
        case 3:
            low = draw(st.integers(0, 4))
            schema |= {"minLength": low, "maxLength": low + draw(st.integers(0, 8))}
    if draw(st.integers(0, 5)) == 0:
        del schema["type"]
    return schema


@st.composite
def _number(draw: st.DrawFn, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(("integer", "number")))}
    low, high = sorted((draw(_numbers), draw(_numbers)))
    if draw(st.booleans()):
        schema[draw(st.sampled_from(("minimum", "exclusiveMinimum")))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(("maximum", "exclusiveMaximum")))] = high
    if draw(st.integers(0, 2)) == 0:
        schema["multipleOf"] = draw(st.sampled_from((2, 3, 7, 10, 0.5, 2.5, 100)))
    return schema


@st.composite
def _literal(draw: st.DrawFn, depth: int) -> Schema:
    values = draw(
        st.lists(
            st.one_of(
                st.none(),
                st.booleans(),
                _numbers,
                st.sampled_from(TEXTS),
                st.lists(st.integers(0, 3), max_size=2),
                st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), max_size=2),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return {"const": values[0]} if draw(st.booleans()) else {"enum": values}


@st.composite
def _object(draw: st.DrawFn, depth: int) -> Schema:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": {name: draw(_within(depth)) for name in names}}
    schema["required"] = draw(st.lists(st.sampled_from([*names, "more"]), unique=True))
    match draw(st.integers(0, 3)):
        case 0:
            schema["additionalProperties"] = False
        case 1:
            schema["additionalProperties"] = draw(_within(depth))
    if draw(st.integers(0, 3)) == 0:
        schema["patternProperties"] = {"^n": {"type": "string"}, "^i": {"type": "integer"}}
    return dict(draw(st.permutations(list(schema.items()))))


@st.composite
def _map(draw: st.DrawFn, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": draw(_within(depth))}
    if draw(st.booleans()):
        schema["minProperties"] = 1
    if draw(st.booleans()):
        schema["maxProperties"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        schema["patternProperties"] = {r"^[a-z]$": draw(_within(depth))}
    elif draw(st.booleans()):
        schema["propertyNames"] = draw(st.sampled_from(NAMED))
    return schema


@st.composite
def _counted(draw: st.DrawFn, depth: int) -> Schema:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3))
    schema = {
        "type": "object",
        "properties": {name: draw(_within(depth)) for name in names},
        "additionalProperties": False,
    }
    keyword = draw(st.sampled_from(("minProperties", "maxProperties")))
    return {**schema, keyword: 1}


@st.composite
def _array(draw: st.DrawFn, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": "array"}
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(_within(depth), min_size=1, max_size=2))
    if draw(st.integers(0, 3)):
        schema["items"] = (
            draw(st.one_of(_within(depth), st.just(False))) if "prefixItems" in schema else draw(_within(depth))
        )
    low = draw(st.integers(0, 2))
    if draw(st.booleans()):
        schema["minItems"] = low
    if draw(st.booleans()):
        schema["maxItems"] = low + draw(st.integers(0, 2))
    if draw(st.integers(0, 3)) == 0:
        schema |= {"maxItems": 1, "minItems": 0, "uniqueItems": True}
    return schema


@st.composite
def _combined(draw: st.DrawFn, depth: int) -> Schema:
    match draw(st.integers(0, 5)):
        case 0:
            return {"anyOf": draw(st.lists(_within(depth), min_size=1, max_size=3))}
        case 1:
            kinds = draw(st.lists(st.sampled_from(("cat", "dog", "cow")), unique=True, min_size=2, max_size=3))
            return {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"const": kind}, "v": draw(_within(depth))},
                        "required": ["kind"],
                    }
                    for kind in kinds
                ]
            }
        case 2:
            return {"oneOf": [{"type": "string", "maxLength": 3}, draw(_number(0)), {"type": "null"}]}
        case 3 | 4:
            first, second = draw(_object(depth)), draw(_object(depth))
            return {"allOf": [first, {"type": "object", "properties": second["properties"]}]}
    return {**draw(_object(depth)), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}


def keywords_of(schema: Schema) -> set[str]:
    """Keywords in ``schema``, at any depth; names of properties are none."""
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for keyword in ("properties", "patternProperties", "$defs"):
        for inner in schema.get(keyword, {}).values():
            found |= keywords_of(inner)
    for keyword in ("prefixItems", "allOf", "anyOf", "oneOf"):
        for inner in schema.get(keyword, []):
            found |= keywords_of(inner)
    for keyword in ("additionalProperties", "items"):
        found |= keywords_of(schema.get(keyword))
    return found


class Values:
    """Values for one schema: most fit it, some nearly, and some not at all."""

    def __init__(self, root: Schema, seed: int) -> None:
        self._root = root
        self._random = random.Random(seed)

    def __call__(self) -> Any:
        return self._value(self._root, 5)

    def _value(self, schema: Schema, depth: int) -> Any:
        choose = self._random.choice
        if not isinstance(schema, dict) or depth == 0 or self._random.random() < 0.05:
            return choose(
                [None, True, 0, 1, -3, 2.5, 17, "", "a", "red", "2024-02-29", [], [1], {}, {"a": 1}, {"name": "x"}]
            )
        parts: dict[str, Any] = {}
        if "$ref" in schema:
            return self._value(self._root["$defs"][schema["$ref"].removeprefix("#/$defs/")], depth - 1)
        if "const" in schema or "enum" in schema:
            return choose(schema.get("enum", [schema.get("const")]))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                parts = choose(schema[keyword])
                if "type" not in schema:
                    return self._value(parts, depth)
        merged = {**schema, **(parts if isinstance(parts, dict) else {})}
        for inner in schema.get("allOf", []):
            value = self._value(inner, depth)
            if not isinstance(value, dict):
                return value
            parts = {**parts, **value}
        if "allOf" in schema:
            return parts
        kind = merged.get("type") or choose(["string", "object", "array", "number"])
        return getattr(self, f"_{choose(kind) if isinstance(kind, list) else kind}")(merged, depth)

    def _null(self, schema: Schema, depth: int) -> None:
        return None

    def _boolean(self, schema: Schema, depth: int) -> bool:
        return self._random.random() < 0.5

    def _string(self, schema: Schema, depth: int) -> str:
        if "format" in schema and self._random.random() < 0.8:
            return self._random.choice(FORMATTED[schema["format"]])
        low, high = schema.get("minLength", 0), schema.get("maxLength", 6)
        matching = ("abc", "x12", "12-ab", "red", "green", "b", "B7", "na", "en")
        if "pattern" in schema and self._random.random() < 0.7:
            return self._random.choice(matching)
        length = self._random.randint(max(0, low - 1), high + 1)
        return "".join(self._random.choice('abcxyz09 é😀"\\\n') for _ in range(length))

    def _integer(self, schema: Schema, depth: int) -> int:
        return int(self._number(schema, depth))

    def _number(self, schema: Schema, depth: int) -> Any:
        low = schema.get("minimum", schema.get("exclusiveMinimum", -100))
        high = schema.get("maximum", schema.get("exclusiveMaximum", max(low, 0) + 100))
        value = self._random.choice(
            [low, high, self._random.uniform(low - 2, high + 2), round(self._random.uniform(low, high), 2)]
        )
        if "multipleOf" in schema and self._random.random() < 0.7:
            value = round(value / schema["multipleOf"]) * schema["multipleOf"]
        value = round(value, 6)
        return int(value) if float(value).is_integer() or self._random.random() < 0.3 else value

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        prefix = schema.get("prefixItems", [])
        low = schema.get("minItems", 0)
        count = self._random.randint(
            low, max(low, min(schema.get("maxItems", low + 3), 5)) + (self._random.random() < 0.1)
        )
        return [self._value(prefix[i] if i < len(prefix) else schema.get("items"), depth - 1) for i in range(count)]

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        required = schema.get("required", [])
        additional = schema.get("additionalProperties", True)
        properties = schema.get("properties", {})
        value: dict[str, Any] = {}
        for name in [*properties, *(name for name in required if name not in properties)]:
            if self._random.random() < (0.95 if name in required else 0.5):
                value[name] = self._value(properties.get(name, additional), depth - 1)
        for name in ("q", "n1", "i2", "other"):
            if self._random.random() < (0.05 if additional is False else 0.25):
                patterns = schema.get("patternProperties", {})
                value[name] = self._value(
                    next(
                        (
                            inner
                            for key, inner in patterns.items()
                            if key[1:2] == name[:1] or (key == "^[a-z]$" and len(name) == 1)
                        ),
                        additional,
                    ),
                    depth - 1,
                )
        return value


def written(value: Any, schema: Schema, root: Schema) -> str:
    """``value`` as JSON in the form that answers have: properties in the schema's order, and a blank after , and :."""
    match value:
        case dict():
            order = _property_order(schema, root, value)
            names = sorted(value, key=lambda name: order.index(name) if name in order else len(order))
            inner = (
                f"{_text(name)}: {written(value[name], _property(schema, root, value, name), root)}" for name in names
            )
            return "{" + ", ".join(inner) + "}"
        case list():
            return (
                "["
                + ", ".join(written(item, _item(schema, root, value, i), root) for i, item in enumerate(value))
                + "]"
            )
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    return _text(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _fits(value: Any, schema: Schema, root: Schema) -> bool:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": root.get("$defs", {})}
    return Draft202012Validator(schema).is_valid(value)


def _parts(schema: Schema, root: Schema, value: Any) -> list[dict[str, Any]]:
    """``schema`` and those that say more about the same value, in the order in which their properties are written."""
    if not isinstance(schema, dict):
        return []
    found = [schema]
    for keyword, inner in schema.items():
        if keyword == "$ref":
            found += _parts(_referred(inner, root), root, value)
        elif keyword in ("allOf", "anyOf", "oneOf"):
            found += [
                part
                for each in inner
                if keyword == "allOf" or _fits(value, each, root)
                for part in _parts(each, root, value)
            ]
    if "enum" in schema or "const" in schema:
        found += [{"properties": each} for each in schema.get("enum", [schema.get("const")]) if isinstance(each, dict)]
    return found


def _referred(reference: str, root: Schema) -> Schema:
    found = root
    for token in reference.split("/")[1:]:
        key = unquote(token).replace("~1", "/").replace("~0", "~")
        found = found[int(key) if isinstance(found, list) else key]
    return found


def _property_order(schema: Schema, root: Schema, value: Any) -> list[str]:
    parts = _parts(schema, root, value)
    names = [name for part in parts for name in part.get("properties", {})]
    return list(dict.fromkeys([*names, *(name for part in parts for name in part.get("required", []))]))


def _property(schema: Schema, root: Schema, value: Any, name: str) -> Schema:
    for part in _parts(schema, root, value):
        if isinstance(found := part.get("properties", {}).get(name), dict):
            return found
    return next(
        (part["additionalProperties"] for part in _parts(schema, root, value) if "additionalProperties" in part), True
    )


def _item(schema: Schema, root: Schema, value: Any, index: int) -> Schema:
    for part in _parts(schema, root, value):
        if index < len(part.get("prefixItems", [])):
            return part["prefixItems"][index]
        if "items" in part:
            return part["items"]
    return True
