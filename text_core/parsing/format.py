"""A format of calls or reasoning: its parser, its grammar, and its detection in chat templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from text_core.parsing.parts import KnownTools, PartWriter, call_id
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.parsing.text_parser import TextParser
from text_core.parsing.tool_grammar import Marker, ToolSpec


class MakeGrammar(Protocol):
    """Makes the grammar of a whole answer; raises ``ConstraintError`` for unsupported parameters."""

    def __call__(self, tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
        """``required``: only calls; one call if ``single``. Otherwise free text, in which a call must keep to its form
        once begun. The arguments of strict tools must match their schemas.
        """


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls of tools."""

    parser: Callable[[PartWriter, KnownTools], TextParser]
    """Makes a parser of content and calls."""
    markers: tuple[str, ...]
    """Markers, which may be special tokens."""
    is_in: Callable[[str], bool]
    """Whether a template writes calls in this format."""
    grammar: MakeGrammar
    """Makes the grammar of an answer with calls."""
    needs_names: bool = False
    """Calls may begin without a marker: whether text is a call depends on the names of the tools."""
    uses_names: bool = False
    """The names of the tools tell what is meant by malformed calls."""
    uses_argument_names: bool = False
    """With ``uses_names`` and ``writes_text``: so do those of their arguments."""
    opened_by: str = ""
    """What begins a call at the beginning of an answer, where the prompt has it already; empty: nothing."""
    writes_text: bool = False
    """Arguments are written as text: what is JSON of another type depends on the tools' schemas."""
    nests_text: bool = False
    """With ``writes_text``: values within objects and lists are text, too."""
    grammar_has_reasoning: bool = False
    """Whether ``grammar`` covers the reasoning, too: ``after_reasoning`` must not be applied to it."""
    begins_like_json: bool = False
    """Whether a call begins like any other JSON."""
    grammar_beside_form: MakeGrammar | None = None
    """Makes the grammar of calls only or of text in the grammar ``form``; None: the two are plain alternatives."""
    reasoning_end: str = ""
    """With ``grammar_has_reasoning``: the markers between reasoning opened by the prompt and the grammar's text."""
    forced_end: str = ""
    """With ``grammar_has_reasoning``: what ends reasoning so that calls or other text may follow."""
    forced_end_before_calls: str = ""
    """The same where only calls may follow."""
    call_id: Callable[[bytes, int, int], str] = call_id
    """Makes a call's id from seed, choice and number."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model writes its reasoning."""

    parser: Callable[[PartWriter, TextParser, ReasoningMeter, bool], TextParser]
    """Makes a parser of reasoning, which feeds the rest to the next parser; the flag: the answer begins inside."""
    markers: tuple[str, ...]
    """Markers, which may be special tokens."""
    is_in: Callable[[str], bool]
    """Whether a template writes reasoning in this format."""
    opening: str
    """The text that begins the reasoning."""
    closing: str
    """The text between the reasoning and the answer."""
    answer_begin: str = ""
    """A marker with which the answer may begin, with reasoning before it or not; it is not of the answer."""
    prompt_end: str = ""
    """The end of a prompt that has ended the reasoning; empty: ``closing``."""
    begins_with_header: bool = False
    """Whether an answer begins with a header: neither reasoning nor answer text."""
