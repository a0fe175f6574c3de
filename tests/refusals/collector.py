"""Collects the texts of refusals from the source: what ``raise``, ``Status``, ``refuse`` and the log are given.

Placeholders stay as they are written: ``{limit}``. A local variable or a constant of the module that holds a text is
replaced by it. Where it may hold several (branches, conditional expressions), each makes a message of its own.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine_core", "services", "text_core", "clients/python/ringline")
_LOG = {f"log.{level}" for level in ("warning", "error", "exception", "critical")}
_REFUSING = ("Error", "Exception", "Refused", "Status", "UnusableFile", "Verdict", "refuse", "invalid_field")
_REFUSING += ("exhausted", "fail", "warn", "echo")
"""Ends of the names of functions and classes that are given messages; what is raised counts by itself."""
_MOST_ALTERNATIVES = 16

_Scope = dict[str, list[str]]
"""The texts that each variable may hold."""


@dataclass(frozen=True, slots=True)
class Message:
    """One text that a user or the log gets."""

    file: str
    function: str
    """With its class; empty at the top of the module."""
    kind: str
    """What it is given to, with the code if there is one: ``Refused RESOURCE_EXHAUSTED``, ``log.warning``."""
    text: str

    @property
    def room(self) -> str:
        return self.file.rpartition("/")[0]


def messages(root: Path = ROOT, rooms: Sequence[str] = ROOMS) -> list[Message]:
    """Every message of the hand-written Python files, each once, by room."""
    paths = [path for room in rooms for path in (root / room).rglob("*.py")]
    found = (
        message
        for path in sorted(paths, key=lambda path: (path.parent, path.name))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
        for message in messages_in(path.read_text(), str(path.relative_to(root)))
    )
    return list(dict.fromkeys(found))


def messages_in(source: str, file: str) -> Iterator[Message]:
    """The messages of one file, in the order of its source."""
    return _visit(ast.parse(source), Message(file, "", "", ""), {}, raised=False)


def _visit(node: ast.AST, place: Message, scope: _Scope, *, raised: bool) -> Iterator[Message]:
    """``scope`` gets what ``node`` assigns."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if is_function or isinstance(node, ast.ClassDef):
        place = Message(place.file, f"{place.function}.{node.name}".lstrip("."), "", "")
        scope = dict(scope)
    if isinstance(node, ast.arg):
        scope.pop(node.arg, None)  # it hides the constant of the same name
    if isinstance(node, ast.Call) and (kind := _kind(node, raised=raised)) is not None:
        for text in _message_texts(node, scope):
            yield Message(place.file, place.function, kind, text)
    for _, value in ast.iter_fields(node):
        children = [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
        is_branch = bool(children) and isinstance(children[0], ast.stmt) and not _is_definition(node)
        inner = dict(scope) if is_branch else scope
        for child in children:
            yield from _visit(child, place, inner, raised=isinstance(node, ast.Raise))
        if is_branch and not isinstance(children[-1], ast.Raise | ast.Return | ast.Continue):
            for name, texts in inner.items():
                scope[name] = list(dict.fromkeys([*scope.get(name, []), *texts]))
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        scope[node.targets[0].id] = _texts(node.value, scope)


def _is_definition(node: ast.AST) -> bool:
    return isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _kind(call: ast.Call, *, raised: bool) -> str | None:
    """What the call is, if it is given a message."""
    full_name = ast.unparse(call.func)
    name = full_name if full_name in _LOG else full_name.rpartition(".")[2]
    if not raised and name not in _LOG and not name.endswith(_REFUSING):
        return None
    codes = [code for argument in call.args if (code := ast.unparse(argument)).startswith("Code.")]
    return " ".join([name, *(code.removeprefix("Code.") for code in codes)])


def _message_texts(call: ast.Call, scope: _Scope) -> list[str]:
    """The positional arguments as far as the last that has words: a field often stands before the problem."""
    arguments = [argument for argument in call.args if not ast.unparse(argument).startswith("Code.")]
    alternatives = [_texts(argument, scope) for argument in arguments]
    while alternatives and not any(" " in text for text in alternatives[-1]):
        del alternatives[-1]
    written = (
        texts or [f"{{{ast.unparse(argument)}}}"] for argument, texts in zip(arguments, alternatives, strict=False)
    )
    return [": ".join(each) for each in _combined(list(written))] if alternatives else []


def _texts(node: ast.expr, scope: _Scope) -> list[str]:
    """The texts that ``node`` may be; empty if it is none."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name):
            return scope.get(name, [])
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body, scope), *_texts(orelse, scope)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return ["".join(each) for each in _combined([_texts(left, scope), _texts(right, scope)])]
        case ast.Subscript(value=value):  # cut to a length
            return _texts(value, scope)
        case ast.JoinedStr(values=parts):
            return ["".join(each) for each in _combined([_texts(part, scope) for part in parts])]
        case ast.FormattedValue(value=value):  # a variable that holds words, or a placeholder
            return [text for text in _texts(value, scope) if " " in text] or [f"{{{ast.unparse(value)}}}"]
    return []


def _combined(parts: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return list(itertools.islice(itertools.product(*parts), _MOST_ALTERNATIVES))
