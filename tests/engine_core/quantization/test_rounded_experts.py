"""Experts that are rounded when loaded: near the original whatever types the checkpoint and the engine have, with equal
bits in one process and in two ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine_core.distributed.ranks import assert_bits, on_ranks
from tests.engine_core.distributed.test_tensor_parallel import run_steps
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "gpt_oss", "deepseek_v3", "gemma4_text-experts")
TYPES = ("float32", "bfloat16", "float16")
MOST = {"int4": 0.75, "int8": 0.35}
"""Of the logits' spread: with random weights nothing stands out, and other experts are chosen. With other weights they
would be off by more than the spread.
"""


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found - exact).std() / exact.std()).item()


@pytest.mark.models
@pytest.mark.parametrize("quantization", MOST)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_types_of_checkpoints(family: str, stored: str, dtype: str, quantization: str, tmp_path: Path) -> None:
    save_model(make_model(configuration(family)).to(getattr(torch, stored)), tmp_path)
    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))
    exact, checkpoint = logits_of(load(tmp_path), ids), open_at(tmp_path, dtype=dtype, quantization=quantization)
    error = relative_error(logits_of(build_model(checkpoint), ids), exact)
    print(f"\n{family} stored as {stored}, computed in {dtype}, {quantization}: {error:.4f}")
    assert 1e-4 < error < MOST[quantization]
    assert_bits(on_ranks(checkpoint, 2, run_steps)[0], run_steps(build_model(checkpoint)))
