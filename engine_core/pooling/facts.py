"""What a model computes in place of tokens: ``PoolingFacts``, for whoever makes its inputs and reads its results."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_core.pooling.params import PoolingTask


class PairForm(enum.Enum):
    """How a query and a document become one input."""

    SEGMENTS = "segments"
    """The tokenizer puts its special tokens between and around them."""
    TEMPLATE = "template"
    """A chat template with messages of the roles query and document, and possibly system, which instructs."""


class Similarity(enum.Enum):
    """How near two vectors are; a greater number is nearer. The names are sentence-transformers'."""

    COSINE = "cosine"
    DOT = "dot"
    """The sum of products."""
    EUCLIDEAN = "euclidean"
    """Less the length of the difference."""
    MANHATTAN = "manhattan"
    """Less the sum of the differences' sizes."""


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """What a model offers; part of its digest."""

    tasks: tuple[PoolingTask, ...]
    """Not empty."""
    dimensions: int = 0
    """Numbers of a vector; 0: it makes none."""
    is_matryoshka: bool = False
    """Whether vectors can be cut to fewer dimensions."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """Those that it was trained for; empty: any."""
    normalizes: bool = False
    """Whether vectors have a length of 1 by default."""
    labels: tuple[str, ...] = ()
    """Names of the labels, in order; empty: it has none."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before an input of a kind, by the kind's name; of ``PairForm.TEMPLATE``, instructions."""
    default_prompt: str = ""
    """Name of the prompt of an input without one; empty: none."""
    similarity: Similarity = Similarity.COSINE
    """What compares the vectors of a query and a document."""
    pair_form: PairForm | None = None
    """None: it scores no pairs."""
    reads_last: bool = False
    """Whether the last token's hidden state alone decides the result of a whole input: what comes before may then be in
    the prefix cache."""
    attends_both_ways: bool = False
    """Whether every token sees all others: then all of an input is computed in one step."""
