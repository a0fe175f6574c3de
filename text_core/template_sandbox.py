"""A jinja2 sandbox that also bounds time and size.

A chat template comes with a checkpoint and is untrusted data. jinja2's immutable sandbox keeps it from Python's
internals and from ranges beyond 100,000, but not from running for a minute or building a string of terabytes. Here each
rendering has a limit of processor time, checked in every loop iteration, call and filter, and a budget of characters
and items that are alive at once. The time is the thread's own, so that a busy machine refuses no chat. What was made
and let go costs nothing: templates that gather a prompt in a namespace make it anew at every step.

The results of operators, calls, filters, slices and literals are kept in a ledger; what only the ledger still refers to
is dropped from it, once enough has come together. Joining, repeating, formatting and replacing are checked *before*
they run. Operations that only multiply their input and that no chat template needs (padding filters and methods,
``lipsum``) are removed. Nothing is evaluated at compile time.

Single operations of the interpreter on data within the budget are not bounded further; they take time and memory in
proportion to its size.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import Template, nodes, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import do_format, do_indent, do_round, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

TIME_LIMIT_S = 5.0
"""Seconds of processor time that one rendering may take."""
MAX_RENDERED_CHARS = 4 << 20
"""Default bound on the characters of one rendering's result."""
MAX_ALIVE_CHARS = 32 << 20
"""Characters that one rendering may hold at once, those of the chat and of its own output not included."""

_MAX_INTEGER_BITS = 4096
_MAX_DIGITS = 1000
_ITEM_CHARS = 128
"""What converting a value to text costs at least."""
_OBJECT_CHARS = 64
"""What a value costs at least, and ..."""
_SLOT_CHARS = 16
"""... for each of its items: four bytes a character."""
_FIRST_SWEEP_CHARS = 2 << 20
_MULTIPLYING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode"})
_MULTIPLYING_FILTERS = ("batch", "center", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{4})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{4})")


class LimitExceededError(Exception):
    """A template exceeded its time or its budget."""


class OutputTooLongError(LimitExceededError):
    """A template's output is longer than its caller allows."""


def _reference_counts(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        yield sys.getrefcount(value)


_UNUSED = next(_reference_counts({0: object()}.values()))
"""The count of references to a value that only the ledger has."""


class _Budget:
    """The processor time that one rendering has left, and a ledger of what it made."""

    def __init__(self) -> None:
        self._end = time.thread_time() + TIME_LIMIT_S
        self._look_at = time.monotonic() + TIME_LIMIT_S
        """Before, no more processor time can have passed; asking for it takes much longer than asking for the time."""
        self._made: dict[int, Any] = {}
        """Values by ``id``."""
        self._sizes: dict[int, int] = {}
        self._size = 0
        self._sweep_at = _FIRST_SWEEP_CHARS

    def tick(self) -> None:
        if time.monotonic() > self._look_at:
            left = self._end - time.thread_time()
            if left <= 0:
                raise LimitExceededError(f"it took more than {TIME_LIMIT_S:g} s of processor time")
            self._look_at = time.monotonic() + max(left, 0.001)

    def check(self, size: int) -> None:
        """Raise unless there is room for a value of ``size`` that is yet to be made."""
        self.tick()
        if self._size + size > self._sweep_at:
            self._sweep(size)

    def keep(self, value: Any, slots: int = 0) -> None:
        """Enter what was made; ``slots``: of values that it may refer to, such as a generator's arguments."""
        if id(value) not in self._made:
            size = _size(value) + _SLOT_CHARS * slots
            self._made[id(value)], self._sizes[id(value)] = value, size
            self._size += size
            if self._size > self._sweep_at:
                self._sweep()

    def _sweep(self, size: int = 0) -> None:
        """Drop what nothing else refers to. Each sweep is paid for by what was made since the last one."""
        counts = zip(list(self._made), _reference_counts(self._made.values()), strict=True)
        for key in [key for key, count in counts if count <= _UNUSED]:
            del self._made[key]
            self._size -= self._sizes.pop(key)
        if self._size + size > MAX_ALIVE_CHARS:
            raise LimitExceededError(f"it holds more than {MAX_ALIVE_CHARS} characters of text at once")
        self._sweep_at = max(_FIRST_SWEEP_CHARS, 2 * (self._size + size))


def _size(value: Any) -> int:
    if isinstance(value, str):
        return _OBJECT_CHARS + len(value)
    if isinstance(value, list | tuple):
        return _OBJECT_CHARS + _SLOT_CHARS * len(value)
    if issubclass(type(value), Namespace):  # isinstance would ask the namespace for its class
        value = _attributes(value)
    return _OBJECT_CHARS + (2 * _SLOT_CHARS * len(value) if isinstance(value, dict) else 0)


def _attributes(namespace: Namespace) -> dict[str, Any]:
    values: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return values


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
        self.filters |= {"string": text_of, "sum": _sum}
        for name, function in list(self.filters.items()):
            self.add_filter(name, function)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter; what it makes is charged."""

        @wraps(function)  # jinja2's marks with it, which say what is passed first
        def charged(*args: Any, **kwargs: Any) -> Any:
            _budget.get().tick()
            return _kept(function(*args, **kwargs), len(args) + len(kwargs))

        self.filters[name] = charged

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

    @staticmethod
    def kept(value: Any) -> Any:
        """Charge for ``value``, a slice or the value of a literal."""
        return _kept(value)

    def tilde(self, *values: Any) -> str:
        """The ``~`` operator."""
        return _concat([text_of(value) for value in values])

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, int | float) or (isinstance(obj, str) and attr in _MULTIPLYING_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(__obj, "__self__", None) is __self:
            return __obj(*args)  # what _Instrument has put there
        _budget.get().tick()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name == "join" and args:
                return _kept(_join(__self, args[0], owner))
            if name == "replace" and len(args) > 1:
                _check_replacing(owner, str(args[0]), str(args[1]))
            elif name in ("format", "format_map"):
                _check_formatting(owner, "{", [*args, *kwargs.values()])
        return _kept(super().call(__context, __obj, *args, **kwargs), len(args) + len(kwargs))

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().tick()
        return super().call_test(name, value, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _budget.get().check(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            _check_widths(_WIDE_PERCENT, left)
            _check_formatting(left, "%", right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        return _kept(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_widths(_WIDE_BRACES, value.__self__)
        return wrapped


class _Instrument(NodeTransformer):
    """Inserts a tick into every loop, and calls that charge for slices, literals and the ``~`` operator."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("tilde", node.nodes, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _call("kept", [node], node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _call("kept", [node], node.lineno) if node.ctx == "load" else node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _call("kept", [node], node.lineno)

    visit_Dict = visit_List


def _call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    attribute = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(attribute, arguments, [], None, None, lineno=lineno)


def _kept(value: Any, slots: int = 0) -> Any:
    """``value``, entered into the ledger."""
    if value is not None and not isinstance(value, int | float):
        _budget.get().keep(value, slots)
    return value


def text_size(value: Any) -> int:
    """About the characters of ``value`` as text, and room for them; shared parts count each time they occur."""
    budget = _budget.get()
    todo, size = [value], 0
    while todo:
        item = todo.pop()
        size += len(item) if isinstance(item, str) else _ITEM_CHARS
        if issubclass(type(item), Namespace):
            item = _attributes(item)
        if isinstance(item, Mapping):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
            budget.check(size)
            todo += item
    budget.check(size)
    return size


def text_of(value: Any) -> str:
    """``str(value)``, charged to the budget."""
    if isinstance(value, str):
        return str(value)
    text_size(value)
    text: str = _kept(str(value))
    return text


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
        if chunk:
            yield chunk


def _concat(parts: Iterable[str]) -> str:
    parts = list(parts)
    _budget.get().check(sum(map(len, parts)))
    text: str = _kept("".join(parts))
    return text


def _length(value: Any) -> int:
    return _size(value) - _OBJECT_CHARS if isinstance(value, str | list | tuple) else 0


def _check_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(other, int):
            _budget.get().check(_length(one) * max(other, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise LimitExceededError(f"a number has more than {_MAX_INTEGER_BITS} bits")


def _check_widths(wide: re.Pattern[str], pattern: str) -> None:
    if wide.search(pattern):
        raise SecurityError("a format with a width that is computed or above 999 is not allowed")


def _check_replacing(text: str, old: str, new: str) -> None:
    _budget.get().check(len(text) + text.count(old) * len(new))


def _check_formatting(pattern: str, mark: str, values: Any) -> None:
    """``mark``: what begins a field in ``pattern``; each may have all of the values."""
    _budget.get().check(len(pattern) + pattern.count(mark) * text_size(values))


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts, size = [], 0
    for item in value:
        part = text_of(item)
        size += len(part) + len(d) + 2  # and the place in the list
        _budget.get().check(size)
        parts.append(part)
    return str(d).join(parts)


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    for item in iterable:
        _budget.get().check(_length(start) + _length(item))
        start = start + item
    return start


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    _check_replacing(text_of(s), str(old), str(new))
    return str(s).replace(str(old), str(new), -1 if count is None else count)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    _check_widths(_WIDE_PERCENT, str(value))
    _check_formatting(str(value), "%", [args, kwargs])
    return do_format(value, *args, **kwargs)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = len(width) if isinstance(width, str) else width
    _budget.get().check(len(s) + (s.count("\n") + 1) * max(size, 0))
    return do_indent(s, width, first, blank)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > _MAX_DIGITS:
        raise SecurityError(f"rounding to more than {_MAX_DIGITS} digits is not allowed")
    return do_round(value, precision, method)
