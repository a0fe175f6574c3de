"""Adapters that PEFT makes and saves, on tiny models of transformers, and what of these takes adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine_core.lora.adapter import Adapter, LoRAMatrices, read_adapter
from engine_core.lora.targets import (
    ExpertsTarget,
    LinearTarget,
    LoRALimits,
    LoRATargets,
    Projection,
    Table,
    TableTarget,
)

LIMITS = LoRALimits(max_lora_rank=64, max_bytes=2**30)
_SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
}


def tiny_model(model_type: str, **fields: object) -> PreTrainedModel:
    """Of random numbers, in float32."""
    config = AutoConfig.for_model(model_type, **{**_SIZES, "tie_word_embeddings": False, **fields})
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config).float()


def targets_of(model: PreTrainedModel) -> LoRATargets:
    """All linear layers, experts and tables of ``model``, by the names that they have in it."""
    linear = {
        name: LinearTarget(module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head"
    }
    routers = {
        name: LinearTarget(*module.weight.shape)
        for name, module in model.named_modules()
        if name.endswith((".gate", ".router")) and isinstance(getattr(module, "weight", None), nn.Parameter)
    }
    experts = {name: _experts(module) for name, module in model.named_modules() if name.endswith(".experts")}
    rows, width = model.get_input_embeddings().weight.shape
    return LoRATargets(
        linear | routers,
        experts,
        TableTarget("model.embed_tokens", rows, width),
        TableTarget("lm_head", rows, width),
        "float32",
    )


def _experts(module: nn.Module) -> ExpertsTarget:
    count, first, second = module.down_proj.shape
    inputs_first = type(module).__name__ in ("GptOssExperts", "Llama4TextExperts")
    inner, hidden = (first, second) if inputs_first else (second, first)
    is_transposed = getattr(module, "is_transposed", False)
    return ExpertsTarget(count, hidden, inner, inputs_first=inputs_first, is_transposed=is_transposed)


def save_adapter(model: PreTrainedModel, directory: Path, **fields: object) -> None:
    """Save an adapter of random numbers in ``directory``, which changes ``model``."""
    adapted = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 6, **fields}))
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_()
    adapted.save_pretrained(directory)


def make_adapter(
    model_type: str, directory: Path, model_fields: Mapping[str, object] | None = None, **fields: object
) -> tuple[PeftModel, LoRATargets]:
    """Save an adapter of random numbers in ``directory``: as PEFT loads it, and what takes adapters."""
    save_adapter(tiny_model(model_type, **(model_fields or {})), directory, **fields)
    model = tiny_model(model_type, **(model_fields or {}))
    targets = targets_of(model)
    return PeftModel.from_pretrained(model, directory), targets


def product(matrices: LoRAMatrices) -> torch.Tensor:
    return matrices.scaling * (matrices.b.float() @ matrices.a.float())


def deltas(adapter: Adapter, targets: LoRATargets) -> dict[str, torch.Tensor]:
    """What an adapter adds to weights, by the names of transformers' parameters."""
    found = {f"{name}.weight": product(each) for name, each in adapter.linear.items()}
    names = {Table.EMBEDDING: "model.embed_tokens.weight", Table.HEAD: "lm_head.weight"}
    for table, each in adapter.tables.items():
        found[names[table]] = product(each).T if table is Table.EMBEDDING else product(each)
    for prefix, by_expert in adapter.experts.items():
        target = targets.experts[prefix]
        ups: list[torch.Tensor] = []
        downs: list[torch.Tensor] = []
        for expert in range(target.num_experts):
            of = {projection: product(each) for projection, each in by_expert[expert].items()}
            if Projection.UP in of:
                both = of[Projection.GATE], of[Projection.UP]
                ups.append(torch.stack(both, 1).flatten(0, 1) if target.interleaved else torch.cat(both))
            if Projection.DOWN in of:
                downs.append(of[Projection.DOWN])
        for name, parts in (("gate_up_proj", ups), ("down_proj", downs)):
            if parts:
                stacked = torch.stack(parts)
                found[f"{prefix}.{name}"] = stacked.transpose(1, 2) if target.inputs_first else stacked
    return found


def deltas_of(adapted: PeftModel) -> dict[str, torch.Tensor]:
    """The same from PEFT."""
    found = {}
    for name, module in adapted.base_model.model.named_modules():
        if hasattr(module, "get_delta_weight") and hasattr(module, "lora_A"):
            parameter = getattr(module, "parameter_name", "weight")
            found[f"{name.replace('.base_layer', '')}.{parameter}"] = module.get_delta_weight("default").detach()
    return found


def assert_same(adapted: PeftModel, directory: Path, targets: LoRATargets) -> Adapter:
    """Read an adapter, and require that it adds to all weights what it adds by PEFT."""
    adapter = read_adapter(directory, targets, LIMITS)
    found, expected = deltas(adapter, targets), deltas_of(adapted)
    assert found.keys() == expected.keys()
    for name, delta in expected.items():
        torch.testing.assert_close(found[name], delta.float(), msg=lambda text, name=name: f"{name}: {text}")
    return adapter


def with_experts(targets: LoRATargets, **fields: object) -> LoRATargets:
    return replace(targets, experts={name: replace(each, **fields) for name, each in targets.experts.items()})
