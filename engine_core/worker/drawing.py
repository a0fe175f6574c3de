"""How a token is drawn after hidden states, by whichever model computed them: the target or a drafter.

Drafters draw by the sampler, the processors and the noise of the target, so that what they draw is likely what it will.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from engine_core.ops.base import Greatest
from engine_core.sampling.logits_processors import SamplingRows
from engine_core.sampling.metadata import SamplingMetadata
from engine_core.sampling.sampler import Sampler, SamplerOutput


class Head(Protocol):
    """What makes logits of hidden states [R, H]; V is the vocabulary size of the sampler."""

    @property
    def masks_argmax(self) -> bool:
        """Whether ``greatest`` takes ``allowed``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32, which may be changed."""

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """As ``LanguageModel.greatest``."""


def draw(
    head: Head,
    sampler: Sampler,
    state: SamplingMetadata,
    rows: SamplingRows,
    hidden: torch.Tensor,
    *,
    reports: bool = True,
) -> SamplerOutput:
    """A token for each of ``rows``, whose hidden states are ``hidden`` [R, H]; ``state`` is that of ``sampler``.

    Where all rows take the argmax, the head finds it without making all logits. ``reports``: with log probabilities,
    for rows that ask for them.
    """
    if state.greedy(rows.slots, reports=reports):
        return SamplerOutput(*head.greatest(hidden), [])
    if state.greedy_in_grammar(rows.slots, reports=reports) and head.masks_argmax:
        allowed = torch.from_numpy(state.allowed(rows).view(np.int32))
        return SamplerOutput(*head.greatest(hidden, allowed), [])
    return sampler.sample(head.logits(hidden), rows, reports=reports)
