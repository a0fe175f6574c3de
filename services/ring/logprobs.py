"""Log probabilities of consecutive tokens, packed into arrays as all three services hold them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Protocol

# Upper estimates of an entry's size on the wire or in memory, bytes.
_ENTRY_BYTES, _ALTERNATIVE_BYTES = 16, 10


class LogprobArrays(Protocol):
    """Aligned arrays, as in ``ringline.types.v1.Logprobs``: 8 bytes per token and 8 per alternative."""

    @property
    def top_count(self) -> int: ...
    @property
    def logprobs(self) -> array[float]: ...
    @property
    def ranks(self) -> array[int]: ...
    @property
    def top_ids(self) -> array[int]: ...
    @property
    def top_logprobs(self) -> array[float]: ...


class PackedLogprobs:
    """Growable ``LogprobArrays``; entries are appended at the end and taken from the front."""

    __slots__ = ("logprobs", "ranks", "top_count", "top_ids", "top_logprobs")

    def __init__(
        self,
        top_count: int = 0,
        logprobs: Iterable[float] = (),
        ranks: Iterable[int] = (),
        top_ids: Iterable[int] = (),
        top_logprobs: Iterable[float] = (),
    ) -> None:
        """``top_count`` alternatives per token, likeliest first. Raises ``ValueError`` if they are not aligned."""
        self.top_count = top_count
        self.logprobs = array("f", logprobs)
        self.ranks = array("I", ranks)
        self.top_ids = array("I", top_ids)
        self.top_logprobs = array("f", top_logprobs)
        count = len(self.logprobs)
        if len(self.ranks) != count or not len(self.top_ids) == len(self.top_logprobs) == count * top_count:
            raise ValueError(
                f"log probabilities of {count} tokens, but not {top_count} alternatives and a rank of each"
            )

    def __len__(self) -> int:
        return len(self.logprobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedLogprobs) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def entry_bytes(self) -> int:
        """Upper estimate of one entry's size, on the wire and in memory."""
        return _ENTRY_BYTES + _ALTERNATIVE_BYTES * self.top_count

    def extend(self, other: LogprobArrays) -> None:
        """Append entries; raises ``ValueError`` if their number of alternatives differs."""
        if other.top_count != self.top_count:
            if not other.logprobs:
                return
            if self.logprobs:
                raise ValueError(f"{other.top_count} alternatives per token cannot follow {self.top_count}")
            self.top_count = other.top_count
        self.logprobs += other.logprobs
        self.ranks += other.ranks
        self.top_ids += other.top_ids
        self.top_logprobs += other.top_logprobs

    def part(self, start: int, stop: int) -> PackedLogprobs:
        """Entries ``start … stop − 1``."""
        k = self.top_count
        return PackedLogprobs(
            k,
            self.logprobs[start:stop],
            self.ranks[start:stop],
            self.top_ids[start * k : stop * k],
            self.top_logprobs[start * k : stop * k],
        )

    def take(self, count: int) -> PackedLogprobs:
        """Remove the first ``count`` entries, and return them."""
        taken, tops = self.part(0, count), count * self.top_count
        del self.logprobs[:count], self.ranks[:count], self.top_ids[:tops], self.top_logprobs[:tops]
        return taken

    def truncate(self, count: int) -> None:
        """Keep no more than the first ``count`` entries."""
        tops = count * self.top_count
        del self.logprobs[count:], self.ranks[count:], self.top_ids[tops:], self.top_logprobs[tops:]


def memory_bytes(num_tokens: int, top_count: int) -> int:
    """Memory of ``num_tokens`` entries with ``top_count`` alternatives each, with the arrays' over-allocation."""
    return num_tokens * 10 * (1 + top_count)
