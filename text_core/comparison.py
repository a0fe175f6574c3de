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


def cosines(queries: Sequence[Sequence[float]], documents: Sequence[Sequence[float]]) -> list[float]:
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
