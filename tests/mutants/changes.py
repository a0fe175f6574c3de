"""Small changes of a source file, each of which some test should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
"""By what stands there, what takes its place."""
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*"}


@dataclass(frozen=True, order=True)
class Change:
    """A piece of one file, and what is put in its place."""

    line: int
    start: int
    """In bytes of the whole file."""
    end: int
    text: str
    what: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def changes_of(source: bytes) -> list[Change]:
    """All changes of a file, in order."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def change(node: ast.expr, text: str, what: str) -> Change:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        return Change(node.lineno, start, end, text, what)

    return sorted(change(*found) for node in ast.walk(ast.parse(source)) for found in _of_node(node))


def _of_node(node: ast.AST) -> Iterator[tuple[ast.expr, str, str]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            turned = f"({ast.unparse(left)}) {_COMPARISONS[type(op)]} ({ast.unparse(right)})"
            yield node, f"({turned})", "a comparison turned"
        case ast.BoolOp(op=op, values=values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield node, f"({other.join(f'({ast.unparse(value)})' for value in values)})", "and and or exchanged"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS and not _is_text(left, right):
            yield node, f"(({ast.unparse(left)}) {_SIGNS[type(op)]} ({ast.unparse(right)}))", "a sign turned"
        case ast.Constant(value=int(value)) if not isinstance(node.value, bool) and value < 1 << 20:
            yield node, f"({value + 1})", "a bound moved"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))", "a branch turned"
            if isinstance(node, ast.If):
                yield test, f"(({ast.unparse(test)}) and False)", "a branch dropped"


def _is_text(*nodes: ast.expr) -> bool:
    """Whether a sum is of texts or lists, where a minus would not even run."""
    return any(isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or _is_string(node) for node in nodes)


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
