"""Models whose layers round their inputs (--int8-activations): near the original, another model, or refused."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from engine_core.errors import ConfigError
from engine_core.llm import configure
from engine_core.model_loader.digest import WeightsDigest
from engine_core.progress import StartupProgress
from engine_core.startup import choose_workers, start_executor
from tests.engine_core.models.driver import build_model, logits_of, open_at
from tests.engine_core.models.tiny_models import CASES, make_model, save_model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_model(make_model(CASES["llama-gqa"]), tmp_path)
    return tmp_path


def test_logits_are_near_those_of_the_same_codes(checkpoint: Path) -> None:
    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))
    plain, rounded = (
        logits_of(build_model(open_at(checkpoint, dtype="float32", quantization="int4", int8_activations=mode)), ids)
        for mode in (False, True)
    )
    error = (rounded - plain).std() / plain.std()
    assert 1e-4 < error < 0.1, error


def test_it_is_another_model(checkpoint: Path) -> None:
    digests = {
        open_at(checkpoint, quantization="int4", int8_activations=mode).digest(WeightsDigest())
        for mode in (False, True)
    }
    assert len(digests) == 2


def test_the_start_says_how_many_layers_round_their_inputs(checkpoint: Path) -> None:
    options = {"quantization": "int4", "int8_activations": True, "kv_cache_memory_bytes": 4 << 20}
    finished = Mock()
    start_executor(choose_workers(configure(model=str(checkpoint), **options)), StartupProgress(finished)).close()
    details = [call.args[0].detail for call in finished.stage_finished.call_args_list]
    assert any("inputs of 13 layers rounded to 8 bits" in detail for detail in details), details


def test_it_is_refused_where_there_is_nothing_to_round(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"int8_activations=True .*is not quantized: .* add --quantization int4"):
        open_at(checkpoint, int8_activations=True)
    with pytest.raises(ConfigError, match=r"int8_activations=True .*--quantization int8 rounds inputs always"):
        open_at(checkpoint, quantization="int8", int8_activations=True)
