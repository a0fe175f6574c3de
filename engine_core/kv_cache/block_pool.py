"""The pool of KV blocks: reference counts, the free list in LRU order, and lookup of blocks by content.

The free list is a doubly linked list threaded through two arrays, like an operating system's page lists, so removing a
block from its middle (a prefix hit on an unused block) is as cheap as removing its head. Its order is the order of
eviction: a free block keeps its contents and hash until it is allocated again.

Sequences that compute the same tokens at the same time fill blocks with the same contents. One of these is *known*:
lookups find it. The others are recorded as its *copies* while they are held, so that a copy can become the known block
when the current one is no longer held. So a known block with copies is itself held, and an evicted block has no copies.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Blocks ``0 … num_blocks − 1``, each either free or held by at least one holder."""

    __slots__ = ("_by_hash", "_copies", "_hash", "_next", "_prev", "_ref_counts", "num_blocks", "num_free")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._ref_counts = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        """The known block of each content hash."""
        self._copies: dict[bytes, dict[int, None]] = {}
        """Held blocks with the same content as a known one, in order of publication."""
        # Entry num_blocks is the sentinel: its successor is the next block to allocate, its predecessor the last one.
        ring = num_blocks + 1
        self._next = [(block + 1) % ring for block in range(ring)]
        self._prev = [(block - 1) % ring for block in range(ring)]

    def allocate(self, count: int) -> list[int]:
        """Allocate the ``count`` ≤ ``num_free`` blocks that have been free longest; each gets one holder."""
        if count > self.num_free:
            raise RuntimeError(f"{count} KV blocks asked for, {self.num_free} free")
        sentinel = self.num_blocks
        following = self._next
        taken: list[int] = []
        block = following[sentinel]
        for _ in range(count):
            content = self._hash[block]
            if content is not None:
                del self._by_hash[content]
                self._hash[block] = None
            self._ref_counts[block] = 1
            taken.append(block)
            block = following[block]
        following[sentinel] = block
        self._prev[block] = sentinel
        self.num_free -= count
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block, taking it off the free list if it is there."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                self._unlink(block)
                self.num_free -= 1
            self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove a holder from each block, in order; a block without holders becomes free.

        Findable blocks go to the tail of the free list; the others are useless, and go to its head. Of several blocks
        with the same content, one that is still held stays known.
        """
        for block in blocks:
            count = self._ref_counts[block] - 1
            if count < 0:
                raise RuntimeError(f"KV block {block} freed twice")
            self._ref_counts[block] = count
            if count == 0:
                self._leave_copies(block)
                self._link(block)
                self.num_free += 1

    def _leave_copies(self, block: int) -> None:
        """``block`` is no longer held: if held blocks have its content, one of them stays or becomes known."""
        content = self._hash[block]
        if content is None or (copies := self._copies.get(content)) is None:
            return
        if self._by_hash[content] == block:
            self._by_hash[content], _ = copies.popitem()
        else:
            del copies[block]
        if not copies:
            del self._copies[content]
        self._hash[block] = None

    def _link(self, block: int) -> None:
        """Insert a block into the free list."""
        sentinel = self.num_blocks
        if self._hash[block] is None:
            before, after = sentinel, self._next[sentinel]
        else:
            before, after = self._prev[sentinel], sentinel
        self._prev[block], self._next[block] = before, after
        self._next[before] = block
        self._prev[after] = block

    def _unlink(self, block: int) -> None:
        """Remove a block from the free list."""
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before

    def ref_count(self, block: int) -> int:
        """Number of holders of a block; 0 when it is free."""
        return self._ref_counts[block]

    def publish(self, block: int, content: bytes) -> None:
        """Make a held block findable by its content's hash: at once, or once the known block is no longer held."""
        if self._hash[block] is not None:
            return
        self._hash[block] = content
        known = self._by_hash.setdefault(content, block)
        if known == block:
            return
        if self._ref_counts[known]:
            self._copies.setdefault(content, {})[block] = None
            return
        # The known block has no holder: this one replaces it, and the old one is the next to be allocated.
        self._by_hash[content] = block
        self._hash[known] = None
        self._unlink(known)
        self._link(known)

    def withdraw(self, block: int) -> None:
        """Make a block unfindable, and the next to be allocated, if nobody holds it."""
        if self._ref_counts[block]:
            return
        content = self._hash[block]
        if content is not None:
            del self._by_hash[content]
            self._hash[block] = None
        self._unlink(block)
        self._link(block)

    @property
    def would_evict(self) -> bool:
        """Whether the next block to be allocated can be found until then; only if one is free."""
        return self._hash[self._next[self.num_blocks]] is not None

    def find(self, content: bytes) -> int | None:
        """The block with this content, held or free, if any."""
        return self._by_hash.get(content)

    def forget_contents(self) -> int:
        """Make all blocks unfindable; returns how many could be found."""
        found = len(self._by_hash)
        self._by_hash.clear()
        self._copies.clear()
        self._hash = [None] * self.num_blocks
        return found
