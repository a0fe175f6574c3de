"""Attention by torch's ``varlen_attn`` and by FlashInfer, as far as they are here: alone, and in whole engines."""

from __future__ import annotations

import importlib
import importlib.util
import random
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config

from engine_core.attention.base import AttentionBackend
from engine_core.attention.flash_attention import FlashAttention, varlen_function
from engine_core.attention.flashinfer import FlashInferAttention, HeadsOfModel
from engine_core.llm import LLM
from engine_core.request import SamplingParams
from tests.engine_core.attention.sequences import Geometry, Run, assert_right, make_sequences
from tests.engine_core.models.tiny_models import SIZES, make_model, save_model
from tests.gpu.device import DEVICE, needs_card

pytestmark = [pytest.mark.gpu, needs_card]
HERE = {"varlen": varlen_function() is not None, "flashinfer": importlib.util.find_spec("flashinfer") is not None}
BLOCKS = {"varlen": 256, "flashinfer": 16}
NAMES = [pytest.param(name, marks=pytest.mark.skipif(not here, reason="not here")) for name, here in HERE.items()]
TOLERANCE = {torch.float16: 3e-3, torch.bfloat16: 3e-2}


def backend_of(name: str, geometry: Geometry, dtype: torch.dtype) -> AttentionBackend:
    if name == "varlen":
        return FlashAttention(varlen_function())
    heads = HeadsOfModel(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim, dtype)
    return FlashInferAttention(importlib.import_module("flashinfer"), heads, geometry.block_size, 64, DEVICE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("heads", [(32, 8, 128), (14, 2, 64), (8, 8, 256)], ids=str)
def test_random_steps(name: str, dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    geometry = Geometry(*heads, BLOCKS[name])
    sequences = make_sequences([1, 30, 700], geometry, dtype, seed=1)
    run = Run(backend_of(name, geometry, dtype), geometry, sequences, seed=2, device=DEVICE)
    assert_right(run.in_random_steps(random.Random(3)), sequences, TOLERANCE[dtype])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its heads are of a size that all have kernels for."""
    config = Qwen3Config(**SIZES, head_dim=64, tie_word_embeddings=True)
    return save_model(make_model(config), tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eager", [False, True])
def test_an_engine_is_as_sure_of_its_tokens_as_with_own_kernels(name: str, eager: bool, model: Path) -> None:
    """In bfloat16 tokens part sooner or later; until then their log probabilities are alike."""
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=0)
    prompts = [list(range(5, 5 + length)) for length in (1, 7, 150)]
    told = {}
    for backend in ("triton", name):
        options = {"attention_backend": backend, "block_size": BLOCKS[name], "enforce_eager": eager}
        options |= {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 256}
        with LLM(str(model), device="cuda", dtype="bfloat16", kv_cache_memory_bytes=64 << 20, **options) as llm:
            told[backend] = [result.choices[0] for result in llm.generate(prompts, params)]
    for one, other in zip(told["triton"], told[name], strict=True):
        equal = 0
        while equal < len(one.token_ids) and one.token_ids[equal] == other.token_ids[equal]:
            equal += 1
        assert equal >= 1
        for mine, theirs in zip(one.logprobs[:equal], other.logprobs[:equal], strict=True):
            assert abs(mine.logprob - theirs.logprob) < 0.2
