"""A later version of the contract: the protos with ``overlay/`` laid over them, and its messages at run time.

A file of the overlay has messages of the proto of the same path, each with the fields that it gains, and new messages.
"""

from __future__ import annotations

import re
import shutil
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.programs import output_of
from tests.ring import ROOT

PROTOS = ROOT / "protos"
OVERLAY = Path(__file__).resolve().parent / "overlay"
BUF = Path(sys.executable).parent / "buf"

_BLOCK = re.compile(
    r"(?:^ *//.*\n)*"
    r"^(?P<indent> *)(?:message|enum|oneof) (?P<name>\w+) \{\n"
    r"(?P<body>(?:.*\n)*?)^(?P=indent)\}\n",
    re.MULTILINE,
)
_SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: "later",
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
    FieldDescriptor.CPPTYPE_BOOL: True,
}


def lay_over(out: Path) -> Path:
    """Write the protos with the overlay to ``out``."""
    shutil.copytree(PROTOS, out)
    for addition in sorted(OVERLAY.rglob("*.proto")):
        target = out / addition.relative_to(OVERLAY)
        target.write_text(_merged(target.read_text(), addition.read_text()))
    return out


def _merged(text: str, additions: str) -> str:
    """``text`` with the blocks of ``additions``: fields go to the end of the block of the same name."""
    for block in _BLOCK.finditer(additions):
        there = next((one for one in _BLOCK.finditer(text) if one["name"] == block["name"]), None)
        if there is None:
            text = f"{text.rstrip()}\n\n{block[0].strip(chr(10))}\n"
            continue
        inner = next(_BLOCK.finditer(block["body"]), None)
        body = there["body"] + block["body"] if inner is None else _merged(there["body"], block["body"])
        text = text[: there.start("body")] + body + text[there.end("body") :]
    return text


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    with TemporaryDirectory() as folder:
        image = Path(folder) / "image.binpb"
        protos = lay_over(Path(folder) / "protos")
        output_of(BUF, "build", protos, "--exclude-source-info", "-o", image)
        return pool_of(image)


def pool_of(image: Path) -> descriptor_pool.DescriptorPool:
    """The messages of an image that buf built, such as the baseline."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file:
        pool.Add(file)
    return pool


def later(message: Message, **values: object) -> bytes:
    """The message on the wire as a later version would send it: with all that it and what is in it gain."""
    kind = message_factory.GetMessageClass(_pool().FindMessageTypeByName(message.DESCRIPTOR.full_name))
    grown = kind.FromString(message.SerializeToString())
    fill(grown, descriptor_pool.Default())
    return bytes(grown.SerializeToString())


def fill(message: Message, known: descriptor_pool.DescriptorPool) -> None:
    """Set every field, in it and in what it has, that its message in the pool ``known`` does not have."""
    numbers = _known_numbers(message, known)
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                fill(inner, known)
    for field in message.DESCRIPTOR.fields:
        # That of an optional field is its own: `optional` is written so in a descriptor.
        alone = field.containing_oneof is None or len(field.containing_oneof.fields) == 1
        if field.number not in numbers and alone:
            _set(message, field)


def _set(message: Message, field: FieldDescriptor) -> None:
    if field.message_type is not None:
        value = getattr(message, field.name)
        (value.add() if field.is_repeated else value).SetInParent()
        return
    value = b"later" if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS.get(field.cpp_type, 3)
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _known_numbers(message: Message, known: descriptor_pool.DescriptorPool) -> set[int]:
    """Of the fields that a version has; of a message that it has not, all: nothing of it is news."""
    try:
        found = known.FindMessageTypeByName(message.DESCRIPTOR.full_name)
    except KeyError:
        return {field.number for field in message.DESCRIPTOR.fields}
    return {field.number for field in found.fields}
