"""The ids of a request's inputs: texts with a prompt before them, pairs of texts, and ids as they were given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringline.inference.v1 import inference_pb2

from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from services.ring.errors import Refused
from text_core.chat_templates import ChatTemplateError
from text_core.tokenizer import EncodedPair, Tokenizer

_MAX_CUTS = 8
"""Times that a document is cut until its chat is short enough: next to a cut, tokens may become others."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long an input may be."""

    most: int
    """Tokens, special ones included."""
    truncation: inference_pb2.Truncation.ValueType

    @classmethod
    def of(cls, options: inference_pb2.PoolingOptions, served_model: ServedModel) -> Length:
        most = served_model.limits.max_model_len
        if options.HasField("max_input_tokens"):
            most = min(most, options.max_input_tokens)
        return cls(most, options.truncation)

    @property
    def cuts(self) -> bool:
        """Whether a longer input is cut, rather than refused."""
        return self.truncation in (inference_pb2.TRUNCATION_END, inference_pb2.TRUNCATION_START)

    @property
    def keeps_end(self) -> bool:
        """Whether a cut takes the beginning away."""
        return self.truncation == inference_pb2.TRUNCATION_START

    def too_long(self, place: str, length: int) -> Refused:
        problem = f"{length} tokens are too long: expected at most {self.most} (options.truncation cuts longer ones)"
        return refuse(place, problem)


class Inputs(ABC):
    """A request's inputs, each of which becomes ids."""

    places: Sequence[str]
    """Where each stands in the request, for errors."""
    sizes: Sequence[int]
    """Characters or ids that it takes work to encode."""

    @abstractmethod
    def encode(self, start: int, stop: int) -> list[EncodedPair]:
        """The ids of some inputs. Raises ``Refused`` for one that is empty or too long."""


@dataclass(slots=True)
class Texts(Inputs):
    """Texts and ids."""

    places: Sequence[str]
    inputs: Sequence[inference_pb2.PoolingInput]
    prompts: Sequence[str]
    """What is put before each, if it is a text."""
    tokenizer: Tokenizer
    length: Length
    add_special_tokens: bool = True
    sizes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [len(each.text) or len(each.token_ids.ids) for each in self.inputs]

    def encode(self, start: int, stop: int) -> list[EncodedPair]:
        given = {
            index: self.prompts[index] + self.inputs[index].text
            for index in range(start, stop)
            if self.inputs[index].WhichOneof("input") == "text"
        }
        encoded = self.tokenizer.encode_batch(list(given.values()), self.add_special_tokens) if given else []
        texts = dict(zip(given, encoded, strict=True))
        found = []
        for index in range(start, stop):
            ids = texts[index] if index in texts else list(self.inputs[index].token_ids.ids)
            if len(ids) > self.length.most:
                ids = self._cut(index, ids, given.get(index))
            if not ids:
                raise refuse(self.places[index], "its text has no tokens: expected at least one")
            found.append(EncodedPair(ids, None))
        return found

    def _cut(self, index: int, ids: list[int], text: str | None) -> list[int]:
        most, keeps_end = self.length.most, self.length.keeps_end
        if not self.length.cuts:
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


def pairs_of(message: inference_pb2.ScoreRequest) -> list[Pair]:
    """The pairs of a request whose texts a model reads together. Raises ``Refused`` for ids."""
    for name, inputs in (("queries", message.queries), ("documents", message.documents)):
        for index, each in enumerate(inputs):
            if each.WhichOneof("input") != "text":
                raise refuse(f"{name}[{index}]", "ids, but this model reads pairs of texts: expected text")
    several = len(message.queries) > 1
    found = []
    for index, document in enumerate(message.documents):
        of = index if several else 0
        found.append(Pair(f"queries[{of}]", message.queries[of].text, f"documents[{index}]", document.text))
    return found


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
            encoded if len(encoded.ids) <= self.length.most else self._cut(pair, len(encoded.ids))
            for pair, encoded in zip(pairs, found, strict=True)
        ]

    def _cut(self, pair: Pair, length: int) -> EncodedPair:
        if not self.length.cuts:
            raise self.length.too_long(pair.place, length)
        most, keeps_end = self.length.most, self.length.keeps_end
        cut = self.tokenizer.encode_cut_pair(pair.query, pair.document, most, keep_end=keeps_end)
        if cut is None:
            raise query_too_long(pair, self.length)
        return cut


@dataclass(slots=True)
class Chats(Inputs):
    """Pairs as the model's chat template shows them."""

    pairs: Sequence[Pair]
    instruction: str
    served_model: ServedModel
    length: Length
    places: Sequence[str] = field(init=False)
    sizes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.places = [pair.place for pair in self.pairs]
        self.sizes = [len(pair.query) + len(pair.document) for pair in self.pairs]

    def encode(self, start: int, stop: int) -> list[EncodedPair]:
        pairs = self.pairs[start:stop]
        rendered = [self._render(pair, pair.document) for pair in pairs]
        found = self.served_model.tokenizer.encode_batch(rendered, add_special_tokens=False)
        return [
            EncodedPair(ids if len(ids) <= self.length.most else self._cut(pair, len(ids)), None)
            for pair, ids in zip(pairs, found, strict=True)
        ]

    def _render(self, pair: Pair, document: str) -> str:
        messages = [{"role": "query", "content": pair.query}, {"role": "document", "content": document}]
        if self.instruction:
            messages.insert(0, {"role": "system", "content": self.instruction})
        limits = self.served_model.limits
        try:
            # Query and document each have at most max_text_bytes.
            return self.served_model.chat.render(messages, max_chars=3 * limits.max_text_bytes)
        except ChatTemplateError as error:
            raise refuse(pair.place, str(error)) from None

    def _cut(self, pair: Pair, length: int) -> list[int]:
        if not self.length.cuts:
            raise self.length.too_long(pair.place, length)
        tokenizer, most = self.served_model.tokenizer, self.length.most
        kept = len(tokenizer.encode(pair.document, add_special_tokens=False))
        for _ in range(_MAX_CUTS):
            kept -= length - most
            if kept < 1:
                break
            document = tokenizer.cut_text(pair.document, kept, keep_end=self.length.keeps_end)
            ids = tokenizer.encode(self._render(pair, document), add_special_tokens=False)
            if (length := len(ids)) <= most:
                return ids
        raise query_too_long(pair, self.length)


def query_too_long(pair: Pair, length: Length) -> Refused:
    """The refusal of a query beside which nothing of a document has room."""
    problem = f"too long for any of {pair.place} beside it: expected less than {length.most} tokens together"
    return refuse(pair.query_place, problem)
