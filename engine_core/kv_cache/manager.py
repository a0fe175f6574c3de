"""The paged KV cache as seen by the scheduler: block tables of sequences, and the prefix cache.

A sequence has a block table for each group of layers. In groups with a sliding window, the first blocks are released as
the window moves on; ``NO_BLOCK`` takes their place.

The prefix cache finds a full block by its group and its hash (``prefix_hashes``). If layers keep states, a sequence
also has slots for these (``state_slots``), and starts where both its blocks and a snapshot are found. A model without
attention has no groups, and no blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import zip_longest

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.prefix_hashes import SeenBlocks, block_hashes, root_hash
from engine_core.kv_cache.state_slots import StateSlots, StateUse, snapshot_positions
from engine_core.kv_cache_interface import NO_BLOCK, NO_STATE, KVCacheConfig, KVCacheGroup
from engine_core.sequence import NEVER, BlockTables, Sequence, SequenceGroup

_SEEN_PER_SLOT = 64
"""Blocks that are remembered for each slot of a model without attention."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Leading blocks of a sequence that are already computed."""

    num_blocks: int
    block_tables: BlockTables
    """``num_blocks`` entries each; ``NO_BLOCK`` for blocks that no later token reads."""
    state: int = NO_STATE
    """The slot of the state behind them."""
    branch_at: int = 0
    """Number of tokens in cached blocks, if there are more of these but no state behind them; else 0."""
    is_awaited: bool = False
    """Whether a running sequence will leave the state at ``branch_at``."""


class KVCacheManager:
    """Gives blocks to sequences and takes them back."""

    def __init__(
        self, config: KVCacheConfig, *, step_tokens: int, prefix_caching: bool, identity: Items[bytes] = ()
    ) -> None:
        """``step_tokens``: the most tokens of a step. ``identity``: the model, numerics and layout of the blocks."""
        self.pool = BlockPool(config.num_blocks)
        self.block_size = config.block_size
        self.prefix_caching = prefix_caching
        self._groups = [_Group(number, group, config.block_size) for number, group in enumerate(config.groups)]
        self._windowed = [group for group in self._groups if group.window is not None]
        self.has_windows = bool(self._windowed)
        """Whether sequences release blocks while they run."""
        self.states = StateSlots(config.num_states, config.block_size) if config.num_states else None
        """None: no layer keeps a state."""
        self._seen = None if config.groups else SeenBlocks(_SEEN_PER_SLOT * config.num_states)
        """Instead of blocks, if no layer attends."""
        self._step_tokens = step_tokens
        self._identity = tuple(identity)
        self._generation = 0
        """Number of resets. Sequences that build on blocks of an earlier generation publish nothing."""

    @property
    def num_groups(self) -> int:
        """Number of block tables of a sequence."""
        return len(self._groups)

    def looks_up_prefix(self, group: SequenceGroup) -> bool:
        """Whether choices of ``group`` may start from cached blocks: not if they report prompt log probabilities, or
        are pooled with the hidden states of all tokens.
        """
        return self.prefix_caching and not group.scores_prompt and group.looks_up_prefix

    def find_prefix(self, seq: Sequence) -> Prefix:
        """The longest prefix of ``seq`` for which every block that later tokens read is cached, and the state behind.

        It leaves at least one token to compute. Its blocks are not held yet: call ``admit`` before allocating anything
        else. If the group holds its prompt, the group's blocks are preferred to cached ones with the same contents:
        otherwise the blocks held for ``seq`` could prevent its own admission.
        """
        shared = seq.group.shared_blocks
        outdated = self._shares_blocks(seq.group) and seq.group.shared_generation != self._generation
        held: BlockTables = [[] for _ in self._groups] if shared is None else shared
        if outdated or not self.looks_up_prefix(seq.group):
            return Prefix(0 if shared is None else seq.group.num_shared_blocks, held, seq.group.shared_state)
        limit = seq.group.whole_blocks((seq.num_tokens - 1) // self.block_size, self.block_size)
        self._extend_hashes(seq, limit)
        hashes = seq.block_hashes[:limit]
        cached = [_CachedBlocks(self.pool, group, hashes, held[group.number]) for group in self._groups]
        longest = min([limit, *(len(blocks.leading) for blocks in cached if blocks.group.window is None)])
        longest = length = self._usable(seq.group, cached, longest)
        state = NO_STATE
        if self.states is not None:
            length, state = self._find_state(self.states, seq.group, hashes[:length])
            while (shorter := self._usable(seq.group, cached, length)) < length:
                length, state = self._find_state(self.states, seq.group, hashes[:shorter])
            if self._seen is not None:
                longest = self._seen.leading(hashes)
        tables = [blocks.table(length) for blocks in cached]
        if self.states is None or length >= longest:
            return Prefix(length, tables, state)
        return Prefix(length, tables, state, longest * self.block_size, self.states.is_awaited(hashes[longest - 1]))

    def _usable(self, group: SequenceGroup, cached: Items[_CachedBlocks], length: int) -> int:
        """``length``, or fewer blocks: as many as windows do not lack any of, and do not end inside a whole picture."""
        while (shorter := _shortened(cached, group.whole_blocks(length, self.block_size))) < length:
            length = shorter
        return length

    def _find_state(self, states: StateSlots, group: SequenceGroup, hashes: Items[bytes]) -> tuple[int, int]:
        """Of the blocks with these ``hashes``, how many have a state behind them, and its slot."""
        length, state = states.find(hashes)
        shared = group.num_shared_blocks
        held = group.shared_state != NO_STATE and length <= shared <= len(hashes)
        return (shared, group.shared_state) if held else (length, state)

    def admit(self, seq: Sequence, prefix: Prefix, headroom: int) -> bool:
        """Give ``seq`` blocks for all its tokens, ``prefix`` first, and a slot for its state.

        False, without changes, if too few are free.

        Layers with a window get only the blocks for the window and one step: blocks are reused as the window moves on.
        ``headroom`` blocks must stay free for running sequences.
        """
        pool, cached = self.pool, prefix.num_blocks * self.block_size
        missing = [
            group.num_blocks(seq.num_tokens, cached, self._step_tokens) - prefix.num_blocks for group in self._groups
        ]
        found = [block for table in prefix.block_tables for block in table if block != NO_BLOCK]
        idle_hits = sum(pool.ref_count(block) == 0 for block in found)
        if sum(missing) + idle_hits + headroom > pool.num_free:
            return False
        if self.states is not None:
            if not self.states.has_room(prefix.state):
                return False
            self.states.start(seq, prefix.state, cached, prefix.branch_at)
        pool.hold(found)
        seq.generation = seq.group.shared_generation if self._shares_blocks(seq.group) else self._generation
        seq.block_tables = [
            table + pool.allocate(count) for table, count in zip(prefix.block_tables, missing, strict=True)
        ]
        seq.first_blocks = [group.first_block_behind(prefix.num_blocks) for group in self._groups]
        seq.capacity = min(map(len, seq.block_tables)) * self.block_size if seq.block_tables else NEVER
        seq.num_computed = cached
        seq.num_published = prefix.num_blocks
        return True

    def grow(self, seq: Sequence, num_tokens: int, headroom: int = 0) -> BlockTables | None:
        """Give ``seq`` room for ``num_tokens`` tokens; returns the added blocks by table, or None if too few are free.

        ``headroom`` blocks must stay free if any are added.
        """
        if num_tokens <= seq.capacity:
            return []
        blocks = -(-num_tokens // self.block_size)
        counts = [max(0, blocks - len(table)) for table in seq.block_tables]
        if sum(counts) + headroom > self.pool.num_free:
            return None
        added = [self.pool.allocate(count) for count in counts]
        for table, more in zip(seq.block_tables, added, strict=True):
            table.extend(more)
        seq.capacity = blocks * self.block_size
        return added

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]] | None:
        """Let ``child``, which holds nothing, share the computed blocks and the state of a running ``parent``.

        The last block, unless it is full, gets a copy of its own. Returns the (source, target) of what must be copied
        before the next step; None, without changes, if too little is free.
        """
        full, rest = divmod(parent.num_computed, self.block_size)
        if (len(self._groups) if rest else 0) > self.pool.num_free:
            return None
        if self.states is not None and not self.states.fork(parent, child):
            return None
        child.block_tables = [table[:full] for table in parent.block_tables]
        for table in child.block_tables:
            self.pool.hold(block for block in table if block != NO_BLOCK)
        copies = []
        if rest:
            for source, table in zip(parent.block_tables, child.block_tables, strict=True):
                table += self.pool.allocate(1)
                copies.append((source[full], table[full]))
        child.first_blocks = list(parent.first_blocks)
        child.capacity = min(map(len, child.block_tables)) * self.block_size if child.block_tables else NEVER
        child.num_computed = parent.num_computed
        child.num_published, child.generation = parent.num_published, parent.generation
        child.block_hashes = list(parent.block_hashes)
        return copies

    def publish(self, seq: Sequence, num_computed: int) -> None:
        """Make findable the blocks that the first ``num_computed`` tokens of ``seq`` fill; they must be computed."""
        full = num_computed // self.block_size
        if not self._publishes(seq) or full <= seq.num_published:
            return
        self._extend_hashes(seq, full)
        for group, table in zip(self._groups, seq.block_tables, strict=True):
            for index in range(seq.num_published, full):
                if table[index] != NO_BLOCK:
                    self.pool.publish(table[index], group.key(seq.block_hashes[index]))
        if self._seen is not None:
            self._seen.add(seq.block_hashes[seq.num_published : full])
        seq.num_published = full

    def release_skipped_blocks(self, seq: Sequence, num_computed: int) -> None:
        """Release the blocks that no window reads once ``num_computed`` tokens are computed."""
        for group in self._windowed:
            table, first = seq.block_tables[group.number], seq.first_blocks[group.number]
            end = min(group.first_block(num_computed), len(table))
            if first < end:
                self.pool.release(reversed(table[first:end]))
                table[first:end] = [NO_BLOCK] * (end - first)
                seq.first_blocks[group.number] = end

    def will_free(self, seq: Sequence, num_computed: int) -> bool:
        """Whether ``release_skipped_blocks`` would release any block."""
        return any(group.first_block(num_computed) > seq.first_blocks[group.number] for group in self._windowed)

    def next_change(self, seq: Sequence) -> int:
        """The number of computed tokens at which ``publish`` or ``release_skipped_blocks`` next has work."""
        at = (seq.num_published + 1) * self.block_size if self._publishes(seq) else NEVER
        for group in self._windowed:
            at = min(at, group.first_position_after(seq.first_blocks[group.number]))
        return at

    def _shares_blocks(self, group: SequenceGroup) -> bool:
        """Whether choices of ``group`` can share blocks: not if its prompt is shorter than a block."""
        return group.shared_blocks is not None and group.num_shared_blocks > 0

    def _publishes(self, seq: Sequence) -> bool:
        return self.prefix_caching and seq.generation == self._generation

    def plan_state(
        self, seq: Sequence, num_tokens: int, end: int, draft_slots: list[int]
    ) -> tuple[int, StateUse | None]:
        """The working slot of ``seq`` for a step that computes ``num_tokens`` up to ``end``, and other slots if used.

        The last tokens are drafts, as many as there are ``draft_slots``. Only if layers keep states.
        """
        held, start, size = seq.states, end - num_tokens, self.block_size
        assert self.states is not None
        assert held is not None
        if held.source == held.working and start // size == end // size and not draft_slots:
            return held.working, None
        snapshots = self._snapshot_positions(seq, start, end, held.branch_at, drafts=bool(draft_slots))
        return held.working, self.states.plan(seq, num_tokens, end, snapshots, draft_slots)

    def _snapshot_positions(self, seq: Sequence, start: int, end: int, branch_at: int, *, drafts: bool) -> list[int]:
        size, group = self.block_size, seq.group
        if not self._publishes(seq):
            # Those who wait for the prompt do not need to find the state: the group will hold it.
            shared = group.num_shared_blocks * size
            return [shared] if group.leader is seq and group.num_waiting and start < shared <= end else []
        if drafts:
            # All are in the output, where the last one counts, but it is not known yet which one that is.
            return list(range((start // size + 1) * size, end + 1, size))
        return snapshot_positions(start, end, group.num_prompt_tokens, branch_at, size)

    def take_snapshots(self, seq: Sequence, use: StateUse, num_computed: int) -> None:
        """Make findable what a step left behind the first ``num_computed`` tokens of ``seq``, and keep it for those who
        wait for the prompt.
        """
        assert self.states is not None
        if not use.snapshots:
            return
        if self._publishes(seq):
            self._extend_hashes(seq, num_computed // self.block_size)
            self.states.publish(seq, use, num_computed)
        self.states.end_wait(seq, num_computed)
        if seq.group.leader is seq and seq.group.num_waiting:
            for position, slot in use.snapshots:
                self._keep_shared_state(seq.group, position, slot)

    def _keep_shared_state(self, group: SequenceGroup, position: int, slot: int) -> None:
        """Make ``group`` hold ``slot``, if it has the state behind the shared blocks."""
        is_behind = position == group.num_shared_blocks * self.block_size > 0
        if self.states is not None and is_behind and group.shared_state == NO_STATE and slot != NO_STATE:
            self.states.pool.hold([slot])
            group.shared_state = slot

    def num_held(self, seq: Sequence) -> int:
        """Number of blocks in the tables of ``seq``."""
        return sum(map(len, seq.block_tables)) - sum(seq.first_blocks)

    def reset(self) -> int:
        """Hide all blocks and snapshots computed so far, and those that build on them.

        Returns how many blocks were findable; snapshots, if no layer attends.
        """
        self._generation += 1
        blocks = self.pool.forget_contents()
        snapshots = 0 if self.states is None else self.states.pool.forget_contents()
        if self._seen is None:
            return blocks
        self._seen.clear()
        return snapshots

    def hold_prompt(self, group: SequenceGroup, seq: Sequence) -> bool:
        """Make ``group`` hold the blocks of its prompt, computed by its member ``seq``, and the state behind them.

        False if ``seq`` has released prompt blocks that others would read, or if there is no such state.
        """
        count = group.num_shared_blocks
        firsts = [each.first_block_behind(count) for each in self._groups]
        if any(gone > first for gone, first in zip(seq.first_blocks, firsts, strict=True)):
            return False
        if not self._hold_shared_state(group, seq):
            return False
        group.shared_blocks = [
            [NO_BLOCK] * first + table[first:count] for first, table in zip(firsts, seq.block_tables, strict=True)
        ]
        group.shared_generation = seq.generation
        for table in group.shared_blocks:
            self.pool.hold(block for block in table if block != NO_BLOCK)
        return True

    def release_states(self, slots: Items[int]) -> None:
        """Release slots of states; none if no layer keeps a state."""
        if self.states is not None:
            self.states.pool.release(slots)

    def stop_states(self, seq: Sequence) -> list[int]:
        """The slots of ``seq``, which runs no more, to release when no step uses them."""
        return [] if self.states is None else self.states.stop(seq)

    def keep_source(self, seq: Sequence) -> None:
        """Make the group of ``seq`` hold the state that it starts from, if it is the one behind the shared blocks."""
        if seq.states is not None:
            self._keep_shared_state(seq.group, seq.num_computed, seq.states.source)

    def _hold_shared_state(self, group: SequenceGroup, seq: Sequence) -> bool:
        """Make ``group`` hold the state behind its shared blocks, if it does not; False if there is none."""
        count = group.num_shared_blocks
        if self.states is None or not count or group.shared_state != NO_STATE:
            return True
        if self._publishes(seq):
            self._extend_hashes(seq, count)
            slot = self.states.pool.find(seq.block_hashes[count - 1])
            self._keep_shared_state(group, count * self.block_size, NO_STATE if slot is None else slot)
        return group.shared_state != NO_STATE

    def drop_prompt(self, group: SequenceGroup) -> None:
        """Undo ``hold_prompt``, and give up a state kept for it."""
        if self.states is not None and group.shared_state != NO_STATE:
            self.states.pool.release([group.shared_state])
            group.shared_state = NO_STATE
        if group.shared_blocks is not None:
            self.release(group.shared_blocks)
            group.shared_blocks = None

    def release(self, block_tables: BlockTables) -> None:
        """Release blocks, last first: short prefixes are the most valuable, so tails are evicted first."""
        columns = zip_longest(*block_tables, fillvalue=NO_BLOCK)
        blocks = [block for column in columns for block in column if block != NO_BLOCK]
        self.pool.release(reversed(blocks))

    def _extend_hashes(self, seq: Sequence, count: int) -> None:
        """Extend the hashes of ``seq`` to its first ``count`` full blocks; the prompt is hashed once per group."""
        group = seq.group
        if group.prompt_hashes is None:
            request = group.request
            group.prompt_hashes = block_hashes(
                self._root(group), request.prompt_token_ids, self.block_size, request.media
            )
        if len(seq.block_hashes) < len(group.prompt_hashes):
            seq.block_hashes = list(group.prompt_hashes)
        known = len(seq.block_hashes)
        if known < count:
            parent = seq.block_hashes[-1] if known else self._root(group)
            fresh = seq.tokens(known * self.block_size, count * self.block_size)
            more = block_hashes(parent, fresh, self.block_size, group.request.media, known * self.block_size)
            seq.block_hashes.extend(more)

    def _root(self, group: SequenceGroup) -> bytes:
        ingredients = (*self._identity, group.request.cache_salt)
        adapter = group.request.adapter
        return root_hash(*ingredients) if adapter is None else root_hash(*ingredients, adapter.digest.encode())


def _shortened(cached: Items[_CachedBlocks], length: int) -> int:
    """``length``, or fewer blocks: as many as windows do not lack any of.

    A block missing in one window shortens the prefix, and then the windows of all groups begin earlier.
    """
    windows = [blocks for blocks in cached if blocks.group.window is not None]
    while any((shorter := blocks.shortened(length)) < length for blocks in windows):
        length = shorter
    return length


class _Group:
    """A group of layers, with its keys in the block pool."""

    def __init__(self, number: int, layers: KVCacheGroup, block_size: int) -> None:
        self.number = number
        self.window = layers.sliding_window
        """Most tokens that a token attends to, itself included; None: all before it."""
        self._layers = layers
        self._block_size = block_size
        self._suffix = number.to_bytes(2, "little") if number else b""

    def first_block(self, position: int) -> int:
        """The first block that the token at ``position`` reads."""
        return self._layers.first_block(position, self._block_size)

    def first_position_after(self, block: int) -> int:
        """The first position whose token does not read ``block``."""
        return self._layers.first_position_after(block, self._block_size)

    def first_block_behind(self, num_blocks: int) -> int:
        """The first of the first ``num_blocks`` blocks that the token after them reads; ``num_blocks`` if none."""
        return min(self.first_block(num_blocks * self._block_size), num_blocks)

    def num_blocks(self, num_tokens: int, cached: int, step_tokens: int) -> int:
        """Number of blocks in the table of a sequence that starts after ``cached`` tokens."""
        most = num_tokens if self.window is None else min(num_tokens, cached + self.window - 1 + step_tokens)
        return -(-most // self._block_size)

    def key(self, content: bytes) -> bytes:
        """The pool's key for a block with this content in this group."""
        return content + self._suffix if self._suffix else content


class _CachedBlocks:
    """The cached blocks of one group for a sequence's tokens."""

    __slots__ = ("_hashes", "_held", "_pool", "group", "leading")

    def __init__(self, pool: BlockPool, group: _Group, hashes: Items[bytes], held: list[int]) -> None:
        """``held``: leading blocks held for the sequence. All further ones are looked up in the pool."""
        self.group = group
        self._pool = pool
        self._hashes = hashes
        self._held = held
        self.leading = self._leading() if group.window is None else []
        """In a group without a window: the blocks up to the first missing one. Otherwise empty."""

    def _leading(self) -> list[int]:
        found = []
        for content in map(self.group.key, self._hashes):
            if (block := self._pool.find(content)) is None:
                break
            found.append(block)
        return self._held + found[len(self._held) :]

    def _find(self, index: int) -> int | None:
        if index < len(self._held) and self._held[index] != NO_BLOCK:
            return self._held[index]
        return self._pool.find(self.group.key(self._hashes[index]))

    def shortened(self, length: int) -> int:
        """``length``, or the index of the last missing block before it, if the next token would read that block."""
        first = self.group.first_block_behind(length)
        return next((index for index in range(length - 1, first - 1, -1) if self._find(index) is None), length)

    def table(self, length: int) -> list[int]:
        """The table of ``length`` blocks; ``NO_BLOCK`` for those that the next token does not read."""
        if self.group.window is None:
            return self.leading[:length]
        first = self.group.first_block_behind(length)
        found = (self._find(index) for index in range(first, length))
        return [NO_BLOCK] * first + [block for block in found if block is not None]
