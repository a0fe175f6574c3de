"""Calls whose arguments stand between tags, each value as text: the parser of all such formats, and their grammar.

Values that may be numbers, objects and the like become JSON by the tool's schema (``argument_types``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from typing import Any

from text_core.grammar.lark import literal
from text_core.parsing.argument_types import TEXT, ArgumentTypes, JsonType, Types, json_of
from text_core.parsing.described_arguments import described_arguments
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.json_scanner import JsonScanner
from text_core.parsing.marks import mark, marker_text
from text_core.parsing.parts import KnownTools, PartWriter
from text_core.parsing.python_scanner import LiteralScanner
from text_core.parsing.text_parser import MAX_HELD, MAX_NAME, Reading, search_for_texts
from text_core.parsing.text_values import ValueEnd, free_value, value_rules
from text_core.parsing.tool_grammar import Marker, ToolSpec, marked, name_class, other_name, own_names
from text_core.parsing.value_ends import LeftOut, value_ends

_LINE = r'"\n"?'
_NUMBER = re.compile("[0-9]+")
_CDATA, _END_CDATA = "<![CDATA[", "]]>"
_RUNS = re.compile("[\ud800-\udfff]|[^\ud800-\udfff]+")
"""Marks, and text between them."""


@dataclass(frozen=True)
class Tags:
    """The texts around calls, names, keys and values."""

    begin: tuple[str, ...]
    """What begins one or more calls, by model."""
    end: tuple[str, ...]
    """What ends them, in the same order."""
    name: tuple[str, str]
    """Around a tool's name; empty texts where ``begin`` and the next tag are."""
    call_end: str
    """Empty: ``end`` ends the call, too."""
    key: tuple[str, str]
    """Around an argument's name."""
    value: tuple[tuple[str, Types | None], ...]
    """What begins a value, and the types of what it begins; None: those of the schema."""
    value_end: str
    markers: tuple[str, ...]
    """Texts, or parts of them, that may be special tokens."""
    in_lines: bool = False
    """Whether a line break at either end of a value is not of the value."""
    several: bool = False
    """Whether further calls stand within the same ``begin`` and ``end``."""
    before: str = ""
    """What may come before ``begin``, and is not of the answer."""
    number: tuple[str, str] = ("", "")
    """Around a call's number, behind its name; empty: it has none."""
    python: bool = False
    """Whether templates write ``True``, ``False`` and ``None``."""
    may_lack_begin: bool = False
    """Whether models leave out ``begin``: then a known name begins a call, if an argument or the call's end follows."""
    may_lack_value_end: bool = False
    """Whether models leave out ``value_end``: then what must follow it ends a value, at the beginning of a line."""
    may_garble_keys: bool = False
    """Whether models double the tags of keys, and leave out what begins a value."""
    cdata: bool = False
    """Whether a text may stand in CDATA; one with ``<``, ``&`` or line breaks must."""

    def spelled(self, *texts: str) -> list[str]:
        """``texts`` with marks in place of none, some and all of their markers: any may be a special token."""
        spelled = list(texts)
        for marker in self.markers:
            spelled += [text.replace(marker, mark(marker)) for text in spelled if marker in text]
        return spelled

    @cached_property
    def begins(self) -> re.Pattern[str]:
        """Finds a ``begin``."""
        return search_for_texts(
            self.spelled(*self.begin, *(self.before + begin for begin in self.begin if self.before))
        )

    @cached_property
    def begins_or_names(self) -> re.Pattern[str]:
        """Finds a ``begin``, or what stands before a name."""
        return search_for_texts(self.spelled(*self.begin, self.name[0]))

    @cached_property
    def value_ends(self) -> re.Pattern[str]:
        """Finds ``value_end``, with the line break before it that is not of the value."""
        return search_for_texts(self.spelled(self.value_end), before=r"\n" if self.in_lines else "", most=1)

    @cached_property
    def others(self) -> list[str]:
        """All tags but those around names and behind values."""
        tags = (*self.key, *(text for text, _ in self.value), *self.begin, self.call_end, *self.end)
        return self.spelled(*filter(None, tags))

    @cached_property
    def names(self) -> re.Pattern[str]:
        """Matches characters of a tool's name."""
        return re.compile('[^\\s<>"\ud800-\udfff]+')

    @cached_property
    def keys(self) -> re.Pattern[str]:
        """Matches characters of an argument's name."""
        return re.compile(f"[^\\n{re.escape(self.key[1][0])}\ud800-\udfff]+")


@lru_cache(64)
def _ends_of_values(
    tags: Tags, *, in_cdata: bool, may_be_text: bool, keys: tuple[str, ...] | None, is_begun: bool
) -> re.Pattern[str]:
    """See ``value_ends``.

    ``may_be_text``: whether a value may spell ``value_end``. ``keys``: the known arguments of the tool, if what ends a
    value may be left out; None: it may not. ``is_begun``: whether there was what begins the value; one without it has
    no other tags.
    """
    left_out = None
    if keys is not None:
        before, behind = map(tags.spelled, tags.key)
        known = [key for key in keys if len(key) <= MAX_NAME]
        left_out = LeftOut(before, known, behind, *map(tags.spelled, (tags.call_end, tags.end[0], tags.begin[0])))
    following = (tags.key[0], tags.call_end, *tags.end, *tags.begin, tags.name[0])  # even of a call without an end
    return value_ends(
        tags.spelled(_END_CDATA + tags.value_end if in_cdata else tags.value_end),
        tags.spelled(*filter(None, following)) if may_be_text else (),
        in_lines=tags.in_lines and not in_cdata,
        left_out=left_out,
        breaking=() if is_begun else tags.others,
    )


class TaggedCallParser(JsonCallParser):
    """Content, and calls between tags."""

    def __init__(self, writer: PartWriter, tools: KnownTools, tags: Tags) -> None:
        self._tags = tags
        self._types: ArgumentTypes = tools.types
        self._value: TextValue | None = None
        """The value that is being read, unless it is sent as it comes."""
        super().__init__(writer, tools)

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + (0 if self._value is None else self._value.num_held)

    def _read(self) -> Reading[None]:
        knows = self._tags.may_lack_begin and self._tool_names
        begins = self._tags.begins_or_names if knows else self._tags.begins
        while (begun := (yield from self._read_until(begins, self._send_content))) is not None:
            yield from self._read_run(SPACE)
            if not (yield from self._read_tagged_call(lacks_begin=begun == self._tags.name[0])):
                self._release()
                continue
            yield from self._read_run(SPACE)
            while self._tags.several and (yield from self._follows(*self._tags.spelled(self._tags.name[0]))):
                if not (yield from self._read_tagged_call()):
                    break
                yield from self._read_run(SPACE)
            if self._in_call:  # a later call broke off
                self._release()
                continue
            yield from self._read_closing_of(*self._tags.end)
            yield from self._read_run(SPACE)
            self._drop()

    def _read_tagged_call(self, *, lacks_begin: bool = False) -> Reading[bool]:
        """Read a call; ``lacks_begin``: from its name on, and it is none unless the name is a known tool's."""
        tags = self._tags
        if not lacks_begin and not (yield from self._read_tag(tags.name[0])):
            return False
        name = yield from self._read_run(tags.names, MAX_NAME)
        is_known = name in self._tool_names if lacks_begin else is_name(name)
        if not is_known or not (yield from self._read_tag(tags.name[1])):
            return False
        if tags.number[0]:
            if not (yield from self._read_tag(tags.number[0])):
                return False
            yield from self._read_run(_NUMBER, MAX_NAME)
            if not (yield from self._read_tag(tags.number[1])):
                return False
        if lacks_begin or not tags.name[1]:
            yield from self._read_run(SPACE)
            ends = (tags.call_end,) if lacks_begin else tags.end
            if not (yield from self._follows(*tags.spelled(tags.key[0], *ends))):
                return False
        self._begin_call(name)
        self._writer.arguments("{")
        is_first = True
        while True:
            yield from self._read_run(SPACE)
            if (yield from self._call_has_ended()):  # first, as a key's tag may be its beginning
                break
            if not (yield from self._read_tag(tags.key[0])):
                yield from self._read_closing_of(tags.key[0], tags.call_end or tags.end[0])
                return False
            if not (yield from self._read_argument(name, "" if is_first else ", ")):
                return False
            is_first = False
        self._writer.arguments("}")
        self._in_call = False
        self._drop()
        return True

    def _call_has_ended(self) -> Reading[bool]:
        tags = self._tags
        if tags.call_end and (yield from self._read_tag(tags.call_end)):
            return True
        return (yield from self._follows(*tags.spelled(*tags.end)))

    def _read_argument(self, tool: str, separator: str) -> Reading[bool]:
        """Read the rest of an argument, from its key on."""
        tags = self._tags
        if tags.may_garble_keys:
            yield from self._read_tag(tags.key[0])
        key = yield from self._read_run(tags.keys, MAX_NAME)
        if not key or not (yield from self._read_tag(tags.key[1])):
            yield from self._read_closing_of(tags.key[1])
            return False
        types: Types | None = None
        is_begun = True
        if tags.value:
            own = dict(tags.value)
            begun = yield from self._read_beginning_of_value(*own)
            is_begun = begun is not None
            if begun is not None:
                types = own[marker_text(begun)]
            elif not (yield from self._may_be_value()):
                return False
        in_cdata = tags.cdata and (yield from self._read_tag(_CDATA))
        if tags.in_lines:
            yield from self._read_one("\n")
        self._drop()
        self._writer.arguments(separator + json.dumps(key, ensure_ascii=False) + ": ")
        types = self._types.of(tool, key) if types is None else types
        self._value = TextValue(self._writer.arguments, types)
        knows = tags.may_lack_value_end and self._tool_names
        keys = self._types.names_of(tool) if knows else None
        may_be_text = JsonType.STRING in types
        ends = _ends_of_values(tags, in_cdata=in_cdata, may_be_text=may_be_text, keys=keys, is_begun=is_begun)
        has_ended = yield from self._read_value_until(ends)
        value, self._value = self._value, None
        is_whole = bool(has_ended) and value.finish()
        if has_ended is False or (not has_ended and any(text in value.held for text in tags.spelled(tags.value_end))):
            self._send_content(value.held)
        if is_whole or has_ended is None:
            self._drop()
        return is_whole

    def _read_beginning_of_value(self, *own: str) -> Reading[str | None]:
        yield from self._read_run(SPACE)
        if self._tags.may_garble_keys:
            yield from self._read_tag(self._tags.key[1])
            yield from self._read_run(SPACE)
        begun = yield from self._read_one(*self._tags.spelled(*own))
        if begun is None:
            yield from self._read_closing_of(*own)
        return begun

    def _may_be_value(self) -> Reading[bool]:
        """Whether a value comes next, of which a model has left out the beginning."""
        if not self._tags.may_garble_keys or (yield from self._follows(*self._tags.others)):
            return False
        return not self._ended

    def _read_value_until(self, ends: re.Pattern[str]) -> Reading[bool | None]:
        """Read a value, and hold what ends it; see ``value_ends``.

        Returns False before what no value has, and None if the answer ended first.
        """
        while True:
            found = ends.search(self._text, self._at)
            if found is None:  # the pattern finds the end of the text, too
                raise AssertionError
            group = "closed" if self._ended and found["closed"] else "full"
            has_ended, is_broken = found[group] is not None, found["broken"] is not None
            end = len(self._text) if self._ended and not has_ended and not is_broken else found.start()
            begin, self._at = self._at, end
            self._add_to_value(self._text[begin:end])
            if has_ended:
                self._hold(found.end(group))
            if has_ended or is_broken:
                return has_ended
            if self._ended:
                return None
            yield

    def _add_to_value(self, text: str) -> None:
        if self._value is not None:
            self._send_content(self._value.add(text))

    def _read_tag(self, tag: str) -> Reading[bool]:
        return not tag or (yield from self._read_one(*self._tags.spelled(tag))) is not None

    def _read_closing_of(self, *tags: str) -> Reading[None]:
        """Read a closing tag, if it comes next; also one cut by the answer's end."""
        texts = self._tags.spelled(*tags)
        found = yield from self._read_one(*texts)
        if found is None and self._ended and any(text.startswith(self._text[self._at :]) for text in texts):
            self._hold(len(self._text))


class TextValue:
    """Turns the text of one argument into JSON, as it comes if it can only be text.

    One of more than ``MAX_HELD`` characters is what these can begin: JSON, a literal of Python, or text.
    """

    def __init__(self, send: Callable[[str], None], types: Types) -> None:
        self._send = send
        self._types = types
        self._held: list[str] = []
        self._scanner: JsonScanner | LiteralScanner | None = None
        """Of a value that is too long to be held, and not text."""
        self._is_broken = False
        """Whether such a value turned out to be malformed."""
        self.num_held = 0
        self._is_text = types == TEXT
        if self._is_text:
            send('"')

    def add(self, text: str) -> str:
        """Returns the end of ``text`` that is not of the value, as it is malformed before."""
        if self._is_text:
            self._send(json.dumps(marker_text(text), ensure_ascii=False)[1:-1])
        elif self._scanner is not None:
            return text if self._is_broken else self._scan(self._scanner, text)
        else:
            self._held.append(text)
            self.num_held += len(text)
            if self.num_held > MAX_HELD:
                return self._give_up_holding()
        return ""

    @property
    def held(self) -> str:
        """The text of which nothing has been sent."""
        return "".join(self._held)

    @property
    def may_be_elements(self) -> bool:
        """Whether elements may follow instead: nothing but white space has come, of a value that is not just text."""
        return not self._is_text and self._scanner is None and not "".join(self._held).strip()

    def finish(self) -> bool:
        """Returns whether the value is whole."""
        if self._is_text:
            self._send('"')
        elif self._scanner is None:
            text = marker_text("".join(self._held))
            self._send(json_of(text, self._types) or json.dumps(text, ensure_ascii=False))
        else:
            if isinstance(self._scanner, JsonScanner):
                self._send(self._scanner.held)
            self._scanner.feed(" ", 0)  # ends a number
            return self._scanner.done and not self._is_broken
        return True

    def _give_up_holding(self) -> str:
        text = "".join(self._held)
        self._held, self.num_held = [], 0
        if JsonType.STRING not in self._types:
            self._scanner = _fitting_scanner(marker_text(text[:MAX_HELD]))
        if self._scanner is None:
            self._is_text = True
            self._send('"')
        return self.add(text)

    def _scan(self, scanner: JsonScanner | LiteralScanner, text: str) -> str:
        for run in _RUNS.finditer(text):
            spelled = marker_text(run[0])
            end, value = scanner.feed(spelled, 0)
            self._send(value)
            if spelled[end:].strip() if scanner.done else spelled[end:]:
                self._is_broken = True
                rest = text[run.start() + (end if spelled == run[0] else 0) :]
                return rest.lstrip() if scanner.done else rest
        return ""


def _fitting_scanner(beginning: str) -> JsonScanner | LiteralScanner | None:
    """A scanner of values that can begin with ``beginning``; None: they are neither JSON nor a literal of Python."""
    for make in (partial(JsonScanner, repairs_escapes=False), LiteralScanner, JsonScanner):
        scanner = make()
        end, _ = scanner.feed(beginning, 0)
        if end == len(beginning) or (scanner.done and not beginning[end:].strip()):
            return make()
    return None


def tagged_grammar(
    tags: Tags, tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker, format_name: str
) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    same = "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, zip(*tags.begin, strict=False)))
    rules = marked(marker(same), required=required, single=single or tags.several, between=_LINE)
    more = f" ({_LINE} one)*" if tags.several and not single else ""
    ways = []
    for begin, end in zip(tags.begin, tags.end, strict=True):
        rest = literal(begin.removeprefix(same)) if begin != same else ""
        ways.append(f"{rest} {_LINE} one{more} {_LINE} {marker(end)}")
    rules += [f"call: {' | '.join(ways)}"]
    closing = f" {_LINE} {marker(tags.call_end)}" if tags.call_end else ""
    before, after = (f"{marker(tag)} " if tag else "" for tag in tags.name)
    if tags.number[0]:
        after += f"{marker(tags.number[0])} /[0-9]{{1,3}}/ {marker(tags.number[1])} "
    calls = []
    values = _ValueRules(tags, marker)
    for index, tool in enumerate(tools):
        calls.append(f"{before}{literal(tool.name)} {after}arguments_{index}{closing}")
        rules += values.of_tool(tool, index, format_name) if tool.strict else values.of_any(tool, index)
    rules += values.rules("any_value", None, "")
    return "\n".join([*rules, f"one: {' | '.join(calls)}"])


class _ValueRules:
    """Makes the rules of arguments."""

    def __init__(self, tags: Tags, marker: Marker) -> None:
        self._tags = tags
        self._marker = marker
        line = "\n" if tags.in_lines else ""
        self._line = f"{literal(line)} " if line else ""
        self._end = ValueEnd(tags.value_end, marker(line + tags.value_end), "[<&\\n]" if tags.cdata else "")
        self._ways = [(begin, types, self._end) for begin, types in tags.value or (("", None),)]
        """What begins a value, the types that may be written so (None: those of the schema), and what ends it."""
        self._key_end = tags.key[1][0]
        self._any_key = name_class(f"<{self._key_end}")
        """Names that a grammar allows of arguments that a tool does not list."""
        if tags.cdata:
            end = _END_CDATA + tags.value_end
            self._ways.append((_CDATA, TEXT, ValueEnd(end, marker(end))))

    def of_tool(self, tool: ToolSpec, index: int, format_name: str) -> list[str]:
        """A rule ``arguments_<index>``, and those that it refers to."""
        rules, parts = [], []
        field = f"tools[{index}].parameters_json"
        expected = f"a name without {self._key_end}, < and line breaks"
        arguments = described_arguments(tool, index, format_name, allowed=self._is_key, expected=expected)
        for number, each in enumerate(arguments.listed):
            name = f"value_{index}_{number}"
            rules += self.rules(name, each.schema, field)
            parts.append(f"argument_{index}_{number}" + ("" if each.required else "?"))
            rules.append(f"argument_{index}_{number}: {self.argument(literal(each.name), name)}")
        if arguments.others is not False:
            other, key = f"other_{index}", f"OTHER_KEY_{index}"
            rules += self.rules(f"{other}_value", arguments.others, field)
            rules.append(f"{key}: {other_name(self._any_key, (each.name for each in arguments.listed))}")
            rules.append(f"{other}: {self.argument(key, f'{other}_value')}")
            parts.append(f"{other}*")
        return [*rules, f"arguments_{index}: {' '.join(parts)}"]

    def of_any(self, tool: ToolSpec, index: int) -> list[str]:
        """A rule ``arguments_<index>`` for a tool that is not strict."""
        key = f"/{own_names(self._any_key, tool, self._is_key)}/"
        return [f"arguments_{index}: any_{index}*", f"any_{index}: {self.argument(key, 'any_value')}"]

    def _is_key(self, name: str) -> bool:
        return 0 < len(name) <= MAX_NAME and not set(name) & {self._key_end, "\n", "<"}

    def argument(self, key: str, value: str) -> str:
        """An expression for an argument; ``key`` is one, ``value`` a rule."""
        before, after = map(self._marker, self._tags.key)
        return f"{_LINE} {before} {key} {after} {value}"

    def rules(self, name: str, schema: Any, field: str) -> list[str]:
        """A rule ``name`` for a value, with what begins and ends it; ``schema`` None: any value."""
        ways, rules = [], []
        for number, (begin, types, end) in enumerate(self._ways):
            way = f"{name}_{number}"
            glue = f"{_LINE} {self._marker(begin)} " if begin and types is None else begin and f"{self._marker(begin)} "
            if schema is None:
                made = free_value(way, end)
            else:
                made = value_rules(way, schema, end, field, types, python=self._tags.python)
            if made:
                ways.append(f"{glue}{self._line}{way}")
                rules += made
        return [f"{name}: {' | '.join(ways)}", *rules]
