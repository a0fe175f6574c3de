"""Log probabilities in the packed form they arrive in: as objects, 20 alternatives of a token would take 2 KB."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import overload

from ringline.outputs import TokenLogprob
from ringline.types.v1 import output_pb2


def logprobs_from(packed: output_pb2.Logprobs) -> tuple[TokenLogprob, ...]:
    """One entry per token; raises ValueError if the arrays are not aligned."""
    k = packed.top_count
    ids, values = list(packed.top_ids), list(packed.top_logprobs)
    if len(ids) != k * len(packed.logprobs):
        raise ValueError(f"{len(ids)} alternatives for {len(packed.logprobs)} tokens of {k} each")
    tops = tuple(zip(ids, values, strict=True))
    return tuple(
        TokenLogprob(logprob, rank, tops[i * k : (i + 1) * k])
        for i, (logprob, rank) in enumerate(zip(packed.logprobs, packed.ranks, strict=True))
    )


class PackedLogprobs(Sequence[TokenLogprob]):
    """One entry per token, unpacked on access. Equal to any sequence of equal entries."""

    def __init__(self, parts: Sequence[bytes], length: int) -> None:
        """``parts``: serialized ``Logprobs`` messages, of ``length`` tokens in total."""
        self._parts = tuple(parts)
        self._length = length
        self._unpacked: tuple[int, tuple[TokenLogprob, ...]] = -1, ()
        """Number and entries of the last part read: access is mostly sequential."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[TokenLogprob]:
        for part in self._parts:
            yield from logprobs_from(output_pb2.Logprobs.FromString(part))

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[TokenLogprob, ...]: ...

    def __getitem__(self, index: int | slice) -> TokenLogprob | tuple[TokenLogprob, ...]:
        if isinstance(index, slice):
            return tuple(map(self.__getitem__, range(self._length)[index]))
        at = range(self._length)[index]
        part = bisect_right(self._ends, at)
        number, entries = self._unpacked
        if number != part:
            entries = logprobs_from(output_pb2.Logprobs.FromString(self._parts[part]))
            self._unpacked = part, entries
        return entries[at - self._ends[part]]

    @cached_property
    def _ends(self) -> list[int]:
        """Number of tokens up to the end of each part."""
        return list(accumulate(len(output_pb2.Logprobs.FromString(part).logprobs) for part in self._parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))
