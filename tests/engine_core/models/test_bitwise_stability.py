"""A row's logits have the same bits whatever shares its step, however its prompt is cut, with any thread count."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    Gemma2Config,
    Gemma4TextConfig,
    Glm4Config,
    GptOssConfig,
    Lfm3Config,
    Llama4TextConfig,
    LlamaConfig,
    NemotronHConfig,
    Olmo2Config,
    OPTConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3MoeConfig,
)

from engine_core.models.language_model import LanguageModel
from tests.engine_core.models.driver import Driver, load, logits_of
from tests.engine_core.models.tiny_models import make_model, save_model

LENGTHS = (140, 1, 17, 2, 33)
WIDE = {"intermediate_size": 2304, "num_hidden_layers": 2, "vocab_size": 131, "initializer_range": 0.2}
"""Wide enough for work to be divided among threads."""
SMALL = WIDE | {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
TOKENS = {"eos_token_id": 2, "pad_token_id": 0}
CONFIGS = {
    "gqa": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "seven-heads-one-group": Qwen2Config(hidden_size=112, num_attention_heads=7, num_key_value_heads=1, **WIDE),
    "padded": Qwen2Config(
        hidden_size=84, num_attention_heads=6, num_key_value_heads=3, **(WIDE | {"intermediate_size": 1001})
    ),
    "windows": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=21, max_window_layers=1),
    "norms-behind": Olmo2Config(**(SMALL | {"hidden_size": 96}), **TOKENS),
    "neighbours-rotated": Glm4Config(**SMALL, **TOKENS, head_dim=24),
    "layer-norms-projected": OPTConfig(
        hidden_size=84,
        num_attention_heads=6,
        ffn_dim=2304,
        word_embed_proj_dim=40,
        do_layer_norm_before=False,
        num_hidden_layers=2,
        vocab_size=131,
        init_std=0.2,
    ),
}
KINDS = {
    "experts": Qwen3MoeConfig(
        **(SMALL | {"num_hidden_layers": 1}),
        head_dim=16,
        moe_intermediate_size=600,
        num_experts=7,
        num_experts_per_tok=3,
    ),
    "latents": DeepseekV2Config(
        **(SMALL | {"num_key_value_heads": 4}),
        kv_lora_rank=64,
        q_lora_rank=48,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=24,
        moe_intermediate_size=600,
        n_routed_experts=5,
        n_shared_experts=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
    ),
    "sinks": GptOssConfig(
        **(SMALL | {"intermediate_size": 600}),
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=21,
    ),
    "chunks": Llama4TextConfig(
        **(SMALL | {"intermediate_size": 600}),
        head_dim=16,
        num_local_experts=4,
        no_rope_layers=[1, 0],
        attention_chunk_size=21,
        floor_scale=50,
    ),
    "caps": Gemma2Config(**SMALL, head_dim=16, sliding_window=21, attn_logit_softcapping=3.0),
    "shared-caches": Gemma4TextConfig(
        **(SMALL | {"num_hidden_layers": 4, "intermediate_size": 600}),
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=21,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=80,
        vocab_size_per_layer_input=131,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=600,
    ),
    "convolutions": Lfm3Config(
        **(SMALL | TOKENS | {"num_hidden_layers": 3}),
        head_dim=24,
        conv_L_cache=4,
        sliding_window=21,
        layer_types=["conv", "sliding_attention", "conv"],
    ),
    "delta-net": Qwen3_5MoeTextConfig(
        **SMALL,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=24,
        linear_value_head_dim=40,
        layer_types=["linear_attention", "full_attention"],
        moe_intermediate_size=600,
        shared_expert_intermediate_size=40,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    "mamba": NemotronHConfig(
        **{name: value for name, value in SMALL.items() if name != "num_hidden_layers"},
        head_dim=16,
        mamba_num_heads=6,
        mamba_head_dim=24,
        n_groups=3,
        ssm_state_size=40,
        n_routed_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=600,
        moe_shared_expert_intermediate_size=40,
        layers_block_type=["linear_attention", "moe", "full_attention"],
    ),
}
STORED = [("float32", None), ("bfloat16", None), ("float16", None), ("bfloat16", "int8")]


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def in_random_steps(model: LanguageModel, sequences: Sequence[torch.Tensor], rng: random.Random) -> list[torch.Tensor]:
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


def check(model: LanguageModel) -> None:
    rng = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, model.vocab_size, (length,), generator=generator) for length in LENGTHS]
    torch.set_num_threads(1)
    alone = [logits_of(model, ids) for ids in sequences]
    for threads in (1, 1, 2, 3):
        torch.set_num_threads(threads)
        for together, expected in zip(in_random_steps(model, sequences, rng), alone, strict=True):
            assert torch.equal(together, expected)


@pytest.mark.parametrize(
    ("config", "dtype", "quantization"),
    [
        pytest.param(config, *way, marks=[] if way == STORED[1] or config == "padded" else pytest.mark.models)
        for config in CONFIGS
        for way in STORED
    ],
)
def test_logits_do_not_depend_on_the_step(config: str, dtype: str, quantization: str | None, tmp_path: Path) -> None:
    check(load(save_model(make_model(CONFIGS[config]), tmp_path), dtype, quantization))


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [pytest.param(*way, marks=[] if way == STORED[1] else pytest.mark.models) for way in STORED],
)
@pytest.mark.parametrize("config", KINDS)
def test_logits_of_every_kind_of_layer_do_not_depend_on_the_step(
    config: str, dtype: str, quantization: str | None, tmp_path: Path
) -> None:
    check(load(save_model(make_model(KINDS[config]), tmp_path), dtype, quantization))
