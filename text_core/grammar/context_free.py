"""Context-free grammars of clients: Lark, or GBNF converted to it.

A rough parse before llguidance sees them counts their cost, finds rules that can never end, and refuses whatever would
break a promise, such as options specific to llguidance.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from text_core.grammar.constraints import MAX_TEXT_BYTES, ConstraintError
from text_core.grammar.lark import literal
from text_core.grammar.limits import WRITTEN_GRAMMAR
from text_core.grammar.references import MAX_LEVELS, levels
from text_core.grammar.regex import (
    MAX_OPTIONAL,
    MAX_SIZE,
    RegexError,
    is_optional,
    longest_run,
    size_of,
    whole_match,
)

FIELD = "grammar"

MAX_DEPTH = 50
"""Maximum depth of nested groups, and of nested terminals."""
MAX_RULES = 2_000
MAX_ALTERNATIVES = 1_000
"""Per rule: at each point of an answer, any of them may follow."""
MAX_GBNF_CHARS = 64 << 10
"""The converter is slow."""
MAX_REPETITIONS = 100_000

_HEAD = re.compile(
    r"^[ \t]*[?!]*(?P<name>[A-Za-z_][\w-]*)(?:\.-?\d+)?[ \t]*(?P<options>\[[^\]\n]*\])?[ \t]*:(?!:)", re.MULTILINE
)
_LEXEME = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*+"i?)
    |(?P<regex>/(?:[^/\\\n]|\\.)++/(?P<flags>[a-z]*))
    |(?P<special><[^<>\s]+>)
    |(?P<alias>->[ \t]*\w+)
    |(?P<count>\{[ \t]*(?P<low>\d*)[ \t]*(?:,[ \t]*(?P<high>\d*)[ \t]*)?\}
        |~[ \t]*(?P<from>\d+)(?:[ \t]*\.\.[ \t]*(?P<to>\d+))?)
    |(?P<name>[A-Za-z_][\w-]*)
    |(?P<operator>[|()\[\]?*+])""",
    re.VERBOSE,
)
_BLANK = re.compile(r"\n|[^\S\n]+|//[^\n]*|\#[^\n]*")
_GBNF_LEXEME = re.compile(
    # The end of a string or class is optional: else an unclosed one would be tried again from every character in it.
    r"""(?P<comment>\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*+"?|\[(?:[^\]\\\n]|\\.)*+\]?)
    |(?P<token>(?P<negated>!?)(?P<name><[^<>\s]+>))
    |[()]""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r"\\(?:u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8})|.)")
_DIRECTIVE = re.compile(r"^[ \t]*%(?P<word>\w+)(?P<rest>[^\n]*)", re.MULTILINE)


_Needs = str | tuple["_Needs", ...] | list["_Needs"]
"""A name; a tuple: all of its needs; a list: one of them."""


@dataclass(slots=True)
class _Node:
    """A part of a rule: its cost and references."""

    size: int = 0
    """Characters and classes as ``regex.MAX_SIZE`` counts, without those of ``uses``."""
    uses: list[tuple[str, int]] = field(default_factory=list)
    """(name, repetitions)."""
    needs: _Needs = ()
    """Needs that must end for this part to end."""
    levels: int = 1
    """Depth of nested groups and repetitions."""
    is_optional: bool = False
    """Whether it is repeated from 0 times on, or matches the empty text."""
    name: str | None = None
    """The rule or terminal that it is."""
    sequences: list[list[_Node]] = field(default_factory=list)
    """A group's alternatives."""


def checked_grammar(text: str, marker: Callable[[str], str] = literal) -> str:
    """``text`` in Lark's notation, its regular expressions rewritten (``regex``). Raises ``ConstraintError``.

    ``marker``: converts a text that may be a special token (``GrammarChecker.marker``).
    """
    size = len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise ConstraintError(
            FIELD, f"has {size} bytes: expected at most {MAX_TEXT_BYTES} ({MAX_TEXT_BYTES >> 10} KiB)"
        )
    if not text.strip():
        raise ConstraintError(FIELD, "is empty")
    lark = text if re.search(r"(?m)^[ \t]*[?!]*start\b[^:\n]*:(?!:)", text) else _from_gbnf(text, marker)
    return _Reader(lark).checked()


class _Reader:
    """Reads a grammar in Lark's notation."""

    def __init__(self, lark: str) -> None:
        self._lark = lark
        self._position = 0
        self._parts: list[str] = []
        """The text, rewritten."""
        self._rules: dict[str, _Node] = {}
        heads = [match.start() for pattern in (_HEAD, _DIRECTIVE) for match in pattern.finditer(lark)]
        self._starts = sorted(heads)
        """Where rules and directives begin."""

    def checked(self) -> str:
        while self._position < len(self._lark):
            if match := _DIRECTIVE.match(self._lark, self._position):
                self._directive(match)
            elif match := _HEAD.match(self._lark, self._position):
                self._rule(match)
            elif match := _BLANK.match(self._lark, self._position):
                self._position = match.end()
                self._parts.append("\n" if "\n" in match[0] else "")
            else:
                self._refuse("expected a rule, such as 'start: \"text\"'")
        if "start" not in self._rules:
            raise ConstraintError(FIELD, "has no rule named start")
        self._check_depth()
        self._check_sizes()
        self._check_optional()
        self._check_ends()
        return "\n".join([WRITTEN_GRAMMAR, "".join(self._parts).lstrip()])

    def _refuse(self, problem: str) -> NoReturn:
        line = self._lark.count("\n", 0, self._position) + 1
        raise ConstraintError(FIELD, f"line {line}: {problem}")

    def _directive(self, match: re.Match[str]) -> None:
        if match["word"] == "import":
            self._parts.append(match[0] + "\n")
            self._position = match.end()
        elif match["word"] == "ignore":
            self._parts.append("%ignore ")
            self._position = match.start("rest")
            self._define(f"%ignore {self._position}", self._alternatives(0, match.end()))
        elif match["word"] == "llguidance":
            if self._rules or re.sub(r"\s", "", match["rest"].split("//")[0].split("#")[0]) != "{}":
                self._refuse("%llguidance is only supported before all rules and without options: '%llguidance {}'")
            self._position = match.end()
        else:
            self._refuse(f"%{match['word']} is not supported: expected %ignore or %import")

    def _rule(self, match: re.Match[str]) -> None:
        if (match["options"] or "[lazy]").replace(" ", "") not in ("[lazy]", "[]"):
            self._refuse(f"{match['options']} is not supported: expected [lazy]")
        self._parts.append(match[0].lstrip())
        self._position = match.end()
        later = bisect.bisect_left(self._starts, match.end())
        end = self._starts[later] if later < len(self._starts) else len(self._lark)
        self._define(match["name"], self._alternatives(0, end))
        self._parts.append("\n")

    def _define(self, name: str, node: _Node) -> None:
        if len(self._rules) >= MAX_RULES:
            self._refuse(f"the grammar has more than {MAX_RULES} rules")
        if name in self._rules:
            self._refuse(f"rule {name} is there twice")
        self._rules[name] = node

    def _alternatives(self, depth: int, end: int) -> _Node:
        if depth > MAX_DEPTH:
            self._refuse(f"groups nest deeper than {MAX_DEPTH}")
        alternatives: list[list[_Node]] = [[]]
        while self._position < end:
            match = _LEXEME.match(self._lark, self._position, end)
            if match is None:
                self._refuse(f"{self._lark[self._position]!r} is not supported")
            if match["operator"] in (")", "]"):
                if depth == 0:
                    self._refuse(f"there is a {match[0]!r} that closes nothing")
                break
            self._position = match.end()
            self._parts.append(" " if match["blank"] else self._rewritten(match))
            if match["operator"] == "|":
                alternatives.append([])
                if len(alternatives) > MAX_ALTERNATIVES:
                    self._refuse(
                        f"a rule has more than {MAX_ALTERNATIVES} alternatives: make it a terminal, in capitals"
                    )
            elif match["operator"] in ("(", "["):
                alternatives[-1].append(self._group(match[0], depth, end))
            elif match["count"] or match["operator"]:
                if not alternatives[-1]:
                    self._refuse(f"{match[0]!r} has nothing to repeat")
                alternatives[-1].append(self._repeated(alternatives[-1].pop(), match))
            elif match["name"]:
                alternatives[-1].append(_Node(0, [(match["name"], 1)], match["name"], name=match["name"]))
            elif not match["blank"] and not match["alias"]:
                alternatives[-1].append(self._text(match))
        nodes = [node for sequence in alternatives for node in sequence]
        return _Node(
            sum(node.size for node in nodes),
            [use for node in nodes for use in node.uses],
            [tuple(node.needs for node in sequence) for sequence in alternatives],
            1 + max((node.levels for node in nodes), default=0),
            sequences=alternatives,
        )

    def _group(self, opening: str, depth: int, end: int) -> _Node:
        node = self._alternatives(depth + 1, end)
        closing = self._lark[self._position : self._position + 1]
        if closing != {"(": ")", "[": "]"}[opening] or self._position >= end:
            self._refuse(f"a {opening!r} is not closed")
        self._parts.append(closing)
        self._position += 1
        if opening == "[":
            node.needs, node.is_optional = (), True
        return node

    def _rewritten(self, match: re.Match[str]) -> str:
        if not match["regex"]:
            return match[0]
        if match["flags"].strip("is"):
            self._refuse(f"the flag {match['flags']!r} is not supported: expected i or s")
        body = match["regex"][1 : match["regex"].rindex("/")]
        flags = f"(?{match['flags']})" if match["flags"] else ""
        try:
            return f"/{whole_match(flags + body)}/"
        except RegexError as error:
            self._refuse(f"the regular expression {error}")

    def _text(self, match: re.Match[str]) -> _Node:
        if match["regex"]:
            pattern = match["regex"][1 : match["regex"].rindex("/")]
            return _Node(size_of(pattern), is_optional=is_optional(pattern))
        is_empty = match["string"] is not None and match["string"].rstrip("i") == '""'
        return _Node(len(match[0]) if match["string"] else 1, is_optional=is_empty)

    def _repeated(self, node: _Node, match: re.Match[str]) -> _Node:
        low, high = 0, 1
        if match["operator"] == "+":
            low = 1
        elif match["count"]:
            first, last = match["low"] or match["from"] or "0", match["high"] or match["to"] or ""
            if len(first) > 6 or len(last) > 6 or max(int(first), int(last or 0)) > MAX_REPETITIONS:
                self._refuse(f"{match[0]} repeats more than {MAX_REPETITIONS} times")
            low, high = int(first), int(last or first)
        count = max(low, high, 1)
        uses = [(name, times * count) for name, times in node.uses]
        needs, optional = (node.needs, node.is_optional) if low else ((), True)
        return _Node(node.size * count, uses, needs, node.levels + 1, optional, sequences=[[node]])

    def _check_depth(self) -> None:
        graph = {name: {used for used, _ in node.uses if used in self._rules} for name, node in self._rules.items()}
        if levels(graph, {name: node.levels for name, node in self._rules.items()}) > MAX_LEVELS:
            raise ConstraintError(FIELD, f"nests rules and groups more than {MAX_LEVELS} deep: expected fewer levels")

    def _check_sizes(self) -> None:
        """Terminals, which are expanded where they are used, must not be too large, nor use themselves."""
        sizes: dict[str, int] = {}

        def size(name: str, depth: int) -> int:
            if depth > MAX_DEPTH:
                raise ConstraintError(FIELD, f"terminal {name} uses itself, or nests deeper than {MAX_DEPTH} terminals")
            if name not in sizes:
                node = self._rules.get(name)
                sizes[name] = 1 if node is None else node.size + sum(n * size(used, depth + 1) for used, n in node.uses)
            return sizes[name]

        total = 0
        for name, node in self._rules.items():
            terminal = name.lstrip("_").isupper() or name.startswith("%")
            total += size(name, 0) if terminal else node.size
            if total > MAX_SIZE:
                raise ConstraintError(
                    FIELD, f"has more than {MAX_SIZE} characters when its repetitions are written out"
                )

    def _check_optional(self) -> None:
        """Terminals must not have too many optional parts in a row, those of the terminals they use included."""
        weights: dict[str, int] = {}

        def of_name(name: str) -> int:
            if name not in weights:
                node = self._rules.get(name)
                weights[name] = 0 if node is None else weight(node)
            return weights[name]

        def weight(node: _Node) -> int:
            """The optional parts in a row that ``node`` is; 0: it matches no empty text."""
            if node.name is not None:
                return of_name(node.name)
            runs = [[weight(each) for each in sequence] for sequence in node.sequences]
            if max(map(longest_run, runs), default=0) > MAX_OPTIONAL:
                raise ConstraintError(FIELD, f"has more than {MAX_OPTIONAL} optional parts in a row in a terminal")
            found = max((max(1, sum(run)) for run in runs if all(run)), default=0)
            return 1 if node.is_optional else found

        for name in self._rules:
            if name.lstrip("_").isupper() or name.startswith("%"):
                of_name(name)

    def _check_ends(self) -> None:
        """Every rule must be able to end."""
        known = {name for name in self._rules if not name.startswith("%")}
        users: defaultdict[str | int, list[str | int]] = defaultdict(list)
        """Name, or number of a part of a rule → names and numbers that need it."""
        left: dict[str | int, int] = {}
        """Number of needs not yet known to end, by name or number."""

        def enter(key: str | int, needs: _Needs) -> None:
            parts = [needs] if isinstance(needs, str) else needs
            left[key] = 1 if isinstance(needs, list) else len(parts)
            for part in parts:
                if isinstance(part, str):
                    users[part].append(key)
                else:
                    number = len(left)
                    users[number].append(key)
                    enter(number, part)

        for name in known:
            enter(name, self._rules[name].needs)
        waiting = [key for key, count in left.items() if not count]
        waiting += [key for key in users if key not in left]  # llguidance's own terminals, assumed to end
        ends: set[str | int] = set()
        while waiting:  # each need is looked at once, as there may be many
            key = waiting.pop()
            ends.add(key)
            for user in users[key]:
                left[user] -= 1
                if not left[user]:
                    waiting.append(user)
        if endless := sorted(known - ends):
            raise ConstraintError(FIELD, f"rule {endless[0]} can never end: each of its alternatives demands it again")


def _from_gbnf(text: str, marker: Callable[[str], str]) -> str:
    if len(text) > MAX_GBNF_CHARS:
        raise ConstraintError(FIELD, f"has more than {MAX_GBNF_CHARS} characters of GBNF: write it in Lark's notation")
    if not re.search(r"(?m)^[ \t]*root\s*::=", text):
        raise ConstraintError(FIELD, "has no rule named start (Lark, 'start: …') or root (GBNF, 'root ::= …')")
    text, tokens = _without_tokens(text, marker)
    if len(re.findall("::=", text)) > MAX_RULES:
        raise ConstraintError(FIELD, f"has more than {MAX_RULES} rules")
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(text)
    except Exception as error:  # the converter raises plain Exceptions, and IndexErrors at the end of the text
        raise ConstraintError(FIELD, f"cannot be read as GBNF: {str(error) or type(error).__name__}") from None
    lark = re.sub(rf"(?m)^{tokens.stand_in}\d+: .*\n", "", lark.replace("%llguidance {}", "", 1))
    return re.sub(rf"{tokens.stand_in}(\d+)", lambda match: tokens.found[int(match[1])], lark)


@dataclass(slots=True)
class _Tokens:
    """Tokens of a grammar in GBNF, which the converter does not know: names of rules stand for them."""

    stand_in: str
    """What these names begin with, before the number of the token."""
    found: list[str] = field(default_factory=list)
    """In Lark's notation."""


def _without_tokens(text: str, marker: Callable[[str], str]) -> tuple[str, _Tokens]:
    """A grammar in GBNF with names in place of tokens, and characters in place of their numbers."""
    taken = max(map(len, re.findall("token(q*)", text.lower())), default=0)
    tokens = _Tokens("token" + "q" * (taken + 1))
    depth = 0
    parts: list[str] = []
    position = 0

    def refuse(problem: str) -> NoReturn:
        line = text.count("\n", 0, match.start()) + 1
        raise ConstraintError(FIELD, f"line {line}: {problem}")

    for match in _GBNF_LEXEME.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        if match["token"]:
            token = match["name"] if match["name"].startswith("<[") else marker(match["name"])
            if not token.startswith("<["):
                if match["negated"]:
                    refuse(f"{match[0]} negates no special token of the model: expected one, or an id as in !<[10]>")
                token = match["name"]  # llguidance says which there are
            parts.append(f" {tokens.stand_in}{len(tokens.found)} ")
            tokens.found.append(f"<[^{token[2:]}" if match["negated"] else token)
        else:
            parts.append(_ESCAPED.sub(_unescaped, match[0]) if match["text"] else match[0])
        depth += (match[0] == "(") - (match[0] == ")")
        if depth > MAX_DEPTH:
            refuse(f"groups nest deeper than {MAX_DEPTH}")
    parts.append(text[position:])
    # A rule that uses itself is none that the converter makes a terminal.
    names = [f"{tokens.stand_in}{number}" for number in range(len(tokens.found))]
    return "".join(parts) + "".join(f"\n{name} ::= {name}" for name in names), tokens


def _unescaped(match: re.Match[str]) -> str:
    """The character of a number: the converter drops the zeros at the beginning, and llguidance wants them."""
    if match["four"] is None and match["eight"] is None:
        return match[0]
    code = int(match["four"] or match["eight"], 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    return match[0] if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)
