"""The JSON types of tools' arguments, where formats write values as text and ``5`` may be a number or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from text_core.grammar.json_keywords import without_annotations
from text_core.parsing.json_scanner import JsonScanner
from text_core.parsing.python_scanner import LiteralScanner


class JsonType(IntEnum):
    """The types of JSON Schema; numbers are those of ``ringline.types.v1.JsonType``."""

    STRING = 1
    NUMBER = 2
    INTEGER = 3
    BOOLEAN = 4
    OBJECT = 5
    ARRAY = 6
    NULL = 7


Types = frozenset[JsonType]

ALL: Types = frozenset(JsonType)
TEXT: Types = frozenset({JsonType.STRING})
CONTAINERS: Types = frozenset({JsonType.OBJECT, JsonType.ARRAY})
ITEM = "item"
"""The name of what a list has."""
_NAMES = {each.name.lower(): each for each in JsonType}
_BEGINNINGS = {"{": JsonType.OBJECT, "[": JsonType.ARRAY, "t": JsonType.BOOLEAN, "f": JsonType.BOOLEAN}
_BEGINNINGS |= {"n": JsonType.NULL, '"': JsonType.STRING}
_MAX_SCHEMAS = 1_000
"""Schemas of one tool that are read, each as often as it is referred to; the rest may be of any type."""
_MAX_DEPTH = 32
"""Maximum depth of schemas that are read."""


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """The types of one argument."""

    name: str
    """Empty: every argument that the tool does not describe. Of a value within an argument: the names that lead to it,
    with line breaks between them; ``item`` for what a list has, and an empty last name for all that is not described.
    """
    types: Types
    tools: tuple[str, ...] = ()
    """Names of the tools that have it; empty: all."""


class ArgumentTypes:
    """The types by tool and argument; an argument that is not listed is text."""

    def __init__(self, listed: Iterable[ArgumentType] = ()) -> None:
        self._types = {(tool, each.name): each.types for each in listed for tool in each.tools or ("",)}

    def of(self, tool: str, name: str) -> Types:
        for key in ((tool, name), ("", name), (tool, ""), ("", "")):
            if (types := self._types.get(key)) is not None:
                return types
        return TEXT

    def names_of(self, tool: str) -> tuple[str, ...]:
        """Names of a tool's arguments that are listed for it."""
        return tuple(name for each, name in self._types if each == tool and name and "\n" not in name)

    def within(self, tool: str, path: Sequence[str]) -> Types:
        """The types of a value by the names that lead to it, an argument's first."""
        if (types := self._listed(tool, path)) is not None:
            return types
        at: tuple[str, ...] = ()
        types = TEXT
        for name in path:
            for each in (name, ""):
                found = self._listed(tool, (*at, each))
                if found is not None:
                    at, types = (*at, each), found
                    break
            else:
                return ALL if at[-1:] == ("",) else TEXT  # what a described value has is text
        return types

    def _listed(self, tool: str, path: Sequence[str]) -> Types | None:
        name = "\n".join(path)
        found = self._types.get((tool, name))
        return self._types.get(("", name)) if found is None else found


def listed_types(
    tools: Mapping[str, Mapping[str, Any]], depth: int | None = None, *, by_tool: bool = False
) -> list[ArgumentType]:
    """The types of all arguments that are not just text, from each tool's JSON Schema by its name.

    A name that means the same in all tools that allow it is listed once. ``depth``: how far values within arguments are
    listed, too; those deeper may be of any type. None: they are not listed. ``by_tool``: list all arguments, with the
    tools that have them.
    """
    described: defaultdict[str, defaultdict[Types, list[str]]] = defaultdict(lambda: defaultdict(list))
    for tool, schema in tools.items():
        for name, types in _described(schema, depth):
            described[name][types].append(tool)
    listed = []
    for name, by_types in list(described.items()):
        beside = described[name[: name.rfind("\n") + 1]]  # what is not described there
        open_tools = {tool for names in beside.values() for tool in names}
        for types, names in by_types.items():
            in_others = "" in name.split("\n")[:-1]  # where what is not listed may be of any type
            if by_tool or types != TEXT or in_others or not open_tools.isdisjoint(names):
                for_all = (
                    bool(name) and not by_tool and not in_others and len(by_types) == 1 and open_tools.issubset(names)
                )
                listed.append(ArgumentType(name, types, () if for_all else tuple(names)))
    return listed


def _described(schema: Mapping[str, Any], depth: int | None) -> Iterator[tuple[str, Types]]:
    """The arguments of a tool and their types, with what others may have under the empty name."""
    reader = TypeReader(schema)
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    for name, own in properties.items():
        yield name, (types := reader.types(own))
        if depth is not None and types & CONTAINERS:
            yield from _within(reader, name, [own], depth)
    others = schema.get("additionalProperties", not properties)
    if others is not False and (types := reader.types(others)) != TEXT:
        yield "", types
        if depth is not None and types & CONTAINERS and _restricts(others):
            yield from _within(reader, "", [others], depth)


def _within(reader: TypeReader, path: str, schemas: Sequence[Any], depth: int) -> Iterator[tuple[str, Types]]:
    """The values within the one at ``path``, which one of ``schemas`` allows, and their types."""
    if not depth:
        yield f"{path}\n", ALL
        return
    members: defaultdict[str, list[Any]] = defaultdict(list)
    for schema in schemas:
        for name, own in reader.members(schema):
            members[name].append(own)
    for name, each in members.items():
        types = frozenset[JsonType]().union(*map(reader.types, each))
        if name or types != TEXT or "" in path.split("\n"):
            yield f"{path}\n{name}", types
        if types & CONTAINERS and (name or any(map(_restricts, each))):
            yield from _within(reader, f"{path}\n{name}", each, depth - 1)


def _restricts(schema: Any) -> bool:
    return isinstance(schema, Mapping) and bool(without_annotations(schema))


class TypeReader:
    """Finds the types that a schema allows, within the bounds of one tool."""

    def __init__(self, root: Any) -> None:
        """``root``: the schema in which references are looked up."""
        self._root = root
        self._left = _MAX_SCHEMAS

    def types(self, schema: Any, depth: int = 0) -> Types:
        """Types that ``schema`` may allow; all, if it says nothing of them."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH or not isinstance(schema, Mapping):
            return ALL
        found = ALL
        if "const" in schema:
            found &= {type_of(schema["const"])}
        if isinstance(values := schema.get("enum"), list):
            found &= {type_of(each) for each in values[:_MAX_SCHEMAS]}
        if (named := schema.get("type")) is not None:
            names = named if isinstance(named, list) else [named]
            allowed = {_NAMES[each] for each in names if isinstance(each, str) and each in _NAMES}
            if schema.get("nullable") is True:
                allowed.add(JsonType.NULL)
            found &= _with_integers(allowed) if allowed else ALL
        if isinstance(reference := schema.get("$ref"), str):
            found &= self.types(self.target(reference), depth + 1)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(branches := schema.get(keyword), list) and branches:
                each = [self.types(branch, depth + 1) for branch in branches[:_MAX_SCHEMAS]]
                found = found.intersection(*each) if keyword == "allOf" else found & each[0].union(*each)
        return found or ALL

    def members(self, schema: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Schemas of what an object or list has: of an object by name, of others in it under the empty name."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH or not isinstance(schema, Mapping):
            yield from (("", True), (ITEM, True))
            return
        deeper = [schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)]
        branches = [each for branches in deeper for each in branches[:_MAX_SCHEMAS]]
        if isinstance(reference := schema.get("$ref"), str):
            branches.append(self.target(reference))
        types = frozenset[JsonType]() if branches else self.types(schema)
        properties = schema.get("properties")
        if isinstance(properties, Mapping) or JsonType.OBJECT in types:
            properties = properties if isinstance(properties, Mapping) else {}
            yield from properties.items()
            if (others := schema.get("additionalProperties", not properties)) is not False:
                yield "", others
        if "items" in schema or "prefixItems" in schema or JsonType.ARRAY in types:
            first = schema.get("prefixItems")
            for each in (*(first if isinstance(first, list) else ())[:_MAX_SCHEMAS], schema.get("items", not first)):
                if each is not False:
                    yield ITEM, each
        for branch in branches:
            yield from self.members(branch, depth + 1)

    def target(self, reference: str) -> Any:
        """The schema at ``#/…``; None if there is none."""
        found = self._root
        for token in reference.removeprefix("#").split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return None
            found = found[key]
        return found


def _with_integers(types: set[JsonType]) -> Types:
    return frozenset(types | {JsonType.INTEGER} if JsonType.NUMBER in types else types)


def type_of(value: Any) -> JsonType:
    """The type of a JSON value."""
    match value:
        case str():
            return JsonType.STRING
        case bool():
            return JsonType.BOOLEAN
        case int():
            return JsonType.INTEGER
        case float():
            return JsonType.NUMBER
        case None:
            return JsonType.NULL
        case list():
            return JsonType.ARRAY
    return JsonType.OBJECT


def json_of(text: str, types: Types) -> str | None:
    """The JSON that ``text`` stands for as an argument of ``types``; None if it is just text.

    Where text is allowed, only JSON of another allowed type is more than that; elsewhere Python's literals, which some
    templates print, are read, too.
    """
    stripped = text.strip()
    scanned = _scanned(JsonScanner(repairs_escapes=False), stripped)
    if JsonType.STRING in types:
        return scanned if scanned is not None and _written_type(scanned) & (types - TEXT) else None
    return scanned or _scanned(LiteralScanner(), stripped) or _scanned(JsonScanner(), stripped)


def _written_type(text: str) -> Types:
    if (found := _BEGINNINGS.get(text[0])) is not None:
        return frozenset({found})
    is_whole = not set(".eE") & set(text)
    return frozenset({JsonType.NUMBER, JsonType.INTEGER} if is_whole else {JsonType.NUMBER})


def _scanned(scanner: JsonScanner | LiteralScanner, text: str) -> str | None:
    """What ``scanner`` makes of ``text``, if it is one value."""
    end, scanned = scanner.feed(text + " ", 0)
    return scanned.strip() if text and scanner.done and end >= len(text) else None
