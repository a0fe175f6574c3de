"""Families of models against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine_core.llm import LLM
from engine_core.request import SamplingParams
from tests.engine_core.models.greedy import assert_greedy
from tests.engine_core.models.tiny_models import EAGER
from tests.gpu.device import DEVICE, ON_CARD, WIDE
from tests.gpu.engines import GREEDY, LATENTS, OPTIONS, PROMPTS, saved, tokens

pytestmark = pytest.mark.gpu
LARGEST = ("llama-gqa", "qwen3-tied-head-dim", "qwen3_moe", "gpt_oss")
OTHERS = ("mistral-mqa-head-dim", "mistral-window", "qwen2-tied", "qwen2-window-of-two-layers", "mixtral", "qwen2_moe")
FAMILIES = [*LARGEST, *(pytest.param(name, marks=WIDE) for name in OTHERS)]
WITH_LATENTS = [
    *(pytest.param(name, marks=() if ON_CARD or name == LARGEST[0] else WIDE) for name in LARGEST),
    *(pytest.param(name, marks=WIDE) for name in (*OTHERS, *LATENTS)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def reference(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **EAGER).to(DEVICE).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_in_float32_are_those_of_transformers(name: str, folder: Path) -> None:
    path = saved(name, folder)
    model = reference(path, torch.float32)
    for prompt, made in zip(PROMPTS, tokens(path, dtype="float32"), strict=True):
        assert len(made) == GREEDY.max_tokens
        assert_greedy(model, prompt, made)


@pytest.mark.parametrize("name", WITH_LATENTS)  # attention over latents is not computed in float32
@torch.inference_mode()
def test_log_probabilities_in_bfloat16_are_within_its_error(name: str, folder: Path) -> None:
    """Beside float32, both this engine and transformers in bfloat16 are off; neither much more than the other."""
    path, prompt = saved(name, folder), list(range(5, 105 if ON_CARD else 30))
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(str(path), **OPTIONS) as llm:
        [result] = llm.generate([prompt], params)
    assert result.prompt_logprobs is not None
    made = torch.tensor([entry.logprob for entry in result.prompt_logprobs])
    known = {}
    for dtype in (torch.float32, torch.bfloat16):
        model, ids = reference(path, dtype), torch.tensor([prompt], device=DEVICE)
        logprobs = model(ids).logits[0].float().log_softmax(-1)
        known[dtype] = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].cpu()
    error = (made - known[torch.float32]).abs().mean()
    allowed = (known[torch.bfloat16] - known[torch.float32]).abs().mean()
    assert error <= 1.5 * allowed + 1e-3
