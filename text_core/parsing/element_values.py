"""Grammar rules for arguments that are elements: text, or elements for what an object or list has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.lark import literal
from text_core.parsing.argument_types import CONTAINERS, ITEM, JsonType
from text_core.parsing.nested_values import OF_ITEMS, OF_PROPERTIES, NestedValues, is_any
from text_core.parsing.text_values import ValueEnd, free_value, value_rules
from text_core.parsing.tool_grammar import Marker, ToolSpec, name_class, own_names

_NAME = re.compile(r"[^\s\x00-\x1f<>/](?:[^\x00-\x1f<>]{0,254}[^\s\x00-\x1f<>])?")
_OTHER = name_class("<>", first=r"\/")
"""Names that a grammar allows of elements that a schema does not list."""
_BRANCHES = ("anyOf", "oneOf")


def free_arguments(tool: ToolSpec, index: int, token: str, marker: Marker) -> list[str]:
    """A rule ``arguments_<index>`` for any arguments of a tool. ``token`` stands before every tag."""
    key = own_names(_OTHER, tool, lambda name: _NAME.fullmatch(name) is not None)
    tag = f'/{key}/ ">"'
    return [f"arguments_{index}: any_{index}*", f"any_{index}: {marker(f'{token}<')} {tag} any_value {tag}"]


def free_elements(token: str, marker: Marker) -> list[str]:
    """A rule ``any_elements`` for anything that an object or list may have."""
    return [
        "any_elements: any_element*",
        f"any_element: {marker(f'{token}<')} any_name any_value any_name",
        f'any_name: /{_OTHER}/ ">"',
        f"any_value: any_text | any_element+ {marker(f'{token}</')}",
        *free_value("any_text", _end(token, marker)),
    ]


class ElementValues(NestedValues):
    """Makes the rules of one strict tool's arguments. The rule of a value includes what begins the closing tag."""

    def __init__(self, tool: ToolSpec, index: int, token: str, marker: Marker, format_name: str) -> None:
        super().__init__(tool, index, format_name)
        self._begin = marker(f"{token}<")
        self._end = _end(token, marker)
        self._definitions = {key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema}

    def _ways(self, schema: Any, name: str) -> list[str]:
        if not isinstance(schema, Mapping) or is_any(schema):
            return ["any_value"]
        types = self._reader.types(schema)
        if not types & CONTAINERS:
            return self._leaf(schema, name)
        for keyword in _BRANCHES:
            if keyword in schema:
                self._check(schema, (keyword,))
                return self._branches(schema[keyword], name)
        if "allOf" in schema:
            return self._ways(self._only_one(schema), name)
        if "$ref" in schema:
            self._check(schema, ("$ref",))
            return [self._referred(schema["$ref"])]
        for each in self._listed(schema):
            self._no_nested(each)
        ways = []
        if others := types - CONTAINERS:
            of_others = {key: value for key, value in schema.items() if key not in (*OF_PROPERTIES, *OF_ITEMS)}
            ways = self._leaf(of_others | {"type": sorted(each.name.lower() for each in others)}, name)
        own = {key: value for key, value in schema.items() if key in ("type", *OF_PROPERTIES, *OF_ITEMS)}
        own = own if others else dict(schema)  # what else there is may be of the others
        if JsonType.OBJECT in types:
            ways.append(f"{self._pairs(own)} {self._end.closing}")
        if JsonType.ARRAY in types:
            ways.append(f"{self._items(own)} {self._end.closing}")
        return ways

    def _branches(self, branches: list[Any], name: str) -> list[str]:
        """Those without objects and lists are one, as a text must not look like another's value."""
        plain = [each for each in branches if not self._reader.types(each) & CONTAINERS]
        ways = [self._value(each) for each in branches if each not in plain]
        return ways + (self._leaf({"anyOf": plain}, name) if plain else [])

    def _leaf(self, schema: Mapping[str, Any], name: str) -> list[str]:
        """A value that is text, or JSON but neither an object nor a list."""
        rules = value_rules(f"{name}_leaf", {**schema, **self._definitions}, self._end, self._field)
        self._rules += rules
        return [f"{name}_leaf"] if rules else []

    def _pairs(self, schema: Mapping[str, Any]) -> str:
        properties, required, others = self._properties(schema)
        if not properties and is_any(others):
            return "any_elements"
        pairs = []
        for key, own in properties.items():
            if _NAME.fullmatch(key) is None:
                raise ConstraintError(self._field, f"{key!r}: expected a name without <, > and line breaks")
            pairs.append(f"({self._element(key, own)})" + ("" if key in required else "?"))
        if others is not False:
            key, value = self._other(_OTHER, (*properties, ITEM), others)  # what begins with an item may be a list
            tag = f"{key} {literal('>')}"
            pairs.append(f"({self._begin} {tag} {value} {tag})*")
        return " ".join(pairs) or '""'

    def _items(self, schema: Mapping[str, Any]) -> str:
        self._check(schema, ("type", "nullable", *OF_PROPERTIES, *OF_ITEMS))
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        if high == 0:
            return '""'
        return f"({self._element(ITEM, schema.get('items', True))}){{{low},{'' if high is None else int(high)}}}"

    def _element(self, name: str, schema: Any) -> str:
        tag = literal(f"{name}>")
        return f"{self._begin} {tag} {self._value(schema)} {tag}"


def _end(token: str, marker: Marker) -> ValueEnd:
    return ValueEnd(token, marker(f"{token}</"))
