"""Mutates valid messages: hostile values in any field, and changed bytes."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_DEPTH = 4
"""Of nested messages."""
TEXTS = (
    "",
    "a",
    "\x00",
    "\u202e\u200b",
    "🦊" * 40,
    "{{ 7 * 7 }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "<|im_end|>",
    "../../etc/passwd",
    "%s%n",
    "user",
    "x" * 5000,
    '{"a":' * 200,
    "null",
    "[]",
    "{}",
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3.4e38, float("nan"), float("inf"), float("-inf"))
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 7, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 7, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 7, 300, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 7, 300, 2**63, 2**64 - 1),
}


def mutate(rng: random.Random, message: Message) -> bytes:
    """Mutate fields of ``message``, its bytes, or both."""
    kind = rng.randrange(4)
    data = mutate_fields(rng, message) if kind else message.SerializeToString()
    return data if kind > 1 else mutate_bytes(rng, data)


def mutate_fields(rng: random.Random, message: Message) -> bytes:
    """Mutate some fields of ``message``; the result can be parsed."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(rng.randint(1, 3)):
        _mutate_field(rng, copy, _DEPTH)
    return copy.SerializeToString()


def _mutate_field(rng: random.Random, message: Message, depth: int) -> None:
    """Set, clear or extend one field."""
    if not message.DESCRIPTOR.fields:
        return
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        _extend(rng, message, field, depth)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        inner = getattr(message, field.name)
        inner.SetInParent()
        if depth:
            _mutate_field(rng, inner, depth - 1)
    else:
        setattr(message, field.name, _value(rng, field))


def _extend(rng: random.Random, message: Message, field: FieldDescriptor, depth: int) -> None:
    container = getattr(message, field.name)
    count = rng.choice((1, 1, 2, 5, 300))
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for _ in range(count):
            if value.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
                container[_value(rng, key)] = _value(rng, value)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        for _ in range(min(count, 5)):
            inner = container.add()
            if depth:
                _mutate_field(rng, inner, depth - 1)
    else:
        container.extend(_value(rng, field) for _ in range(count))


def _value(rng: random.Random, field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 16, 1000)))
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice(TEXTS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice(FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice((0, 1, 2, 99))
        case kind:
            return rng.choice(INTEGERS[kind])


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Replace, delete, insert or repeat a few bytes."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        begin = rng.randint(0, len(result))
        end = min(len(result), begin + rng.randint(1, 8))
        match rng.randrange(4):
            case 0:
                result[begin:end] = rng.randbytes(end - begin)
            case 1:
                del result[begin:end]
            case 2:
                result[begin:begin] = rng.choice((b"\xff" * 10, rng.randbytes(4), b"\x80" * 9 + b"\x01"))
            case _:
                result[begin:begin] = result[begin:end]
    return bytes(result)
