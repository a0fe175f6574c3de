"""What a format is: how calls or reasoning are read, written by a grammar, and recognized in a template."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from text_core.parsing.parts import PartWriter, call_id
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.parsing.text_parser import TextParser
from text_core.parsing.tool_grammar import Marker, ToolSpec


class MakeGrammar(Protocol):
    """Makes the grammar of a whole answer; raises ``ConstraintError`` for parameters that are not supported."""

    def __call__(self, tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
        """``required``: nothing but calls; one call if ``single``. Otherwise free text, in which a call is held to its
        form once it has begun. The arguments of strict tools are held to their schemas.
        """


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls of tools."""

    parser: Callable[[PartWriter, Set[str]], TextParser]
    """Makes a parser of content and calls; it is given the names of the tools."""
    markers: tuple[str, ...]
    """Markers, which may be special tokens."""
    is_in: Callable[[str], bool]
    """Whether a template writes calls in this format."""
    grammar: MakeGrammar
    """Makes the grammar of an answer with calls."""
    needs_names: bool = False
    """No marker begins its calls: whether text is one depends on the names of the tools."""
    grammar_has_reasoning: bool = False
    """That grammar covers the reasoning, too: ``after_reasoning`` must not be applied to it."""
    begins_like_json: bool = False
    """A call cannot be told from other JSON by how it begins."""
    grammar_beside_form: MakeGrammar | None = None
    """Makes the grammar of nothing but calls, or else of a text that the grammar ``form`` describes; None: these are
    alternatives.
    """
    reasoning_end: str = ""
    """Then: the markers between reasoning that the prompt has opened and what the grammar covers."""
    call_id: Callable[[bytes, int, int], str] = call_id
    """Makes the id of a call, of seed, choice and number."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model writes its reasoning."""

    parser: Callable[[PartWriter, TextParser, ReasoningMeter, bool], TextParser]
    """Makes a parser of reasoning, which hands the rest to the next parser; the flag: the answer begins inside."""
    markers: tuple[str, ...]
    """Markers, which may be special tokens."""
    is_in: Callable[[str], bool]
    """Whether a template writes reasoning in this format."""
    opening: str
    """The text that begins the reasoning."""
    closing: str
    """The text between the reasoning and the answer."""
    begins_with_header: bool = False
    """An answer begins with what is neither reasoning nor answer."""
