"""Rewrites keywords of generators, OpenAPI and older drafts as keywords that can be enforced.

The accepted answers stay the same, except that a set's items may be restricted to the order of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from text_core.grammar.json_formats import FORMATS
from text_core.grammar.json_keywords import TYPES, KeywordError, without_annotations
from text_core.grammar.regex import conjuncts

Resolve = Callable[[Any], Any]
"""The schema that is meant: where a reference leads, or the schema itself."""

MAX_SET_VALUES = 2_000
"""Maximum values in all written-out arrays of distinct items together."""
_MAX_SET = 64
"""Maximum distinct values for the items of such arrays."""
_MAX_NEGATIONS = 4
"""Maximum depth of schemas within ``not``."""
_MAX_DEPENDENCIES = 6
"""Maximum properties that demand others, per object."""
_UUID = "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_NAME_FORMATS = {name: written for name, written in {**FORMATS, "uuid": _UUID}.items() if written is not None}
"""Formats of names, and expressions for them."""


def respelled(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """``schema`` without the keywords of ``_SPELLINGS``; raises ``Respelling`` for one that cannot be enforced."""
    for keyword, spell in _SPELLINGS.items():
        if keyword in schema:
            try:
                schema = spell(schema, resolve)
            except KeywordError as error:
                raise Respelling(keyword, str(error)) from None
    return schema


class Respelling(KeywordError):
    """The value of ``keyword`` cannot be used."""

    def __init__(self, keyword: str, problem: str) -> None:
        super().__init__(problem)
        self.keyword = keyword


def _without(schema: Mapping[str, Any], *keywords: str) -> dict[str, Any]:
    return {keyword: value for keyword, value in schema.items() if keyword not in keywords}


def _nullable(schema: dict[str, Any], _: Resolve) -> dict[str, Any]:
    """OpenAPI 3.0's ``nullable``: null fits, too."""
    nullable, rest = schema["nullable"], _without(schema, "nullable")
    if not isinstance(nullable, bool):
        raise KeywordError("expected true or false")
    if not nullable:
        return rest
    if isinstance(rest.get("type"), str) and rest.keys().isdisjoint(
        ("enum", "const", "$ref", "allOf", "anyOf", "oneOf")
    ):
        return {**rest, "type": [rest["type"], "null"]}
    return {"anyOf": [_without(rest, "$schema", "$id"), {"type": "null"}]}


def _pattern_of_several(schema: dict[str, Any], _: Resolve) -> dict[str, Any]:
    """A pattern that begins with look-aheads demands several at once."""
    others = schema.get("allOf", [])
    if not isinstance(schema["pattern"], str) or not isinstance(others, list):
        return schema
    *ahead, last = conjuncts(schema["pattern"])
    return {**schema, "pattern": last, "allOf": [*others, *({"pattern": one} for one in ahead)]} if ahead else schema


def _exclusive(keyword: str, inclusive: str) -> Callable[[dict[str, Any], Resolve], dict[str, Any]]:
    """Draft 04's boolean, which makes the other bound exclusive."""

    def spell(schema: dict[str, Any], _: Resolve) -> dict[str, Any]:
        if not isinstance(schema[keyword], bool):
            return schema
        if not schema[keyword] or inclusive not in schema:
            return _without(schema, keyword)
        return {**_without(schema, inclusive), keyword: schema[inclusive]}

    return spell


def _items(schema: dict[str, Any], _: Resolve) -> dict[str, Any]:
    """Up to draft 2019-09, tuples were lists of items; ``additionalItems`` says something beside these alone."""
    items = schema.get("items")
    rest = _without(schema, "additionalItems")
    if not isinstance(items, list):
        return rest
    if "prefixItems" in schema:
        raise KeywordError("a list is not supported beside prefixItems: expected one of the two")
    rest = _without(rest, "items")
    if items:
        rest["prefixItems"] = items
    if "additionalItems" in schema:
        rest["items"] = schema["additionalItems"]
    return rest


def _property_names(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    names, rest = resolve(schema["propertyNames"]), _without(schema, "propertyNames")
    if isinstance(names, dict):
        kinds = without_annotations(names)
        if isinstance(name := kinds.get("format"), str) and name not in FORMATS:
            del kinds["format"]
        if kinds.get("type") == "string":
            del kinds["type"]
    elif names is True:
        kinds = {}
    else:
        raise KeywordError("expected an object or true")
    if not kinds:
        return rest
    if "patternProperties" in rest:
        raise KeywordError("not supported beside patternProperties: expected names that are any text")
    if kinds.keys() == {"enum"} or kinds.keys() == {"const"}:
        return _named(rest, kinds["enum"] if "enum" in kinds else [kinds["const"]])
    if rest.get("properties"):
        raise KeywordError("not supported beside properties: expected an enum of names, or names that are any text")
    others = rest.get("additionalProperties", True)
    return {**rest, "patternProperties": {_pattern(kinds): others}, "additionalProperties": False}


def _named(schema: dict[str, Any], names: Any) -> dict[str, Any]:
    """A record whose keys are listed: each is a property, in the order of the list."""
    if not isinstance(names, list) or not isinstance(schema.get("properties", {}), dict):
        raise KeywordError("expected an enum of names")
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    listed = dict.fromkeys(name for name in names if isinstance(name, str))
    properties = {name: value if name in listed else False for name, value in known.items()}
    properties |= {name: others for name in listed if name not in known}
    return {**schema, "properties": properties, "additionalProperties": False}


def _pattern(kinds: Mapping[str, Any]) -> str:
    """An expression of the names that a schema of texts accepts."""
    match kinds:
        case {"pattern": str(pattern)} if len(kinds) == 1:
            return pattern
        case {"format": str(name)} if len(kinds) == 1 and name in _NAME_FORMATS:
            return f"^(?:{_NAME_FORMATS[name]})$"
        case _ if kinds.keys() <= {"minLength", "maxLength"}:
            low, high = kinds.get("minLength", 0), kinds.get("maxLength", "")
            if isinstance(low, int) and isinstance(high, int | str):
                return f"^(?s:.{{{low},{high}}})$"
    raise KeywordError(
        "not supported: expected no limit on names, or one of enum, const, pattern, minLength, maxLength, and the "
        f"formats {', '.join(_NAME_FORMATS)}"
    )


def _unique_items(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """Arrays of distinct items are written out: all of them if they are few, else those in the schema's order."""
    rest = _without(schema, "uniqueItems")
    if not isinstance(schema["uniqueItems"], bool):
        raise KeywordError("expected true or false")
    if not schema["uniqueItems"] or schema.get("maxItems", 2) == 0 or schema.get("maxItems", 2) == 1:
        return rest
    values = None if "prefixItems" in schema else _finite(schema.get("items", True), resolve)
    if values is None or schema.get("type") != "array" or not schema.keys().isdisjoint(("enum", "const")):
        raise KeywordError(
            "not supported: expected items of an enum, const, boolean or null, maxItems of at most 1, or false; else "
            "leave it out, and drop what comes twice"
        )
    low, high = schema.get("minItems", 0), schema.get("maxItems", len(values))
    if not isinstance(low, int) or not isinstance(high, int) or low < 0:
        raise KeywordError("expected integers of at least 0 as minItems and maxItems")
    lengths = range(low, min(high, len(values)) + 1)
    for count, arrays in ((perm, permutations), (comb, combinations)):
        if len(values) <= _MAX_SET and sum(count(len(values), each) * (1 + each) for each in lengths) <= MAX_SET_VALUES:
            if not lengths:
                raise KeywordError(f"nothing can match it: fewer than {low} values are distinct")
            sequences = [list(items) for each in lengths for items in arrays(values, each)]
            return {**_without(rest, "type", "items", "minItems", "maxItems"), "enum": sequences}
    raise KeywordError(
        f"{len(values)} values make too many arrays: expected at most {MAX_SET_VALUES} values in them together, as of "
        "8 values, or a smaller maxItems"
    )


def _finite(schema: Any, resolve: Resolve) -> Sequence[Any] | None:
    """The values of a schema that lists them, each once; None if it does not."""
    schema = resolve(schema)
    if not isinstance(schema, dict):
        return None
    kinds = without_annotations(schema)
    kind = kinds.pop("type", None)
    if not kinds and kind in ("boolean", "null"):
        return [False, True] if kind == "boolean" else [None]
    if kinds.keys() == {"const"}:
        values = [kinds["const"]]
    elif kinds.keys() == {"enum"} and isinstance(kinds["enum"], list):
        values = kinds["enum"]
    else:
        return None
    if kind not in (None, "string", "integer") or not all(isinstance(value, str | int | None) for value in values):
        return None
    if kind is not None:
        values = [value for value in values if type(value) is (str if kind == "string" else int)]
    return list({(type(value), value): value for value in values}.values())


def _dependencies(keyword: str) -> Callable[[dict[str, Any], Resolve], dict[str, Any]]:
    """A property that demands others, or a schema: then the property is absent, or what it demands holds."""

    def spell(schema: dict[str, Any], _: Resolve) -> dict[str, Any]:
        demands, rest = schema[keyword], _without(schema, keyword)
        if not isinstance(demands, dict):
            raise KeywordError("expected an object")
        required = rest.get("required")
        known = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
        others: list[Any] = []
        for name, demanded in demands.items():
            if isinstance(demanded, list) and known.issuperset(map(str, demanded)):
                continue
            then = {"required": demanded} if isinstance(demanded, list) else demanded
            others.append(then if name in known else {"anyOf": [{"properties": {name: False}}, then]})
        if len(others) > _MAX_DEPENDENCIES:
            problem = f"has {len(others)} entries: expected at most {_MAX_DEPENDENCIES}, as each doubles the ways"
            raise KeywordError(problem)
        given = rest.get("allOf", [])
        return {**rest, "allOf": [*given, *others]} if others and isinstance(given, list) else rest

    return spell


def _not(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """What is excluded by its type, a bound or the presence of properties is said of what remains."""
    given, rest = schema.get("allOf", []), _without(schema, "not")
    negated = _negated(resolve(schema["not"]), 0)
    if negated is None or not isinstance(given, list):
        raise KeywordError(
            "not supported: expected type, required, minimum, maximum, a required property of these, or not, anyOf or "
            "allOf of these"
        )
    return {**rest, "allOf": [*given, negated]}


def _negated(schema: Any, depth: int) -> dict[str, Any] | bool | None:
    """A schema of all that ``schema`` does not accept; None if that cannot be said."""
    if not isinstance(schema, dict) or depth > _MAX_NEGATIONS:
        return not schema if isinstance(schema, bool) else None
    stated = without_annotations(schema)
    match stated:
        case {"not": dict() | bool() as negation, **others} if not others:
            return negation
        case {"minimum": int() | float() as bound, **others} if not isinstance(bound, bool):
            return _of_type("number", {"exclusiveMaximum": bound}, others)
        case {"maximum": int() | float() as bound, **others} if not isinstance(bound, bool):
            return _of_type("number", {"exclusiveMinimum": bound}, others)
        case {"properties": {**properties}, "required": [str(name)], **others} if properties.keys() == {name}:
            inner = _negated(properties[name], depth + 1)
            return None if inner is None else _of_type("object", {"properties": {name: inner}}, others)
        case {"type": str() | list() as kind, **others} if not others:
            kinds = {kind} if isinstance(kind, str) else set(map(str, kind))
            kinds |= {"integer"} if "number" in kinds else set()
            left = [each for each in TYPES if each not in kinds]
            if kinds <= set(TYPES) and not ("integer" in kinds and "number" in left):
                return {"type": left} if left else None
        case {"required": list() as names, **others} if names:
            return _of_type("object", {"anyOf": [{"properties": {str(name): False}} for name in names]}, others)
        case {"anyOf": list() as branches, **others} if not others:
            each = [_negated(branch, depth + 1) for branch in branches]
            return None if None in each else {"allOf": each}
        case {"allOf": list() as branches, **others} if not others:
            each = [_negated(branch, depth + 1) for branch in branches]
            return None if None in each else {"anyOf": each}
    return None if stated else False


def _of_type(kind: str, negated: dict[str, Any], others: dict[str, Any]) -> dict[str, Any] | None:
    """What does not fit a schema that restricts values of ``kind``, given what of these does not.

    ``others``: the schema's other keywords. Without a type, all values of other types fit it, so do not fit here.
    """
    if not others:
        return {"type": kind, **negated}
    if others != {"type": kind}:
        return None
    types = [each for each in TYPES if each not in (kind, "integer" if kind == "number" else "")]
    return {"anyOf": [{"type": types}, {"type": kind, **negated}]}


_SPELLINGS: Mapping[str, Callable[[dict[str, Any], Resolve], dict[str, Any]]] = {
    "uniqueItems": _unique_items,
    "items": _items,
    "additionalItems": _items,
    "exclusiveMinimum": _exclusive("exclusiveMinimum", "minimum"),
    "exclusiveMaximum": _exclusive("exclusiveMaximum", "maximum"),
    "propertyNames": _property_names,
    "not": _not,
    "dependencies": _dependencies("dependencies"),
    "dependentRequired": _dependencies("dependentRequired"),
    "dependentSchemas": _dependencies("dependentSchemas"),
    "pattern": _pattern_of_several,
    "nullable": _nullable,
}
