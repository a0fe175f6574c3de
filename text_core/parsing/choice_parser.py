"""Divides one choice into parts: turns a decoder's deltas into parts. A detokenizer has one parser per parsed choice.

Ids are decoded again, because markers may be special tokens, which a delta's text omits. Parts are a function of the
ids delivered so far: a parser restored with another one's ids continues where that one ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from text_core.choice_decoder import ChoiceDecoder, DecodeOptions, Delta
from text_core.incremental_decoder import IncrementalDecoder
from text_core.parsing.answer_gate import own_length, special_marks
from text_core.parsing.content_tokens import ContentTokens
from text_core.parsing.formats import call_ids, make_parser
from text_core.parsing.parts import ParseOptions, Part, PartWriter
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.tokenizer import Tokenizer


class ChoiceParser:
    """Parses the deltas of one choice.

    First ``restore`` the ids delivered earlier, if any; then ``feed`` every delta, and ``finish``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: ParseOptions,
        choice: int,
        decode: DecodeOptions,
        *,
        skip_special_tokens: bool,
    ) -> None:
        """``decode``, ``skip_special_tokens``: as used for the deltas. Raises ``ValueError`` for unknown formats."""
        self._pieces = tokenizer.pieces(skip_special_tokens=skip_special_tokens)
        self._decode_options = decode
        self._decoder = IncrementalDecoder(self._pieces, decode.context)
        self._marks = special_marks(tokenizer, options)
        self._meter = ReasoningMeter()
        self._content_tokens = ContentTokens() if options.content_tokens else None
        self._writer = PartWriter(
            call_ids(options, choice), skip_special_tokens=skip_special_tokens, content_tokens=self._content_tokens
        )
        self._parser = make_parser(options, self._writer, self._meter)
        self._restored: list[int] = []
        """Ids delivered earlier, kept until the next delta shows whether more ids follow."""
        self._decoded = 0
        """Characters decoded for the parser."""
        self._parsed = 0
        """Characters given to the parser."""
        self._behind = 0
        """Delivered characters that the decoder here returns only with the next id."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning and its markers so far, restored ones included."""
        return self._meter.tokens

    def restore(self, token_ids: Sequence[int]) -> None:
        """Take ids that another decoder delivered, before the first delta; their parts are not returned again."""
        self._restored += token_ids

    def feed(self, delta: Delta, *, last: bool = False, stop_token: bool = False) -> tuple[Part, ...]:
        """The parts that a delta completes.

        ``last``: the delta comes from the decoder's ``finish``, called with ``stop_token``.
        """
        stop_token = (stop_token and delta.stop is None) or isinstance(delta.stop, int)
        stop_token &= not self._decode_options.include_stop_str_in_output
        last |= delta.stop is not None
        ids = delta.token_ids[:-1] if stop_token else delta.token_ids
        segments: list[tuple[str, int]] = []
        if self._restored:
            self._parse_restored(alone=last and not delta.token_ids, stop_token=stop_token)
            at_boundary = self._decoder.at_boundary
            segments = self._decode(ids[:1])
            self._behind = 0 if at_boundary else self._decoder.boundary_offset or 0
            ids = ids[1:]
        segments += self._decode(ids)
        if last:
            segments.append((text := self._decoder.flush(), len(text)))
            self._parse(segments, self._behind + len(delta.text))
        else:
            self._behind += len(delta.text) - sum(length for _, length in segments)
            self._parse(segments)
        return self._writer.take()

    def finish(self) -> tuple[Part, ...]:
        """The parts that only the end of the choice completes."""
        self._parser.finish()
        return self._writer.take()

    def _parse_restored(self, *, alone: bool, stop_token: bool) -> None:
        """Parse the restored ids; ``alone``: no other ids follow, so their last ones may have ended the choice."""
        ids, self._restored = self._restored, []
        if alone:
            whole = ChoiceDecoder(self._pieces, self._decode_options).finish(ids, stop_token=stop_token)
            segments = self._decode(ids[: len(ids) - stop_token])
            segments.append((text := self._decoder.flush(), len(text)))
            self._parse(segments, len(whole.text))
        else:
            self._parse(self._decode(ids))
        self._writer.take()

    def _decode(self, token_ids: Sequence[int]) -> list[tuple[str, int]]:
        """Segments of text for the parser, with their lengths in the delta's text (marks differ)."""
        segments: list[tuple[str, int]] = []
        for token_id in token_ids:
            self._meter.begin_token(self._decoded)
            if self._content_tokens is not None:
                self._content_tokens.begin_token(self._decoded)
            text = self._decoder.push(token_id)
            if token_id in self._marks:
                own = own_length(self._pieces, token_id, text)
                text = text[: len(text) - own]
                segments += [(text, len(text)), (self._marks[token_id], own)]
                self._decoded += len(text) + 1
            elif text:
                segments.append((text, len(text)))
                self._decoded += len(text)
        return segments

    def _parse(self, segments: list[tuple[str, int]], limit: int | None = None) -> None:
        """Feed segments to the parser, cut to ``limit`` characters of delta text."""
        texts = []
        for text, length in segments:
            if limit is not None and length > limit:
                if len(text) == length:
                    texts.append(text[:limit])
                break
            if limit is not None:
                limit -= length
            texts.append(text)
        if text := "".join(texts):
            self._parser.feed(text, self._parsed)
            self._parsed += len(text)
