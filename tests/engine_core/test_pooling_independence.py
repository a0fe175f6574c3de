"""An input's result has the same bits alone, in any batch, in chunks, from a cached prefix, with steps that overlap,
and on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, Qwen3Config

from engine_core.engine import EngineCore
from engine_core.llm import configure
from engine_core.pooling.params import PoolingParams, PoolingTask
from engine_core.progress import StartupProgress
from engine_core.startup import StartedEngine, start_executor

from .engines import started
from .executor.threaded_workers import ThreadedWorkers
from .models.tiny_models import SIZES
from .pooling.checkpoints import CONFIG, EMBED, Values, lay_out, pooled, random_model, texts

TOKENS = PoolingParams(PoolingTask.TOKEN_EMBED, normalize=True)
LABELS = PoolingParams(PoolingTask.CLASSIFY)
INPUTS = texts([1, 16, 33, 90, 7, 128, 2, 61])
INPUTS.append(INPUTS[5][:64] + INPUTS[3])  # blocks of whose prefix another has computed


def decoder_of_means(directory: Path) -> None:
    random_model(directory)
    lay_out(directory, {"pooling_mode": "mean"}, [torch.nn.Linear(64, 40)])


def decoder_of_last(directory: Path) -> None:
    random_model(directory, config=Qwen3Config(**(SIZES | {"hidden_size": 70}), head_dim=18))
    lay_out(directory)


def classifier(directory: Path) -> None:
    random_model(directory, "Qwen3ForSequenceClassification", CONFIG)


def encoder(directory: Path) -> None:
    sizes = {name: SIZES[name] for name in SIZES if name not in ("num_key_value_heads", "pad_token_id")}
    random_model(directory, "BertModel", BertConfig(**sizes))
    lay_out(directory, {"pooling_mode": "mean"})


KINDS: dict[str, tuple[Callable[[Path], None], list[PoolingParams], dict[str, Any]]] = {
    "means": (decoder_of_means, [EMBED, TOKENS], {"max_num_batched_tokens": 19}),
    "last": (decoder_of_last, [EMBED], {"max_num_batched_tokens": 50}),
    "labels": (classifier, [LABELS], {"max_num_batched_tokens": 33}),
    "encoder": (encoder, [EMBED], {"max_num_batched_tokens": 160, "max_model_len": 160}),
}


@contextmanager
def on_ranks(model: Path, **options: Any):  # type: ignore[no-untyped-def]
    """An engine with two stages of two ranks each, in threads."""
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    config = configure(model=str(model), dtype="float32", kv_cache_memory_bytes=8 << 20, **sizes, **options)
    executor = start_executor(ThreadedWorkers(config), StartupProgress())
    try:
        yield StartedEngine(EngineCore(config, executor), executor)
    finally:
        executor.close()


def assert_bits(found: list[Values], expected: list[Values]) -> None:
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.tobytes() == other.tobytes(), (place, np.abs(one - other).max())


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_has_the_same_bits_wherever_it_is_computed(kind: str, tmp_path: Path) -> None:
    make, ways, few = KINDS[kind]
    make(tmp_path)
    draw = np.random.default_rng(3)
    with started(tmp_path, enable_prefix_caching=False) as engine:
        assert engine.executor.numerics.find("unstable") < 0
        alone = [[pooled(engine, [each], params)[0] for each in INPUTS] for params in ways]
        together = [pooled(engine, INPUTS, params) for params in ways]
    for one, other in zip(alone, together, strict=True):
        assert_bits(other, one)
    with started(tmp_path, **few, async_scheduling=True) as engine:
        for params, expected in zip(ways, alone, strict=True):
            order = draw.permutation(len(INPUTS)).tolist()
            cuts = [0, *sorted(draw.integers(1, len(INPUTS), 2).tolist()), len(INPUTS)]
            for first, end in pairwise(cuts):
                places = order[first:end]
                if places:
                    assert_bits(
                        pooled(engine, [INPUTS[place] for place in places], params), [expected[p] for p in places]
                    )
    with on_ranks(tmp_path, **few) as engine:
        for params, expected in zip(ways, alone, strict=True):
            assert_bits(pooled(engine, INPUTS, params), expected)
