"""Finds, token by token, where reasoning ends and the answer begins; stops count only in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from text_core.parsing.formats import NONE, REASONING_FORMATS, make_parser, marker_texts
from text_core.parsing.marks import mark
from text_core.parsing.parts import ParseOptions, PartWriter
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.pieces import Pieces
from text_core.tokenizer import Tokenizer


def special_marks(tokenizer: Tokenizer, options: ParseOptions) -> Mapping[int, str]:
    """The mark of every special token that is a marker, keyed by token id."""
    special = tokenizer.special_token_ids
    ids = {tokenizer.token_id(text): mark(text) for text in marker_texts(options)}
    return {token_id: mark for token_id, mark in ids.items() if token_id in special}


def own_length(pieces: Pieces, token_id: int, text: str) -> int:
    """Length of the marker at the end of ``text``; the text before it is a character left unfinished by earlier ids."""
    own = pieces[token_id]
    return len(own) if isinstance(own, str) and text.endswith(own) else 0


class AnswerGate:
    """Follows the ids of one choice.

    White space that may precede reasoning, and the possible beginning of its marker, count as the answer.
    """

    def __init__(self, tokenizer: Tokenizer, options: ParseOptions, *, skip_special_tokens: bool) -> None:
        options = replace(options, tool_calls=NONE)
        self._pieces = tokenizer.pieces(skip_special_tokens=skip_special_tokens)
        self._marks = special_marks(tokenizer, options)
        self._meter = ReasoningMeter()
        begins_with_header = REASONING_FORMATS[options.reasoning].begins_with_header
        self._meter.in_reasoning = options.begins_in_reasoning
        self._meter.reached_answer = not (options.begins_in_reasoning or begins_with_header)
        self._writer = PartWriter(str)
        self._parser = make_parser(options, self._writer, self._meter)
        self._position = 0

    @property
    def is_open(self) -> bool:
        """Whether the next token is outside reasoning."""
        return not self._meter.in_reasoning

    def push(self, token_id: int, text: str) -> int | None:
        """Take an id and the text it completes; returns the answer's offset in ``text``, None if it has no answer."""
        begin, fed = self._position, text
        if (marker := self._marks.get(token_id)) is not None:
            fed = text[: len(text) - own_length(self._pieces, token_id, text)] + marker
        if fed:
            self._parser.feed(fed, self._position)
            self._writer.take()
            self._position += len(fed)
        if not self._meter.reached_answer or (fed and self._meter.end >= self._position):
            return None
        return max(0, self._meter.end - begin)
