"""The typed parts of an answer, the options for parsing them, and the writer that collects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from string import ascii_letters, digits

from text_core.parsing.argument_types import ArgumentType, ArgumentTypes
from text_core.parsing.content_tokens import ContentTokens
from text_core.parsing.marks import marker_text, unmarked_runs, without_marks

_LETTERS_AND_DIGITS = bytes(ord((digits + ascii_letters)[byte % 62]) for byte in range(256))
"""Translation table: byte of an id → letter or digit."""


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str
    tokens: tuple[int, ...] = ()
    """Positions of its tokens, if requested; without tokens that began in an earlier piece."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a tool call. A call's first piece has its id and name; later pieces continue its arguments."""

    index: int
    """Number of the call in its choice, from 0."""
    id: str
    """Empty in later pieces."""
    name: str
    """Empty in later pieces."""
    arguments: str
    """The next piece of a JSON object's text."""


Part = Content | Reasoning | ToolCallPiece


@dataclass(frozen=True, slots=True)
class KnownTools:
    """What a parser is told of the tools."""

    names: frozenset[str] = frozenset()
    """Tools that may be called, for formats that need the names."""
    types: ArgumentTypes = field(default_factory=ArgumentTypes)
    """For formats that write arguments as text."""


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """How an answer is divided into parts; the same for all choices of a request."""

    tool_calls: str = "none"
    """Name of a format in ``formats.TOOL_FORMATS``, or none."""
    reasoning: str = "none"
    """Name of a format in ``formats.REASONING_FORMATS``, or none."""
    begins_in_reasoning: bool = False
    """The prompt has opened the reasoning."""
    tool_names: tuple[str, ...] = ()
    """Tools that may be called. Text like an unmarked call of another tool is content."""
    argument_types: tuple[ArgumentType, ...] = ()
    """Of the tools' arguments, for formats that write them as text."""
    call_id_seed: bytes = b""
    """Call ids derive from this seed, the choice and the call's number."""
    content_tokens: bool = False
    """Whether ``Content.tokens`` is filled."""


def call_id(seed: bytes, choice: int, index: int, *, prefix: str = "call_", length: int = 24) -> str:
    """The id of a call: ``prefix`` and ``length`` ≤ 64 letters and digits."""
    key = seed + choice.to_bytes(4, "little") + index.to_bytes(4, "little")
    return prefix + blake2b(key).digest()[:length].translate(_LETTERS_AND_DIGITS).decode()


class PartWriter:
    """Collects parts; merges consecutive pieces of one kind."""

    def __init__(
        self,
        call_id: Callable[[int], str],
        *,
        skip_special_tokens: bool = True,
        content_tokens: ContentTokens | None = None,
    ) -> None:
        """``call_id`` maps a call's number to its id; ``content_tokens`` is None if they are not requested."""
        self._call_id = call_id
        self._skips_marks = skip_special_tokens
        self._content_tokens = content_tokens
        self._calls = 0
        self._done: list[Part] = []
        self._kind: type[Part] = Content
        """Kind of the piece being collected."""
        self._texts: list[str] = []
        self._opening = ("", "")
        """Id and name, if that piece is the first of a call."""
        self._tokens: list[int] = []
        """Token positions of that piece, if it is content."""

    def content(self, text: str, origin: int) -> None:
        """``origin``: offset of ``text`` in the text fed to this answer's parsers."""
        self._add(Content, self._plain(text))
        if self._content_tokens is not None:
            for begin, end in unmarked_runs(text) if self._skips_marks else [(0, len(text))]:
                self._tokens += self._content_tokens.take(origin + begin, origin + end)

    def reasoning(self, text: str) -> None:
        self._add(Reasoning, self._plain(text))

    def call(self, name: str, call_id: str | None = None) -> None:
        """Begin a call; ``call_id``: None for one that is made."""
        self._close()
        self._kind, self._texts = ToolCallPiece, [""]
        self._opening = (call_id or self._call_id(self._calls), name)
        self._calls += 1

    def arguments(self, json_text: str) -> None:
        """Continue the current call's arguments."""
        self._add(ToolCallPiece, json_text)

    def take(self) -> tuple[Part, ...]:
        """Remove and return the parts collected so far."""
        self._close()
        done, self._done = self._done, []
        return tuple(done)

    def _plain(self, text: str) -> str:
        return without_marks(text) if self._skips_marks else marker_text(text)

    def _add(self, kind: type[Part], text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._close()
            self._kind = kind
        self._texts.append(text)

    def _close(self) -> None:
        if not self._texts:
            return
        text = "".join(self._texts)
        if self._kind is ToolCallPiece:
            self._done.append(ToolCallPiece(self._calls - 1, *self._opening, text))
        elif self._kind is Content:
            self._done.append(Content(text, tuple(self._tokens)))
        else:
            self._done.append(Reasoning(text))
        self._texts, self._opening, self._tokens = [], ("", ""), []
