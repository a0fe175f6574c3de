"""Vectors that stock clients must be shown, and whether they were."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

Rows = list[list[float]]


@dataclass(frozen=True)
class Vectors:
    """Of what every client asks."""

    texts: Rows
    query: list[float]
    texts_as_queries: Rows
    texts_as_passages: Rows
    of_ids: Rows
    cut: list[float]
    """The first text with the prompt of queries, cut to four tokens, and of its own length."""
    query_as_query: list[float]

    @property
    def similarities(self) -> list[float]:
        """Of the query and the texts."""
        return [sum(map(mul, self.query, one)) for one in self.texts]


def same(found: Any, expected: Sequence[Any]) -> bool:
    """Whether numbers, in lists of any depth, are the same float32 numbers, bit for bit."""
    if expected and isinstance(expected[0], list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return array("f", found).tobytes() == array("f", expected).tobytes()
