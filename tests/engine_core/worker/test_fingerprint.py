"""The numerics digest differs where results may, and only there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine_core.worker.fingerprint import cpu_numerics, numerics_digest


def digest(
    model: str = "m", dtype: torch.dtype = torch.float32, device: Sequence[str] = ("avx2",), layers: str = "native"
) -> str:
    return numerics_digest(model, dtype, [*device, *cpu_numerics()], "attention", layers)


def test_whatever_computes_counts() -> None:
    variants = [
        digest(),
        digest(model="another"),
        digest(dtype=torch.bfloat16),
        digest(device=("avx2", "avx512")),
        digest(layers="torch"),
    ]
    assert len(set(variants)) == len(variants)
    assert digest() == variants[0]


def test_what_numpy_computes_with_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another of its code paths may compute another last bit of a logarithm."""
    before = digest()
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    monkeypatch.setattr(np, "show_config", lambda mode: {"SIMD Extensions": {"found": [*found, "ANOTHER"]}})
    assert digest() != before
