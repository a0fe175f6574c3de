"""Grammar rules for a value that is written as text, up to the tag that ends it.

``argument_types.json_of`` reads the same value back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_formats import FORMATS
from text_core.grammar.json_schema import checked_schema
from text_core.grammar.lark import FREE_TEXT, leading_terminal, literal
from text_core.grammar.regex import RegexError, search, whole_match
from text_core.parsing.argument_types import TEXT, JsonType, TypeReader, Types
from text_core.parsing.tool_grammar import regex_text

_MAX_HOPS = 32
"""Maximum chained references and nested alternatives that are followed to a text."""
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HEX = "[0-9a-fA-F]"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IN_PATH = f"([A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_EXPRESSIONS: Mapping[str, str] = {
    "duration": "P([0-9]{1,6}D)?(T[0-9]{1,6}[HMS])|P[0-9]{1,6}[YMWD]",
    "email": rf"[A-Za-z0-9_+-]{{1,30}}(\.[A-Za-z0-9_+-]{{1,30}}){{0,3}}@{_LABEL}(\.{_LABEL}){{1,3}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,6}}",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": f"({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}|({_HEX}{{1,4}}:){{1,6}}:{_HEX}{{1,4}}|::{_HEX}{{1,4}}",
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": rf"[a-z][a-z0-9+.-]{{1,15}}:\/\/{_LABEL}(\.{_LABEL}){{0,6}}(:[0-9]{{1,5}})?(\/{_IN_PATH}*)*"
    rf"(\?({_IN_PATH}|[\/?])*)?(#({_IN_PATH}|[\/?])*)?",
}
"""Texts of the formats for which ``FORMATS`` has no expression; fewer than the formats allow."""
_LOOKS: Mapping[JsonType, str] = {
    JsonType.NUMBER: r"\s*-?[0-9](?s:.*)",
    JsonType.INTEGER: r"\s*-?[0-9](?s:.*)",
    JsonType.OBJECT: r"\s*\{(?s:.*)",
    JsonType.ARRAY: r"\s*\[(?s:.*)",
}
"""Texts that may be read as JSON of a type, where it is allowed beside text."""
_WORDS: Mapping[JsonType, str] = {JsonType.BOOLEAN: "(true|false)", JsonType.NULL: "null"}
_OF_TEXTS = ("minLength", "maxLength", "pattern", "format")
_BRANCHES = ("anyOf", "oneOf")
_MORE_THAN_TYPES = frozenset({"enum", "const", "$ref", "allOf", *_BRANCHES, "not", "if"})
"""Keywords that may exclude a value whose type is allowed."""


@dataclass(frozen=True, slots=True)
class ValueEnd:
    """What ends a value."""

    text: str
    """The tag, which no value contains."""
    closing: str
    """Its grammar expression, with a line break before it if one does not belong to the value."""
    forbidden: str = ""
    """A class of characters that no text has; empty: it may have all."""

    @property
    def terminals(self) -> tuple[str, str]:
        """The beginning that is one terminal with the value, and the rest."""
        first, rest = leading_terminal(self.closing)
        return ("", self.closing) if first.startswith("<") else (first, rest)

    @property
    def excluded(self) -> str:
        """An expression for the texts that a value cannot be; empty if that goes without saying."""
        forbidden = [regex_text(self.text)] if self.terminals[1].strip() == "" else []
        forbidden += [self.forbidden] if self.forbidden else []
        return "".join(f" & ~/(?s:.*){each}(?s:.*)/" for each in forbidden)


def free_value(name: str, end: ValueEnd) -> list[str]:
    """A rule ``name`` for any text as a value, with its end."""
    return _text_rules(name, [FREE_TEXT], end)


def value_rules(
    name: str, schema: Any, end: ValueEnd, field: str, written: Types | None = None, *, python: bool = False
) -> list[str]:
    """A rule ``name`` for a value that ``schema`` allows, with its end; none if there is no such value.

    ``written``: the types that may be written so; None: all, if they can be told apart. ``python``: ``True``, ``False``
    and ``None`` may stand for JSON's words where no text is allowed. Raises ``ConstraintError`` with ``field``.
    """
    reader = TypeReader(schema)
    types = reader.types(schema)
    if written is not None:
        types &= written
    others = types - TEXT
    if not types:
        return []
    if types == others and written is None:
        words = [f"{name}_json", *(words_of_python(schema, types) if python else ())]
        return [f"{name}: ({' | '.join(words)}) {end.closing}", f"{name}_json: %json {_json(schema, field)}"]
    texts = []
    if types != others:
        others_look = dict.fromkeys(_look(each, end) for each in sorted(others)) if written is None else ()
        excluded = "".join(f" & ~/{look}/" for look in others_look)
        texts = [f"({text}){excluded}" for text in text_expressions(schema, reader, end, field)]
    if not others:
        return _text_rules(name, texts, end)
    names = [each.name.lower() for each in sorted(others)]
    narrowed = {**_definitions(schema), "allOf": [_unrooted(schema)], "type": names}
    return [
        f"{name}: {f'{name}_text | ' if texts else ''}{name}_json {end.closing}",
        f"{name}_json: %json {_json(narrowed, field)}",
        *(_text_rules(f"{name}_text", texts, end) if texts else ()),
    ]


def words_of_python(schema: Any, types: Types) -> list[str]:
    """Literals of Python's words that ``schema`` allows; none if it says more than types."""
    if not isinstance(schema, Mapping) or not _MORE_THAN_TYPES.isdisjoint(schema):
        return []
    words = ["True", "False"] if JsonType.BOOLEAN in types else []
    return [literal(word) for word in (*words, *(["None"] if JsonType.NULL in types else []))]


def _look(type_: JsonType, end: ValueEnd) -> str:
    """An expression for the texts that may be read as JSON of a type.

    With the text of ``end``, a text is one terminal. It would be taken for the longer one where a word has ended, if a
    text could begin with the word and the first character of ``end``.
    """
    if (word := _WORDS.get(type_)) is None:
        return _LOOKS[type_]
    first, _ = end.terminals
    return rf"\s*{word}(\s*" + (f"|{regex_text(json.loads(first)[0])}(?s:.*))" if first else ")")


def text_expressions(schema: Any, reader: TypeReader, end: ValueEnd, field: str) -> list[str]:
    """Definitions of terminals for the texts that ``schema`` allows. Raises ``ConstraintError`` with ``field``."""
    return _Texts(reader, end, field).expressions(schema, 0)


def _text_rules(name: str, texts: list[str], end: ValueEnd) -> list[str]:
    first, rest = end.terminals
    rules = [f"{name}: ({' | '.join(f'{name.upper()}_{number}' for number in range(len(texts)))}){rest}"]
    for number, text in enumerate(texts):
        terminal = f"{name.upper()}_{number}"
        rules += [f"{terminal}: {terminal}_V {first}", f"{terminal}_V: {text}{end.excluded}"]
    return rules


class _Texts:
    """Finds the texts that a schema allows."""

    def __init__(self, reader: TypeReader, end: ValueEnd, field: str) -> None:
        self._reader = reader
        self._end = end
        self._field = field

    def expressions(self, schema: Any, depth: int) -> list[str]:
        """Definitions of terminals, one of which matches."""
        if not isinstance(schema, Mapping):
            return [FREE_TEXT]
        if depth > _MAX_HOPS:
            raise self._unsupported("references and alternatives", "so deep")
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if listed is not None:
            return [" | ".join(self._literal(each) for each in listed if isinstance(each, str))]
        deeper = [key for key in ("$ref", "allOf", *_BRANCHES) if key in schema]
        own = [key for key in _OF_TEXTS if key in schema]
        if len(deeper) > 1 or (deeper and own):
            raise self._unsupported(deeper[0], f"beside {(deeper[1:] + own)[0]}")
        if not deeper:
            return [" & ".join([FREE_TEXT, *(f"/{self._constraint(key, schema)}/" for key in own)])]
        if deeper == ["$ref"]:
            return self.expressions(self._reader.target(schema["$ref"]), depth + 1)
        branches = schema[deeper[0]]
        if deeper == ["allOf"] and len(branches) > 1:
            raise self._unsupported("allOf", "with several schemas")
        with_text = [each for each in branches if JsonType.STRING in self._reader.types(each)]
        return [one for each in with_text for one in self.expressions(each, depth + 1)]

    def _literal(self, text: str) -> str:
        if self._end.text in text:
            raise ConstraintError(self._field, f"{text[:80]!r} contains {self._end.text}, which ends a value")
        return literal(text)

    def _constraint(self, keyword: str, schema: Mapping[str, Any]) -> str:
        value = schema[keyword]
        match keyword:
            case "minLength":
                return f"(?s:.{{{int(value)},}})"
            case "maxLength":
                return f"(?s:.{{0,{int(value)}}})"
            case "pattern":
                try:
                    return search(value)
                except RegexError as error:
                    raise ConstraintError(self._field, f"pattern: {error}") from None
        if (expression := FORMATS.get(value)) is not None:
            return f"(?:{whole_match(expression)})"
        return _EXPRESSIONS.get(value) or FREE_TEXT.strip("/")

    def _unsupported(self, what: str, where: str) -> ConstraintError:
        return ConstraintError(self._field, f"{what}: not supported {where} for an argument that is written as text")


def _json(schema: Any, field: str) -> str:
    return checked_schema(json.dumps(schema), field=field)


def _definitions(schema: Any) -> dict[str, Any]:
    return {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, Mapping) and key in schema}


def _unrooted(schema: Any) -> Any:
    """``schema`` without its definitions."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
