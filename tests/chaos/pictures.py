"""Chats with pictures for chaos runs: some have pictures in common, some have several, all are small."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.chaos.workload import RequestSpec
from tests.engine_core.vision.deepseek_ocr_checkpoints import IN_ORDER, write_deepseek_ocr
from tests.text_core.pictures.samples import noise, saved

KIND = "images"
FLAGS = ("--media-memory-bytes", "16MiB")
"""Of engines: so little that they drop pictures all the time."""
_SIDES = (40, 200, 420)


def make(directory: Path) -> Path:
    """A checkpoint that sees."""
    model = write_deepseek_ocr(directory)
    (model / "chat_template.jinja").write_text(IN_ORDER)
    return model


def pool(seed: int, per_kind: int = 4) -> list[RequestSpec]:
    """``per_kind`` requests of every kind."""
    random_ = random.Random(seed)
    shared = _png(random_)
    specs = []
    for index in range(per_kind):
        seeded = {"temperature": 0.9, "seed": random_.getrandbits(32), "ignore_eos": True}
        length = {"max_tokens": random_.randint(60, 200)}
        one, many = _png(random_), [_png(random_) for _ in range(3)]
        kinds: dict[str, tuple[list[Any], dict[str, Any]]] = {
            "picture": ([one, "what is it?"], {**seeded, **length}),
            "greedy": ([one, "what is it?"], {"temperature": 0.0, "ignore_eos": True, **length}),
            "shared": ([shared, f"what is the {index}th thing?"], {**seeded, **length}),
            "several": ([many[0], "and", many[1], "and", many[2], "differ how?"], {**seeded, **length}),
            "choices": ([one, "what is it?"], {**seeded, "max_tokens": 80, "n": 3}),
            "scores": ([one, "what is it?"], {**seeded, "max_tokens": 60, "logprobs": 2}),
            "ngrams": ([shared, "say"], {**seeded, **length, "no_repeat_ngram": {"ngram_size": 3, "window_size": 90}}),
            "text": (["what is it?"], {**seeded, **length}),
        }
        for kind, (content, options) in kinds.items():
            specs.append(RequestSpec(f"{kind}-{index}", None, ({"role": "user", "content": content},), options))
    return specs


def _png(random_: random.Random) -> bytes:
    width, height = random_.choice(_SIDES), random_.choice(_SIDES)
    return saved(noise(width, height, seed=random_.getrandbits(32)))
