"""A jinja2 sandbox that also bounds time and size.

A chat template comes with a checkpoint and is untrusted data. jinja2's immutable sandbox keeps it from Python's
internals and from ranges beyond 100,000, but not from running for a minute or building a string of terabytes. Here each
rendering has a deadline, checked in every loop iteration and call, and a budget of characters and list items. Joining,
repeating, formatting and replacing are charged to the budget *before* they run. Operations that only multiply their
input and that no chat template needs (padding filters and methods, ``lipsum``) are removed. Nothing is evaluated at
compile time.

Single operations of the interpreter on data within the budget are not bounded further; they take time in
proportion to its size.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2 import Template, nodes, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import do_format, do_indent, do_round, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

TIME_LIMIT_S = 5.0
"""Seconds one rendering may take."""
MAX_RENDERED_CHARS = 4 << 20
"""Default bound on the characters of one rendering's result."""
MAX_WORK_CHARS = 64 << 20
"""Characters and list items that one rendering may create, intermediate values included."""

_MAX_INTEGER_BITS = 4096
_MAX_DIGITS = 1000
_ITEM_CHARS = 128
_MULTIPLYING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode"})
_MULTIPLYING_FILTERS = ("batch", "center", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{4})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{4})")


class LimitExceededError(Exception):
    """A template exceeded its time or its budget."""


class OutputTooLongError(LimitExceededError):
    """A template's output is longer than its caller allows."""


class _Budget:
    """The time and characters that one rendering has left."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + TIME_LIMIT_S
        self._left = MAX_WORK_CHARS

    def tick(self) -> None:
        if time.monotonic() > self._deadline:
            raise LimitExceededError(f"it took longer than {TIME_LIMIT_S:g} s")

    def charge(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise LimitExceededError(f"it made more than {MAX_WORK_CHARS} characters of text in all")


_budget: ContextVar[_Budget] = ContextVar("budget")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox; shared by all templates and threads."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=_finalize, **options)
        for name in _MULTIPLYING_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"format": _format, "indent": _indent, "join": _join, "replace": _replace, "round": _round}
        self.filters["string"] = text_of

    def template(self, source: str) -> Template:
        """Compile a template; raises ``jinja2.TemplateSyntaxError``."""
        tree = _Instrument().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: Template, variables: Mapping[str, Any], max_chars: int = MAX_RENDERED_CHARS) -> str:
        """Render within the limits; raises ``LimitExceededError``, and anything that the template raises."""
        token = _budget.set(_Budget())
        try:
            return "".join(_limited(template.generate(variables), max_chars))
        finally:
            _budget.reset(token)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Called by jinja2 to join the output of macros and assigned blocks."""
        return _concat(parts)

    def tick(self) -> str:
        """Check the budget; called in every loop iteration."""
        _budget.get().tick()
        return ""

    def tilde(self, *values: Any) -> str:
        """The ``~`` operator."""
        return _concat([text_of(value) for value in values])

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, int | float) or (isinstance(obj, str) and attr in _MULTIPLYING_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().tick()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "join" and args:
            return _join(__self, args[0], owner)
        if isinstance(owner, str) and name == "replace" and len(args) > 1:
            _charge_replacing(owner, str(args[0]), str(args[1]))
        return super().call(__context, __obj, *args, **kwargs)

    def call_filter(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().tick()
        return super().call_filter(name, value, *args, **kwargs)

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().tick()
        return super().call_test(name, value, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _budget.get().charge(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            _check_widths(_WIDE_PERCENT, left)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_widths(_WIDE_BRACES, value.__self__)
        return wrapped


class _Instrument(NodeTransformer):
    """Inserts a tick into every loop, and replaces the ``~`` operator by ``tilde``, which is charged."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("tilde", node.nodes, node.lineno)


def _call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    attribute = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(attribute, arguments, [], None, None, lineno=lineno)


def charge_for(value: Any) -> None:
    """Charge for converting ``value`` to text, before it is done; shared parts count each time they occur."""
    budget = _budget.get()
    todo = [value]
    while todo:
        item = todo.pop()
        budget.charge(len(item) if isinstance(item, str) else _ITEM_CHARS)
        if isinstance(item, Mapping):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            budget.tick()
            todo += item


def text_of(value: Any) -> str:
    """``str(value)``, charged to the budget."""
    if not isinstance(value, str):
        charge_for(value)
    return str(value)


@pass_context  # also keeps jinja2 from evaluating constants at compile time
def _finalize(context: Context, value: Any) -> str:
    return text_of(value)


def _limited(chunks: Iterable[str], max_chars: int) -> Iterator[str]:
    total = 0
    for chunk in chunks:
        _budget.get().tick()
        total += len(chunk)
        if total > max_chars:
            raise OutputTooLongError(f"its output is longer than {max_chars} characters")
        yield chunk


def _concat(parts: Iterable[str]) -> str:
    parts = list(parts)
    _budget.get().charge(sum(map(len, parts)))
    return "".join(parts)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _check_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(other, int):
            _budget.get().charge(_length(one) * max(other, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise LimitExceededError(f"a number has more than {_MAX_INTEGER_BITS} bits")


def _check_widths(wide: re.Pattern[str], pattern: str) -> None:
    if wide.search(pattern):
        raise SecurityError("a format with a width that is computed or above 999 is not allowed")


def _charge_replacing(text: str, old: str, new: str) -> None:
    _budget.get().charge(len(text) + text.count(old) * len(new))


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts = []
    for item in value:
        part = text_of(item)
        _budget.get().charge(len(part) + len(d))
        parts.append(part)
    return str(d).join(parts)


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    _charge_replacing(text_of(s), str(old), str(new))
    return str(s).replace(str(old), str(new), -1 if count is None else count)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    _check_widths(_WIDE_PERCENT, str(value))
    return do_format(value, *args, **kwargs)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = len(width) if isinstance(width, str) else width
    _budget.get().charge((s.count("\n") + 1) * max(size, 0))
    return do_indent(s, width, first, blank)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > _MAX_DIGITS:
        raise SecurityError(f"rounding to more than {_MAX_DIGITS} digits is not allowed")
    return do_round(value, precision, method)
