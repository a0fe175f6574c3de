"""The slots of states that a step reads and writes, in arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine_core.states.base import StateMetadata
from engine_core.step import StatePlan


def state_metadata(plan: StatePlan, seq_ids: list[int], starts: npt.NDArray[np.int32]) -> StateMetadata:
    """The metadata, on the host, of a step whose sequence s owns rows starts[s] … starts[s + 1] − 1.

    ``starts`` [S + 1]. Loops over sequences only if any makes further saves.
    """
    targets = np.array(plan.targets, np.int32)
    save_starts, rows, slots = np.arange(len(starts), dtype=np.int32), starts[1:] - 1, targets
    if plan.saves:
        further = [plan.saves.get(seq_id, ()) for seq_id in seq_ids]
        counts = np.fromiter(map(len, further), np.int32, len(further))
        save_starts[1:] += counts.cumsum(dtype=np.int32)
        saves = np.array([save for each in further for save in each], np.int32).reshape(-1, 2)
        # A sequence's last save follows its last row.
        is_last = np.zeros(save_starts[-1], np.bool_)
        is_last[save_starts[1:] - 1] = True
        rows = _interleaved(is_last, rows, np.repeat(starts[:-1], counts) + saves[:, 0] - 1)
        slots = _interleaved(is_last, targets, saves[:, 1])
    arrays = starts, np.array(plan.sources, np.int32), save_starts, rows, slots
    return StateMetadata(*map(torch.from_numpy, arrays))


def _interleaved(
    is_first: npt.NDArray[np.bool_], first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """``first`` at the places where ``is_first``, ``second`` at the others, in order."""
    both = np.empty(len(is_first), np.int32)
    both[is_first], both[~is_first] = first, second
    return both
