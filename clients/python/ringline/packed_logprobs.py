"""Log probabilities as they came: packed, for as objects 20 alternatives of a token take 2 KB."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
    """One entry per token, which is made when it is asked for. Equal to any sequence of equal entries."""

    def __init__(self, parts: Sequence[bytes], length: int) -> None:
        """``parts``: messages of type ``Logprobs``, with ``length`` tokens together."""
        self._parts = tuple(parts)
        self._length = length

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
            return tuple(self)[index]
        at = range(self._length)[index]
        return next(itertools.islice(self, at, None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))
