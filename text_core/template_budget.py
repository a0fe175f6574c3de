"""What one rendering of a chat template may take: processor time, and characters and items that are alive at once.

The time is the thread's own, so that a busy machine refuses no chat. What was made and let go costs nothing: templates
that gather a prompt in a namespace make it anew at every step. What a template makes is kept in a ledger; what only the
ledger still refers to is dropped from it, once enough has come together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

from jinja2.utils import Namespace

TIME_LIMIT_S = 5.0
"""Seconds of processor time that one rendering may take."""
MAX_ALIVE_CHARS = 32 << 20
"""Characters that one rendering may hold at once, those of the chat and of its own output not included."""
MAX_COMPARED = 1 << 18
"""Items that a compared or hashed value may have, shared ones counted each time: some 5 ms."""
MAX_DEPTH = 200
"""Levels that it may have: the interpreter hashes tuples recursively, without a limit."""

_ITEM_CHARS = 128
"""What converting a value to text costs at least."""
_OBJECT_CHARS = 64
"""What a value costs at least, and ..."""
_SLOT_CHARS = 16
"""... for each of its items: four bytes a character."""
_FIRST_SWEEP_CHARS = 2 << 20
_SCALARS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = (list, tuple, Mapping, set, frozenset, KeysView, ValuesView, ItemsView)


class LimitExceededError(Exception):
    """A template exceeded its time or its budget."""


def _reference_counts(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        yield sys.getrefcount(value)


_UNUSED = next(_reference_counts({0: object()}.values()))
"""The count of references to a value that only the ledger has."""


class Budget:
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


current_budget: ContextVar[Budget] = ContextVar("budget")


def kept(value: Any, slots: int = 0) -> Any:
    """``value``, entered into the ledger."""
    if value is not None and not isinstance(value, int | float):
        current_budget.get().keep(value, slots)
    return value


def text_size(value: Any) -> int:
    """About the characters of ``value`` as text, and room for them; shared parts count each time they occur."""
    budget = current_budget.get()
    todo, size = [value], 0
    while todo:
        item = todo.pop()
        size += len(item) if isinstance(item, str) else _ITEM_CHARS
        if issubclass(type(item), Namespace):
            item = _attributes(item)
        if is_container(item):
            budget.check(size)
            todo += _items(item)
    budget.check(size)
    return size


def check_comparable(*values: Any) -> None:
    """Raise unless ``values`` can be compared, or hashed, in little time; shared parts count each time they occur."""
    for value in values:
        containers, count = [value], 0
        for _ in range(MAX_DEPTH):
            current_budget.get().tick()
            inner: list[Any] = []
            for each in containers:
                count += len(each)
                if count > MAX_COMPARED:
                    raise LimitExceededError(f"it compares a value of more than {MAX_COMPARED} items")
                inner += filter(is_container, _items(each))
            containers = inner
            if not containers:
                break
        else:
            raise LimitExceededError(f"it compares a value that nests deeper than {MAX_DEPTH} levels")


def is_container(value: Any) -> bool:
    """Whether comparing ``value`` compares items of it."""
    return type(value) not in _SCALARS and isinstance(value, _CONTAINERS)


def _items(container: Any) -> Iterable[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, Mapping) else container


def length(value: Any) -> int:
    """What repeating or joining ``value`` costs, characters."""
    return _size(value) - _OBJECT_CHARS if isinstance(value, str | list | tuple) else 0
