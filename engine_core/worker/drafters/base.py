"""What a drafter is that computes drafts, beside the model that they are for: the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from engine_core.sampling.sampler import Sampler
from engine_core.worker.input_batch import InputBatch, StepInputs


class Drafter(ABC):
    """Lives on the rank that samples, whole: its steps are so small that ranks would wait for each other most of the
    time, and drafts reach the other ranks in plans.

    It draws by the sequences' own parameters, processors and noise, so that its draws are the target's likely draws.
    Call ``allocate`` once, then ``observe`` with every step, ``propose`` when its tokens are in the batch, and
    ``forget`` when a sequence leaves its slot.
    """

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of its own weights."""

    @property
    @abstractmethod
    def bytes_per_block(self) -> int:
        """Bytes of its own cache for each block of the target's cache."""

    @property
    def kept_bytes(self) -> int:
        """The most that it keeps between steps, besides its cache, and that the target keeps for it during a step."""
        return 0

    @abstractmethod
    def allocate(self, num_blocks: int, batch: InputBatch, sampler: Sampler) -> None:
        """Take memory for as many tokens as ``num_blocks`` blocks have, and draw by ``sampler`` for the sequences of
        ``batch``.
        """

    def rehearse(self, batch: InputBatch, sampler: Sampler) -> None:  # noqa: B027
        """Compute what takes most memory, in any tokens of the full ``batch``, with one block: to measure it.

        Before ``allocate``. Without what ``kept_bytes`` counts; only layers need be left out that would take the same
        memory once more.
        """

    def observe(self, inputs: StepInputs, hidden: torch.Tensor) -> None:  # noqa: B027
        """See the target's hidden states [T, H] of a step, whose tokens are not known yet: the final ones, or, side by
        side, the inputs of ``registry.tapped_layers``.

        Only for the steps of ``ObservedSteps``, if the method reads any; valid only during the call.
        """

    @abstractmethod
    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        """Drafts that follow the newest token in each slot of ``wanted``: at most so many. An empty list: there will be
        some soon; a slot that is left out is worth asking for only now and then.
        """

    @abstractmethod
    def forget(self, slot: int) -> None:
        """Drop what is kept of the sequence that leaves ``slot``."""
