"""A rank keeps and reads its share of the weights, and little more: norms, and what routers need."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from transformers import PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from engine_core.distributed.ranks import Rank
from engine_core.llm import configure
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.worker.worker import ModelReport, Worker
from tests.engine_core.distributed.matrix import DTYPES
from tests.engine_core.models.tiny_models import make_model, save_model

MORE = 1.05
"""Times its share of all weights, at most."""
SMALL = {"hidden_size": 256, "head_dim": 32, "num_hidden_layers": 4, "vocab_size": 18944}
"""Qwen3-0.6B's proportions, smaller; nothing is padded, even of a fourth."""
MODELS: dict[str, PretrainedConfig] = {
    "dense": Qwen3Config(
        **SMALL, intermediate_size=768, num_attention_heads=16, num_key_value_heads=8, tie_word_embeddings=True
    ),
    "experts": Qwen3MoeConfig(
        **SMALL,
        moe_intermediate_size=256,
        num_experts=16,
        num_experts_per_tok=4,
        num_attention_heads=16,
        num_key_value_heads=8,
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(MODELS[request.param]).bfloat16(), tmp_path_factory.mktemp(request.param))


def load(directory: Path, dtype: str, size: int, rank: int, expert_parallel: bool) -> ModelReport:
    options = {"tensor_parallel_size": size, "enable_expert_parallel": expert_parallel}
    config = configure(model=directory, num_threads=1, max_model_len=64, **DTYPES[dtype], **options)
    checkpoint = open_checkpoint(config.model, config.load, config.parallel)
    worker = Worker(config, checkpoint, Rank(rank, size, expert_parallel=expert_parallel))
    worker.init_device()
    worker._collectives = Mock(size=size, rank=rank)  # nothing is computed
    return worker.load_model(lambda done, total: None)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize(("size", "expert_parallel"), [(2, False), (4, False), (4, True)])
def test_a_rank_keeps_and_reads_its_share(directory: Path, dtype: str, size: int, expert_parallel: bool) -> None:
    if expert_parallel and "experts" not in directory.name:
        pytest.skip("it has no experts")
    stored = sum(len(path.read_bytes()) for path in directory.glob("*.safetensors"))
    kept = load(directory, dtype, 1, 0, expert_parallel=False).weight_bytes
    reports = [load(directory, dtype, size, rank, expert_parallel) for rank in range(size)]
    for report in reports:
        assert report.weight_bytes <= MORE * kept / size
        assert sum(taken.count for taken in report.taken) <= MORE * stored / size
    assert sum(report.weight_bytes for report in reports) >= kept
    assert sum(taken.count for report in reports for taken in report.taken) >= 0.99 * stored
