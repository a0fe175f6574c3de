"""Sets the fields of a protobuf message from Python values, with errors that say what is accepted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence
from functools import partial
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ringline.errors import invalid

_Field = Any
"""A FieldDescriptor, whose class depends on the protobuf implementation."""
_RANGES = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
}
_MAX_FLOAT = 3.4028235e38
"""The largest 32-bit float."""
_MAX_DIGITS = 40
"""Longer integers are shown as a power of ten."""
_KINDS = {
    **dict.fromkeys(_RANGES, "int"),
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "str",
}


def assign(message: Message, name: str, value: Any, option: str | None = None) -> None:
    """Set a field that is not a message; ``option`` names it in errors.

    One string stands for a list of it. Raises TypeError for a wrong type, InvalidRequest for a value out of the
    field's range.
    """
    option = option or name
    field, target = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if isinstance(target, MutableMapping):
        _assign_map(target, field, value, option)
    elif isinstance(target, MutableSequence):
        _assign_list(target, field, value, option)
    else:
        _set(lambda one: setattr(message, name, one), field, value, option)


def expect(kind: type | tuple[type, ...], wanted: str, value: object, option: str) -> None:
    """Raise TypeError unless ``value`` is an instance of ``kind``, which ``wanted`` describes."""
    if not isinstance(value, kind):
        raise TypeError(f"{option}: expected {wanted}, got {type(value).__name__}")


def _assign_map(target: MutableMapping[Any, Any], field: _Field, value: Any, option: str) -> None:
    key_field, value_field = (field.message_type.fields_by_name[part] for part in ("key", "value"))
    expect(Mapping, f"a dict of {_KINDS[key_field.type]} to {_KINDS[value_field.type]}", value, option)
    for key, one in value.items():
        _set(target.__getitem__, key_field, key, f"{option}[{key!r}]")  # reading it inserts the key
        _set(partial(target.__setitem__, key), value_field, one, f"{option}[{key!r}]")


def _assign_list(target: MutableSequence[Any], field: _Field, value: Any, option: str) -> None:
    if isinstance(value, str) and field.type == FieldDescriptor.TYPE_STRING:
        value = [value]
    wanted = f"a list of {_KINDS[field.type]}"
    expect(Iterable, wanted, value, option)
    if isinstance(value, str | bytes | Mapping):
        raise TypeError(f"{option}: expected {wanted}, got {type(value).__name__}")
    values = list(value)
    try:
        target.extend(values)
    except (TypeError, ValueError, OverflowError):  # one of them is wrong: find it
        for index, one in enumerate(values):
            _set(target.append, field, one, f"{option}[{index}]")
        raise


def _set(setter: Callable[[Any], object], field: _Field, value: Any, option: str) -> None:
    try:
        setter(value)
    except TypeError:
        raise TypeError(f"{option}: expected {_KINDS[field.type]}, got {type(value).__name__}") from None
    except UnicodeEncodeError as error:
        problem = f"{error.reason} (at position {error.start}): expected text that UTF-8 can encode"
        raise invalid(option, problem) from None
    except (ValueError, OverflowError):
        if isinstance(value, bytes):  # text fields accept UTF-8 bytes
            raise invalid(option, "bytes that are not UTF-8: expected text") from None
        low, high = _RANGES.get(field.type, (-_MAX_FLOAT, _MAX_FLOAT))
        accepted = f"at least {low}" if value < low else f"at most {high}"  # the other bound is only the type's
        raise invalid(option, f"{shown(value)} is out of range: expected {accepted}") from None


def shown(number: float) -> str:
    """The number as text; a long int, which Python may refuse to print, as its magnitude."""
    if not isinstance(number, int):
        return repr(number)
    digits = int(number.bit_length() * math.log10(2))
    return str(number) if digits < _MAX_DIGITS else f"{'-' if number < 0 else ''}1e{digits}"


def json_text(value: object, option: str) -> str:
    """``value`` as JSON. Raises TypeError or InvalidRequest, naming ``option``, if JSON cannot hold it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"{option}: not JSON ({error}): expected values that JSON can hold") from None
    except (ValueError, RecursionError) as error:
        raise invalid(option, f"not JSON ({error}): expected values that JSON can hold") from None
