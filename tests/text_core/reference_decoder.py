"""What a stream of ids has to deliver, worked out from whole texts alone.

``Account`` asks a function from ids to text for the text of the ids so far and of every way in which an unfinished
character may go on. What all of these begin with is *certain*; ids may be delivered as soon as their text is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

ENDS = [[], [0x80], [0x80, 0x80], [0x80, 0x80, 0x80], [0xA0, 0x80], [0x90, 0x80, 0x80]]
"""Bytes of which some finish the character that any bytes leave unfinished; and none."""
MAX_WAITING = 4

Decode = Callable[[tuple[int, ...]], str]


class Account:
    """The ids delivered, and their text, after each id of a stream: the rule of ``incremental_decoder``."""

    def __init__(self, decode: Decode, of_byte: Sequence[int], context: Sequence[int], after_a_loss: Decode) -> None:
        """``of_byte``: the token of each byte; ``after_a_loss`` is ``decode`` of what follows a character given up."""
        self._decode, self._after_a_loss = decode, after_a_loss
        self._ends = [tuple(of_byte[byte] for byte in end) for end in ENDS]
        self._lost, self._ids = "", tuple(context)
        prompt, certain = self._text_now()
        self._prompt, self._prompt_unfinished = certain, len(prompt) - len(certain)
        self._texts: list[str] = []
        self._certain: list[str] = []
        self.delivered = 0
        self.text = self.whole_text = ""
        """Of what is delivered; and of all ids, if no more come."""
        self.losses = self.early = 0
        """Characters given up, and deltas without the U+FFFD that the text of their ids ends in."""

    def push(self, token_id: int) -> None:
        """Take one id."""
        self._ids += (token_id,)
        text, certain = self._text_now()
        self._texts.append(text)
        self._certain.append(certain)
        self.whole_text = self._output(text)
        count = len(self._texts)
        for known in range(self.delivered + 1, count + 1):
            if certain.startswith(self._texts[known - 1]):
                self._deliver(known, self._texts[known - 1])
        if self._age() > MAX_WAITING:
            self.losses += 1
            self._deliver(count, text)
            self._decode, self._lost, self._ids, self._certain[-1] = self._after_a_loss, text, (), text
        elif count - self.delivered > MAX_WAITING:
            self.early += 1
            self._deliver(count, certain)

    def _text_now(self) -> tuple[str, str]:
        """The text of context and ids, and what of it is certain."""
        texts = [self._lost + self._decode(self._ids + end) for end in self._ends]
        same = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
        return texts[0], texts[0][: len(list(same))]

    def _age(self) -> int:
        """Ids since the unfinished character began."""
        last = self._certain[-1]
        pairs = zip(reversed(self._texts), reversed(self._certain), strict=True)
        return len(list(takewhile(lambda pair: pair[0] != pair[1] == last, pairs)))

    def _deliver(self, count: int, text: str) -> None:
        self.delivered, self.text = count, self._output(text)

    def _output(self, text: str) -> str:
        """Without the context's own text, of which an unfinished character may have been the last."""
        text = text[len(self._prompt) :]
        replaced = len(text) - len(text.lstrip("\ufffd"))
        return text[min(self._prompt_unfinished, replaced) :]
