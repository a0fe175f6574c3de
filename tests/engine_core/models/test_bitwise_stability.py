"""A row's logits have the same bits whatever shares its step, however its prompt is cut, with any thread count."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from engine_core.layers.base import LayerFactory
from engine_core.layers.linear import packed_dtype
from engine_core.layers.torch_layers import TorchLayerFactory
from engine_core.models.base import CausalLM
from tests.engine_core.models.driver import Driver, load, logits_of
from tests.engine_core.models.tiny_models import make_model, save_model

LENGTHS = (140, 1, 17, 2, 33)
WIDE = {"intermediate_size": 2304, "num_hidden_layers": 2, "vocab_size": 131, "initializer_range": 0.2}
"""Wide enough for oneDNN to compute a single row by another kernel, and for MKL to divide work among threads."""
CONFIGS = {
    "gqa": LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **WIDE),
    "seven-heads-one-group": Qwen2Config(hidden_size=112, num_attention_heads=7, num_key_value_heads=1, **WIDE),
}


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def in_random_steps(model: CausalLM, sequences: Sequence[torch.Tensor], rng: random.Random) -> list[torch.Tensor]:
    """Logits of all sequences, computed together in steps of random membership and chunk sizes, ending in decode."""
    driver = Driver(model, [len(ids) for ids in sequences], seed=rng.randrange(100))
    logits: list[list[torch.Tensor]] = [[] for _ in sequences]
    while unfinished := [s for s, ids in enumerate(sequences) if driver.computed[s] < len(ids)]:
        work = []
        for s in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            rest = sequences[s][driver.computed[s] :]
            work.append((s, rest[: 1 if len(rest) <= 6 else rng.choice([1, 2, 9, 60, len(rest) - 6])]))
        for (s, _), rows in zip(work, driver.step(work), strict=True):
            logits[s].append(rows)
    return [torch.cat(rows) for rows in logits]


def check(model: CausalLM) -> None:
    rng = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, model.vocab_size, (length,), generator=generator) for length in LENGTHS]
    torch.set_num_threads(1)
    alone = [logits_of(model, ids) for ids in sequences]
    for threads in (1, 1, 2, 3):
        torch.set_num_threads(threads)
        for together, expected in zip(in_random_steps(model, sequences, rng), alone, strict=True):
            assert torch.equal(together, expected)


@pytest.mark.parametrize("layers", [None, TorchLayerFactory()], ids=["chosen", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("config", CONFIGS)
def test_logits_do_not_depend_on_the_step(config: str, dtype: str, layers: LayerFactory | None, tmp_path: Path) -> None:
    check(load(save_model(make_model(CONFIGS[config]), tmp_path), dtype, layers=layers))


@pytest.mark.parametrize("config", CONFIGS)
def test_logits_of_8_bit_layers_do_not_depend_on_the_step(config: str, tmp_path: Path) -> None:
    check(load(save_model(make_model(CONFIGS[config]), tmp_path), "bfloat16", "int8"))


def test_where_bfloat16_is_packed_as_float32(tmp_path: Path) -> None:
    """The same on a processor without AVX-512, as far as the libraries can be told to believe that they run on one."""
    save_model(make_model(CONFIGS["gqa"]), tmp_path)
    restricted = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    root = str(Path(__file__).parents[3])
    subprocess.run(
        [sys.executable, __file__, str(tmp_path)], check=True, env=os.environ | restricted | {"PYTHONPATH": root}
    )


if __name__ == "__main__":
    assert packed_dtype(torch.bfloat16, torch.device("cpu")) == torch.float32
    check(load(Path(sys.argv[1]), "bfloat16", layers=TorchLayerFactory()))
