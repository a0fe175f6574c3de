"""Hashes of prefixes, by block: equal hashes mean equal tokens, computed alike, of requests that may share them.

A block's hash covers its parent's hash and its token ids; the root's, the model, its type, the cache's layout and the
request's salt. It is cryptographic because the salt separates tenants. The scheme is vLLM's automatic prefix caching.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

_DIGEST_SIZE = 32


def root_hash(*ingredients: bytes) -> bytes:
    """The parent of a prompt's first block: blocks are shared if all ``ingredients`` are equal, in order."""
    digest = blake2b(digest_size=_DIGEST_SIZE, person=b"kv prefix root")
    for ingredient in ingredients:
        digest.update(len(ingredient).to_bytes(8, "little"))
        digest.update(ingredient)
    return digest.digest()


def block_hashes(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
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


class SeenBlocks:
    """The blocks that were computed last, known by their hashes alone: for a model that keeps none.

    They tell how far a prompt begins like others, as cached blocks do for other models.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def add(self, hashes: Iterable[bytes]) -> None:
        for each in hashes:
            self._hashes[each] = None
            self._hashes.move_to_end(each)
        while len(self._hashes) > self._most:
            self._hashes.popitem(last=False)

    def leading(self, hashes: Sequence[bytes]) -> int:
        """How many of the first ``hashes`` were seen."""
        return next((count for count, each in enumerate(hashes) if each not in self._hashes), len(hashes))

    def clear(self) -> None:
        self._hashes.clear()
