"""Context-free grammars of clients: Lark as it is, GBNF converted, and nothing in them that breaks a promise."""

from __future__ import annotations

import re

from services.text.grammar.constraints import MAX_TEXT_BYTES, ConstraintError

FIELD = "grammar"

MAX_DEPTH = 50
"""Groups within groups."""

_LARK = re.compile(r"(?m)^\s*\??start\s*(?:\.\d+\s*)?:")
_LEXEME = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<regex>/(?:[^/\\\n]|\\.)+/)
    |(?P<options>\[[^\]\n<>]*\])(?=\s*:)
    |(?P<directive>%[a-z]+)
    |(?P<reference>@)
    |(?P<open>\()|(?P<close>\))""",
    re.VERBOSE,
)
_DIRECTIVES = ("%ignore", "%import")


def checked_grammar(text: str) -> str:
    """``text`` in Lark's notation. Raises ``ConstraintError``."""
    size = len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise ConstraintError(
            FIELD, f"has {size} bytes: expected at most {MAX_TEXT_BYTES} ({MAX_TEXT_BYTES >> 10} KiB)"
        )
    if not text.strip():
        raise ConstraintError(FIELD, "is empty")
    lark = text if _LARK.search(text) else _from_gbnf(text)
    _check(lark)
    return lark


def _check(lark: str) -> None:
    depth = 0
    for match in _LEXEME.finditer(lark):
        kind, found = match.lastgroup, match[0]
        problem = None
        if kind == "directive" and found not in _DIRECTIVES:
            problem = f"{found} is not supported: expected one of {', '.join(_DIRECTIVES)}"
        elif kind == "reference":
            problem = "'@' is not supported: there are no other grammars"
        elif kind == "options" and found[1:-1].strip() not in ("", "lazy"):
            problem = f"{found} is not supported: expected [lazy]"
        elif kind == "open":
            depth += 1
            if depth > MAX_DEPTH:
                problem = f"groups nest deeper than {MAX_DEPTH}"
        elif kind == "close":
            depth -= 1
        if problem is not None:
            raise ConstraintError(FIELD, f"line {lark.count(chr(10), 0, match.start()) + 1}: {problem}")


def _from_gbnf(text: str) -> str:
    if not re.search(r"(?m)^\s*root\s*::=", text):
        raise ConstraintError(FIELD, "has no rule named start (Lark, 'start: …') or root (GBNF, 'root ::= …')")
    depth = 0
    for match in re.finditer(r'#[^\n]*|"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]|[()]', text):
        depth += (match[0] == "(") - (match[0] == ")")
        if depth > MAX_DEPTH:
            line = text.count("\n", 0, match.start()) + 1
            raise ConstraintError(FIELD, f"line {line}: groups nest deeper than {MAX_DEPTH}")
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(text)
    except Exception as error:  # the converter raises plain Exceptions, and IndexErrors at the end of the text
        raise ConstraintError(FIELD, f"cannot be read as GBNF: {str(error) or type(error).__name__}") from None
    return lark.replace("%llguidance {}", "", 1)
