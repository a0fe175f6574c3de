"""Calls in Python's notation: ``[f(a=1, b="x"), g()]``, in Llama 4 between ``<|python_start|>`` and ``<|python_end|>``.

An answer that begins with a list of calls of known tools is one; after the marker it is one anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Set

from services.text.parsing.json_calls import SPACE, JsonCallParser, is_name
from services.text.parsing.python_scanner import ArgumentsScanner
from services.text.parsing.text_parser import MAX_NAME, MAX_SPACE, Reading, search_for

_START, _END = MARKERS = ("<|python_start|>", "<|python_end|>")
_SEARCH = search_for(_START)
_NAME = re.compile(r"[\w.-]+")


class PythonicParser(JsonCallParser):
    """A list of calls at the beginning or after a marker, and content."""

    def _read(self) -> Reading[None]:
        yield from self._read_run(SPACE, MAX_SPACE)
        allowed: Set[str] | None = self._tool_names
        if (yield from self._read_marker(_START)):
            allowed = None
        while True:
            if not (yield from self._read_list(allowed)):
                self._release()
            if (yield from self._read_until(_SEARCH, self._writer.content)) is None:
                return
            allowed = None

    def _read_list(self, allowed: Set[str] | None) -> Reading[bool]:
        yield from self._read_run(SPACE, MAX_SPACE)
        separator = "," if (yield from self._read_one("[")) else None
        while separator == ",":
            yield from self._read_run(SPACE)
            name = yield from self._read_run(_NAME, MAX_NAME)
            if not is_name(name) or (allowed is not None and name not in allowed):
                return False
            if not (yield from self._read_one("(")):
                return False
            self._begin_call(name)
            if not (yield from self._read_value(None, self._send_arguments, ArgumentsScanner())):
                return False
            yield from self._read_run(SPACE)
            separator = yield from self._read_one(",", "]")
        if separator is None:
            return False
        yield from self._read_run(SPACE)
        yield from self._read_marker(_END)
        yield from self._read_run(SPACE)
        self._drop()
        return True


def is_in(template: str) -> bool:
    """Whether a template writes this."""
    return _START in template or "[func_name" in template
