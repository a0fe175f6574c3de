"""Which tensors a pickle of ``torch.save`` describes, found without unpickling it.

A pickle is a program. Here its operations, which the standard library's ``pickletools`` tells apart, act on plain
values, and what it would import is a name, compared with the few that a dictionary of tensors needs: nothing is called,
and no tensor is made. ``torch.load(weights_only=True)`` executes nothing either, but with hostile arguments its
functions allocate without limit or crash, so every file would need a process of its own, with torch in it.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import torch

MOST_BYTES: Final = 2**24
"""Of a pickle: a tensor takes about 200."""
_MOST_OPERATIONS = 2**20
"""About 50 for each tensor."""
_MOST_DIMENSIONS = 64
_MOST_NUMBER = 2**63 - 1
_NAME_SHOWN = 100
"""Characters."""

_DICT = "collections OrderedDict"
_TENSORS = {"torch._utils _rebuild_tensor": 4, "torch._utils _rebuild_tensor_v2": 6}
"""Functions that make a tensor of its storage's type, and their fewest arguments."""
_TYPED_TENSOR = "torch._utils _rebuild_tensor_v3"
_MOST_ARGUMENTS = 8
"""Of any function. Each call reads all of them, and a pickle may repeat a call at little cost."""
_PARAMETERS = {"torch._utils _rebuild_parameter": 3, "torch._utils _rebuild_parameter_with_state": 4}
_UNTYPED = "torch.storage UntypedStorage"
_STORAGES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
    "torch ComplexDoubleStorage": torch.complex128,
    "torch ComplexFloatStorage": torch.complex64,
    _UNTYPED: torch.uint8,
}
_DTYPES = {
    f"torch {str(dtype).removeprefix('torch.')}": dtype
    for dtype in (
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
        torch.uint16, torch.uint32, torch.uint64,
    )
}  # fmt: skip
_NAMES = {_DICT, _TYPED_TENSOR, *_TENSORS, *_PARAMETERS, *_STORAGES, *_DTYPES}

_CONSTANTS: Mapping[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

_T = TypeVar("_T")


class RefusedPickleError(Exception):
    """A pickle is damaged, or describes something else than tensors; the text says which, after the file's name."""


@dataclass(frozen=True, slots=True)
class PickledStorage:
    """Numbers that tensors share."""

    key: str
    """The name of its entry."""
    dtype: torch.dtype
    count: int

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage, inside its bounds, and not larger than it."""

    storage: PickledStorage
    dtype: torch.dtype
    offset: int
    """In numbers, as are strides."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def pickled_tensors(pickle: bytes) -> dict[str, PickledTensor]:
    """The tensors of a dictionary, by name. Raises ``RefusedPickleError``."""
    found = _Interpreter().run(pickle)
    if type(found) is not dict:
        raise RefusedPickleError(f"holds one {_kind(found)}, not a dictionary of tensors by name")
    tensors: dict[str, PickledTensor] = {}
    for name, value in found.items():
        if not isinstance(name, str):
            raise RefusedPickleError(f"names an entry by the number {name}: only tensors with names are read")
        if not isinstance(value, PickledTensor):
            inside = "transformers has the tensors themselves there, without a dictionary around them"
            raise RefusedPickleError(f"has {name[:_NAME_SHOWN]!r}, which is a {_kind(value)}, not a tensor; {inside}")
        tensors[name] = value
    if not tensors:
        raise RefusedPickleError("holds no tensors")
    return tensors


@dataclass(frozen=True, slots=True)
class _Global:
    """What a pickle would import: ``module name``."""

    name: str


class _Interpreter:
    """Runs a pickle's operations over plain values.

    Values are only passed on, never compared, hashed, shown or walked through: each of these could recurse without end.
    """

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._marked: list[list[object]] = []
        """Stacks beneath marks."""
        self._memo: dict[int, object] = {}

    def run(self, pickle: bytes) -> object:
        """The value that it leaves."""
        place = "its first operation"
        try:
            for count, (opcode, argument, at) in enumerate(pickletools.genops(pickle)):
                if count == _MOST_OPERATIONS:
                    raise RefusedPickleError(f"has more than {_MOST_OPERATIONS} operations in its pickle")
                place = f"{opcode.name} at byte {at}"
                self._do(opcode.name, argument)
            if at != len(pickle) - 1:
                raise ValueError
            return self._pop()
        except (ValueError, LookupError) as error:
            raise RefusedPickleError(f"has a damaged pickle (at or after {place})") from error

    def _do(self, operation: str, argument: object) -> None:
        """Raises ``ValueError`` or ``LookupError`` where there is nothing for it to act on."""
        if operation in _LITERALS:
            self._stack.append(argument)
        elif operation in _CONSTANTS:
            self._stack.append(_CONSTANTS[operation])
        elif operation in ("BINPUT", "LONG_BINPUT"):
            assert isinstance(argument, int)
            self._memo[argument] = self._stack[-1]
        elif operation in ("BINGET", "LONG_BINGET"):
            assert isinstance(argument, int)
            self._stack.append(self._memo[argument])
        elif operation in _TUPLES:
            count = _TUPLES[operation]
            if len(self._stack) < count:
                raise ValueError
            self._stack[-count:] = [tuple(self._stack[-count:])]
        else:
            self._do_rarer(operation, argument)

    def _do_rarer(self, operation: str, argument: object) -> None:
        match operation:
            case "GLOBAL":
                self._stack.append(_allowed(argument))
            case "REDUCE":
                arguments, called = self._pop(), self._pop()
                self._stack.append(_called(called, arguments))
            case "BINPERSID":
                self._stack.append(_storage(self._pop()))
            case "BUILD":  # attributes of a dictionary, such as its modules' versions
                self._pop()
                _require(self._stack[-1], dict)
            case "MARK":
                self._marked.append(self._stack)
                self._stack = []
            case "TUPLE":
                items = self._items()
                self._stack.append(tuple(items))
            case "EMPTY_LIST":
                self._stack.append([])
            case "EMPTY_DICT":
                self._stack.append({})
            case "APPEND":
                item = self._pop()
                _require(self._stack[-1], list).append(item)
            case "APPENDS":
                items = self._items()
                _require(self._stack[-1], list).extend(items)
            case "SETITEM":
                value, key = self._pop(), self._pop()
                self._set([key, value])
            case "SETITEMS":
                self._set(self._items())
            case "PROTO" | "STOP":
                pass
            case _:
                raise RefusedPickleError(
                    f"has the operation {operation} in its pickle, which torch.save does not write by itself"
                )

    def _pop(self) -> object:
        return self._stack.pop()

    def _items(self) -> list[object]:
        """What is above the last mark."""
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _set(self, items: list[object]) -> None:
        into = _require(self._stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):
                raise RefusedPickleError(f"has a {_kind(key)} as the name of an entry")
            into[key] = value


def _require(value: object, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise ValueError
    return value


def _allowed(argument: object) -> _Global:
    name = str(argument)
    if name not in _NAMES:
        dotted = name.replace(" ", ".")[:_NAME_SHOWN]
        raise RefusedPickleError(f"refers to {dotted}, which no tensor needs and nothing of which was executed")
    return _Global(name)


def _called(called: object, arguments: object) -> object:
    """What torch's function would make."""
    name, given = _require(called, _Global).name, _require(arguments, tuple)
    count = len(given)
    if name == _DICT and not given:
        return {}
    if (fewest := _PARAMETERS.get(name)) is not None and fewest <= count <= _MOST_ARGUMENTS:
        return _require(given[0], PickledTensor)
    if (fewest := _TENSORS.get(name)) is not None and fewest <= count <= _MOST_ARGUMENTS:
        return _tensor(given, None, given[6:])
    if name == _TYPED_TENSOR and 7 <= count <= _MOST_ARGUMENTS:
        return _tensor(given, _DTYPES.get(_require(given[6], _Global).name), given[7:])
    raise RefusedPickleError(f"calls {name.replace(' ', '.')} with {count} arguments, which torch.save does not")


def _storage(identifier: object) -> PickledStorage:
    kind, type_, key, _, count = _require(identifier, tuple)
    if kind != "storage" or (dtype := _STORAGES.get(_require(type_, _Global).name)) is None:
        raise ValueError
    return PickledStorage(_require(key, str), dtype, _size(count))


def _tensor(given: tuple[object, ...], dtype: torch.dtype | None, state: tuple[object, ...]) -> PickledTensor:
    """``dtype``: None for its storage's type."""
    storage, offset, shape, strides = given[:4]
    storage, offset, shape, strides = _require(storage, PickledStorage), _size(offset), _sizes(shape), _sizes(strides)
    if any(each is not None and each != {} for each in state):
        raise RefusedPickleError("has a tensor that is to be negated or conjugated when it is read")
    dtype = dtype or storage.dtype
    numbers, room = math.prod(shape), storage.nbytes // dtype.itemsize
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if numbers and not (last < room and numbers <= room):
        raise RefusedPickleError(f"has a tensor of {numbers} numbers that is not within its storage of {room}")
    return PickledTensor(storage, dtype, offset, shape, strides)


def _sizes(values: object) -> tuple[int, ...]:
    sizes = _require(values, tuple)
    if len(sizes) > _MOST_DIMENSIONS:
        raise RefusedPickleError(f"has a tensor of {len(sizes)} dimensions: expected at most {_MOST_DIMENSIONS}")
    return tuple(map(_size, sizes))


def _size(value: object) -> int:
    size = _require(value, int)
    if not 0 <= size <= _MOST_NUMBER:
        raise RefusedPickleError(f"has a negative size or one of more than {_MOST_NUMBER}")
    return size


def _kind(value: object) -> str:
    return "tensor" if isinstance(value, PickledTensor) else type(value).__name__.strip("_").lower()
