"""Constraints that a client can put on an answer, and the error that refuses one."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TEXT_BYTES = 256 << 10
"""UTF-8 bytes of one constraint's texts together."""
MAX_CHOICES = 10_000
MAX_CHOICE_BYTES = 16 << 10
"""UTF-8 bytes of one text to choose."""
MAX_TAGS = 256
MAX_MARKER_BYTES = 256
"""UTF-8 bytes of the text that begins a tag, and of the text that ends it."""


class ConstraintError(ValueError):
    """A constraint cannot be used: ``field`` says where, below ``constraint``, and ``problem`` what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        """Such as ``json_schema``; empty for the constraint as a whole."""
        self.problem = problem


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON value that a JSON Schema accepts."""

    schema: str
    any_whitespace: bool = False


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""

    any_whitespace: bool = False


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that a regular expression matches as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A text that a context-free grammar, in Lark's or GBNF's notation, accepts."""

    text: str


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """Constrained text: ``begin``, JSON, ``end``."""

    begin: str
    json_schema: str | None = None
    """None: any JSON object."""
    end: str = ""
    trigger: str | None = None
    """The prefix of ``begin`` after which the rest is enforced; None: all of ``begin``."""


@dataclass(frozen=True, slots=True)
class StructuralTags:
    """Free text in which certain texts begin a constrained part."""

    tags: tuple[StructuralTag, ...]
    required: bool = False
    """Whether the answer begins with a tag."""
    single: bool = False
    """Whether the answer ends with its first tag."""
    any_whitespace: bool = False


Constraint = JsonSchema | JsonObject | Regex | OneOf | Grammar | StructuralTags
