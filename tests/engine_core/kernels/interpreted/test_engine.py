"""A whole engine with the kernels, layers, sampler and padding of a GPU, on CPU: its tokens are the CPU engine's."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PretrainedConfig, Qwen3Config

from engine_core import llm
from engine_core.attention import gpu_selector
from engine_core.errors import OutOfMemoryError
from engine_core.llm import LLM, LoRARequest
from engine_core.platforms import cuda
from engine_core.request import SamplingParams
from engine_core.startup import StartedEngine
from tests.engine_core.engines import run, started
from tests.engine_core.kernels.interpreted_device import FlashInferDevice, InterpretedDevice, Replayed, install
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import SIZES, make_model, save_model

TWO_LAYERS = Qwen3Config(**(SIZES | {"num_hidden_layers": 2}), head_dim=32, tie_word_embeddings=True)
PROMPTS = {"a": [5, 6, 7], "b": list(range(10, 30)), "c": [100]}
PARAMS = {
    "a": SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1),
    "b": SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=3),
    "c": SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.3, seed=4, max_tokens=3),
}


def outcomes(model: Path, **options: object) -> tuple[dict[tuple[str, int], list[int]], bool]:
    """Tokens, and whether they are the same in any batch."""
    with started(model, max_num_seqs=2, max_num_batched_tokens=18, max_model_len=64, **options) as engine:
        results = run(engine, PROMPTS, PARAMS)
        return {key: outcome.token_ids for key, outcome in results.items()}, "unstable" not in engine.executor.numerics


@pytest.mark.parametrize(
    ("config", "device", "overlapped"),
    [
        pytest.param(TWO_LAYERS, InterpretedDevice, True, id="two layers"),
        *(
            pytest.param(configuration(case), device, overlapped, marks=pytest.mark.wide, id=case)
            for case, device, overlapped in (
                ("llama-mha-tied-biases", InterpretedDevice, False),
                ("qwen2-window-of-two-layers", InterpretedDevice, True),
                ("qwen3-tied-head-dim", FlashInferDevice, True),
                ("qwen3_moe", InterpretedDevice, True),
                ("deepseek_v2-no-query-latent", InterpretedDevice, True),
            )
        ),
    ],
)
def test_tokens_equal_those_of_the_cpu_engine(
    config: PretrainedConfig,
    device: type[InterpretedDevice],
    overlapped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = save_model(make_model(config), tmp_path)
    install(monkeypatch, device)
    # What is refused for a GPU's few registers, or its narrowest products, an interpreter can compute.
    monkeypatch.setattr(cuda, "_check_latents", lambda *_: None)
    monkeypatch.setattr(gpu_selector, "SMALLEST_HEAD", 8)
    expected, _ = outcomes(model, device="cpu")
    Replayed.replays = 0
    tokens, is_stable = outcomes(model, device="cuda", deterministic=True, async_scheduling=overlapped)
    assert tokens == expected
    assert is_stable == (device is not FlashInferDevice)
    assert Replayed.replays >= 3


@pytest.mark.wide
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"target_modules": "all-linear"}, id="linear layers"),
        pytest.param(
            {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]}, id="embeddings and a head"
        ),
    ],
)
def test_adapters_add_what_they_add_on_a_cpu(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a prompt of another adapter, and one of none; steps are replayed unless embeddings are changed."""
    from peft import LoraConfig, get_peft_model  # which takes seconds

    base = make_model(Qwen3Config(**(SIZES | {"num_hidden_layers": 1}), head_dim=32))
    model, adapters = save_model(base, tmp_path / "base"), []
    for number in (1, 2):
        adapted = get_peft_model(copy.deepcopy(base), LoraConfig(r=3 * number, init_lora_weights=False, **fields))
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        adapted.save_pretrained(str(tmp_path / f"{number}"))
        adapters.append(LoRARequest(f"{number}", number, tmp_path / f"{number}"))
    install(monkeypatch)
    prompts, params = [[5, 6, 7]] * 3, SamplingParams(temperature=0.0, max_tokens=3)

    def tokens(device: str) -> list[list[int]]:
        options = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": "1MiB"}
        with LLM(str(model), device=device, enable_lora=True, skip_tokenizer_init=True, **options) as made:
            outputs = made.generate(prompts, params, lora_request=[*adapters, None], use_tqdm=False)
        return [output.choices[0].token_ids for output in outputs]

    expected = tokens("cpu")
    Replayed.replays = 0
    assert tokens("cuda") == expected
    assert (Replayed.replays > 0) == ("embed_tokens" not in fields["target_modules"])
    assert len({tuple(each) for each in expected}) == 3


def test_the_thread_that_starts_an_engine_ends_before_calls_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that live would have two handles and workspaces of cuBLAS."""
    model = save_model(make_model(TWO_LAYERS), tmp_path)
    install(monkeypatch)
    threads: list[threading.Thread] = []

    def observed(*_: Any) -> StartedEngine:
        threads.append(threading.current_thread())
        raise OutOfMemoryError("enough is seen")

    monkeypatch.setattr(llm, "start_engine", observed)
    for device in ("cuda", "cpu"):
        with pytest.raises(OutOfMemoryError):
            LLM(str(model), device=device, dtype="float32")
    on_gpu, on_cpu = threads
    assert on_gpu.name == "start"
    assert not on_gpu.is_alive()
    assert on_cpu is threading.current_thread(), "which an interrupt can stop"
