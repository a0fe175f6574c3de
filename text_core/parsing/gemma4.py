"""Calls as Gemma 4 writes them: ``<|tool_call>call:f{a:<|"|>x<|"|>,b:[1,2]}<tool_call|>``, with a token for quotes.

FunctionGemma has other tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_keywords import without_annotations
from text_core.grammar.json_schema import checked_schema
from text_core.grammar.lark import FREE_TEXT, literal
from text_core.parsing.argument_types import CONTAINERS, TEXT, JsonType
from text_core.parsing.format import ToolFormat
from text_core.parsing.gemma_scanner import GemmaScanner
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.nested_values import OF_ITEMS, OF_PROPERTIES, NestedValues, is_any
from text_core.parsing.parts import KnownTools, PartWriter
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for
from text_core.parsing.text_values import ValueEnd, text_expressions
from text_core.parsing.tool_grammar import Marker, ToolSpec, marked, name_class, own_names

_NAME = re.compile(r"[\w.-]+")
_BARE = re.compile(r"""[^\s\x00-\x1f,:{}\[\]<"'](?:[^\x00-\x1f,:{}\[\]<]{0,254}[^\s\x00-\x1f,:{}\[\]<])?""")
_OTHER = name_class(r",:{}\[\]<", first="\"'")
"""Names that a grammar allows of properties that a schema does not list."""


@dataclass(frozen=True, slots=True)
class GemmaForm:
    """The tokens of a format."""

    begin: str
    end: str
    quote: str
    """Before and behind a text."""

    @property
    def markers(self) -> tuple[str, ...]:
        return self.begin, self.end, self.quote

    def is_in(self, template: str) -> bool:
        """Whether a template writes calls in this format."""
        return self.begin in template and self.quote in template


class GemmaParser(JsonCallParser):
    """Content, and calls between markers."""

    def __init__(self, writer: PartWriter, tools: KnownTools, form: GemmaForm) -> None:
        self._form = form
        self._search = search_for(form.begin)
        super().__init__(writer, tools)

    def _read(self) -> Reading[None]:
        while (yield from self._read_until(self._search, self._send_content)) is not None:
            yield from self._read_run(SPACE)
            yield from self._read_one("call:")
            name = yield from self._read_run(_NAME, MAX_NAME)
            if not is_name(name) or not (yield from self._read_one("{")):
                self._release()
                continue
            self._begin_call(name)
            if not (yield from self._read_value(None, self._send_arguments, GemmaScanner(self._form.quote))):
                self._release()
                continue
            self._in_call = False
            yield from self._read_run(SPACE)
            yield from self._read_closing(self._form.end)
            yield from self._read_run(SPACE)
            self._drop()


def gemma_grammar(
    form: GemmaForm,
    tools: Sequence[ToolSpec],
    *,
    required: bool,
    single: bool,
    marker: Marker,
    format_name: str = "gemma4",
) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    rules = marked(marker(form.begin), required=required, single=single)
    end = ValueEnd(form.quote, marker(form.quote))
    calls = [
        f"{literal(f'call:{tool.name}' + '{')} arguments_{index} {literal('}')}" for index, tool in enumerate(tools)
    ]
    rules.append(f"call: ({' | '.join(calls)}) {marker(form.end)}")
    for index, tool in enumerate(tools):
        if tool.strict:
            rules += _Values(tool, index, end, format_name).rules()
        else:
            key = own_names(_OTHER, tool, lambda name: _BARE.fullmatch(name) is not None)
            rules.append(f'arguments_{index}: (any_{index} ("," any_{index})*)?')
            rules.append(f'any_{index}: /{key}/ ":" any_value')
    text = _quoted("any", end, [FREE_TEXT])
    return "\n".join(
        [
            *rules,
            'any_pairs: (any_pair ("," any_pair)*)?',
            f'any_pair: /{_OTHER}/ ":" any_value',
            f"any_value: {text[0]} | any_plain | {literal('{')} any_pairs {literal('}')} | any_list",
            'any_list: "[" (any_value ("," any_value)*)? "]"',
            f"any_plain: %json {checked_schema(json.dumps({'type': ['number', 'boolean', 'null']}))}",
            *text[1:],
        ]
    )


def _quoted(name: str, end: ValueEnd, texts: Sequence[str]) -> list[str]:
    """An expression for one of ``texts`` between quotes, and the rules that it refers to."""
    first, rest = end.terminals
    names = [f"{name.upper()}_TEXT_{number}" for number in range(len(texts))]
    rules = []
    for each, text in zip(names, texts, strict=True):
        rules += [f"{each}: {each}_V {first}", f"{each}_V: ({text}){end.excluded}"]
    return [f"({end.closing} ({' | '.join(names)}){rest})", *rules]


class _Values(NestedValues):
    """Makes the rules of one strict tool's arguments, sorted by name as templates show them."""

    def __init__(self, tool: ToolSpec, index: int, end: ValueEnd, format_name: str) -> None:
        super().__init__(tool, index, format_name)
        self._end = end

    def _ways(self, schema: Any, name: str) -> list[str]:
        if not isinstance(schema, Mapping) or is_any(schema):
            return ["any_value"]
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                self._check(schema, (keyword,))
                return [self._value(each) for each in schema[keyword]]
        if "allOf" in schema:
            return self._ways(self._only_one(schema), name)
        if "$ref" in schema:
            self._check(schema, ("$ref",))
            return [self._referred(schema["$ref"])]
        types, ways = self._reader.types(schema), []
        if JsonType.STRING in types:
            texts = text_expressions(schema, self._reader, self._end, self._field)
            way, *rules = _quoted(name, self._end, texts)
            ways.append(way)
            self._rules += rules
        if listed := [each for each in self._listed(schema) if not isinstance(each, str)]:
            return ways + [self._literal(each) for each in listed]
        if "enum" in schema or "const" in schema:
            return ways
        if JsonType.OBJECT in types:
            ways.append(f"{literal('{')} {self._pairs(schema)} {literal('}')}")
        if JsonType.ARRAY in types:
            ways.append(f'"[" {self._items(schema)} "]"')
        if plain := types - TEXT - CONTAINERS:
            own = without_annotations(schema)
            own = {key: value for key, value in own.items() if key not in (*OF_ITEMS, *OF_PROPERTIES)}
            own |= {"type": sorted(each.name.lower() for each in plain)}
            self._rules.append(f"{name}_plain: %json {checked_schema(json.dumps(own), field=self._field)}")
            ways.append(f"{name}_plain")
        return ways

    def _pairs(self, schema: Mapping[str, Any]) -> str:
        properties, required, others = self._properties(schema)
        if not properties and (others is False or is_any(others)):
            return '""' if others is False else "any_pairs"
        name, count = self._new(), len(properties)
        for number, (key, own) in enumerate(sorted(properties.items(), key=lambda each: each[0].lower())):
            if _BARE.fullmatch(key) is None:
                raise ConstraintError(self._field, f"{key!r}: expected a name without , : < brackets and line breaks")
            pair = f"{literal(key + ':')} {self._value(own)} {name}_more_{number + 1}"
            first, more = f"{name}_first_{number}: {pair}", f'{name}_more_{number}: "," {pair}'
            if key not in required:
                first += f" | {name}_first_{number + 1}"
                more += f" | {name}_more_{number + 1}"
            self._rules += [first, more]
        first, more = f"{name}_first_{count}: ", f"{name}_more_{count}: "
        if others is not False:
            key, value = self._other(_OTHER, properties, others)
            self._rules.append(f'{name}_other: {key} ":" {value}')
            first, more = f'{first}({name}_other ("," {name}_other)*)?', f'{more}("," {name}_other)*'
        self._rules += [first, more]
        return f"{name}_first_0"

    def _items(self, schema: Mapping[str, Any]) -> str:
        self._check(schema, ("type", "nullable", *OF_PROPERTIES, *OF_ITEMS))
        item = self._value(schema.get("items", True))
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        if high == 0:
            return '""'
        most = "" if high is None else str(int(high) - 1)
        several = f'{item} ("," {item}){{{max(low - 1, 0)},{most}}}'
        return several if low else f"({several})?"

    def _literal(self, value: Any) -> str:
        """An expression for exactly ``value``, which is no text."""
        self._no_nested(value)
        return literal(json.dumps(value))


FORM = GemmaForm("<|tool_call>", "<tool_call|>", '<|"|>')
TOOL_FORMAT = ToolFormat(partial(GemmaParser, form=FORM), FORM.markers, FORM.is_in, partial(gemma_grammar, FORM))
