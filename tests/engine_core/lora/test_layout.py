"""How much memory an adapter is counted for, before any of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from engine_core.lora.files import StoredTensor
from engine_core.lora.layout import lay_out
from engine_core.lora.peft_config import read_peft_config
from engine_core.lora.targets import ExpertsTarget, LinearTarget, LoRATargets, TableTarget, joined_targets

EXPERTS = "model.layers.0.mlp.experts"
TARGETS = LoRATargets(
    linear={"model.q_proj": LinearTarget(48, 32)},
    experts={EXPERTS: ExpertsTarget(8, hidden_size=32, intermediate_size=64)},
    embedding=TableTarget("model.embed_tokens", rows=100, width=32),
    head=TableTarget("lm_head", rows=100, width=32),
)


def counted(ranks: Mapping[str, int]) -> int:
    """Numbers of an adapter whose modules have these ``ranks``."""
    config = read_peft_config({"peft_type": "LORA", "r": 1, "rank_pattern": ranks})
    return lay_out([*tensors(ranks)], config, TARGETS).num_numbers


def tensors(ranks: Mapping[str, int]) -> Iterator[StoredTensor]:
    for name, rank in ranks.items():
        inputs, outputs = (64, 32) if name.endswith("down_proj") else (32, 64)
        if name == "model.embed_tokens":
            inputs, outputs = 100, 32
        if name == "model.q_proj":
            outputs = 48
        part = "lora_embedding_%s" if name == "model.embed_tokens" else "lora_%s.weight"
        for letter, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            yield StoredTensor(f"base_model.model.{name}.{part % letter}", torch.bfloat16, shape, 0, 0)


def test_ranks_count_in_units_of_16() -> None:
    assert counted({"model.q_proj": 17}) == 32 * (32 + 48)


def test_what_is_added_to_the_embedding_counts_as_float32() -> None:
    assert counted({"model.embed_tokens": 16}) == 2 * 16 * (100 + 32)


def test_each_rank_that_embeds_tokens_has_a_copy_of_what_changes_the_embedding() -> None:
    others = replace(TARGETS, embedding=None, head=None)
    targets = joined_targets([TARGETS, TARGETS, others])
    assert targets.embedding_copies == 2
    config = read_peft_config({"peft_type": "LORA", "r": 16})
    saved = [
        StoredTensor(f"base_model.model.{name}.weight", torch.bfloat16, (100, 32), 0, 0)
        for name in ("model.embed_tokens", "lm_head")
    ]
    ranks = {"model.embed_tokens": 16}
    assert lay_out([*tensors(ranks), *saved], config, targets).num_numbers == 2 * 2 * 16 * (100 + 32) + 3 * 100 * 32


def test_experts_count_with_the_most_ranks_of_any() -> None:
    """As they are loaded: a few large ones beside many small ones take as much as all would."""
    few = {f"{EXPERTS}.{expert}.down_proj": 1 for expert in range(8)}
    assert counted(few) == 8 * 16 * (64 + 32)
    assert counted(few | {f"{EXPERTS}.3.down_proj": 64}) == 8 * 64 * (64 + 32)
    assert counted({f"{EXPERTS}.0.gate_proj": 1, f"{EXPERTS}.1.up_proj": 40}) == 2 * (16 + 48) * (32 + 64)
