"""The pages docs/reference/protos/: every service, message and field of the contract, from the comments of its protos.

``python -m tests.docs.protos_pages`` writes them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from tests.docs.documents import ROOT

FOLDER = ROOT / "docs" / "reference" / "protos"
PACKAGES = {
    "inference": ("The contract for clients", "What a client sends to a processor, and what it gets."),
    "types": ("What the contracts share", "Messages that the contracts of all services use."),
    "engine": ("The contract of engines", "What processors and detokenizers say to an engine, and what it answers."),
    "detokenizer": ("The contract of detokenizers", "What a processor hears from a detokenizer."),
}
"""By package: the page's title, and a sentence."""
_NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}
_NESTED, _ENUMS, _FIELDS, _METHODS, _VALUES = 3, 4, 2, 2, 2
"""Numbers of fields in descriptors, of which the paths of comments consist."""
_MESSAGES_OF_FILE, _ENUMS_OF_FILE, _SERVICES_OF_FILE = 4, 5, 6


@cache
def files() -> dict[str, list[FileDescriptorProto]]:
    """The protos of each package, with their comments."""
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run([buf, "build", "protos", "-o", "-"], cwd=ROOT, capture_output=True, check=True)
    own = [file for file in FileDescriptorSet.FromString(done.stdout).file if file.package.startswith("ringline.")]
    own.sort(key=lambda file: (file.package, file.name))
    return {package.split(".")[1]: list(found) for package, found in groupby(own, lambda file: file.package)}


class Comments:
    """What is written above the things of one file."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._by_path = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}

    def at(self, *path: int) -> str:
        """As Markdown, its paragraphs apart."""
        lines = [line.removeprefix(" ").rstrip() for line in self._by_path.get(path, "").strip("\n").splitlines()]
        for character in "<*|":
            lines = [line.replace(character, f"\\{character}") for line in lines]
        lines = [f"- {line.strip()}" if line.startswith("  ") else line for line in lines]
        return "\n".join(lines).strip()

    def cell(self, *path: int) -> str:
        """In one line."""
        return " ".join(self.at(*path).split())


def type_of(field: FieldDescriptorProto, here: str, maps: dict[str, DescriptorProto]) -> str:
    """A field's type, with a link to where it is described."""
    if (entry := maps.get(field.type_name)) is not None:
        key, value = (type_of(part, here, maps) for part in entry.field)
        return f"map of {key} to {value}"
    name = linked(field.type_name, here) if field.type_name else f"`{_NAMES[field.type]}`"
    return f"repeated {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def linked(type_name: str, here: str) -> str:
    """The name of a message or enum, which leads to its description."""
    if not type_name.startswith(".ringline."):
        return f"`{type_name.removeprefix('.')}`"
    _, _, package, _, *names = type_name.split(".")
    name = ".".join(names)
    page = "" if package == here else f"{package}.md"
    return f"[{name}]({page}#{anchor(name)})"


def anchor(name: str) -> str:
    return name.replace(".", "").lower()


def presence(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Whether a field knows that it was left out, or is one of several."""
    if field.proto3_optional:
        return "optional "
    if field.HasField("oneof_index"):
        return f"one of *{message.oneof_decl[field.oneof_index].name}*: "
    return ""


def message_lines(
    message: DescriptorProto, name: str, path: tuple[int, ...], comments: Comments, here: str
) -> Iterator[str]:
    maps = {
        f".ringline.{here}.v1.{name}.{nested.name}": nested
        for nested in message.nested_type
        if nested.options.map_entry
    }
    yield f"### {name}\n"
    yield f"{comments.at(*path)}\n"
    if message.field:
        yield "| | field | type | |\n|---|---|---|---|"
        for index, field in enumerate(message.field):
            kind = presence(message, field) + type_of(field, here, maps)
            yield f"| {field.number} | `{field.name}` | {kind} | {comments.cell(*path, _FIELDS, index)} |"
        yield ""
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from message_lines(nested, f"{name}.{nested.name}", (*path, _NESTED, index), comments, here)
    for index, enum in enumerate(message.enum_type):
        yield from enum_lines(enum, f"{name}.{enum.name}", (*path, _ENUMS, index), comments)


def enum_lines(enum: EnumDescriptorProto, name: str, path: tuple[int, ...], comments: Comments) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{comments.at(*path)}\n"
    yield "| | value | |\n|---|---|---|"
    for index, value in enumerate(enum.value):
        yield f"| {value.number} | `{value.name}` | {comments.cell(*path, _VALUES, index)} |"
    yield ""


def service_lines(
    service: ServiceDescriptorProto, path: tuple[int, ...], comments: Comments, here: str
) -> Iterator[str]:
    yield f"## {service.name}\n"
    yield f"{comments.at(*path)}\n"
    yield "| call | takes | answers | |\n|---|---|---|---|"
    for index, method in enumerate(service.method):
        takes = ("a stream of " if method.client_streaming else "") + linked(method.input_type, here)
        answers = ("a stream of " if method.server_streaming else "") + linked(method.output_type, here)
        yield f"| `{method.name}` | {takes} | {answers} | {comments.cell(*path, _METHODS, index)} |"
    yield ""


def page(package: str) -> str:
    """The whole page of a package."""
    title, sentence = PACKAGES[package]
    described = [(file, Comments(file)) for file in files()[package]]
    lines = [f"# {title}\n", f"{sentence} Written from the comments in", f"{sources(package)}.\n"]
    for file, comments in described:
        for index, service in enumerate(file.service):
            lines += service_lines(service, (_SERVICES_OF_FILE, index), comments, package)
    lines.append("## Messages\n")
    for file, comments in described:
        for index, message in enumerate(file.message_type):
            lines += message_lines(message, message.name, (_MESSAGES_OF_FILE, index), comments, package)
        for index, enum in enumerate(file.enum_type):
            lines += enum_lines(enum, enum.name, (_ENUMS_OF_FILE, index), comments)
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def sources(package: str) -> str:
    """Links to the protos of a package."""
    names: Iterable[str] = (file.name for file in files()[package])
    return ",\n".join(f"[`protos/{name}`](../../../protos/{name})" for name in names)


def pages() -> dict[Path, Callable[[], Any]]:
    """What each page is to hold."""
    return {FOLDER / f"{package}.md": lambda package=package: page(package) for package in PACKAGES}


if __name__ == "__main__":
    for path, made in pages().items():
        path.write_text(made())
