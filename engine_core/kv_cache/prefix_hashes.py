"""Hashes of prefixes, by block: equal hashes mean equal tokens, computed alike, of requests that may share them.

A block's hash covers its parent's hash and its token ids, and the digests and places of pictures that it holds tokens
of; the root's, the model, its type, the cache's layout, the request's salt and its adapter's digest. It is
cryptographic because the salt separates tenants. The scheme is vLLM's automatic prefix caching.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice

from engine_core.media import MediaItem

_DIGEST_SIZE = 32


def root_hash(*ingredients: bytes) -> bytes:
    """The parent of a prompt's first block: blocks are shared if all ``ingredients`` are equal, in order."""
    digest = blake2b(digest_size=_DIGEST_SIZE, person=b"kv prefix root")
    for ingredient in ingredients:
        digest.update(len(ingredient).to_bytes(8, "little"))
        digest.update(ingredient)
    return digest.digest()


def block_hashes(
    parent: bytes, token_ids: Sequence[int], block_size: int, media: Sequence[MediaItem] = (), start: int = 0
) -> list[bytes]:
    """The chain of hashes over the full blocks of ``token_ids``, starting after ``parent``.

    ``media``: the pictures of the sequence, by ascending offset; ``start``: the first token's index there.
    """
    packed = memoryview(array("I", token_ids)).cast("B")
    width = 4 * block_size
    chain = []
    first = 0  # the first picture that does not end before the block
    for index in range(len(token_ids) // block_size):
        digest = blake2b(parent, digest_size=_DIGEST_SIZE)
        digest.update(packed[index * width : (index + 1) * width])
        begin = start + index * block_size
        while first < len(media) and media[first].end <= begin:
            first += 1
        for item in islice(media, first, None):
            if item.offset >= begin + block_size:
                break
            digest.update(item.picture.digest)
            digest.update((item.offset - begin).to_bytes(8, "little", signed=True))
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
