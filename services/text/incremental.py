"""Token ids to text, one at a time, for one choice.

The text of ids is ``tokenizer.decode(context + ids)`` less ``tokenizer.decode(context)``, the context being the end of
the prompt. Ids are delivered up to *whole points*, where their text is certain: whatever ids follow, the text of all
begins with it. A point is whole at once if no character is unfinished there; else by the id that shows that the
character stays unfinished, and is U+FFFD. Holding ids back while their text ends inside a character is what
``tokenizers``' ``DecodeStream`` and vLLM's detokenizer do, without bound, and until a text that does not end in U+FFFD.
Here at most ``MAX_UNFINISHED_TOKENS`` ids wait. After one more, the point counts as whole:

- If the unfinished character has taken all this time, it is given up: U+FFFD is delivered for it, and the ids after it
  are decoded by themselves. Four ids that add bytes always finish a character or break it off, so this happens only
  with ids between them that add nothing, such as special tokens that are skipped.
- Else ids ended one character and began the next (there are vocabularies with such tokens). The text that is
  certain is delivered: that of the ids less its last U+FFFD. The unfinished bytes stay pending, so that good text
  stays good.

One more thing is not as in ``decode``, since text is never taken back. In a run of ``<0x…>`` tokens that turns out not
to be UTF-8, characters before the first ill-formed byte stand, and from there each byte of the run is U+FFFD, as it is
after a character given up. (``decode`` of the whole run would make all of it U+FFFD.)

The state is a function of context and ids alone, whatever calls they came in: feeding delivered ids again and throwing
the text away restores it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from services.text.pieces import Pieces

MAX_UNFINISHED_TOKENS = 4
"""Ids that may wait for a character to be finished, or for a whole point."""

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
        "_age",
        "_at_start",
        "_broken",
        "_owed",
        "_pending",
        "_pieces",
        "_plain",
        "_strip",
        "_waiting",
        "earlier",
        "whole",
    )

    def __init__(self, pieces: Pieces, context: Sequence[int] = ()) -> None:
        """``context`` is the end of the prompt (see ``left_context``); its text is not reported."""
        self.whole = True
        """Whether there is, or counts as, a whole point after the last id: the text reported is all of the ids'."""
        self.earlier: int | None = None
        """Where the last id showed that there is a whole point before it: how many characters of the text it brought
        belong to the ids before it."""
        self._pieces = pieces
        self._at_start = True
        """No token has added to the text yet."""
        self._strip = pieces.form.strip
        """What may still be dropped from the start of the text."""
        self._pending = b""
        """Bytes of an unfinished character."""
        self._age = 0
        """Ids since that character began, its first included."""
        self._waiting = 0
        """Ids since the last whole point."""
        self._broken = False
        """The current run of byte-fallback tokens is not UTF-8."""
        self._owed = 0
        """Leading U+FFFD that belong to the context, whose unfinished character may yet be found ill-formed."""
        self._plain = False
        """None of the above matters to a token that is text."""
        for token_id in context:
            self.push(token_id)
            self._waiting, self._age, self.whole = 0, 0, True  # nothing is delivered, so nothing waits
        self._owed = len(self._replaced(self._pending))

    def push(self, token_id: int) -> str:
        """Take one id; returns the text it completes and sets ``whole`` and ``earlier``."""
        piece = self._pieces[token_id]
        if self._plain and piece.__class__ is str:
            return piece
        return self._push(token_id, piece)

    def flush(self) -> str:
        """The text of what is unfinished, at the end of the stream: U+FFFD."""
        return self._give_up()

    def _push(self, token_id: int, piece: str | bytes | None) -> str:
        text, self.earlier = "", None
        if piece is not None:
            if self._at_start:
                self._at_start = False
                piece = self._pieces.first(token_id) or ""
            broken_off, completed = self._join(piece)
            if broken_off:
                text = self._settle(broken_off)
                self.earlier = None if self.whole else len(text)
                self._waiting = 0
            text += self._settle(completed) if self._strip or self._owed else completed
        text += self._wait()
        self._plain = self.earlier is None and not (
            self._at_start or self._strip or self._pending or self._broken or self._owed
        )
        return text

    def _join(self, piece: str | bytes) -> tuple[str, str]:
        """Add a piece to the pending bytes.

        Returns U+FFFD for the unfinished character if the piece shows that it stays so, and then the characters that
        are complete, for better or worse.
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
        """Add bytes to the pending ones; returns the characters that are complete."""
        data = self._pending + data
        text, used = utf_8_decode(data, errors, False)
        left = data[used:]
        if len(left) == 2 and left[0] == 0xED and left[1] >= 0xA0:
            # Two bytes of a surrogate: nothing makes them well-formed, but Python waits for the third.
            text, used = utf_8_decode(data, errors, True)
        if text:
            self._age = 0  # what is pending from now on, began with these bytes
        self._pending = data[used:]
        return text

    def _wait(self) -> str:
        """Decide whether the point after the last id counts as whole; returns U+FFFD for a character given up."""
        if not self._pending:
            self.whole, self._waiting, self._age = True, 0, 0
            return ""
        self._waiting += 1
        self._age += 1
        text = ""
        if self._age > MAX_UNFINISHED_TOKENS:
            text = self._give_up()
            self._broken = not self._pieces.form.byte_level
            self._age = 0
        self.whole = not self._pending or self._waiting > MAX_UNFINISHED_TOKENS
        if self.whole:
            self._waiting = 0
        return text

    def _give_up(self) -> str:
        """The text of the unfinished character, which is no longer waited for."""
        text = self._settle(self._replaced(self._pending))
        self._pending = b""
        return text

    def _settle(self, text: str) -> str:
        """Take from newly completed text what is stripped from the start or belongs to the context."""
        while self._strip and text:
            if text[0] != self._strip[0]:
                self._strip = ""
                break
            text, self._strip = text[1:], self._strip[1:]
        if self._owed and text:
            own = text.lstrip(_REPLACEMENT)
            text = text[min(self._owed, len(text) - len(own)) :]
            self._owed = 0
        return text

    def _replaced(self, data: bytes) -> str:
        """What stands for unfinished bytes that stay so."""
        if self._pieces.form.byte_level:
            return _REPLACEMENT if data else ""
        return _REPLACEMENT * len(data)
