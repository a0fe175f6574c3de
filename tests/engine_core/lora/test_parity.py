"""Rows with adapters have the log probabilities that PEFT computes for them, beside rows with others and with none."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from engine_core.llm import LLM, LoRARequest, RequestOutput, SamplingParams
from tests.engine_core.models.families import OWN, configuration
from tests.engine_core.models.tiny_models import make_model, save_model

IN_EVERY_RUN = ("llama-gqa", "phi3-window", "qwen3-padded")
REFUSED_BY_PEFT = {"llama4_text": "router", "mamba2": "out_proj", "nemotron_h": "out_proj"}
"""Of some families, the linear layer that PEFT cannot adapt."""
SCORED = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=20)
NEAR = 1e-3
FAR = 1e-1
"""Least change by an adapter: it has been added."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """A model, and an adapter of it."""

    base: torch.nn.Module
    model: torch.nn.Module
    path: Path


def adapt(base: PreTrainedModel, path: Path, seed: int, **fields: Any) -> Adapted:
    """An adapter of random numbers, saved at ``path``; ``fields`` are those of ``LoraConfig``."""
    fields = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False, **fields}
    torch.manual_seed(seed)
    model = get_peft_model(copy.deepcopy(base), LoraConfig(**fields)).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2)
        elif "modules_to_save" in name:
            parameter.data += torch.randn(parameter.shape) * 0.1
    model.save_pretrained(str(path))
    return Adapted(base, model, path)


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 190, (length,), generator=generator).tolist()


@torch.inference_mode()
def difference(model: torch.nn.Module, output: RequestOutput) -> float:
    """The largest between log probabilities of the prompt's tokens, or of likely ones in their places."""
    ids = output.prompt_token_ids
    expected = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    assert output.prompt_logprobs is not None
    entries = [each for each in output.prompt_logprobs if each is not None]
    assert len(entries) == len(ids) - 1
    return max(
        abs(entry.logprob - expected[row, token].item())
        for row, each in enumerate(entries)
        for token, entry in each.items()
    )


def engine(directory: Path, **options: Any) -> LLM:
    options = {"dtype": "float32", "enable_lora": True, "kv_cache_memory_bytes": "32MiB", **options}
    return LLM(directory, skip_tokenizer_init=True, max_model_len=128, max_num_seqs=8, **options)


def names() -> list[Any]:
    marks = {name: [] if name in IN_EVERY_RUN else [pytest.mark.models] for name in OWN}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.fixture(scope="module", params=names())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Adapted]]:
    """A checkpoint, and two adapters of it with other ranks."""
    directory = tmp_path_factory.mktemp(request.param)
    base = make_model(configuration(request.param), seed=3)
    save_model(base, directory / "base")
    targets = linear_layers(base)
    return directory / "base", [
        adapt(base, directory / f"{seed}", seed, r=3 + seed, target_modules=targets) for seed in (1, 2)
    ]


def linear_layers(model: PreTrainedModel) -> str | list[str]:
    """All but the head that PEFT can adapt."""
    if (refused := REFUSED_BY_PEFT.get(model.config.model_type)) is None:
        return "all-linear"
    linear = {name.rpartition(".")[2] for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
    return sorted(linear - {refused, "lm_head"})


def test_logprobs_are_those_of_peft(pair: tuple[Path, list[Adapted]]) -> None:
    """In steps of 24 tokens, in which several adapters meet."""
    directory, adapters = pair
    requests = [LoRARequest(each.path.name, 1 + at, each.path) for at, each in enumerate(adapters)]
    with engine(directory, max_num_batched_tokens=24) as llm:
        named = [requests[0], None, requests[1], requests[0]]
        first, plain, second, third = llm.generate(
            [prompt(31), prompt(17), prompt(31), prompt(9)], SCORED, lora_request=named
        )
        assert difference(adapters[0].base, plain) < NEAR
        assert difference(adapters[0].model, first) < NEAR
        assert difference(adapters[1].model, second) < NEAR
        assert difference(adapters[0].model, third) < NEAR
        assert min(difference(adapters[0].base, each) for each in (first, second)) > FAR


def test_merged_weights_agree_with_unmerged(tmp_path: Path) -> None:
    base = make_model(configuration("qwen3-padded"), seed=3)
    save_model(base, tmp_path / "base")
    adapted = adapt(base, tmp_path / "adapter", 1)
    with engine(tmp_path / "base") as llm:
        [unmerged] = llm.generate([prompt(20)], SCORED, lora_request=LoRARequest("a", 1, adapted.path))
    merged = adapted.model.merge_and_unload()
    save_model(merged, tmp_path / "merged")
    with engine(tmp_path / "merged", enable_lora=False) as llm:
        [expected] = llm.generate([prompt(20)], SCORED)
    assert difference(merged, unmerged) < NEAR
    assert difference(merged, expected) < NEAR


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["embed_tokens", "v_proj"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ],
    ids=["ranks of the head", "ranks of embeddings", "head", "embeddings", "both"],
)
@pytest.mark.parametrize("name", ["llama-gqa", pytest.param("gemma3_text", marks=pytest.mark.models)])
def test_head_and_embeddings_of_an_adapter(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """Greedy tokens, too: the head's own argmax must not be taken."""
    base = make_model(configuration(name), seed=3)
    save_model(base, tmp_path / "base")
    adapted = adapt(base, tmp_path / "adapter", 1, **fields)
    request = LoRARequest("a", 1, adapted.path)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with engine(tmp_path / "base", max_loras=64) as llm:
        plain, scored = llm.generate([prompt(20), prompt(20)], SCORED, lora_request=[None, request])
        assert difference(base, plain) < NEAR
        assert difference(adapted.model, scored) < NEAR
        assert difference(base, scored) > FAR
        continued = llm.generate([prompt(20), prompt(11), prompt(20)], greedy, lora_request=[request, None, request])
    for model, output in zip((adapted.model, base, adapted.model), continued, strict=True):
        ids = list(output.prompt_token_ids)
        for token in output.outputs[0].token_ids:
            with torch.inference_mode():
                logits = model(torch.tensor([ids])).logits[0, -1]
            assert logits[token] > logits.max() - NEAR
            ids.append(token)
