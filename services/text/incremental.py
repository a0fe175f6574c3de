"""Token ids to text, one at a time, for one choice.

After every token the decoder knows the text completed so far and whether the ids so far *end a character*. Where they
do, the text is exactly ``tokenizer.decode(context + ids)`` less ``tokenizer.decode(context)``, the context being the
end of the prompt. Text is never taken back, which settles what a plain ``decode`` of a growing list leaves open:

- Ids are waited for while the bytes at their end are an unfinished character, for at most ``MAX_UNFINISHED_TOKENS``
  tokens. Then U+FFFD is delivered for the unfinished bytes, unless the waiting tokens have all the while completed
  good characters (there are vocabularies whose tokens end in the middle of one): then that text is delivered, and the
  unfinished bytes stay pending, so that good text stays good.
- In a run of ``<0x…>`` tokens that turns out not to be UTF-8, characters delivered before the first ill-formed byte
  stand, and from there each byte of the run is U+FFFD. (``decode`` of the whole run would make all of it U+FFFD.)

The state is a function of context and ids alone, whatever calls they came in: feeding delivered ids again and throwing
the text away restores it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from services.text.pieces import Pieces

MAX_UNFINISHED_TOKENS = 4
"""Tokens that may wait for a character to be finished."""

CONTEXT_TOKENS = 8
"""Tokens of a prompt that matter to the text after it: whether there is text at all, and an unfinished character."""

_REPLACEMENT = "\ufffd"


def left_context(pieces: Pieces, prompt_token_ids: Sequence[int]) -> list[int]:
    """The end of a prompt, as far as it matters to the text after it; at most ``CONTEXT_TOKENS`` + 3 ids.

    Ids that add nothing to the text are left out. The first one never is the inside of a character.
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
    """The text of a growing list of ids."""

    __slots__ = (
        "_at_start",
        "_broken",
        "_group",
        "_owed",
        "_pending",
        "_pieces",
        "_plain",
        "_strip",
        "_waiting",
        "whole",
    )

    def __init__(self, pieces: Pieces, context: Sequence[int] = ()) -> None:
        """``context`` is the end of the prompt (see ``left_context``); its text is not reported."""
        self.whole = True
        """Whether the ids so far can be delivered: the text reported so far is all of theirs."""
        self._pieces = pieces
        self._at_start = True
        """No token has added to the text yet."""
        self._strip = pieces.form.strip
        """What may still be dropped from the start of the text."""
        self._pending = b""
        """Bytes of an unfinished character."""
        self._broken = False
        """The current run of byte-fallback tokens is not UTF-8."""
        self._waiting = 0
        """Tokens since the last whole point."""
        self._group = ""
        """Text those have completed."""
        self._owed = 0
        """Leading U+FFFD that belong to the context, whose unfinished character may yet be found ill-formed."""
        self._plain = False
        """None of the above matters to a token that is text."""
        for token_id in context:
            self.push(token_id)
            self._waiting, self._group, self.whole = 0, "", True  # nothing is delivered, so nothing waits
        self._owed = len(self._replaced(self._pending))

    def push(self, token_id: int) -> str:
        """Take one id; returns the text it completes and sets ``whole``."""
        piece = self._pieces[token_id]
        if self._plain and piece.__class__ is str:
            return piece
        return self._push(token_id, piece)

    def flush(self) -> str:
        """The text of what is unfinished, at the end of the stream: U+FFFD."""
        text = self._settle(self._replaced(self._pending))
        self._pending = b""
        return text

    def _push(self, token_id: int, piece: str | bytes | None) -> str:
        text = ""
        if piece is not None:
            if self._at_start:
                self._at_start = False
                piece = self._pieces.first(token_id)
            text = self._settle(self._join(piece or ""))
        text += self._wait(text)
        self._plain = not (self._at_start or self._strip or self._pending or self._broken or self._owed)
        return text

    def _join(self, piece: str | bytes) -> str:
        """Add a piece to the pending bytes; returns the characters that are complete, for better or worse."""
        if self._pieces.form.byte_level:
            data = self._pending + (piece.encode() if isinstance(piece, str) else piece)
            text, used = _decode(data, "replace")
            self._pending = data[used:]
            return text
        if isinstance(piece, str):
            text = self._replaced(self._pending) + piece
            self._pending, self._broken = b"", False
            return text
        data = self._pending + piece
        if not self._broken:
            try:
                text, used = _decode(data, "strict")
            except UnicodeDecodeError:
                self._broken = True
            else:
                self._pending = data[used:]
                return text
        self._pending = b""
        return self._replaced(data)

    def _wait(self, completed: str) -> str:
        """Decide whether the ids so far are whole; returns U+FFFD if unfinished bytes are given up."""
        if not self._pending:
            self._waiting, self._group, self.whole = 0, "", True
            return ""
        self._waiting += 1
        self._group += completed
        self.whole = self._waiting > MAX_UNFINISHED_TOKENS
        if not self.whole:
            return ""
        good = self._group and _REPLACEMENT not in self._group
        self._waiting, self._group = 0, ""
        if good:
            return ""
        text = self._settle(self._replaced(self._pending))
        self._pending, self._broken = b"", not self._pieces.form.byte_level
        return text

    def _settle(self, text: str) -> str:
        """Take from newly completed text what belongs to the context or is stripped from the start."""
        if self._owed and text:
            own = text.lstrip(_REPLACEMENT)
            text = text[min(self._owed, len(text) - len(own)) :]
            self._owed = 0
        while self._strip and text:
            if text[0] != self._strip[0]:
                self._strip = ""
                break
            text, self._strip = text[1:], self._strip[1:]
        return text

    def _replaced(self, data: bytes) -> str:
        """What stands for unfinished bytes that stay so."""
        if self._pieces.form.byte_level:
            return _REPLACEMENT if data else ""
        return _REPLACEMENT * len(data)


def _decode(data: bytes, errors: str) -> tuple[str, int]:
    """The text of ``data`` and how many bytes that is; what is left is an unfinished character."""
    text, used = utf_8_decode(data, errors, False)
    left = data[used:]
    if left and left[0] == 0xED and len(left) == 2 and left[1] >= 0xA0:
        # Two bytes of a surrogate: nothing makes them well-formed, but Python waits for the third.
        return utf_8_decode(data, errors, True)
    return text, used
