"""The slots for the states of sequences: working slots, and the snapshots that sequences start from.

A running sequence has a *working* slot, which its steps overwrite, and a *source*: the slot with its present state. The
source is the working slot itself, or one that nobody writes to while it is held: a snapshot that the sequence starts
from or has left just now, or the state after its last accepted draft. The next step reads the source and holds it until
its results are in; what it writes is the next source.

A *snapshot* is the state at a block's end, findable by the block's hash. Like blocks, snapshots that nobody holds are
free slots, and the one unused for the longest time is overwritten first. ``snapshot_positions`` says where a sequence
leaves them:

- at the last block end in its prompt, and at the one before if few tokens follow, because a chat's next request may
  differ in a prompt's last tokens, which call for an answer;
- at *milestones*, for prompts that begin alike, and for itself if it loses its last blocks: four up to 2,048 tokens,
  four for each doubling after;
- where cached blocks of its prompt end, if no snapshot is there: others have branched off here and may again;
- in its output, at each block's end, replacing its snapshot before that one.

The last ones in a prompt and the newest one in the output are the sequence's *trail*: the next turn of a chat starts
from one of them, which then belongs to its own trail. What turns have left that others have gone on from, and too many
milestones, is *worn*: worn snapshots are overwritten before all others, so that many chats share the slots. What
several sequences have found belongs to no trail.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache_interface import NO_STATE, SPARE_SLOTS
from engine_core.sequence import HeldStates, Sequence

_CALL_TOKENS = 8
"""Most tokens at a prompt's end that call for an answer, such as "assistant:" in the words of a chat template."""

_MILESTONE = 512
_MILESTONES_SHARE = 8
"""One slot in so many may have a milestone that no other sequence has found."""


def snapshot_positions(start: int, end: int, num_prompt_tokens: int, branch_at: int, block_size: int) -> list[int]:
    """The block ends after which a sequence leaves a snapshot, among positions ``start`` + 1 … ``end``, ascending.

    ``branch_at``: where cached blocks of its prompt end, 0 if a snapshot is there.
    """
    last = _last_in_prompt(num_prompt_tokens, block_size)
    positions = {last, branch_at if branch_at <= last else 0}
    if num_prompt_tokens - last <= _CALL_TOKENS:
        positions.add(last - block_size)
    position = start
    while (position := _milestone_after(position)) < end + block_size:
        positions.add(position // block_size * block_size)
    if (newest := end // block_size * block_size) > last:
        positions.add(newest)
    return sorted(position for position in positions if start < position <= end)


def _last_in_prompt(num_prompt_tokens: int, block_size: int) -> int:
    """The last block end of a prompt behind which at least one token of it follows."""
    return (num_prompt_tokens - 1) // block_size * block_size


def _milestone_after(position: int) -> int:
    """The first milestone after ``position``: multiples of 512, or of an eighth to a quarter of themselves."""
    spacing = max(_MILESTONE, (1 << position.bit_length()) // 8)
    return (position // spacing + 1) * spacing


def _is_milestone(position: int, block_size: int) -> bool:
    """Whether a milestone is at ``position``, a block end, or in the block that begins there."""
    return _milestone_after(position - 1) < position + block_size


@dataclass(slots=True)
class StateUse:
    """The slots that a step uses for one sequence."""

    source: int
    target: int
    saves: list[tuple[int, int]]
    """Further (rows, slot), as in ``StatePlan.saves``."""
    snapshots: list[tuple[int, int]]
    """(position, slot), ascending: what becomes findable with the step's results."""
    read: list[int]
    """The source, if the step holds it until its results are in."""
    left: list[int]
    """Slots that the step takes for states and holds as long; the latest snapshot, if any is taken, is the last."""


class StateSlots:
    """Gives slots to sequences and takes them back."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.pool = BlockPool(num_slots)
        self._block_size = block_size
        self._left_by: list[int | None] = [None] * num_slots
        """The seq_id of the sequence to whose trail the snapshot in a slot belongs."""
        self._trails: dict[int, list[int]] = {}
        """By seq_id."""
        self._milestones: dict[int, None] = {}
        """Slots of milestones that no other sequence has found, oldest first."""
        self._worn: dict[int, None] = {}
        """Slots of worn snapshots, oldest first."""
        self._most_milestones = max(1, num_slots // _MILESTONES_SHARE)
        self._running: set[int] = set()
        """seq_ids."""
        self._awaited: dict[bytes, int] = {}
        """By a block's hash: the running sequence that will leave a snapshot behind the block."""

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

    def is_awaited(self, content: bytes) -> bool:
        """Whether a running sequence will leave a snapshot behind the block with this hash."""
        return content in self._awaited

    def start(self, seq: Sequence, source: int, cached: int, branch_at: int) -> None:
        """Give ``seq`` its slots, for which there must be room; ``source`` has the state after ``cached`` tokens."""
        newest = followed = None
        if source != NO_STATE:
            self.pool.hold([source])
            self._milestones.pop(source, None)
            self._worn.pop(source, None)
            if self._left_by[source] != seq.seq_id:
                followed = source if self._follow(source, seq) else None
            elif cached >= seq.group.num_prompt_tokens:
                newest = source
        self._running.add(seq.seq_id)
        seq.states = HeldStates(self._take(), source, branch_at, newest, followed)
        if branch_at and self.num_spare:
            content = seq.block_hashes[branch_at // self._block_size - 1]
            if self._awaited.setdefault(content, seq.seq_id) == seq.seq_id:
                seq.states.awaited = content

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Let ``child``, which has no slots, start from the present state of ``parent``; False if too few are free.

        Both then read the slot with that state, which neither writes.
        """
        held = _held(parent)
        if (1 if held.source_is_held else 2) > self.pool.num_free:
            return False
        if not held.source_is_held:
            held.source, held.working = held.working, self._take()
        self.pool.hold([held.source])
        self._running.add(child.seq_id)
        child.states = HeldStates(self._take(), held.source, branch_at=0, newest=None)
        return True

    def stop(self, seq: Sequence) -> list[int]:
        """Give up the slots of ``seq``, which runs no more: those to release when no step uses them."""
        held = _held(seq)
        self.end_wait(seq, held.branch_at)
        self._running.discard(seq.seq_id)
        seq.states = None
        return held.slots

    def end_wait(self, seq: Sequence, num_computed: int) -> None:
        """Let nobody wait for the snapshot of ``seq`` at ``branch_at``, if it has computed as much."""
        held = _held(seq)
        if held.awaited is not None and num_computed >= held.branch_at:
            del self._awaited[held.awaited]
            held.awaited = None

    def _follow(self, source: int, seq: Sequence) -> bool:
        """Whether ``seq``, which starts from ``source``, goes on where another sequence has ended.

        Then it inherits ``source``, and the rest of that trail is worn.
        """
        owner = self._left_by[source]
        if owner is None:
            return False
        self._leave_trail(source)
        if owner in self._running:
            return False
        for slot in self._trails.get(owner, [])[:]:
            self._wear(slot)
        self._join_trail(source, seq)
        return True

    def _wear(self, slot: int) -> None:
        self._leave_trail(slot)
        self._milestones.pop(slot, None)
        self._worn[slot] = None

    def _leave_trail(self, slot: int) -> None:
        owner = self._left_by[slot]
        if owner is not None:
            self._left_by[slot] = None
            self._trails[owner].remove(slot)
            if not self._trails[owner]:
                del self._trails[owner]

    def _join_trail(self, slot: int, seq: Sequence) -> None:
        self._left_by[slot] = seq.seq_id
        self._trails.setdefault(seq.seq_id, []).append(slot)

    def _take(self) -> int:
        if self._worn and self.pool.would_evict:
            # Some may be held by a step, or for a prompt; they are worn no more.
            while self._worn and self.pool.ref_count(slot := next(iter(self._worn))):
                del self._worn[slot]
            if self._worn:
                self.pool.withdraw(slot)
        (slot,) = self.pool.allocate(1)
        self._leave_trail(slot)
        self._milestones.pop(slot, None)
        self._worn.pop(slot, None)
        return slot

    def take_for_drafts(self, count: int) -> list[int]:
        """Slots for the states before each of up to ``count`` drafts."""
        return [self._take() for _ in range(min(count, self.num_spare))]

    def plan(self, seq: Sequence, num_tokens: int, end: int, snapshots: list[int], drafts: Items[int]) -> StateUse:
        """The slots of a step that computes ``num_tokens`` of ``seq`` up to ``end``, and leaves ``snapshots``.

        ``drafts``: slots of the states before each of the last tokens, which are drafts. Snapshots are left as far as
        there are slots for them: first where others wait for one, then later ones before earlier ones.
        """
        held, start = _held(seq), end - num_tokens
        use = StateUse(held.source, held.working, [], [], [held.source] if held.source_is_held else [], [])
        slots = {num_tokens - len(drafts) + at: slot for at, slot in enumerate(drafts)}
        for position in sorted(snapshots, key=lambda position: (position != held.branch_at, -position)):
            rows = position - start
            if rows not in slots:
                if not self.num_spare:
                    continue
                is_milestone = self._leaves_milestone(seq, position)
                if is_milestone and len(self._milestones) >= self._most_milestones:
                    self._wear(next(iter(self._milestones)))
                slots[rows] = self._take()
                if is_milestone:
                    self._add_milestone(slots[rows])
                use.left.append(slots[rows])
            use.snapshots.append((position, slots[rows]))
        use.snapshots.sort()
        taken = set(use.left)
        use.left = [*drafts, *(slot for _, slot in use.snapshots if slot in taken)]
        if start < held.branch_at <= end and held.branch_at not in dict(use.snapshots):
            self.end_wait(seq, end)
        held.source = use.target = slots.pop(num_tokens, held.working)
        if held.source_is_held:
            self.pool.hold([held.source])
        use.saves = sorted(slots.items())
        return use

    def _leaves_milestone(self, seq: Sequence, position: int) -> bool:
        """Whether the snapshot of ``seq`` at ``position`` is a milestone, and of no other kind that counts more."""
        num_prompt, size = seq.group.num_prompt_tokens, self._block_size
        is_in_trail = _last_in_prompt(num_prompt, size) - size <= position < num_prompt
        return not is_in_trail and position != _held(seq).branch_at and _is_milestone(position, size)

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
        for position, slot in snapshots:
            is_milestone, in_output = self._leaves_milestone(seq, position), position >= num_prompt
            if in_output and not is_milestone and position < snapshots[-1][0]:
                continue
            self.pool.publish(slot, seq.block_hashes[position // self._block_size - 1])
            if is_milestone:
                self._add_milestone(slot)
            elif position != held.branch_at:
                self._lead_trail(slot, seq)
            if in_output:
                if held.newest is not None and self._left_by[held.newest] == seq.seq_id:
                    self._leave_trail(held.newest)
                    self.pool.withdraw(held.newest)
                held.newest = None if is_milestone else slot

    def _add_milestone(self, slot: int) -> None:
        if slot not in self._milestones:
            if len(self._milestones) >= self._most_milestones:
                self._wear(next(iter(self._milestones)))
            self._worn.pop(slot, None)
            self._milestones[slot] = None

    def _lead_trail(self, slot: int, seq: Sequence) -> None:
        """Add a snapshot to the trail of ``seq``; the one that it started from is worn then, unless others found it."""
        held = _held(seq)
        self._join_trail(slot, seq)
        if held.followed is not None:
            if self._left_by[held.followed] == seq.seq_id:
                self._wear(held.followed)
            held.followed = None

    def release_sources(self, uses: Collection[StateUse]) -> None:
        """Take back the sources that a step has held."""
        self.pool.release(slot for use in uses for slot in use.read)

    def release_left(self, uses: Collection[StateUse]) -> None:
        """Take back the other slots that a step has held. Of its snapshots the latest ones will be overwritten last."""
        self.pool.release(slot for use in uses for slot in use.left[:-1])
        self.pool.release(slot for use in uses for slot in use.left[-1:])


def _held(seq: Sequence) -> HeldStates:
    assert seq.states is not None
    return seq.states
