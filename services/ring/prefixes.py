"""Which engines computed which beginnings of prompts lately: bounded, and forgotten oldest first.

A prompt is known by hashes of its beginnings, each a little longer than the one before: of 1, 2, 3, 4, 5, … blocks of
the KV cache, and from there on each by a quarter. So a prompt of any length has few, and a part that it shares with
another is found to within a fifth. The hash begins with the salt of the prefix cache: where nothing may be shared,
nothing is looked for. It is the same in every processor, and so is what is made of it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from services.ring.identity import PeerId

MAX_PREFIXES = 1 << 16
"""Beginnings remembered; at about 300 bytes each, 20 MB."""
MAX_HOLDERS = 8
"""Engines remembered for each."""
_DIGEST_SIZE = 8
_GROWTH = 4
"""Each beginning is longer than the one before by one block, or by this part of it."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The beginnings of one prompt."""

    hashes: tuple[bytes, ...] = ()
    """Shortest first."""
    tokens: tuple[int, ...] = ()
    """How long each is."""
    half: int = 0
    """The first that is at least half of the prompt."""


@dataclass(frozen=True, slots=True)
class Match:
    """What is known of a prompt."""

    holders: tuple[PeerId, ...]
    """Engines that have the longest beginning which any of them has."""
    tokens: int
    """How long that is."""
    worth_following: bool
    """Whether that is at least half of the prompt."""
    branch: bytes | None
    """Where the prompt leaves what is known, or what it is if most of it is known; None if it has no whole block."""


def prefixes_of(token_ids: Iterable[int], salt: bytes, block_size: int) -> Prefixes:
    """The beginnings of a prompt; none if it is shorter than a block, or blocks are not known (0)."""
    ids = array("I", token_ids)
    packed = memoryview(ids).cast("B")
    width = ids.itemsize * block_size
    running = blake2b(salt, digest_size=_DIGEST_SIZE, person=b"prefixes")
    hashes: list[bytes] = []
    tokens: list[int] = []
    done = 0
    for blocks in _lengths(len(ids) // block_size if block_size else 0):
        running.update(packed[done * width : blocks * width])
        hashes.append(running.copy().digest())
        tokens.append(blocks * block_size)
        done = blocks
    half = sum(2 * length < len(ids) for length in tokens)
    return Prefixes(tuple(hashes), tuple(tokens), half)


class PrefixMap:
    """Of one processor."""

    def __init__(self, most: int = MAX_PREFIXES) -> None:
        """``most`` beginnings are remembered."""
        self._most = most
        self._holders: OrderedDict[bytes, tuple[PeerId, ...]] = OrderedDict()
        """Engines, the latest first."""

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, prefixes: Prefixes, engine: PeerId) -> None:
        """An engine computes this prompt, and can give of it what it has computed."""
        # The shortest last: a beginning is worth more the shorter it is, so its ends are forgotten first.
        for key in reversed(prefixes.hashes):
            others = (holder for holder in self._holders.pop(key, ()) if holder != engine)
            self._holders[key] = (engine, *others)[:MAX_HOLDERS]
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def find(self, prefixes: Prefixes, engines: Container[PeerId]) -> Match:
        """What is known of a prompt, as far as any of ``engines`` has it."""
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
    """The engines in an order that every processor finds for this key, and that changes little when one comes or goes.

    (Highest random weight: Thaler and Ravishankar, IEEE/ACM ToN 6, 1998.)
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
    """The lengths of the beginnings of a prompt of so many blocks, in blocks."""
    length = 1
    while length <= blocks:
        yield length
        length += max(1, length // _GROWTH)
