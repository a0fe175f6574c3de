"""Log probabilities of consecutive tokens, packed into arrays: 8 bytes per token and 8 per alternative."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload


class TokenLogprobs(NamedTuple):
    """Log probabilities at one position: the log-softmax of the raw logits, without temperature."""

    logprob: float
    rank: int
    """Rank of the token; 1 is the most likely."""
    top_ids: tuple[int, ...]
    """Ids of the alternatives, most likely first; ties in order of id."""
    top_logprobs: tuple[float, ...]


class Logprobs(Sequence[TokenLogprobs]):
    """Log probabilities as aligned arrays; indexing creates a ``TokenLogprobs``."""

    __slots__ = ("logprobs", "ranks", "top_count", "top_ids", "top_logprobs")

    def __init__(
        self, top_count: int, logprobs: array[float], ranks: array[int], top_ids: array[int], top_logprobs: array[float]
    ) -> None:
        """``top_count`` alternatives per token. Keeps the arrays, which must have the type codes f, I, I and f."""
        self.top_count = top_count
        self.logprobs = logprobs
        self.ranks = ranks
        self.top_ids = top_ids
        self.top_logprobs = top_logprobs

    def __len__(self) -> int:
        return len(self.logprobs)

    def __iter__(self) -> Iterator[TokenLogprobs]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Logprobs) and all(
            getattr(self, name) == getattr(other, name) for name in Logprobs.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Logprobs({list(self)})"

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs: ...

    @overload
    def __getitem__(self, index: slice) -> Logprobs: ...

    def __getitem__(self, index: int | slice) -> TokenLogprobs | Logprobs:
        k = self.top_count
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice with a step of {step} is not supported; expected consecutive entries")
            return Logprobs(
                k,
                self.logprobs[start:stop],
                self.ranks[start:stop],
                self.top_ids[start * k : stop * k],
                self.top_logprobs[start * k : stop * k],
            )
        at = range(len(self))[index]
        tops = slice(at * k, at * k + k)
        return TokenLogprobs(
            self.logprobs[at], self.ranks[at], tuple(self.top_ids[tops]), tuple(self.top_logprobs[tops])
        )

    def row(self, index: int, top_count: int) -> Logprobs:
        """One entry, with its first ``top_count`` alternatives."""
        tops = slice(index * self.top_count, index * self.top_count + top_count)
        return Logprobs(
            top_count,
            self.logprobs[index : index + 1],
            self.ranks[index : index + 1],
            self.top_ids[tops],
            self.top_logprobs[tops],
        )

    def extend(self, other: Logprobs) -> None:
        """Append ``other``; raises ``ValueError`` if its number of alternatives differs."""
        if other.top_count != self.top_count:
            raise ValueError(f"{other.top_count} alternatives per token cannot follow {self.top_count}")
        self.logprobs += other.logprobs
        self.ranks += other.ranks
        self.top_ids += other.top_ids
        self.top_logprobs += other.top_logprobs
