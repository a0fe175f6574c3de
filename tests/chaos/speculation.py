"""Engines that guess tokens ahead, each in another way or not at all, and requests that let them or forbid it.

The right answers are those without guesses, and every request may go from any engine to any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.models import make
from tests.checkpoints.twins import pruned

SHARE = 1 / 3
"""Of requests that let engines guess."""
_LAYERS = [0, 4]
"""Those of the bundled model that are left of it to guess."""


def flags(directory: Path, *, drafts: bool) -> dict[str, Sequence[str]]:
    """Of the engines that guess; checkpoints are written into ``directory``.

    ``drafts``: whether the bundled model's vocabulary is that of the engines' model.
    """
    ngram = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_scope": "tenant"}
    found = {"engine-0": ngram}
    if drafts:
        model = pruned(make(None, directory / "whole"), directory / "draft", _LAYERS)
        found["engine-1"] = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
    return {name: ("--speculative-config", json.dumps(config)) for name, config in found.items()}
