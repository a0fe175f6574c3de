"""A row's tokens and log probabilities depend on its own adapter of experts and latents alone, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from engine_core.startup import StartedEngine
from tests.engine_core.engines import started
from tests.engine_core.lora.test_adapter_independence import Stream, load, request, streams
from tests.engine_core.lora.test_experts_parity import adapt_experts
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

ADAPTERS = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and adapters of other ranks beside it."""
    directory = tmp_path_factory.mktemp("adapters")
    base = make_model(configuration("deepseek_v3"), seed=3)
    save_model(base, directory / "base")
    for number in range(ADAPTERS):
        adapt_experts(base, directory / str(number), number, r=1 + 2 * number)
    return directory


def computed(engine: StartedEngine, checkpoint: Path, numbers: range) -> dict[str, Stream]:
    """Two rows of each adapter, and two without any."""
    adapters = load(engine, checkpoint, numbers)
    lengths = {"a": 21, "b": 5}
    requests = {f"{number}{name}": (adapters[number], length) for number in numbers for name, length in lengths.items()}
    plain = {name: (None, length) for name, length in lengths.items()}
    return streams(engine, {name: request(name, *each) for name, each in (requests | plain).items()})


def engine_of(checkpoint: Path, **options: object) -> StartedEngine:
    sizes: dict[str, object] = {"max_num_seqs": 32, "max_model_len": 100, "kv_cache_memory_bytes": 16 << 20}
    return started(
        checkpoint / "base",
        enable_lora=True,
        max_loras=ADAPTERS,
        max_lora_rank=32,
        **{"dtype": "bfloat16", **sizes, **options},
    )


@pytest.fixture(scope="module", params=[None, pytest.param("int8", marks=pytest.mark.models)])
def quantization(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.param
    return found


@pytest.fixture(scope="module")
def together(checkpoint: Path, quantization: str | None) -> dict[str, Stream]:
    with engine_of(checkpoint, quantization=quantization) as engine:
        found = computed(engine, checkpoint, range(ADAPTERS))
    assert len({stream[0] for stream in found.values()}) > ADAPTERS
    return found


def test_beside_others_in_chunks_and_on_more_threads(
    checkpoint: Path, quantization: str | None, together: dict[str, Stream]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with engine_of(checkpoint, quantization=quantization, max_num_batched_tokens=32) as engine:
            for number in (1, 5):
                found = computed(engine, checkpoint, range(number, number + 1))
                assert {name: together[name] for name in found} == found
    finally:
        torch.set_num_threads(before)


@pytest.mark.distributed
@pytest.mark.parametrize(
    "ranks",
    [
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 2, "enable_expert_parallel": True},
        {"pipeline_parallel_size": 2},
    ],
    ids=str,
)
def test_with_ranks(
    ranks: Mapping[str, object], checkpoint: Path, quantization: str | None, together: dict[str, Stream]
) -> None:
    with engine_of(checkpoint, quantization=quantization, **ranks) as engine:
        found = computed(engine, checkpoint, range(1, 4))
    assert {name: together[name] for name in found} == found
