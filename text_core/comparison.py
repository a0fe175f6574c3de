"""Texts that are compared by their vectors: what is put before them, and how near the vectors are."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names under which models keep what is put before queries and documents."""


def own_prompt(names: Sequence[str], prompts: Mapping[str, str], default: str) -> str:
    """A model's own prompt for a kind of text that has one of the ``names``, else that of the name ``default``."""
    name = next((name for name in names if name in prompts), default)
    return prompts[name] if name else ""


Vector = Sequence[float]


def similarities(kind: str, queries: Sequence[Vector], documents: Sequence[Vector]) -> list[float]:
    """How near each document's vector is to that of the only query, or to its own; a greater number is nearer.

    ``kind``: one of ``SIMILARITIES``, or cosine. Sums are rounded once, so that the order of numbers does not matter.
    """
    if (compare := SIMILARITIES.get(kind)) is None:
        return cosines(queries, documents)
    several = len(queries) > 1
    return [compare(queries[index if several else 0], document) for index, document in enumerate(documents)]


def _dot(one: Vector, other: Vector) -> float:
    return math.fsum(map(operator.mul, one, other))


def _less_euclidean(one: Vector, other: Vector) -> float:
    return -math.dist(one, other)


def _less_manhattan(one: Vector, other: Vector) -> float:
    return -math.fsum(map(abs, map(operator.sub, one, other)))


SIMILARITIES = {"dot": _dot, "euclidean": _less_euclidean, "manhattan": _less_manhattan}
"""By sentence-transformers' names; those of distances are the less, the farther."""


def cosines(queries: Sequence[Vector], documents: Sequence[Vector]) -> list[float]:
    """The cosine, from −1 to 1, of each document's vector and that of the only query, or of its own.

    Sums are rounded once, so that the order of numbers does not matter. A vector of length 0 is near nothing: 0.
    """
    lengths = [math.hypot(*query) for query in queries]
    found = []
    for index, document in enumerate(documents):
        of = index if len(queries) > 1 else 0
        scale = lengths[of] * math.hypot(*document)
        found.append(math.fsum(map(operator.mul, queries[of], document)) / scale if scale else 0.0)
    return found
