"""Calls as Kimi K2 writes them, between special tokens: ``functions.f:0`` and the arguments.

That text is the call's id: templates show it in later turns, where the model goes on counting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.grammar.lark import literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, marked

_BEGIN_ALL, _BEGIN, _ARGUMENTS, _END, _END_ALL = MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
_SEARCH = search_for(_BEGIN_ALL, _BEGIN)
_ID = re.compile("[^\\s<{\ud800-\udfff]+")
_PREFIX = "functions."
_NUMBER = re.compile(r":[0-9]{1,6}\Z")
_DIGITS = re.compile(r"[0-9]{0,6}\Z")
_PUNCTUATION = re.compile("[^A-Za-z0-9]+")


class KimiK2Parser(JsonCallParser):
    """Content, and calls between markers."""

    def _read(self) -> Reading[None]:
        yield from self._read_sections(_SEARCH, self._read_marked_call, _END_ALL, begin=_BEGIN)

    def _read_marked_call(self) -> Reading[bool]:
        yield from self._read_run(SPACE)
        written = yield from self._read_run(_ID, MAX_NAME)
        name = _NUMBER.sub("", written).removeprefix(_PREFIX)
        if name not in self._tool_names and (meant := self._without_punctuation(written)) is not None:
            name, written = meant
        yield from self._read_run(SPACE)
        if not is_name(name) or not (yield from self._read_marker(_ARGUMENTS)):
            return False
        return (yield from self._read_closed_call(name, _END, written if _NUMBER.search(written) else None))

    def _without_punctuation(self, written: str) -> tuple[str, str] | None:
        """The only known tool's name, and the id, that are ``written`` but for punctuation.

        A model writes such an id once a client has shown it one of which only letters, digits and ``_`` were left.
        """
        if written.startswith(_PREFIX) and _NUMBER.search(written):
            return None
        found = [
            (name, number)
            for name in self._tool_names
            if (number := _number_behind(_only_word(name), _only_word(written))) is not None
        ]
        if len(found) != 1:
            return None
        name, number = found[0]
        return name, f"{_PREFIX}{name}:{number}" if number else name


def _only_word(text: str) -> str:
    return _PUNCTUATION.sub("", text)


def _number_behind(name: str, written: str) -> str | None:
    """What ``written`` has behind ``functions`` and ``name``; None if that is no number, or it does not begin so."""
    begin = f"{_only_word(_PREFIX)}{name}"
    number = written.removeprefix(begin)
    return number if written.startswith(begin) and _DIGITS.match(number) else None


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _BEGIN in template and _ARGUMENTS in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    rules = marked(marker(_BEGIN_ALL), required=required, single=True)
    calls = [
        f"{literal(f'{_PREFIX}{tool.name}:')} NUMBER {marker(_ARGUMENTS)} arguments_{index}"
        for index, tool in enumerate(tools)
    ]
    rules += [
        f"call: one{'' if single else ' one*'} {marker(_END_ALL)}",
        f"one: {marker(_BEGIN)} ({' | '.join(calls)}) {marker(_END)}",
        "NUMBER: /[0-9]{1,4}/",
        *argument_rules(tools),
    ]
    return "\n".join(rules)


TOOL_FORMAT = ToolFormat(KimiK2Parser, MARKERS, is_in, grammar, uses_names=True)
