"""Damages a GGUF file: bits, lengths, counts, types, offsets, and where it ends."""

from __future__ import annotations

import random
import struct

HOSTILE = (0, 1, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1)


def damage(rng: random.Random, content: bytes, header: int) -> bytes:
    """A copy with one or a few things changed, most of them in the first ``header`` bytes."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        end = min(len(changed), header if rng.random() < 0.9 else len(content))
        if end < 16:
            break
        at = rng.randrange(end)
        match rng.randrange(7):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.randrange(256)
            case 2:  # what may be a length, a count or an offset
                at = min(at, end - 8)
                changed[at : at + 8] = struct.pack("<Q", rng.choice(HOSTILE))
            case 3:  # what may be a type
                at = min(at, end - 4)
                changed[at : at + 4] = struct.pack("<I", rng.choice((*range(42), 255, 2**31, 2**32 - 1)))
            case 4:
                del changed[at:]
            case 5:  # two pieces change places
                size = rng.choice((4, 8, 12, 32))
                other = rng.randrange(end)
                first, second = changed[at : at + size], changed[other : other + size]
                changed[at : at + len(second)] = second
                changed[other : other + len(first)] = first
            case 6:
                size = rng.choice((1, 4, 8, 64))
                changed[at:at] = changed[at : at + size] if rng.random() < 0.5 else bytes(size)
    return bytes(changed)
