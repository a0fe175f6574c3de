"""Draws drafts for sequences of the batch, behind their known tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine_core.ops.base import Greatest, greatest_of
from engine_core.sampling.sampler import Sampler
from engine_core.worker.drawing import Head, draw
from engine_core.worker.input_batch import Index, InputBatch


class Drawer:
    """Draws by the sequences' own parameters and noise, and writes each draft where the next one's processors read it:
    behind the known tokens in the batch, which a plan's own drafts overwrite.
    """

    def __init__(self, batch: InputBatch, sampler: Sampler, head: Head) -> None:
        self._batch = batch
        self._sampler = sampler
        self._head = head

    def draw(self, slots: Index, num_drafts: int, hidden: torch.Tensor) -> npt.NDArray[np.int64]:
        """The draft [S] of each of ``slots`` behind its known tokens and ``num_drafts`` drafts drawn so far.

        ``hidden`` [S, H]: behind the token before. Waits for the device.
        """
        rows = self._batch.rows_behind(slots, np.full(len(slots), num_drafts))
        drawn = draw(self._head, self._sampler, self._batch.sampling, rows, hidden, reports=False)
        drafts: npt.NDArray[np.int64] = drawn.token_ids.cpu().numpy().copy()  # its memory is that of the logits
        self._batch.token_ids[slots, rows.num_tokens] = drafts
        return drafts


class FittedHead:
    """A head whose logits are more or fewer than the target's, as vocabularies are padded in different ways."""

    masks_argmax = False

    def __init__(self, head: Head, vocab_size: int) -> None:
        """``vocab_size``: of the target."""
        self._head = head
        self._vocab_size = vocab_size

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32: without the tokens that the target lacks, and −inf for those missing here."""
        logits = self._head.logits(hidden)
        missing = self._vocab_size - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self._vocab_size].contiguous()

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        assert allowed is None
        return greatest_of(self.logits(hidden))
