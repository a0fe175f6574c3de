"""A jinja2 sandbox that also bounds time and size.

A chat template comes with a checkpoint and is untrusted data. jinja2's immutable sandbox keeps it from Python's
internals and from ranges beyond 100,000, but not from running for a minute or building a string of terabytes. Here each
rendering has a budget (``template_budget``), checked in every loop iteration, call and filter.

The results of operators, calls, filters, slices and literals are entered into it. Joining, repeating, formatting and
replacing are checked *before* they run, and so are comparisons of lists, dictionaries and what they are keyed by, which
take time by the parts that they share each time that these occur. Operations that only multiply their input and that no
chat template needs (padding filters and methods, ``lipsum``) are removed. Nothing is evaluated at compile time.

Single operations of the interpreter on data within the budget are not bounded further; they take time and memory in
proportion to its size.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

from jinja2 import Template, nodes, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import do_format, do_indent, do_round, make_attrgetter
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from text_core.template_budget import (
    Budget,
    LimitExceededError,
    check_comparable,
    current_budget,
    is_container,
    kept,
    length,
    text_size,
)

MAX_RENDERED_CHARS = 4 << 20
"""Default bound on the characters of one rendering's result."""
_MAX_INTEGER_BITS = 4096
_MAX_DIGITS = 1000
_MULTIPLYING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode"})
_SEARCHING_METHODS = frozenset({"strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition", "rsplit"})
"""Methods of texts that take time in proportion to what they seek, too."""
_MAX_SOUGHT = 1000
_PART_CHARS = 16
"""What each part of a text costs in a list."""
_MULTIPLYING_FILTERS = ("batch", "center", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
_TEXT_FILTERS = frozenset(
    {"capitalize", "e", "escape", "forceescape", "lower", "safe", "striptags", "title", "truncate", "upper"}
    | {"urlencode", "wordcount"}
)
"""Filters that make text of their first argument."""
_LISTING_FILTERS = frozenset({"list", "sort", "title", "unique", "wordcount"})
"""Filters that make a list of a text's parts."""
_COMPARING_FILTERS = ("dictsort", "groupby", "max", "min", "sort", "unique")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
"""By jinja2's names."""
_COMPARING_TESTS = frozenset(
    ["!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne"],
)
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{4})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{4})")


class OutputTooLongError(LimitExceededError):
    """A template's output is longer than its caller allows."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox; shared by all templates and threads."""

    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=_finalize, **options)
        for name in _MULTIPLYING_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"format": _format, "indent": _indent, "join": _join, "replace": _replace, "round": _round}
        self.filters["trim"] = _trim
        self.filters |= {"string": text_of, "sum": _sum}
        self.filters |= {name: _comparing(self.filters[name]) for name in _COMPARING_FILTERS}
        self.filters |= {name: _of_text(self.filters[name]) for name in _TEXT_FILTERS}
        self.filters |= {name: _of_parts(self.filters[name]) for name in _LISTING_FILTERS}
        self.tests |= {name: _comparing(self.tests[name]) for name in _COMPARING_TESTS}
        for name, function in list(self.filters.items()):
            self.add_filter(name, function)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter; what it makes is charged."""

        @wraps(function)  # jinja2's marks with it, which say what is passed first
        def charged(*args: Any, **kwargs: Any) -> Any:
            current_budget.get().tick()
            return kept(function(*args, **kwargs), len(args) + len(kwargs))

        self.filters[name] = charged

    def template(self, source: str) -> Template:
        """Compile a template; raises ``jinja2.TemplateSyntaxError``."""
        tree = _Instrument().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: Template, variables: Mapping[str, Any], max_chars: int = MAX_RENDERED_CHARS) -> str:
        """Render within the limits; raises ``LimitExceededError``, and anything that the template raises."""
        token = current_budget.set(Budget())
        try:
            return "".join(_limited(template.generate(variables), max_chars))
        finally:
            current_budget.reset(token)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Called by jinja2 to join the output of macros and assigned blocks."""
        return _concat(parts)

    def tick(self) -> str:
        """Check the budget; called in every loop iteration."""
        current_budget.get().tick()
        return ""

    def kept(self, value: Any) -> Any:
        """Charge for ``value``, a slice or the value of a literal."""
        return kept(value)

    def key(self, value: Any) -> Any:
        """Check a key of a dictionary before it is hashed."""
        if isinstance(value, tuple):
            check_comparable(value)
        return value

    def comparable(self, value: Any) -> Any:
        """``value``, checked before it is compared; an iterator as a list."""
        value = list(value) if isinstance(value, Iterator) else value
        if is_container(value):
            check_comparable(value)
        return value

    def compared(self, left: Any, comparison: str, right: Any) -> Any:
        """The comparison operators."""
        if is_container(left) and not isinstance(right, str):
            left, right = self.comparable(left), self.comparable(right)
        return _COMPARISONS[comparison](left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.key(argument))

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
        current_budget.get().tick()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if not isinstance(__obj, Macro) and not isinstance(owner, str) and any(map(is_container, args)):
            check_comparable(*filter(is_container, (owner, *args)))  # as index, get and loop.changed compare them
        if isinstance(owner, str):
            if name == "join" and args:
                return kept(_join(__self, args[0], owner))
            if name == "replace" and len(args) > 1:
                _check_replacing(owner, str(args[0]), str(args[1]))
            elif name in _SEARCHING_METHODS and args:
                _check_sought(args[0])
            if name in ("split", "rsplit", "splitlines"):
                separator = args[0] if args and isinstance(args[0], str) else None
                current_budget.get().check(_PART_CHARS * sum(map(owner.count, (separator,) if separator else " \n\t")))
        return kept(super().call(__context, __obj, *args, **kwargs), len(args) + len(kwargs))

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        current_budget.get().tick()
        return super().call_test(name, value, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "-":
            check_comparable(*filter(is_container, (left, right)))  # views of keys
        elif operator == "+":
            current_budget.get().check(length(left) + length(right))
        elif operator == "%" and isinstance(left, str):
            _check_widths(_WIDE_PERCENT, left)
            _check_formatting(left, "%", right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        return kept(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern, format_ = value.__self__, wrapped
        _check_widths(_WIDE_BRACES, pattern)

        @wraps(wrapped)
        def checked(*args: Any, **kwargs: Any) -> str:
            _check_formatting(pattern, "{", [*args, *kwargs.values()])
            return format_(*args, **kwargs)

        return checked


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

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _call("key", [node.key], node.lineno)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        """What is compared with a constant stays as it is."""
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if len(node.ops) > 1:  # each side is computed once, so they are checked one by one
            node.expr = _call("comparable", [node.expr], node.lineno)
            for operand in node.ops:
                operand.expr = _call("comparable", [operand.expr], node.lineno)
        elif not any(isinstance(side, nodes.Const | nodes.TemplateData) for side in sides):
            name = nodes.Const(node.ops[0].op, lineno=node.lineno)
            return _call("compared", [node.expr, name, node.ops[0].expr], node.lineno)
        return node


def _call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    attribute = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(attribute, arguments, [], None, None, lineno=lineno)


def text_of(value: Any) -> str:
    """``str(value)``, charged to the budget."""
    if isinstance(value, str):
        return str(value)
    text_size(value)
    text: str = kept(str(value))
    return text


@pass_context  # also keeps jinja2 from evaluating constants at compile time
def _finalize(context: Context, value: Any) -> str:
    return text_of(value)


def _limited(chunks: Iterable[str], max_chars: int) -> Iterator[str]:
    total = 0
    for chunk in chunks:
        current_budget.get().tick()
        total += len(chunk)
        if total > max_chars:
            raise OutputTooLongError(f"its output is longer than {max_chars} characters")
        if chunk:
            yield chunk


def _concat(parts: Iterable[str]) -> str:
    parts = list(parts)
    current_budget.get().check(sum(map(len, parts)))
    text: str = kept("".join(parts))
    return text


def _trim(value: Any, chars: str | None = None) -> str:
    _check_sought(chars)
    return text_of(value).strip(chars)


def _check_sought(text: Any) -> None:
    if isinstance(text, str) and len(text) > _MAX_SOUGHT:
        raise LimitExceededError(f"it seeks a text of more than {_MAX_SOUGHT} characters")


def _of_parts(function: Any) -> Callable[..., Any]:
    """A filter that makes a list of a text's parts, which is charged before."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if isinstance(value, str):
                current_budget.get().check(_PART_CHARS * len(value))
        return function(*args, **kwargs)

    return checked


def _of_text(function: Any) -> Callable[..., Any]:
    """A filter that makes text of what it gets, which is charged before."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if is_container(value):
                text_size(value)
        return function(*args, **kwargs)

    return checked


def _comparing(function: Any) -> Callable[..., Any]:
    """A filter or test that compares what it gets, checked before."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = [list(value) if isinstance(value, Iterator) else value for value in args]
        check_comparable(*filter(is_container, given))
        return function(*given, **kwargs)

    return checked


def _check_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(other, int):
            current_budget.get().check(length(one) * max(other, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise LimitExceededError(f"a number has more than {_MAX_INTEGER_BITS} bits")


def _check_widths(wide: re.Pattern[str], pattern: str) -> None:
    if wide.search(pattern):
        raise SecurityError("a format with a width that is computed or above 999 is not allowed")


def _check_replacing(text: str, old: str, new: str) -> None:
    current_budget.get().check(len(text) + text.count(old) * len(new))


def _check_formatting(pattern: str, mark: str, values: Any) -> None:
    """``mark``: what begins a field in ``pattern``; each may have all of the values."""
    current_budget.get().check(len(pattern) + pattern.count(mark) * text_size(values))


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts, size = [], 0
    for item in value:
        part = text_of(item)
        size += len(part) + len(d) + 2  # and the place in the list
        current_budget.get().check(size)
        parts.append(part)
    return str(d).join(parts)


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    for item in iterable:
        current_budget.get().check(length(start) + length(item))
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
    current_budget.get().check(len(s) + (s.count("\n") + 1) * max(size, 0))
    return do_indent(s, width, first, blank)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > _MAX_DIGITS:
        raise SecurityError(f"rounding to more than {_MAX_DIGITS} digits is not allowed")
    return do_round(value, precision, method)
