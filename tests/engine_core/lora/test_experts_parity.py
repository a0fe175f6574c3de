"""Adapters of experts, routers and latents: rows have the log probabilities that PEFT computes, for every family's
layout of experts' parameters, and over quantized weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from engine_core.activation import Activation
from engine_core.errors import AdapterError
from engine_core.layers.lora import LoRALayers
from engine_core.llm import LoRARequest
from engine_core.lora.adapter import Adapter, AdapterFile, LoRAMatrices
from engine_core.lora.targets import Projection
from engine_core.ops.torch import TorchBackend
from engine_core.weights.expert_tensors import SeparateExperts
from engine_core.weights.experts import ExpertsShape
from tests.engine_core.models.families import OWN, configuration
from tests.engine_core.models.tiny_models import limit_steps, make_model, save_model
from tests.engine_core.quantization.quantizing import save_quantized
from tests.engine_core.quantization.test_stored_formats import FORMATS
from tests.engine_core.quantization.test_stored_models import MODELS

from .test_parity import FAR, NEAR, SCORED, Adapted, adapt, difference, engine, prompt

LINEAR = ["q_proj", "o_proj", "kv_b_proj", "gate_proj", "up_proj", "down_proj"]
"""Of any family; PEFT cannot adapt all linear layers of each."""
IN_EVERY_RUN = ("gpt_oss-padded-tied", "deepseek_v3", "mixtral")


def has_experts(config: PretrainedConfig) -> bool:
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "kv_lora_rank")
    return any((getattr(config, name, None) or 0) > 0 for name in counts)


def adapt_experts(base: Any, path: Path, seed: int, **fields: Any) -> Adapted:
    """An adapter of experts and routers, too."""
    parameters = set()
    for name, parameter in base.named_parameters():
        of_layer = name.partition(".layers.")[2].partition(".")[2]
        is_router = parameter.ndim == 2 and of_layer.endswith((".gate.weight", ".router.weight"))
        if (parameter.ndim == 3 and "experts." in of_layer) or is_router:
            parameters.add(of_layer)
    return adapt(base, path, seed, target_modules=LINEAR, target_parameters=sorted(parameters), **fields)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name in IN_EVERY_RUN else [pytest.mark.models])
        for name, config in OWN.items()
        if has_experts(config)
    ],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Adapted]]:
    """A checkpoint, and two adapters of it with other ranks."""
    directory = tmp_path_factory.mktemp(request.param)
    base = make_model(configuration(request.param), seed=3)
    save_model(base, directory / "base")
    return directory / "base", [adapt_experts(base, directory / f"{seed}", seed, r=3 + seed) for seed in (1, 2)]


def test_logprobs_are_those_of_peft(pair: tuple[Path, list[Adapted]]) -> None:
    """In steps of 24 tokens, in which several adapters meet."""
    directory, adapters = pair
    first, second = (LoRARequest(each.path.name, at, each.path) for at, each in enumerate(adapters, 1))
    with engine(directory, max_num_batched_tokens=24) as llm:
        prompts = [prompt(31), prompt(17), prompt(31), prompt(9)]
        outputs = llm.generate(prompts, SCORED, lora_request=[first, None, second, first])
    models = [adapters[0].model, adapters[0].base, adapters[1].model, adapters[0].model]
    for model, output in zip(models, outputs, strict=True):
        assert difference(model, output) < NEAR
    assert min(difference(adapters[0].base, outputs[each]) for each in (0, 2)) > FAR


@pytest.mark.parametrize(
    ("model", "format"),
    [
        ("qwen3-moe", "gptq-ordered"),
        *(
            pytest.param(model, name, marks=pytest.mark.models)
            for model in ("qwen3-moe", "deepseek-v3", "nemotron-h")
            for name in ("awq", "gptq-ordered", "packed-zeros", "mxfp4", "fp8-blocks", "mixed")
        ),
    ],
)
def test_quantized_experts_are_those_that_their_weights_mean(model: str, format: str, tmp_path: Path) -> None:
    quantized = save_quantized(MODELS[model], FORMATS[format], tmp_path, torch.bfloat16)
    meant = AutoModelForCausalLM.from_pretrained(tmp_path / "expanded", dtype=torch.float32).eval()
    limit_steps(meant)
    adapted = adapt_experts(meant, tmp_path / "adapter", 1)
    with engine(quantized) as llm:
        request = LoRARequest("a", 1, adapted.path)
        plain, scored = llm.generate([prompt(20), prompt(20)], SCORED, lora_request=[None, request])
    assert difference(meant, plain) < NEAR
    assert difference(adapted.model, scored) < NEAR
    assert difference(meant, scored) > FAR


def test_a_backend_that_cannot_add_to_experts_says_so() -> None:
    class Other(TorchBackend):
        adapts_experts = False

    layers = LoRALayers(Other(), torch.float32)
    shape = ExpertsShape(2, 1, 16, 16, Activation.SILU)
    layers.experts(shape, shape.whole, SeparateExperts("model.layers.0.mlp.experts"))
    down = LoRAMatrices(torch.ones(1, 16), torch.ones(16, 1), 1.0)
    file = AdapterFile("", 0, 1, "")
    assert layers.load(Adapter(file)).packed.nbytes == 0
    with pytest.raises(AdapterError, match=r"adds to the experts 'model\.layers\.0\.mlp\.experts', which this device"):
        layers.load(Adapter(file, experts={"model.layers.0.mlp.experts": {1: {Projection.DOWN: down}}}))
