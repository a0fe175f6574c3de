"""Tiny configurations of every family: those that `make test` runs, and the shapes that `make test-models` adds."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PretrainedConfig

from tests.engine_core.models.families import (
    dense,
    experts,
    fallback,
    gemma3n,
    gemma4,
    hybrid,
    latent,
    lfm,
    mamba,
    more_experts,
    scaled,
)
from tests.engine_core.models.tiny_models import CASES

SHAPES: dict[str, PretrainedConfig] = {
    **dense.SHAPES,
    **experts.SHAPES,
    **more_experts.SHAPES,
    **latent.SHAPES,
    **mamba.SHAPES,
    **scaled.SHAPES,
    **gemma3n.SHAPES,
    **gemma4.SHAPES,
    **hybrid.SHAPES,
    **lfm.SHAPES,
}
"""By names that begin with the family's."""
FALLBACK = fallback.SHAPES
"""Likewise, of families that only transformers has."""
assert not FALLBACK.keys() & {*CASES, *SHAPES}, "one would be tested in the other's place"
OWN: dict[str, PretrainedConfig] = {**CASES, **SHAPES}
"""Of families that Ringline has models of its own for."""
ALL: list[Any] = [*CASES, *(pytest.param(name, marks=pytest.mark.models) for name in {**SHAPES, **FALLBACK})]
"""Parameters of tests: names."""
FIRST: dict[str, str] = {}
"""A case or shape of each family, by its ``model_type``."""
for _name, _config in OWN.items():
    FIRST.setdefault(_config.model_type, _name)


def configuration(name: str) -> PretrainedConfig:
    """That of a case or of a shape."""
    return {**CASES, **SHAPES, **FALLBACK}[name]
