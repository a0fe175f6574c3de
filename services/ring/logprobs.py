"""Log probabilities of many consecutive tokens, packed: a prompt may have a hundred thousand of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from services.ring.events import TokenLogprob

# Upper estimates of what an entry takes on the wire, bytes; they keep frames below the limit, no more.
_ENTRY_BYTES, _ALTERNATIVE_BYTES = 16, 10


class PackedLogprobs:
    """Aligned arrays, as in ``ringline.types.v1.Logprobs``: 8 bytes per token and 8 per alternative."""

    __slots__ = ("logprobs", "ranks", "top_count", "top_ids", "top_logprobs")

    def __init__(
        self,
        top_count: int,
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

    @classmethod
    def of(cls, entries: Iterable[TokenLogprob]) -> PackedLogprobs:
        """The same as single entries, which all have equally many alternatives."""
        entries = list(entries)
        return cls(
            len(entries[0].top_ids) if entries else 0,
            (entry.logprob for entry in entries),
            (entry.rank for entry in entries),
            (token_id for entry in entries for token_id in entry.top_ids),
            (logprob for entry in entries for logprob in entry.top_logprobs),
        )

    def __len__(self) -> int:
        return len(self.logprobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedLogprobs) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def entry_bytes(self) -> int:
        """Upper estimate of one entry's size on the wire."""
        return wire_bytes(self.top_count)

    def extend(self, other: PackedLogprobs) -> None:
        """Add what follows; raises ``ValueError`` if that has another number of alternatives."""
        if other.top_count != self.top_count:
            raise ValueError(f"{other.top_count} alternatives per token follow {self.top_count}")
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


def wire_bytes(top_count: int) -> int:
    """An upper estimate of what one entry with ``top_count`` alternatives takes on the wire."""
    return _ENTRY_BYTES + _ALTERNATIVE_BYTES * top_count


def memory_bytes(num_tokens: int, top_count: int) -> int:
    """What ``num_tokens`` entries with ``top_count`` alternatives each take in memory."""
    return num_tokens * 8 * (1 + top_count)
