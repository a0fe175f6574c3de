"""The paged KV cache as seen by the scheduler: block tables of sequences, and the prefix cache.

The prefix cache finds a full block by a hash that chains over everything before it (parent's hash, the block's
token ids; the root is the request's salt), so equal hashes mean equal prefixes of equal salt. A salt keeps
tenants apart, hence a cryptographic hash. The scheme is that of vLLM's automatic prefix caching.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from hashlib import blake2b

from engine_core.config import CacheSize
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.scheduling.sequence import NEVER, Sequence, SequenceGroup

_DIGEST_SIZE = 32


def root_hash(salt: bytes) -> bytes:
    """The parent of a prompt's first block."""
    return blake2b(salt, digest_size=_DIGEST_SIZE, person=b"kv prefix root").digest()


def block_hashes(parent: bytes, token_ids: Items[int], block_size: int) -> list[bytes]:
    """The chain of hashes over the full blocks of ``token_ids``, starting after ``parent``."""
    packed = memoryview(array("I", token_ids)).cast("B")
    width = 4 * block_size
    chain = []
    for start in range(0, len(token_ids) // block_size * width, width):
        digest = blake2b(parent, digest_size=_DIGEST_SIZE)
        digest.update(packed[start : start + width])
        parent = digest.digest()
        chain.append(parent)
    return chain


class KVCache:
    """Gives blocks to sequences and takes them back."""

    __slots__ = ("_generation", "block_size", "pool", "prefix_caching")

    def __init__(self, size: CacheSize, *, prefix_caching: bool) -> None:
        self.pool = BlockPool(size.num_blocks)
        self.block_size = size.block_size
        self.prefix_caching = prefix_caching
        self._generation = 0
        """How often the cache was reset. What rests on blocks of an earlier generation is not published."""

    def looks_up_prefix(self, group: SequenceGroup) -> bool:
        """Whether a choice of ``group`` may start from cached blocks: not one that reports on its whole prompt."""
        return self.prefix_caching and not group.scores_prompt

    def find_prefix(self, seq: Sequence) -> list[int]:
        """Blocks that already hold the leading tokens of ``seq``; at least one token is left to compute.

        They are not held yet: ``admit`` must follow before anything else is allocated. Where the group holds its
        prompt, its own blocks come first, although the cache may know others of the same contents: only so do blocks
        that are held for ``seq`` never keep it from being admitted.
        """
        group = seq.group
        shared = group.shared_blocks or []
        outdated = bool(shared) and group.shared_generation != self._generation
        if outdated or not self.looks_up_prefix(group):
            return shared
        limit = (seq.num_tokens - 1) // self.block_size
        self._extend_hashes(seq, limit)
        found = []
        for content in seq.block_hashes[:limit]:
            block = self.pool.find(content)
            if block is None:
                break
            found.append(block)
        return shared + found[len(shared) :]

    def admit(self, seq: Sequence, prefix: list[int], headroom: int) -> bool:
        """Give ``seq`` the blocks of all its tokens, ``prefix`` first; False, and nothing changed, if too few are free.

        ``headroom`` blocks must stay free for sequences that run already.
        """
        pool = self.pool
        missing = -(-seq.num_tokens // self.block_size) - len(prefix)
        idle_hits = sum(pool.ref_count(block) == 0 for block in prefix)
        if missing + idle_hits + headroom > pool.num_free:
            return False
        pool.hold(prefix)
        seq.generation = seq.group.shared_generation if seq.group.shared_blocks else self._generation
        seq.block_ids = prefix + pool.allocate(missing)
        seq.capacity = len(seq.block_ids) * self.block_size
        seq.num_computed = len(prefix) * self.block_size
        seq.num_published = len(prefix)
        return True

    def grow(self, seq: Sequence, num_tokens: int, headroom: int = 0) -> list[int] | None:
        """Give ``seq`` room for ``num_tokens`` tokens; the blocks added, or None if too few are free.

        ``headroom`` blocks must stay free if any are added.
        """
        count = -(-num_tokens // self.block_size) - len(seq.block_ids)
        if count <= 0:
            return []
        if count + headroom > self.pool.num_free:
            return None
        added = self.pool.allocate(count)
        seq.block_ids.extend(added)
        seq.capacity = len(seq.block_ids) * self.block_size
        return added

    def publish(self, seq: Sequence, num_computed: int) -> None:
        """Let others find the blocks that the first ``num_computed`` tokens of ``seq`` fill. They must be computed."""
        full = num_computed // self.block_size
        if not self._publishes(seq) or full <= seq.num_published:
            return
        self._extend_hashes(seq, full)
        for index in range(seq.num_published, full):
            self.pool.publish(seq.block_ids[index], seq.block_hashes[index])
        seq.num_published = full

    def next_publication(self, seq: Sequence) -> int:
        """Computed tokens at which ``publish`` has something to do."""
        return (seq.num_published + 1) * self.block_size if self._publishes(seq) else NEVER

    def _publishes(self, seq: Sequence) -> bool:
        return self.prefix_caching and seq.generation == self._generation

    def reset(self) -> int:
        """Let nothing be found that was computed so far, or rests on it; returns how many blocks could be."""
        self._generation += 1
        return self.pool.forget_contents()

    def hold_prompt(self, group: SequenceGroup, seq: Sequence) -> None:
        """Let ``group`` hold the blocks of the prompt that ``seq``, a member, has computed."""
        group.shared_blocks = seq.block_ids[: group.num_shared_blocks]
        group.shared_generation = seq.generation
        self.pool.hold(group.shared_blocks)

    def drop_prompt(self, group: SequenceGroup) -> None:
        """End ``hold_prompt``."""
        if group.shared_blocks is not None:
            self.release(group.shared_blocks)
            group.shared_blocks = None

    def release(self, block_ids: list[int]) -> None:
        """Take blocks back, last first: a prefix is worth more the shorter it is, so its tail is evicted first."""
        self.pool.release(reversed(block_ids))

    def _extend_hashes(self, seq: Sequence, count: int) -> None:
        """Hash the first ``count`` full blocks, as far as that has not been done; the prompt's once per group."""
        group = seq.group
        if group.prompt_hashes is None:
            prompt = group.request.prompt_token_ids
            group.prompt_hashes = block_hashes(root_hash(group.request.cache_salt), prompt, self.block_size)
        if len(seq.block_hashes) < len(group.prompt_hashes):
            seq.block_hashes = list(group.prompt_hashes)
        known = len(seq.block_hashes)
        if known < count:
            parent = seq.block_hashes[-1] if known else root_hash(group.request.cache_salt)
            fresh = seq.tokens(known * self.block_size, count * self.block_size)
            seq.block_hashes.extend(block_hashes(parent, fresh, self.block_size))
