"""A bounded LRU map of prompt prefixes to the engines that computed them lately.

A prompt is identified by hashes of its prefixes. The first prefixes are 1, 2, … 8 KV cache blocks long; each further
one is about a quarter longer than the previous one. So a prompt of any length has few hashes, and the length that it
shares with another prompt is known to within a fifth. The hash begins with the salt of the prefix cache, so only
prompts that may share blocks match. Every processor computes the same hashes, and so chooses the same engines.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from services.ring.identity import PeerId

MAX_PREFIXES = 1 << 16
"""Prefixes remembered; at about 300 bytes each, 20 MB."""
MAX_HOLDERS = 8
"""Engines remembered per prefix."""
_DIGEST_SIZE = 8
_GROWTH = 4
"""Each prefix is longer than the previous one by 1/_GROWTH of its length, and at least one block."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The hashed prefixes of one prompt."""

    hashes: tuple[bytes, ...] = ()
    """Shortest first."""
    tokens: tuple[int, ...] = ()
    """Length of each prefix in tokens."""
    half: int = 0
    """Index of the first prefix that is at least half as long as the prompt."""


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix of a prompt."""

    holders: tuple[PeerId, ...]
    """Engines that have the longest known prefix."""
    tokens: int
    """Length of that prefix."""
    worth_following: bool
    """Whether that prefix is at least half of the prompt."""
    branch: bytes | None
    """Hash of the shortest unknown prefix, or of the longest known one if ``worth_following``; None below one block."""


def prefixes_of(
    token_ids: Iterable[int],
    salt: bytes,
    block_size: int,
    pictures: Sequence[tuple[int, bytes]] = (),
    adapter: bytes = b"",
) -> Prefixes:
    """The prefixes of a prompt; none if it is shorter than a block, or the block size is not known (0).

    ``pictures``: offset and digest of each, by ascending offset. A prefix with a part of a picture has its digest.
    ``adapter``: the digest of the one that is computed beside the model, at most 64 bytes; empty: none.
    """
    ids = array("I", token_ids)
    packed = memoryview(ids).cast("B")
    width = ids.itemsize * block_size
    running = blake2b(salt, digest_size=_DIGEST_SIZE, key=adapter, person=b"prefixes")
    hashes: list[bytes] = []
    tokens: list[int] = []
    done, rest = 0, list(reversed(pictures))
    for blocks in _lengths(len(ids) // block_size if block_size else 0):
        running.update(packed[done * width : blocks * width])
        while rest and rest[-1][0] < blocks * block_size:
            running.update(rest.pop()[1])
        hashes.append(running.copy().digest())
        tokens.append(blocks * block_size)
        done = blocks
    half = sum(2 * length < len(ids) for length in tokens)
    return Prefixes(tuple(hashes), tuple(tokens), half)


class PrefixMap:
    """Maps the prefixes of recent prompts to the engines that computed them. Each processor has its own map."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._holders: OrderedDict[bytes, tuple[PeerId, ...]] = OrderedDict()
        """Engines by prefix hash, the latest engine first."""

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, prefixes: Prefixes, engine: PeerId) -> None:
        """An engine computes this prompt, and will have it cached."""
        # Added longest first, so that the longest are evicted first: more prompts share the shorter ones.
        for key in reversed(prefixes.hashes):
            others = (holder for holder in self._holders.pop(key, ()) if holder != engine)
            self._holders[key] = (engine, *others)[:MAX_HOLDERS]
        while len(self._holders) > self._max_prefixes:
            self._holders.popitem(last=False)

    def find(self, prefixes: Prefixes, engines: Container[PeerId]) -> Match:
        """The longest known prefix of a prompt that any of ``engines`` has."""
        known: int | None = None
        for index in reversed(range(len(prefixes.hashes))):
            holders = self._holders.get(prefixes.hashes[index])
            if holders is None:
                continue
            if known is None:
                known = index
            if there := tuple(holder for holder in holders if holder in engines):
                branch = _branch(prefixes, known)
                return Match(there, prefixes.tokens[index], index >= prefixes.half, branch)
        return Match((), 0, False, _branch(prefixes, known))


def by_rendezvous(key: bytes, engines: Iterable[PeerId]) -> list[PeerId]:
    """The engines in an order that is the same in every processor, and changes little when an engine comes or goes.

    Rendezvous hashing (highest random weight: Thaler and Ravishankar, IEEE/ACM ToN 6, 1998).
    """
    return sorted(engines, key=lambda engine: blake2b(key + engine.name.encode(), digest_size=_DIGEST_SIZE).digest())


def _branch(prefixes: Prefixes, known: int | None) -> bytes | None:
    if not prefixes.hashes:
        return None
    if known is None:
        return prefixes.hashes[0]
    first_new = known if known >= prefixes.half else known + 1
    return prefixes.hashes[min(first_new, len(prefixes.hashes) - 1)]


def _lengths(blocks: int) -> Iterator[int]:
    """The prefix lengths, in blocks, of a prompt that fills ``blocks`` blocks."""
    length = 1
    while length <= blocks:
        yield length
        length += max(1, length // _GROWTH)
