"""A model from a GGUF file computes what the same weights compute from safetensors."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    GraniteMoeSharedConfig,
    HunYuanMoEV1Config,
    Lfm2Config,
    Lfm2MoeConfig,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    Ministral3Config,
    NemotronHConfig,
    PretrainedConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from engine_core.attention.torch_reference import TorchAttention
from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.gguf import names
from engine_core.model_loader.gguf.config import describe
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.gguf_blocks import BLOCK_TYPES
from tests.engine_core.distributed.ranks import assert_bits, on_ranks
from tests.engine_core.distributed.test_tensor_parallel import run_steps
from tests.engine_core.model_loader.gguf.written import quantized, write_gguf
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families import configuration, dense, experts, gemma4, hybrid, latent, mamba, scaled
from tests.engine_core.models.families.more_experts import MULTIPLIERS
from tests.engine_core.models.families.scaled import GEMMA
from tests.engine_core.models.tiny_models import CASES, SIZES, YARN, make_model, save_model

WIDE = SIZES | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
IDS = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))

FLOATS: dict[str, PretrainedConfig] = {
    name: CASES[name]
    for name in ("llama-gqa", "llama-mha-tied-biases", "llama3-rope", "llama-linear-rope-head-dim", "olmo2")
}
FLOATS |= {name: CASES[name] for name in ("mistral-wide-window", "qwen2-tied", "qwen2-yarn", "qwen3-tied-head-dim")}
FLOATS |= {name: dense.SHAPES[name] for name in ("phi3-short-factors-mqa-tied-padded", "phi3-window", "glm4")}
FLOATS |= {name: experts.SHAPES[name] for name in ("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe")}
FLOATS["gpt_oss"] = GptOssConfig(
    **SIZES,
    num_local_experts=6,
    num_experts_per_tok=2,
    head_dim=16,
    sliding_window=24,
    rope_parameters=YARN | {"truncate": False},
)
FLOATS["gemma2"] = Gemma2Config(
    **GEMMA | {"query_pre_attn_scalar": 16}, sliding_window=24, attn_logit_softcapping=3.0, final_logit_softcapping=8.0
)
FLOATS["gemma3"] = Gemma3TextConfig(**GEMMA | {"query_pre_attn_scalar": 16, "num_hidden_layers": 6}, sliding_window=24)
FLOATS["smollm3"] = SmolLM3Config(**SIZES | {"num_hidden_layers": 4})
FLOATS |= {name: latent.SHAPES[name] for name in ("deepseek_v2-no-query-latent", "deepseek_v3")}
FLOATS |= {"granite": scaled.SHAPES["granite"]}
FLOATS |= {name: dense.SHAPES[name] for name in ("ministral3", "olmo3", "glm", "glm-whole-heads-mqa-tied-padded")}
FLOATS["ministral3-as-published"] = Ministral3Config(
    **SIZES, rope_parameters=dense.QUERY_SCALING | {"mscale": 1.0, "mscale_all_dim": 1.0}
)
FLOATS |= gemma4.SHAPES
FLOATS |= {
    name: configuration(name)
    for name in (
        "dots1", "ernie4_5_moe", "ernie4_5_moe-every-other-unshared-padded", "exaone_moe", "granitemoe",
        "granitemoeshared", "granitemoeshared-none-tied-padded", "minimax_m2", "minimax_m2-whole-heads-mqa-tied-padded",
        "olmoe", "olmoe-mqa-biases-tied-padded", "solar_open", "arcee", "cohere", "cohere2-windows", "ernie4_5",
        "ernie4_5-mqa-biases-padded", "exaone4", "exaone4-no-window-mqa-tied-padded", "gemma", "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "nemotron-tied", "olmo", "phi-padded", "seed_oss", "seed_oss-mqa-biases-tied-padded", "stablelm",
        "stablelm-head-norms-parallel",
    )
}  # fmt: skip
STATES = {name: configuration(name) for name in ("lfm2", "lfm2-four-taps-untied-padded", "lfm2-older-fields")}
STATES |= {name: config for name, config in mamba.SHAPES.items() if "limits" not in name and "latents" not in name}
STATES["nemotron_h-latents"] = copy.deepcopy(mamba.SHAPES["nemotron_h-latents-groups-biases-limits-mqa-padded"])
STATES["nemotron_h-latents"].update({"mlp_hidden_act": "relu2", "time_step_limit": (0.0, math.inf)})
STATES |= {name: config for name, config in hybrid.SHAPES.items() if "dense" not in name and "mlp-only" not in name}
STATES["lfm2_moe"] = configuration("lfm2_moe")
FLOATS |= STATES
LLAMA4 = experts.LLAMA4 | {"floor_scale": 8192, "attn_scale": 0.1}
FLOATS["llama4"] = Llama4TextConfig(**LLAMA4)
FLOATS["llama4-of-128-experts-some-dense"] = Llama4TextConfig(
    **LLAMA4 | {"num_local_experts": 128}, interleave_moe_layer_step=2, use_qk_norm=False
)
FLOATS["starcoder2"] = Starcoder2Config(**SIZES)
ROUNDED = (
    "exaone4-no-window-mqa-tied-padded", "gpt_oss", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama3-rope",
    "phi3-short-factors-mqa-tied-padded",
)  # fmt: skip
"""Where a file has factors or periods of rotations, which are rounded, or experts in another order."""


ALWAYS = (
    "lfm2",
    "qwen3_5_moe_text",
    "mamba2",
    "llama-gqa",
    "qwen3-tied-head-dim",
    "qwen2_moe",
    "deepseek_v3",
    "gemma2",
    "gemma4_text-experts",
    "olmo3",
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in ALWAYS else pytest.mark.models) for case in FLOATS]
)
def test_every_architecture(case: str, tmp_path: Path) -> None:
    """Without rounding: names, order of rows and configuration show."""
    config = FLOATS[case]
    save_model(make_model(config), tmp_path / "original")
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf")
    logits, expected = logits_of(load(file), IDS), logits_of(load(tmp_path / "original"), IDS)
    if case in ROUNDED:
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    else:
        assert torch.equal(logits, expected)


def fused(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With one tensor of queries, keys and values, as ChatGLM has them."""
    found = dict(tensors)
    for name in tensors:
        if ".attn_q." in name:
            parts = [found.pop(name.replace("attn_q", f"attn_{each}")) for each in "qkv"]
            found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return found


def unstacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With a tensor for each expert, as in files of 2023."""
    found: dict[str, np.ndarray] = {}
    for name, numbers in tensors.items():
        parts = {name.replace("_exps", f".{expert}"): each for expert, each in enumerate(numbers)}
        found |= parts if "_exps" in name else {name: numbers}
    return found


def halved(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With halves for the pairs of GLM's heads of 16, of which 8 are rotated, as llama.cpp has them for pictures."""
    order = [0, 2, 4, 6, 1, 3, 5, 7, *range(8, 16)]
    return {
        name: numbers.reshape(-1, 16, *numbers.shape[1:])[:, order].reshape(numbers.shape)
        if re.search(r"attn_(q|k)\.", name)
        else numbers
        for name, numbers in tensors.items()
    }


def with_one_tensor(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As early files of Qwen3-Next: queries, keys, values and gates of 2 key heads of 16 and 4 value heads of 32."""
    found = dict(tensors)
    for name in [each for each in tensors if ".attn_qkv." in each]:
        q, k, v = np.split(found.pop(name), [32, 64])
        z = found.pop(name.replace("attn_qkv", "attn_gate"))
        by_key = [each.reshape(2, -1, each.shape[1]) for each in (q, k, v, z)]
        found[name.replace("attn_qkv", "ssm_in")] = np.concatenate(by_key, 1).reshape(-1, q.shape[1])
    return found


HYBRID = SIZES | MULTIPLIERS | {"mamba_n_heads": 8, "mamba_d_head": "auto", "layer_types": ["attention"] * 3}
SECTIONS = {"rope.dimension_sections": [4, 2, 2, 0]}
NEXT = {"nextn_predict_layers": 1, "block_count": 4}
OTHERS: dict[str, tuple[PretrainedConfig, dict[str, Any]]] = {
    "chatglm, fused": (dense.SHAPES["glm"], {"change": fused}),
    "mixtral, unstacked": (experts.SHAPES["mixtral"], {"change": unstacked}),
    "glm4, of pictures": (dense.SHAPES["glm4"], {"change": halved, "more": SECTIONS}),
    "glm4, with a layer that predicts": (
        dense.SHAPES["glm4"],
        {"change": lambda tensors: tensors | {"blk.3.nextn.eh_proj.weight": np.ones((8, 8), np.float32)}, "more": NEXT},
    ),
    "mistral3, without a temperature": (CASES["mistral-wide-window"], {"architecture": "mistral3"}),
    "qwen2vl": (CASES["qwen2-tied"], {"architecture": "qwen2vl", "more": SECTIONS}),
    "qwen3vl": (CASES["qwen3-tied-head-dim"], {"architecture": "qwen3vl", "more": SECTIONS}),
    "qwen3vlmoe": (experts.SHAPES["qwen3_moe"], {"architecture": "qwen3vlmoe", "more": SECTIONS}),
    "internlm2": (CASES["llama-gqa"], {"architecture": "internlm2"}),
    "xverse": (CASES["llama-gqa"], {"architecture": "xverse"}),
    "exaone": (CASES["llama3-rope"], {"architecture": "exaone"}),
    "qwen3next, with one tensor": (
        hybrid.SHAPES["qwen3_next"],
        {"change": with_one_tensor},
    ),
    "granite, without rotations": (
        GraniteMoeHybridConfig(**HYBRID, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=112),
        {"architecture": "granite", "more": {"rope.scaling.finetuned": False}},
    ),
    "granitemoe, without rotations": (
        GraniteMoeHybridConfig(**HYBRID, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48),
        {"architecture": "granitemoe", "more": {"rope.scaling.finetuned": False}},
    ),
    "minicpm": (
        GraniteConfig(**SIZES, attention_multiplier=0.25, embedding_multiplier=3.0, logits_scaling=2.0),
        {"architecture": "minicpm"},
    ),
}
"""What files have otherwise than a converter would write them today, and names of what runs as another architecture."""


@pytest.mark.models
@pytest.mark.parametrize("case", OTHERS)
def test_other_files(case: str, tmp_path: Path) -> None:
    config, options = OTHERS[case]
    save_model(make_model(config), tmp_path / "original")
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf", **options)
    torch.testing.assert_close(
        logits_of(load(file), IDS), logits_of(load(tmp_path / "original"), IDS), atol=1e-4, rtol=1e-4
    )


SMOL = LlamaConfig(**WIDE, tie_word_embeddings=True)
"""As SmolLM2 is."""
QWEN = Qwen3Config(**WIDE, head_dim=32)
MOE = Qwen3MoeConfig(**WIDE, moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True)
LATENT = DeepseekV3Config(
    **WIDE | {"num_key_value_heads": 4, "pad_token_id": 0},
    kv_lora_rank=64,
    q_lora_rank=96,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    n_group=1,
    first_k_dense_replace=1,
    topk_group=1,
    moe_intermediate_size=256,
    n_routed_experts=4,
    num_experts_per_tok=2,
)
JOINED = GraniteMoeSharedConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=256)
"""Whose shared expert has one tensor of what are two in a file."""
QUANTIZED = {
    "granitemoeshared": JOINED,
    "llama": SMOL,
    "qwen3": QWEN,
    "qwen3_moe": MOE,
    "deepseek_v3": LATENT,
}
FEW = (("llama", "Q4_1"), ("qwen3", "Q6_K"))


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, marks=() if (case, kind) in FEW else pytest.mark.models)
        for case in QUANTIZED
        for kind in BLOCK_TYPES
    ],
)
def test_every_type(case: str, kind: str, tmp_path: Path) -> None:
    """Near what the same numbers in float32 compute; to the bit, where they are expanded."""
    config = QUANTIZED[case]
    save_model(make_model(config), tmp_path / "original")
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf", quantized(kind), tmp_path / "dequantized")
    expected = logits_of(load(tmp_path / "dequantized"), IDS)
    spread = (expected.max() - expected.min()).item()  # larger logits are rounded more
    torch.testing.assert_close(logits_of(load(file), IDS), expected, atol=1e-3 * spread, rtol=0)
    torch_layers = {"layers": TorchBackend(), "attention": TorchAttention()}
    expanded = logits_of(load(file, **torch_layers), IDS)
    assert torch.equal(expanded, logits_of(load(tmp_path / "dequantized", **torch_layers), IDS))


DELTA_NET: dict[str, Any] = WIDE | {
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention", "full_attention"],
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
QUANTIZED_STATES: dict[str, PretrainedConfig] = {
    "lfm2": Lfm2Config(**WIDE, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    "lfm2_moe": Lfm2MoeConfig(**WIDE, **MIXTURE, layer_types=["full_attention", "conv"], num_dense_layers=1),
    "qwen3_5": Qwen3_5TextConfig(**DELTA_NET),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(**DELTA_NET, **MIXTURE, shared_expert_intermediate_size=256),
    "qwen3_next": Qwen3NextConfig(**DELTA_NET, **MIXTURE, shared_expert_intermediate_size=256),
    "granitemoehybrid": GraniteMoeHybridConfig(
        **WIDE,
        **MULTIPLIERS,
        mamba_n_heads=8,
        mamba_d_state=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=256,
        layer_types=["linear_attention", "full_attention"],
    ),
    "mamba2": Mamba2Config(
        vocab_size=199, hidden_size=256, num_hidden_layers=2, num_heads=8, head_dim=64, state_size=32, n_groups=2,
        initializer_range=0.2, pad_token_id=None,
    ),
    "nemotron_h": NemotronHConfig(
        **{name: value for name, value in WIDE.items() if name != "num_hidden_layers"},
        head_dim=64,
        layers_block_type=["linear_attention", "full_attention", "moe"],
        mamba_num_heads=8,
        mamba_head_dim=64,
        n_groups=2,
        ssm_state_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        moe_shared_expert_intermediate_size=256,
        moe_latent_size=256,
    ),
}  # fmt: skip


def q4_k_m(name: str, shape: tuple[int, ...]) -> str:
    """Several types, as such a file has them."""
    more = any(part in name for part in ("attn_qkv", "attn_v", "ffn_down", "output", "token_embd"))
    return quantized("Q6_K" if more else "Q4_K")(name, shape)


SMALL_TYPES = {"Q8_0": quantized("Q8_0"), "Q4_0": quantized("Q4_0"), "Q4_K_M": q4_k_m}


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, marks=() if (case, kind) == ("qwen3_5", "Q4_K_M") else pytest.mark.models)
        for case in QUANTIZED_STATES
        for kind in SMALL_TYPES
    ],
)
def test_models_with_states_of_every_type(case: str, kind: str, tmp_path: Path) -> None:
    """Heads are put in a checkpoint's order in their types, or, where a block has columns of two heads, expanded."""
    config = QUANTIZED_STATES[case]
    save_model(make_model(config), tmp_path / "original")
    types, dequantized = SMALL_TYPES[kind], tmp_path / "dequantized"
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf", types, dequantized)
    own, expected = load(file), logits_of(load(dequantized), IDS)
    spread = (expected.max() - expected.min()).item()
    torch.testing.assert_close(logits_of(own, IDS), expected, atol=1e-3 * spread, rtol=0)
    torch_layers = {"layers": TorchBackend(), "attention": TorchAttention()}
    expanded = logits_of(load(file, **torch_layers), IDS)
    assert torch.equal(expanded, logits_of(load(dequantized, **torch_layers), IDS))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_models_with_states_of_16_bits(kind: str, tmp_path: Path) -> None:
    config = QUANTIZED_STATES["qwen3_5"]
    save_model(make_model(config), tmp_path / "original")
    dequantized = tmp_path / "dequantized"
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf", quantized(kind), dequantized)
    assert torch.equal(logits_of(load(file), IDS), logits_of(load(dequantized), IDS))


@pytest.mark.models
@pytest.mark.parametrize("case", QUANTIZED_STATES)
def test_ranks_of_models_with_states_compute_the_bits_of_one_process(case: str, tmp_path: Path) -> None:
    save_model(make_model(QUANTIZED_STATES[case]), tmp_path / "original")
    file = write_gguf(tmp_path / "original", QUANTIZED_STATES[case], tmp_path / "model.gguf", q4_k_m)
    checkpoint = open_at(file, dtype="bfloat16")
    assert_bits(on_ranks(checkpoint, 2, run_steps)[0], run_steps(build_model(checkpoint)))


@pytest.mark.parametrize(
    ("case", "fields", "problem"),
    [
        ("lfm2", {"attention.head_count_kv": [2, 0]}, r"head_count_kv=\[2, 0\]: expected 4 whole numbers"),
        ("lfm2", {"attention.head_count_kv": [0, 4, 2, 0]}, r"head_count_kv has 2 and 4: expected one number"),
        ("lfm2", {"shortconv.l_cache": "x"}, r"shortconv\.l_cache='x': expected a whole number"),
        ("lfm2", {"attention.sliding_window": 7}, r"sliding_window=7 is not supported: expected 0"),
        ("lfm2_moe", {"expert_gating_func": 1}, r"expert_gating_func=1 is not supported: expected 2"),
        ("qwen3_5_text", {"ssm.inner_size": 126}, r"ssm\.inner_size=126 is not usable: expected a multiple"),
        ("qwen3_5_text", {"ssm.time_step_rank": 0}, r"expected a multiple of ssm\.time_step_rank=0"),
        (
            "qwen3_5_text",
            {"ssm.group_count": 3},
            r"time_step_rank=4 is not usable: expected a multiple of ssm\.group_c",
        ),
        ("qwen3_5_text", {"ssm.state_size": 8}, r"blk\.0\.\w+\.weight has 192 rows: expected 160, as ssm\.inner_size"),
        ("qwen3_5_text", {"attention.recurrent_layers": [True]}, r"recurrent_layers=\[True\]: expected 4 whole"),
        ("granitehybrid", {"ssm.time_step_rank": 7}, r"is not usable: expected a multiple of ssm\.time_step_rank=7"),
        (
            "mamba2",
            {"ssm.inner_size": 8},
            r"ssm\.inner_size=8 is not supported: expected a multiple of embedding_length",
        ),
        ("nemotron_h", {"feed_forward_length": [0]}, r"feed_forward_length=\[0\]: expected 4 whole numbers"),
    ],
)
def test_fields_of_states_that_do_not_fit(case: str, fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    config = STATES["granitemoehybrid-mamba" if case == "granitehybrid" else case]
    save_model(make_model(config), tmp_path)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=problem) as caught:
        describe(read_gguf(write_gguf(tmp_path, config, tmp_path / "model.gguf", more=fields)))
    assert "\n" not in str(caught.value)


def test_a_rate_that_is_not_negative(tmp_path: Path) -> None:
    config = STATES["mamba2"]
    save_model(make_model(config), tmp_path)

    def damaged(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors | {"blk.1.ssm_a": np.abs(tensors["blk.1.ssm_a"])}

    file = write_gguf(tmp_path, config, tmp_path / "model.gguf", change=damaged)
    with pytest.raises(CheckpointError, match=r"blk\.1\.ssm_a has a number that is not below 0"):
        load(file)


@pytest.mark.models
@pytest.mark.parametrize(
    ("case", "kind"), [*(("dense", kind) for kind in BLOCK_TYPES), *(("experts", kind) for kind in ("Q8_0", "Q4_K"))]
)
def test_every_type_through_transformers(case: str, kind: str, tmp_path: Path) -> None:
    """In families that Ringline has no model of its own for: weights stay in their types there, too."""
    mixture = HunYuanMoEV1Config(**WIDE, head_dim=32, num_experts=4, moe_topk=2)
    config = Starcoder2Config(**WIDE) if case == "dense" else mixture
    save_model(make_model(config), tmp_path / "original")
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf", quantized(kind), tmp_path / "dequantized")
    own, expected = load(file), load(tmp_path / "dequantized")
    assert own.weight_bytes < expected.weight_bytes / 3
    reference = logits_of(expected, IDS)
    spread = (reference.max() - reference.min()).item()
    torch.testing.assert_close(logits_of(own, IDS), reference, atol=1e-3 * spread, rtol=0)


@pytest.mark.models
@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("case", QUANTIZED)
def test_ranks_compute_the_bits_of_one_process(case: str, kind: str, tmp_path: Path) -> None:
    save_model(make_model(QUANTIZED[case]), tmp_path / "original")
    file = write_gguf(tmp_path / "original", QUANTIZED[case], tmp_path / "model.gguf", quantized(kind))
    checkpoint = open_at(file, dtype="bfloat16")
    assert_bits(on_ranks(checkpoint, 2, run_steps)[0], run_steps(build_model(checkpoint)))


LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
STRETCHED = YARN | {"attention_factor": 1.5 * (1 + 0.1 * math.log(YARN["factor"]))}


@pytest.mark.parametrize(
    ("rope", "fields"),
    [
        (LINEAR, {"rope.scaling.factor": 4.0}),  # linear is llama.cpp's default
        (LINEAR, {"rope.scale_linear": 4.0}),  # as files of 2023 say it
        (LINEAR, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.finetuned": True}),
        (None, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
        (None, {"rope.scaling.factor": 0.0}),
        (STRETCHED, {"rope.scaling.attn_factor": 1.5, "rope.scaling.yarn_ext_factor": -1.0}),
        (STRETCHED, {"rope.scaling.attn_factor": 0.5, "rope.scaling.yarn_attn_factor": 3.0}),
    ],
)
def test_scaled_rotations(rope: dict[str, Any] | None, fields: dict[str, Any], tmp_path: Path) -> None:
    base = {} if rope is None else {"rope_parameters": YARN if rope is STRETCHED else None}
    config = LlamaConfig(**SIZES | base)
    save_model(make_model(config), tmp_path / "original")
    file = write_gguf(tmp_path / "original", config, tmp_path / "model.gguf", more=fields)
    if rope is not None:
        described = json.loads((tmp_path / "original/config.json").read_text())
        (tmp_path / "original/config.json").write_text(json.dumps(described | {"rope_parameters": rope}))
    assert torch.equal(logits_of(load(file), IDS), logits_of(load(tmp_path / "original"), IDS))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"rope.dimension_sections": 3},
            r"llama.rope.dimension_sections=3 is not supported: expected none of llama.rope",
        ),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, r"yarn_log_multiplier=0.1\d* is not supported"),
        ({"rope.freq_base_swa": 1e6}, r"freq_base_swa=1000000.0 is not supported"),
        ({"rope.scaling.attn_factor": 2.0}, r"attn_factor=2 is not supported: expected 1 with scaling.type linear"),
        ({"rope.scaling.yarn_attn_factor": 2.0}, r"attn_factor=2 is not supported"),
        (
            {"rope.scaling.yarn_ext_factor": 1.0},
            r"yarn_ext_factor=1 is not supported: expected 0 with scaling.type linear",
        ),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.yarn_ext_factor": 0.5},
            r"ext_factor=0.5 is not supported: expected 1",
        ),
        ({"rope.scaling.type": "longrope"}, r"type='longrope' is not supported without the tensors"),
    ],
)
def test_rotations_that_are_not_supported(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES)
    save_model(make_model(config), tmp_path)
    with pytest.raises(UnsupportedModelError, match=problem):
        describe(read_gguf(write_gguf(tmp_path, config, tmp_path / "model.gguf", more=fields)))


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert", "modern-bert", "gemma-embedding"])
def test_an_embedder_of_another_architecture_is_refused_for_what_it_is(architecture: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tensor("token_embd.weight", np.zeros((2, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    problem = rf"for embeddings or ranks \({architecture}\.pooling_type=1\).*transformers' format"
    with pytest.raises(UnsupportedModelError, match=problem):
        describe(read_gguf(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("case", "fields", "problem"),
    [
        ("llama-gqa", {"attention.causal": False}, r"llama\.attention\.causal=false is not supported: expected true"),
        (
            "qwen3-tied-head-dim",
            {"pooling_type": 3},
            r"for embeddings or ranks \(qwen3\.pooling_type=3\).*: give the checkpoint in transformers' format",
        ),
        ("exaone4", {"rope.freq_base_swa": 123.0}, r"freq_base_swa=123 is not supported: expected 10000"),
        ("exaone_moe", {"rope.freq_base_swa": 123.0}, r"freq_base_swa=123 is not supported: expected 10000"),
        (
            "gemma4_text-experts",
            {"rope.dimension_count_swa": 2},
            r"dimension_count_swa=2 is not supported",
        ),
        *(
            (case, {"expert_gating_func": 1}, r"expert_gating_func=1 is not supported: expected 2")
            for case in ("dots1", "exaone_moe", "glm4_moe", "minimax_m2")
        ),
    ],
)
def test_fields_that_would_change_the_result(case: str, fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    config = FLOATS[case]
    save_model(make_model(config), tmp_path)
    describe(read_gguf(write_gguf(tmp_path, config, tmp_path / "right.gguf")))
    with pytest.raises(UnsupportedModelError, match=problem):
        describe(read_gguf(write_gguf(tmp_path, config, tmp_path / "model.gguf", more=fields)))


@pytest.mark.parametrize(
    ("change", "fields", "problem"),
    [
        (
            {},
            {"expert_count": 2},
            r"blk\.0\.ffn_gate_exps\.weight has 5 experts, but expert_count is 2",
        ),
        ({"ffn_up_exps": "ffn_up.2"}, {"expert_count": 2}, r"blk\.0\.ffn_up\.2\.weight is beyond the expert_count, 2"),
        ({"blk.2": "blk.3"}, {}, r"blk\.3\.\S+ is of layer 3, but block_count is 3"),
    ],
)
def test_more_layers_or_experts_than_the_fields_say(
    change: dict[str, str], fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    config = experts.SHAPES["mixtral"]
    save_model(make_model(config), tmp_path)

    def renamed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for old, new in change.items():
            tensors = {name.replace(old, new): numbers for name, numbers in tensors.items()}
        return dict(sorted(tensors.items(), key=lambda each: "exps" in each[0]))

    file = write_gguf(tmp_path, config, tmp_path / "model.gguf", change=renamed, more=fields)
    with pytest.raises(CheckpointError, match=problem):
        describe(read_gguf(file))


def test_the_last_norm_of_lfm2_has_either_name(tmp_path: Path) -> None:
    model = make_model(STATES["lfm2"])
    save_model(model, tmp_path)

    def renamed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name.replace("token_embd_norm", "output_norm"): numbers for name, numbers in tensors.items()}

    file = write_gguf(tmp_path, STATES["lfm2"], tmp_path / "model.gguf", change=renamed)
    ids = torch.arange(3, 30)
    assert torch.equal(logits_of(load(file), ids), logits_of(load(tmp_path), ids))


def test_a_file_makes_no_more_weights_than_any_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_MOST_SOURCES", 40)
    config = experts.SHAPES["mixtral"]
    save_model(make_model(config), tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.gguf has tensors for more than 40 weights"):
        describe(read_gguf(write_gguf(tmp_path, config, tmp_path / "model.gguf")))
