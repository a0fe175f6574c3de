"""Messages as Functionary 3.2 writes them: ``>>>f``, a line break and arguments in JSON; text is a message to ``all``.

The prompt ends with the first ``>>>``. So a message at the beginning of an answer counts as a call if its tool is
known; so does one later, as text may have the marker, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.grammar.lark import FREE_TEXT, literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, regex_text

_BEGIN, _ALL = ">>>", "all"
_SEARCH = search_for(_BEGIN)
_NAME = re.compile(r"[\w.-]+")


class FunctionaryV32Parser(JsonCallParser):
    """Messages, each of which is content or a call."""

    def _read(self) -> Reading[None]:
        yield from self._read_one(_BEGIN)
        if not (yield from self._read_message()):
            self._release()
        while (yield from self._read_until(_SEARCH, self._send_content)) is not None:
            if not (yield from self._read_message()):
                self._release()

    def _read_message(self) -> Reading[bool]:
        """Read a call, or the header of content."""
        name = yield from self._read_run(_NAME, MAX_NAME)
        if not is_name(name) or not (yield from self._read_one("\n")):
            return False
        if name == _ALL:
            self._drop()
            return True
        if name not in self._tool_names:
            return False
        yield from self._read_run(SPACE)
        return (yield from self._read_arguments_of(name, _BEGIN, may_end=True))


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _BEGIN in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    begin = marker(_BEGIN)
    calls = [f"{literal(tool.name + chr(10))} arguments_{index}" for index, tool in enumerate(tools)]
    rules = [
        f"calls: call{'' if single else f' ({begin} call)*'}",
        f"call: {' | '.join(calls)}",
        *argument_rules(tools),
    ]
    if required:
        return "\n".join([f"start: {begin}? calls", *rules])
    no_call = f"{FREE_TEXT} & ~/({'|'.join(regex_text(tool.name) for tool in tools)})\\n(?s:.*)/"
    return "\n".join(
        [
            "start: calls | FREE | reached calls",
            f"reached[lazy]: OTHER {begin}",
            f"OTHER: {no_call}",
            f"FREE: {no_call} & ~/(?s:.*){regex_text(_BEGIN)}(?s:.*)/",
            *rules,
        ]
    )


TOOL_FORMAT = ToolFormat(FunctionaryV32Parser, (), is_in, grammar, needs_names=True, opened_by=_BEGIN)
