"""The sampling operations written once for each kind of memory: with numpy on CPU, with torch elsewhere.

Parameters, the order of the pipeline, logits processors and reports are shared. An operation belongs here if it walks
whole rows of logits, where numpy on one thread beats torch, which divides rows among threads that the model's kernels
have just left (and takes 16 times as long for an argmax on one thread); or if it rounds (exponentials, logarithms,
sums), so that a CPU's bits do not depend on torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from engine_core.structured_output.matcher import Bits

Index = npt.NDArray[np.intp]
Ids = npt.NDArray[np.int64]
Array: TypeAlias = Any
"""In the logits' memory: numpy's on CPU, else torch's."""
Change = Callable[..., Array]


LEAST_LOGIT = float(np.finfo(np.float32).min)
"""Lowest logit of a token that may be sampled, after any penalty: −inf is for banned tokens."""


@dataclass(frozen=True, slots=True)
class RandomRows:
    """Parameters of R rows that are not greedy; all arrays are [R, 1]."""

    keys: npt.NDArray[np.uint64]
    """The key of each row's stream of noise."""
    temperature: npt.NDArray[np.float32]
    """> 0"""
    log_min_p: npt.NDArray[np.float32] | None
    """−inf if a row has no min-p; None if no row has one."""
    top_k: Ids | None
    """In 1 … V; None: all tokens are kept."""
    top_p: npt.NDArray[np.float64] | None
    """In (0, 1); None if no row has one."""


class SamplingOps(ABC):
    """R rows, V vocabulary size. Tokens are ordered by logit, the greatest first, then by id; −0 equals +0."""

    elements_at_once: ClassVar[int]
    """Logits the sampler works on at a time: bounds the memory of intermediate results."""

    xp: ModuleType
    """numpy or torch, named as in the array API standard; a ``Change`` may call only what both have."""

    @classmethod
    def rows_at_once(cls, vocab_size: int) -> int:
        """Rows the sampler works on at a time."""
        return max(1, cls.elements_at_once // vocab_size)

    @abstractmethod
    def array(self, logits: torch.Tensor) -> Array:
        """``logits`` as the other operations take them, in the same memory."""

    @abstractmethod
    def join(self, parts: Sequence[Array]) -> torch.Tensor:
        """Token ids [R], or other values per row, concatenated from consecutive parts."""

    @abstractmethod
    def place(self, parts: Sequence[tuple[Index, Array]]) -> Array:
        """Token ids [R] assembled from parts: indices of rows, and their token ids."""

    @abstractmethod
    def select_rows(self, x: Array, rows: Index) -> Array:
        """A copy of ``rows`` of ``x`` [R, …]."""

    @abstractmethod
    def keep_only(self, logits: Array, rows: Index, pairs: tuple[Ids, Ids]) -> None:
        """In ``rows`` of ``logits`` [R, V], in place, set all but the ``pairs`` (rows [P], token ids [P]) to −inf, and
        raise these to at least ``LEAST_LOGIT``.
        """

    @abstractmethod
    def mask(self, logits: Array, rows: Index, allowed: Bits) -> None:
        """In ``rows`` of ``logits`` [R, V], in place, set all but the tokens whose bits are set in ``allowed``
        [len(rows), ⌈V / 32⌉] to −inf, and raise these to at least ``LEAST_LOGIT``.
        """

    @abstractmethod
    def ban(self, logits: Array, pairs: tuple[Ids, Ids]) -> None:
        """Set the logits of distinct ``pairs`` (rows [P], token ids [P]) to −inf, in place, except in rows that would
        have no other logit left.
        """

    @abstractmethod
    def change(self, logits: Array, pairs: tuple[Ids, Ids], change: Change, *columns: npt.NDArray[Any]) -> None:
        """Replace the logits of ``pairs`` (rows [P], token ids [P]) by ``change(xp, logits, *columns)``, in place.

        ``change`` is elementwise on arrays [P]; ``columns`` are [P], too.
        """

    @abstractmethod
    def argmax(self, logits: Array) -> Array:
        """The first token [R] int64 of each row of ``logits`` [R, V]."""

    @abstractmethod
    def greatest(self, logits: Array) -> Array:
        """The greatest logit [R] float32 of each row of ``logits`` [R, V]; NaN if the row has one."""

    @abstractmethod
    def sample(self, logits: Array, rows: RandomRows) -> Array:
        """Token ids [R] int64, sampled from ``logits`` [R, V], which are not changed.

        Temperature; then min-p (Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM
        outputs", 2024), top-k, and top-p of the remaining mass (Holtzman et al., "The curious case of neural text
        degeneration", 2019); then the argmax of the remaining logits plus Gumbel noise. A row whose greatest logit is
        +inf or NaN is sampled greedily: its probabilities are undefined, and banned tokens must stay banned.
        """

    @abstractmethod
    def normalize(self, logits: Array, rows: Index) -> None:
        """Replace ``rows`` of ``logits`` [R, V] by their log-softmax, in place, with the values of ``logprobs``."""

    @abstractmethod
    def likeliest(self, logprobs: Array, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The first ``k`` ≤ V tokens of ``logprobs`` [R, V], as ``logprobs`` reports them, for the first of them."""

    @abstractmethod
    def logprobs(self, logits: Array, token_ids: Array, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-softmax of ``logits`` [R, V] at ``token_ids`` [R] and at the first ``k`` ≤ V tokens. Logits of +inf share
        their row's probability equally.

        Returns the ranks [R] of ``token_ids`` (1: first token), the first tokens [R, k], log probabilities [R, 1 + k].
        """


def pairs_of(rows: Index, ids: Sequence[npt.NDArray[np.integer]]) -> tuple[Ids, Ids]:
    """Rows and token ids of all pairs, from one array of token ids per row."""
    return np.repeat(rows.astype(np.int64), [len(each) for each in ids]), np.concatenate(ids, dtype=np.int64)
