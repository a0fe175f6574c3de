"""Vectors, scores and labels: results of ``embed``, ``score``, ``rerank`` and ``classify``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from typing import Any

from ringline.outputs import Adapter, Usage

Input = str | Sequence[int]
"""A text, or token ids."""


@dataclass(frozen=True, slots=True)
class PoolingReport:
    """What a result tells about its request."""

    usage: Usage
    input_tokens: tuple[int, ...]
    """Tokens of each input, or pair."""
    model: str
    model_digest: str
    """Equal for equal models, weights included; empty if several with different ones computed the result."""
    numerics: str
    """Equal values mean that equal inputs get bit-identical results; empty if there were several."""
    server_request_ids: tuple[str, ...] = field(compare=False)
    """The ids in the server's logs and traces, one for each message that was sent."""
    adapter: Adapter | None = None
    """None: none. Its digest is empty if several computed the result, because the adapter was replaced meanwhile."""


@dataclass(frozen=True)
class _Answer:
    report: PoolingReport

    @property
    def usage(self) -> Usage:
        """Token counts of the request."""
        return self.report.usage


@dataclass(frozen=True)
class _Rows(_Answer, ABC):
    """Rows of numbers, one for each input or token."""

    values: array[float] = field(repr=False)
    """All rows one after the other, 32-bit floats."""
    counts: tuple[int, ...] | None
    """With ``per_token``: rows of each input."""

    def __len__(self) -> int:
        """Number of inputs."""
        return len(self.values) // self._width if self.counts is None else len(self.counts)

    @property
    @abstractmethod
    def _width(self) -> int:
        """Numbers of a row."""

    @cached_property
    def _ends(self) -> list[int] | None:
        return None if self.counts is None else list(accumulate(self.counts))

    def _rows_of(self, index: int) -> tuple[int, int]:
        """The first row of an input, and the one after its last."""
        try:
            place = range(len(self))[index]
        except IndexError:
            raise IndexError(f"{index}: there are {len(self)} inputs") from None
        ends = self._ends
        return (place, place + 1) if ends is None else (ends[place - 1] if place else 0, ends[place])

    def numpy(self) -> Any:
        """All rows as one numpy array, float32, which shares this object's memory. Needs numpy."""
        numpy = import_module("numpy")
        return numpy.frombuffer(self.values, dtype=numpy.float32).reshape(-1, self._width)


@dataclass(frozen=True)
class Embeddings(_Rows):
    """Vectors in the order of the inputs: ``embeddings[0]``, ``len(embeddings)``, ``for vector in embeddings``."""

    dimensions: int
    """Numbers of a vector."""

    def __getitem__(self, index: int) -> array[float]:
        """An input's vector; with ``per_token``, its vectors one after the other."""
        begin, end = self._rows_of(index)
        return self.values[begin * self.dimensions : end * self.dimensions]

    def __iter__(self) -> Iterator[array[float]]:
        return (self[index] for index in range(len(self)))

    @property
    def _width(self) -> int:
        return self.dimensions


@dataclass(frozen=True)
class Scores(_Answer):
    """How well each document matches its query, in the order of the documents: ``scores[0]``, ``list(scores)``."""

    values: tuple[float, ...]
    """The higher, the better."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> float:
        return self.values[index]

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document in its place."""

    index: int
    """Of the document, as given."""
    score: float
    document: Input


@dataclass(frozen=True)
class Ranking(_Answer):
    """The documents that match a query, the best first: ``ranking[0]``, ``for ranked in ranking``."""

    values: tuple[Ranked, ...]
    """Of equal scores, the earlier document comes first."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Ranked:
        return self.values[index]

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self.values)


@dataclass(frozen=True, slots=True)
class Classification:
    """The labels of an input or a token."""

    labels: tuple[str, ...]
    values: tuple[float, ...]
    """One for each label: probabilities, unless ``activation`` is False."""

    @property
    def label(self) -> str:
        """The label with the largest value."""
        return self.labels[self._best]

    @property
    def value(self) -> float:
        """The largest value."""
        return self.values[self._best]

    @property
    def _best(self) -> int:
        return max(range(len(self.values)), key=self.values.__getitem__)


@dataclass(frozen=True)
class Classifications(_Rows):
    """Labels in the order of the inputs: ``answer[0].label``, ``len(answer)``, ``for one in answer``."""

    labels: tuple[str, ...]

    def __getitem__(self, index: int) -> Classification:
        """An input's labels. With ``per_token`` it has many: then it raises TypeError; see ``tokens``."""
        if self.counts is not None:
            raise TypeError("with per_token, an input has labels for each token: call tokens(index)")
        return self.tokens(index)[0]

    def __iter__(self) -> Iterator[Classification]:
        return (self[index] for index in range(len(self)))

    def tokens(self, index: int) -> tuple[Classification, ...]:
        """The labels of each of an input's tokens; without ``per_token``, those of the input alone."""
        begin, end = self._rows_of(index)
        width = self._width
        rows = (self.values[row * width : (row + 1) * width] for row in range(begin, end))
        return tuple(Classification(self.labels, tuple(row)) for row in rows)

    @property
    def _width(self) -> int:
        return len(self.labels)
