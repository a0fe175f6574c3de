"""Incremental detokenization of one choice: token ids to text, one id at a time.

The text of ids is ``tokenizer.decode(context + ids)`` minus ``tokenizer.decode(context)``; the context is the end of
the prompt. Ids are delivered up to a *boundary*: a point at which their text is certain, whatever ids follow. A point
is a boundary if no character is unfinished there, or once a later id shows that the character stays unfinished and is
U+FFFD. ``tokenizers``' ``DecodeStream`` and vLLM's detokenizer hold ids back in the same way, but without a bound,
until the text does not end in U+FFFD. Here at most ``MAX_UNFINISHED_TOKENS`` ids are held. With one more, the point
counts as a boundary:

- If one character was unfinished all along, it is given up: U+FFFD is delivered for it, and the ids after it
  are decoded by themselves. Four ids that add bytes always finish a character or break it off, so this happens only
  with ids between them that add nothing, such as special tokens that are skipped.
- Else ids ended one character and began the next (there are vocabularies with such tokens). The text that is
  certain is delivered: that of the ids minus its last U+FFFD. The unfinished bytes stay pending, so that good text
  stays good.

One more difference from ``decode``: text is never taken back. In a run of ``<0x…>`` tokens that turns out not
to be UTF-8, characters before the first ill-formed byte stand, and from there each byte of the run is U+FFFD, as it is
after a character given up. (``decode`` of the whole run would make all of it U+FFFD.)

The state depends only on context and ids, not on how the ids were split into calls. So feeding delivered ids again and
discarding their text restores it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from text_core.pieces import Pieces

MAX_UNFINISHED_TOKENS = 4
"""Ids that may be held back for a character to be finished, or for a boundary."""

CONTEXT_TOKENS = 8
"""Tokens at the end of a prompt that affect the text after it: whether text precedes it, or an unfinished character."""

_REPLACEMENT = "\ufffd"


def left_context(pieces: Pieces, prompt_token_ids: Sequence[int]) -> list[int]:
    """The end of a prompt that affects the text after it; at most ``CONTEXT_TOKENS`` + 3 ids.

    Ids without text are left out. The first id never begins inside a character.
    """
    context: list[int] = []
    for token_id in reversed(prompt_token_ids):
        piece = pieces[token_id]
        if piece is None:
            continue
        context.append(token_id)
        inside = isinstance(piece, bytes) and 0x80 <= piece[0] < 0xC0
        if len(context) >= CONTEXT_TOKENS + 3 or (len(context) >= CONTEXT_TOKENS and not inside):
            break
    return context[::-1]


class IncrementalDecoder:
    """Decodes a growing list of ids."""

    __slots__ = (
        "_at_start",
        "_broken",
        "_context_replacements",
        "_held_tokens",
        "_pending",
        "_pending_tokens",
        "_pieces",
        "_plain",
        "_strip",
        "at_boundary",
        "boundary_offset",
    )

    def __init__(self, pieces: Pieces, context: Sequence[int] = ()) -> None:
        """``context`` is the end of the prompt (see ``left_context``); its text is not returned."""
        self.at_boundary = True
        """Whether a boundary follows the last id: the text returned so far is that of all ids."""
        self.boundary_offset: int | None = None
        """If the last id revealed a boundary before itself: the number of characters, of the text it completed, that
        belong to the ids before it. Otherwise None."""
        self._pieces = pieces
        self._at_start = True
        """Whether no token has added to the text yet."""
        self._strip = pieces.form.strip
        """Characters that may still be stripped from the start of the text."""
        self._pending = b""
        """Bytes of an unfinished character."""
        self._pending_tokens = 0
        """Ids since that character began, its first one included."""
        self._held_tokens = 0
        """Ids since the last boundary."""
        self._broken = False
        """Whether the current run of byte-fallback tokens is not UTF-8."""
        self._context_replacements = 0
        """Number of leading U+FFFD that belong to the context, if its unfinished character turns out ill-formed."""
        self._plain = False
        """Fast path: whether the fields above do not affect a token that is text."""
        for token_id in context:
            self.push(token_id)
            self._held_tokens, self._pending_tokens, self.at_boundary = 0, 0, True  # context ids are never held back
        self._context_replacements = len(self._replaced(self._pending))

    def push(self, token_id: int) -> str:
        """Take one id; returns the text it completes and sets ``at_boundary`` and ``boundary_offset``."""
        piece = self._pieces[token_id]
        if self._plain and piece.__class__ is str:
            return piece
        return self._push(token_id, piece)

    def flush(self) -> str:
        """At the end of the stream, the text of an unfinished character: U+FFFD."""
        return self._give_up()

    def _push(self, token_id: int, piece: str | bytes | None) -> str:
        text, self.boundary_offset = "", None
        if piece is not None:
            if self._at_start:
                self._at_start = False
                piece = self._pieces.first(token_id) or ""
            broken_off, completed = self._join(piece)
            if broken_off:
                text = self._trim_start(broken_off)
                self.boundary_offset = None if self.at_boundary else len(text)
                self._held_tokens = 0
            text += self._trim_start(completed) if self._strip or self._context_replacements else completed
        text += self._wait()
        self._plain = self.boundary_offset is None and not (
            self._at_start or self._strip or self._pending or self._broken or self._context_replacements
        )
        return text

    def _join(self, piece: str | bytes) -> tuple[str, str]:
        """Add a piece to the pending bytes.

        Returns U+FFFD for the unfinished character if the piece shows that it stays unfinished, and the text completed
        after it (characters, or U+FFFD for ill-formed bytes).
        """
        if self._pieces.form.byte_level:
            was_pending = bool(self._pending)
            text = self._decode(piece.encode() if isinstance(piece, str) else piece, "replace")
            if was_pending and text.startswith(_REPLACEMENT):
                return _REPLACEMENT, text[1:]
            return "", text
        unfinished = self._replaced(self._pending)
        if isinstance(piece, str):
            self._pending, self._broken = b"", False
            return unfinished, piece
        if not self._broken:
            try:
                return "", self._decode(piece, "strict")
            except UnicodeDecodeError:
                self._broken = True
        self._pending = b""
        return unfinished, self._replaced(piece)

    def _decode(self, data: bytes, errors: str) -> str:
        """Add bytes to the pending ones; returns the characters that are now complete."""
        data = self._pending + data
        text, used = utf_8_decode(data, errors, False)
        left = data[used:]
        if len(left) == 2 and left[0] == 0xED and left[1] >= 0xA0:
            # Two bytes of a surrogate can never be well-formed, but Python waits for a third.
            text, used = utf_8_decode(data, errors, True)
        if text:
            self._pending_tokens = 0  # the pending bytes now begin within these bytes
        self._pending = data[used:]
        return text

    def _wait(self) -> str:
        """Decide whether the point after the last id is a boundary; returns U+FFFD for a character given up."""
        if not self._pending:
            self.at_boundary, self._held_tokens, self._pending_tokens = True, 0, 0
            return ""
        self._held_tokens += 1
        self._pending_tokens += 1
        text = ""
        if self._pending_tokens > MAX_UNFINISHED_TOKENS:
            text = self._give_up()
            self._broken = not self._pieces.form.byte_level
            self._pending_tokens = 0
        self.at_boundary = not self._pending or self._held_tokens > MAX_UNFINISHED_TOKENS
        if self.at_boundary:
            self._held_tokens = 0
        return text

    def _give_up(self) -> str:
        """Stop waiting for the unfinished character; returns its text."""
        text = self._trim_start(self._replaced(self._pending))
        self._pending = b""
        return text

    def _trim_start(self, text: str) -> str:
        """Remove characters stripped at the start, or belonging to the context, from newly completed text."""
        while self._strip and text:
            if text[0] != self._strip[0]:
                self._strip = ""
                break
            text, self._strip = text[1:], self._strip[1:]
        if self._context_replacements and text:
            own = text.lstrip(_REPLACEMENT)
            text = text[min(self._context_replacements, len(text) - len(own)) :]
            self._context_replacements = 0
        return text

    def _replaced(self, data: bytes) -> str:
        """The text of bytes that stay unfinished."""
        if self._pieces.form.byte_level:
            return _REPLACEMENT if data else ""
        return _REPLACEMENT * len(data)
