"""How memory is divided between KV blocks and the slots of states; no torch."""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.kv_cache_interface import SPARE_SLOTS

FEWEST_STATES = SPARE_SLOTS + 1
"""Fewest slots of states: a sequence works in one, and two stay free, so that the next one can start."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What blocks, or slots, can use of the memory."""

    unit: int
    """Bytes of one; 0: this rank's layers have none."""
    least: int
    most: int | None = None
    """More would be of no use; None: there is no such number. Needed if ``unit`` is 0."""

    @property
    def least_bytes(self) -> int:
        """Bytes without which no engine starts."""
        return self.unit * self.least

    def fitting(self, room: float) -> int:
        """As many as are of use and fit into ``room`` bytes."""
        fitting = int(max(0.0, room) // self.unit) if self.unit else self.most
        assert fitting is not None
        return fitting if self.most is None else min(fitting, self.most)


def useful_states(max_num_seqs: int, *, enable_prefix_caching: bool) -> int:
    """The most slots of states that a batch can use: one a sequence, with prefix caching also three snapshots of each,
    else one for its choices or drafts, and some that are written while others are read.
    """
    return max_num_seqs * (4 if enable_prefix_caching else 2) + 10


def divide(left: int, blocks: Claim, states: Claim, states_share: float) -> tuple[int, int]:
    """Numbers of blocks and slots that fit into ``left`` bytes, which must hold the least of both.

    Slots get ``states_share`` of the memory, but at least their fewest, and not what the fewest blocks need. What one
    side cannot use, the other gets.
    """
    if not states.unit:
        return blocks.fitting(left), states.fitting(left)
    slots = max(states.least, states.fitting(left * states_share))
    slots = min(slots, states.fitting(left - blocks.least_bytes))
    count = blocks.fitting(left - slots * states.unit)
    return count, states.fitting(left - count * blocks.unit)
