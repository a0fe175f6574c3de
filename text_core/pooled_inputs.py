"""Inputs of models that pool: the ids of texts behind a prompt, and of pairs of texts, whole or cut to a length."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from text_core.chat_templates import ChatTemplateError, Message
from text_core.tokenizer import EncodedPair, Tokenizer

_MAX_CUTS = 8
"""Times that a document is cut until its chat is short enough: next to a cut, tokens may become others."""


class Render(Protocol):
    """``ChatTemplates.render``."""

    def __call__(self, messages: Sequence[Message], /, *, add_generation_prompt: bool) -> str:
        """Raises ``ChatTemplateError``."""


class InputError(ValueError):
    """An input cannot be used."""

    def __init__(self, place: str, problem: str) -> None:
        """``place``: of the input, such as ``inputs[3]``. ``problem``: what is wrong, and what is accepted."""
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


class Cut(enum.Enum):
    """What is cut off an input that is too long; of a pair, off its document."""

    END = "end"
    START = "start"


@dataclass(frozen=True, slots=True)
class Length:
    """How long an input may be."""

    most: int
    """Tokens, special ones included; ≥ 1."""
    cut: Cut | None
    """None: a longer input is refused."""
    way: str
    """How a caller asks for a cut, for errors."""

    @property
    def keeps_end(self) -> bool:
        """Whether a cut takes the beginning away."""
        return self.cut is Cut.START

    def too_long(self, place: str, length: int) -> InputError:
        """The refusal of an input of so many tokens."""
        return InputError(place, f"{length} tokens are too long: expected at most {self.most} ({self.way})")


class Inputs(ABC):
    """Inputs of a request."""

    places: Sequence[str]
    """Where each stands in the request, for errors."""
    sizes: Sequence[int]
    """Characters, or ids, of each."""

    @abstractmethod
    def encode(self, start: int, stop: int) -> list[EncodedPair]:
        """The ids of some inputs. Raises ``InputError`` for one that has no tokens or is too long."""


@dataclass(slots=True)
class Texts(Inputs):
    """Texts and ids."""

    places: Sequence[str]
    inputs: Sequence[str | Sequence[int]]
    prompts: Sequence[str]
    """What is put before each, if it is a text."""
    tokenizer: Tokenizer
    length: Length
    add_special_tokens: bool = True
    sizes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = list(map(len, self.inputs))

    def encode(self, start: int, stop: int) -> list[EncodedPair]:
        given = {
            index: self.prompts[index] + text
            for index in range(start, stop)
            if isinstance(text := self.inputs[index], str)
        }
        encoded = self.tokenizer.encode_batch(list(given.values()), self.add_special_tokens) if given else []
        texts = dict(zip(given, encoded, strict=True))
        found = []
        for index in range(start, stop):
            ids = texts[index] if isinstance(one := self.inputs[index], str) else list(one)
            if len(ids) > self.length.most:
                ids = self._cut(index, ids, given.get(index))
            if not ids:
                raise InputError(self.places[index], "its text has no tokens: expected at least one")
            found.append(EncodedPair(ids, None))
        return found

    def _cut(self, index: int, ids: list[int], text: str | None) -> list[int]:
        most, keeps_end = self.length.most, self.length.keeps_end
        if self.length.cut is None:
            raise self.length.too_long(self.places[index], len(ids))
        if text is None:
            return ids[-most:] if keeps_end else ids[:most]
        return self.tokenizer.encode_cut(text, most, keep_end=keeps_end, add_special_tokens=self.add_special_tokens)


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a document, with where they stand in the request."""

    query_place: str
    query: str
    place: str
    document: str


@dataclass(slots=True)
class Segments(Inputs):
    """Pairs with the tokenizer's special tokens between and around them."""

    pairs: Sequence[Pair]
    tokenizer: Tokenizer
    length: Length
    places: Sequence[str] = field(init=False)
    sizes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.places = [pair.place for pair in self.pairs]
        self.sizes = [len(pair.query) + len(pair.document) for pair in self.pairs]

    def encode(self, start: int, stop: int) -> list[EncodedPair]:
        pairs = self.pairs[start:stop]
        found = self.tokenizer.encode_pairs([(pair.query, pair.document) for pair in pairs])
        return [
            _not_empty(pair, encoded) if len(encoded.ids) <= self.length.most else self._cut(pair, len(encoded.ids))
            for pair, encoded in zip(pairs, found, strict=True)
        ]

    def _cut(self, pair: Pair, length: int) -> EncodedPair:
        if self.length.cut is None:
            raise self.length.too_long(pair.place, length)
        most, keeps_end = self.length.most, self.length.keeps_end
        cut = self.tokenizer.encode_cut_pair(pair.query, pair.document, most, keep_end=keeps_end)
        if cut is None:
            raise _query_too_long(pair, self.length)
        return cut


@dataclass(slots=True)
class Chats(Inputs):
    """Pairs as the model's chat template shows them."""

    pairs: Sequence[Pair]
    instruction: str
    """What a match means; empty: the template's own."""
    tokenizer: Tokenizer
    render: Render
    length: Length
    places: Sequence[str] = field(init=False)
    sizes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.places = [pair.place for pair in self.pairs]
        self.sizes = [len(pair.query) + len(pair.document) for pair in self.pairs]

    def encode(self, start: int, stop: int) -> list[EncodedPair]:
        pairs = self.pairs[start:stop]
        rendered = [self._chat(pair, pair.document) for pair in pairs]
        found = self.tokenizer.encode_batch(rendered, add_special_tokens=False)
        return [
            _not_empty(pair, EncodedPair(ids if len(ids) <= self.length.most else self._cut(pair, len(ids)), None))
            for pair, ids in zip(pairs, found, strict=True)
        ]

    def _chat(self, pair: Pair, document: str) -> str:
        messages = [{"role": "query", "content": pair.query}, {"role": "document", "content": document}]
        if self.instruction:
            messages.insert(0, {"role": "system", "content": self.instruction})
        try:
            return self.render(messages, add_generation_prompt=False)  # as sentence-transformers and vLLM show pairs
        except ChatTemplateError as error:
            raise InputError(pair.place, str(error)) from None

    def _cut(self, pair: Pair, length: int) -> list[int]:
        if self.length.cut is None:
            raise self.length.too_long(pair.place, length)
        most = self.length.most
        kept = len(self.tokenizer.encode(pair.document, add_special_tokens=False))
        for _ in range(_MAX_CUTS):
            kept -= length - most
            if kept < 1:
                break
            document = self.tokenizer.cut_text(pair.document, kept, keep_end=self.length.keeps_end)
            ids = self.tokenizer.encode(self._chat(pair, document), add_special_tokens=False)
            if (length := len(ids)) <= most:
                return ids
        raise _query_too_long(pair, self.length)


def _not_empty(pair: Pair, encoded: EncodedPair) -> EncodedPair:
    """Raises ``InputError`` for a pair without tokens."""
    if not encoded.ids:
        problem = f"it and {pair.query_place} have no tokens: expected at least one"
        raise InputError(pair.place, problem)
    return encoded


def _query_too_long(pair: Pair, length: Length) -> InputError:
    """The refusal of a query beside which nothing of a document has room."""
    problem = f"too long for any of {pair.place} beside it: expected less than {length.most} tokens together"
    return InputError(pair.query_place, problem)
