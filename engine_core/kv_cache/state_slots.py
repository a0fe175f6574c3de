"""The slots for the states of sequences: working slots, and the snapshots that sequences start from.

A running sequence has a *working* slot, which its steps overwrite, and a *source*: the slot with its present state. The
source is the working slot itself, or one that nobody writes to while it is held: a snapshot that the sequence starts
from or has left just now, or the state after its last accepted draft. The next step reads the source and holds it until
its results are in; what it writes is the next source.

A *snapshot* is the state at a block's end, findable by the block's hash. Like blocks, snapshots that nobody holds are
free slots, and the one unused for the longest time is overwritten first. ``snapshot_positions`` says where a sequence
leaves them:

- at the last two block ends in its prompt, as the next request of a chat may differ in the prompt's last tokens;
- at *milestones* in its prompt, for prompts that begin alike: four up to 2,048 tokens, four for each doubling after;
- where cached blocks of its prompt end, if no snapshot is there: others have branched off here and may again;
- in its output, at each block's end. A sequence's newest snapshot in its output replaces the one before, unless another
  sequence has found that one.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache_interface import NO_STATE
from engine_core.sequence import HeldStates, Sequence

SPARE_SLOTS = 2
"""Free slots that snapshots and drafts leave: a sequence takes as many to start, one to work in and its source."""

_MILESTONE = 512


def snapshot_positions(start: int, end: int, num_prompt_tokens: int, branch_at: int, block_size: int) -> list[int]:
    """The block ends after which a sequence leaves a snapshot, among positions ``start`` + 1 … ``end``, ascending.

    ``branch_at``: where cached blocks of its prompt end, 0 if a snapshot is there.
    """
    last = (num_prompt_tokens - 1) // block_size * block_size
    positions = {last - block_size, last, branch_at if branch_at <= last else 0}
    position = start
    while (position := _milestone_after(position)) <= min(end + block_size, last):
        positions.add(position // block_size * block_size)
    if (newest := end // block_size * block_size) > last:
        positions.add(newest)
    return sorted(position for position in positions if start < position <= end)


def _milestone_after(position: int) -> int:
    """The first milestone after ``position``: multiples of 512, or of an eighth to a quarter of themselves."""
    spacing = max(_MILESTONE, (1 << position.bit_length()) // 8)
    return (position // spacing + 1) * spacing


@dataclass(slots=True)
class StateUse:
    """The slots that a step uses for one sequence."""

    source: int
    target: int
    saves: list[tuple[int, int]]
    """Further (rows, slot), as in ``StatePlan.saves``."""
    snapshots: list[tuple[int, int]]
    """(position, slot), ascending: what becomes findable with the step's results."""
    held: list[int]
    """Slots that the step holds until its results are in."""


class StateSlots:
    """Gives slots to sequences and takes them back."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.pool = BlockPool(num_slots)
        self._block_size = block_size
        self._replaceable_by: list[int | None] = [None] * num_slots
        """The seq_id of the sequence whose next snapshot replaces the one in the slot."""

    @property
    def num_spare(self) -> int:
        """Free slots that snapshots and drafts may take."""
        return max(0, self.pool.num_free - SPARE_SLOTS)

    def find(self, hashes: Items[bytes]) -> tuple[int, int]:
        """The longest prefix of the blocks with these ``hashes`` that has a snapshot: number of blocks, and slot."""
        for index in range(len(hashes) - 1, -1, -1):
            if (slot := self.pool.find(hashes[index])) is not None:
                return index + 1, slot
        return 0, NO_STATE

    def has_room(self, source: int) -> bool:
        """Whether a sequence can start from ``source``."""
        idle = source != NO_STATE and self.pool.ref_count(source) == 0
        return 1 + idle <= self.pool.num_free

    def start(self, seq: Sequence, source: int, branch_at: int) -> None:
        """Give ``seq`` its slots, for which there must be room."""
        newest = None
        if source != NO_STATE:
            self.pool.hold([source])
            if self._replaceable_by[source] == seq.seq_id:
                newest = source
            self._replaceable_by[source] = None if newest is None else seq.seq_id
        seq.states = HeldStates(self._take(), source, branch_at, newest)

    def _take(self) -> int:
        (slot,) = self.pool.allocate(1)
        self._replaceable_by[slot] = None
        return slot

    def take_for_drafts(self, count: int) -> list[int]:
        """Slots for the states before each of up to ``count`` drafts."""
        return [self._take() for _ in range(min(count, self.num_spare))]

    def plan(self, seq: Sequence, num_tokens: int, end: int, snapshots: list[int], drafts: Items[int]) -> StateUse:
        """The slots of a step that computes ``num_tokens`` of ``seq`` up to ``end``, and leaves ``snapshots``.

        ``drafts``: slots of the states before each of the last tokens, which are drafts. Snapshots are left as far as
        there are slots for them, later ones first.
        """
        held, start = _held(seq), end - num_tokens
        use = StateUse(held.source, held.working, [], [], list(drafts))
        if held.source_is_held:
            use.held.append(held.source)
        slots = {num_tokens - len(drafts) + at: slot for at, slot in enumerate(drafts)}
        for position in reversed(snapshots):
            rows = position - start
            if rows not in slots:
                if not self.num_spare:
                    continue
                slots[rows] = self._take()
                use.held.append(slots[rows])
            use.snapshots.append((position, slots[rows]))
        use.snapshots.reverse()
        held.source = use.target = slots.pop(num_tokens, held.working)
        if held.source_is_held:
            self.pool.hold([held.source])
        use.saves = sorted(slots.items())
        return use

    def roll_back(self, seq: Sequence, use: StateUse, rows: int) -> None:
        """Go back to the state after ``rows`` of the step's rows, which are those before a draft."""
        held = _held(seq)
        source = dict(use.saves)[rows]
        self.pool.hold([source])
        if held.source_is_held:
            self.pool.release([held.source])
        held.source = source

    def publish(self, seq: Sequence, use: StateUse, num_computed: int) -> None:
        """Make snapshots findable, up to ``num_computed`` tokens of ``seq``; its hashes must reach as far."""
        snapshots = [each for each in use.snapshots if each[0] <= num_computed]
        num_prompt, held = seq.group.num_prompt_tokens, _held(seq)
        in_prompt = [each for each in snapshots if each[0] < num_prompt]
        for position, slot in (*in_prompt, *snapshots[len(in_prompt) :][-1:]):
            self.pool.publish(slot, seq.block_hashes[position // self._block_size - 1])
            if position >= num_prompt:
                if held.newest is not None and self._replaceable_by[held.newest] == seq.seq_id:
                    self.pool.withdraw(held.newest)
                held.newest = slot
                self._replaceable_by[slot] = seq.seq_id

    def release(self, slots: Items[int]) -> None:
        """Take back slots, last first: a step holds its source first, then its latest snapshot."""
        self.pool.release(reversed(slots))


def _held(seq: Sequence) -> HeldStates:
    assert seq.states is not None
    return seq.states
