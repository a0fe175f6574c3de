"""Texts of any length: those that the bundled model learns from, and several of them in a row."""

from __future__ import annotations

import random
import sys
from pathlib import Path

_TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny"


def sentences(count: int, seed: int = 0) -> list[str]:
    """``count`` different texts, of one word to some hundred; the same for the same seed."""
    sys.path.append(str(_TINY))
    from corpus import document

    drawn, texts, index = random.Random(seed), dict[str, None](), 0
    while len(texts) < count:
        made, index = document(seed, index), index + 1
        words = (made.text or " ".join(message["content"] or "" for message in made.messages)).split()
        length = drawn.choice((1, 3, 8, 20, 50, 1000))
        if words:
            texts[" ".join(words[:length])] = None
    return list(texts)
