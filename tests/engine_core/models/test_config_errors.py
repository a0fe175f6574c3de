"""What configurations of families ask for in vain is refused in a line that names the field and its value."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.models.model_config import positive_number, require_like_layers
from tests.engine_core.model_loader.test_checkpoint import LLAMA, open_config
from tests.engine_core.models.encoders import CASES

FULL, WINDOW = "full_attention", "sliding_attention"
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}


def named(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": [architecture], "model_type": model_type, "pad_token_id": None} | fields


PHI3 = named("Phi3ForCausalLM", "phi3", original_max_position_embeddings=64)
OLMO3 = named("Olmo3ForCausalLM", "olmo3", sliding_window=8)
SMOLLM3 = named("SmolLM3ForCausalLM", "smollm3")
MINISTRAL = named("MinistralForCausalLM", "ministral", sliding_window=8)
MINISTRAL3 = named("Ministral3ForCausalLM", "ministral3", head_dim=8)
GLM4 = named("Glm4ForCausalLM", "glm4", head_dim=8)
GEMMA4 = named("Gemma4ForCausalLM", "gemma4_text", head_dim=8, global_head_dim=16, layer_types=[WINDOW, FULL])
GEMMA4 |= {"hidden_size_per_layer_input": 0}
ROPES = {
    WINDOW: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    FULL: {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
GEMMA4_EXPERTS = GEMMA4 | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
OPT = named("OPTForCausalLM", "opt", ffn_dim=48)
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 4}
LATENTS = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
DEEPSEEK2 = named("DeepseekV2ForCausalLM", "deepseek_v2", **EXPERTS, **LATENTS, n_group=1, topk_group=1)
DEEPSEEK3 = named("DeepseekV3ForCausalLM", "deepseek_v3", **EXPERTS, **LATENTS, n_group=4, topk_group=2)
DEEPSEEK3 |= {"first_k_dense_replace": 1}
GLM4_MOE = named("Glm4MoeForCausalLM", "glm4_moe", **EXPERTS, head_dim=8)
GLM4_LITE = named("Glm4MoeLiteForCausalLM", "glm4_moe_lite", **EXPERTS, **LATENTS)
MIXTRAL = named("MixtralForCausalLM", "mixtral", num_local_experts=4)
QWEN2_MOE = named("Qwen2MoeForCausalLM", "qwen2_moe", num_experts=4, num_experts_per_tok=2)
QWEN3_MOE = named("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=4, num_experts_per_tok=2)
LLAMA4 = named("Llama4ForCausalLM", "llama4_text", intermediate_size_mlp=48, num_local_experts=4, head_dim=8)
GPT_OSS = named("GptOssForCausalLM", "gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=8)
OLMOE = named("OlmoeForCausalLM", "olmoe", num_experts=4, num_experts_per_tok=2)
ERNIE = named("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=16)
MINIMAX = named("MiniMaxM2ForCausalLM", "minimax_m2", num_local_experts=4, num_experts_per_tok=2, head_dim=8)
GRANITE4 = named("GraniteMoeHybridForCausalLM", "granitemoehybrid", mamba_n_heads=8, shared_intermediate_size=32)
GRANITE4 |= {"layer_types": ["mamba", "attention"]}
MAMBA2 = named("Mamba2ForCausalLM", "mamba2", num_heads=8, head_dim=8, n_groups=2, hidden_act="silu")
NEMOTRON_H = named(
    "NemotronHForCausalLM",
    "nemotron_h",
    **EXPERTS | {"moe_shared_expert_intermediate_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 8},
    hybrid_override_pattern="M*-E",
    head_dim=8,
)
EXAONE4 = named("Exaone4ForCausalLM", "exaone4", layer_types=[WINDOW, FULL])
LINEAR = "linear_attention"
DELTA_NET = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "head_dim": 8}
QWEN3_5 = named("Qwen3_5ForCausalLM", "qwen3_5_text", layer_types=[LINEAR, FULL], **DELTA_NET)
QWEN3_NEXT = named("Qwen3NextForCausalLM", "qwen3_next", num_experts=4, num_experts_per_tok=2, **DELTA_NET)
QWEN3_5_MOE = named("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", num_experts=4, num_experts_per_tok=2, **DELTA_NET)
HY_V3 = named("HYV3ForCausalLM", "hy_v3", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)

CONV = "conv"
LFM2 = named("Lfm2ForCausalLM", "lfm2", layer_types=[CONV, FULL])
LFM2_MOE = named("Lfm2MoeForCausalLM", "lfm2_moe", layer_types=[CONV, FULL], num_experts=4, num_experts_per_tok=2)
LFM3 = named("Lfm3ForCausalLM", "lfm3", layer_types=[CONV, WINDOW], head_dim=8)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", [(), ("text_config",)])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 2**31) for name in ("num_labels", "num_hidden_layers", "n_layer", "encoder_layers", "num_mtp_layers")),
        *((name, 2**31) for name in ("num_nextn_predict_layers", "first_k_dense_replace", "stage_num_blocks")),
        ("attention_types", [[["global", "local"], 2**31]]),
    ],
)
def test_counts_that_transformers_makes_lists_of_are_bounded(
    name: str, value: Any, place: tuple[str, ...], tmp_path: Path
) -> None:
    """Reading them would take all memory, or for ever."""
    fields = {name: value}
    for each in place:
        fields = {each: fields}
    with pytest.raises(CheckpointError, match=f"{name}=2147483648 is not usable: expected at most 4096"):
        open_config(tmp_path, LLAMA | fields)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"is_causal": False}, "config.json: is_causal=False is not supported: expected true, as no token"),
        (LLAMA | {"is_causal": None}, "is_causal=None is not supported"),
        (OPT | {"is_causal": False}, "is_causal=False is not supported"),
        (named("StableLmForCausalLM", "stablelm", is_causal=False), "is_causal=False is not supported"),
        (
            LLAMA | {"rope_parameters": YARN, "original_max_position_embeddings": None},
            "original_max_position_embeddings=None is not usable: expected a number",
        ),
        (LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": None}}, "factor=None is not usable"),
        (LLAMA | {"standardize_rope_params": 5}, "rope_parameters cannot be read: 'int' object is not callable"),
        (LLAMA | {"attribute_map": {"rope_theta": 2.0}}, "rope_parameters cannot be read: attribute name must be"),
        (PHI3 | {"sliding_window": 0}, "sliding_window=0 is not usable: expected a positive whole number"),
        (PHI3 | {"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "short_factor field must have length 4, got 1"),
        (PHI3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, r"one of \['longrope'\], got linear"),
        (PHI3 | {"partial_rotary_factor": 0.4}, "partial_rotary_factor=0.4 × head_dim=8 is 3: expected an even"),
        (
            PHI3 | {"sliding_window": 8, "layer_types": [FULL, WINDOW]},
            "layer_types: full_attention is not supported for phi3 with sliding_window=8: expected sliding_att",
        ),
        (OLMO3 | {"sliding_window": None}, "no window is set: set sliding_window to a number"),
        (OLMO3 | {"sliding_window": -1}, "sliding_window=-1 is not usable"),
        (
            MINISTRAL | {"layer_types": [FULL, "chunked_attention"]},
            "layer_types: chunked_attention is not supported: expected full_attention or sliding_attention",
        ),
        (OLMO3 | {"rope_parameters": YARN}, "rope_parameters has factor, .*: expected full_attention and sliding_att"),
        (
            PHI3 | {"rope_scaling": LONGROPE, "original_max_position_embeddings": 1},
            "=1 is not usable without an attention_factor",
        ),
        (OLMO3 | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling has no rope_type"),
        (
            OLMO3 | {"rope_parameters": {WINDOW: {"rope_type": "default", "partial_rotary_factor": 0.5}}},
            "partial_rotary_factor=0.5 is not supported: expected 1, as olmo3 rotates whole heads",
        ),
        (SMOLLM3 | {"no_rope_layers": [1]}, r"no_rope_layers=\[1\] is not usable: expected a 0 or 1 for each of 2 lay"),
        (SMOLLM3 | {"no_rope_layers": [1, 0, 1]}, r"no_rope_layers=\[1, 0, 1\] is not usable"),
        (SMOLLM3 | {"no_rope_layers": [1, 2]}, r"no_rope_layers=\[1, 2\] is not usable"),
        (SMOLLM3 | {"no_rope_layers": "10"}, "no_rope_layers"),
        (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval=0 is not usable: expected a positive whole"),
        (SMOLLM3 | {"use_sliding_window": True, "sliding_window": 0, "no_rope_layers": [1, 0]}, "sliding_window=0 is"),
        (SMOLLM3 | {"sliding_window": 8, "layer_types": [WINDOW, FULL]}, "set use_sliding_window to true"),
        (
            SMOLLM3 | {"rope_scaling": YARN | {"llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta=0.1 is not supported: smollm3 does not scale queries by position",
        ),
        (MINISTRAL | {"sliding_window": 0}, "sliding_window=0 is not usable"),
        (MINISTRAL | {"sliding_window": None, "layer_types": [FULL, WINDOW]}, "set sliding_window to a number of tok"),
        (
            MINISTRAL3 | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta=0.1 is not supported with rope type 'default', only with 'yarn'",
        ),
        (MINISTRAL3 | {"rope_parameters": YARN | {"llama_4_scaling_beta": "x"}}, "llama_4_scaling_beta='x' is not usa"),
        (
            MINISTRAL3 | {"layer_types": [FULL, WINDOW]},
            "layer_types: sliding_attention is not supported for ministral3 with sliding_window=None: exp",
        ),
        (GLM4 | {"partial_rotary_factor": 0.4}, "partial_rotary_factor=0.4 × head_dim=8 is 3: expected an even numb"),
        (GLM4 | {"hidden_act": "mish"}, "hidden_act 'mish' is not supported: expected one of gelu"),
        (
            GEMMA4 | {"use_bidirectional_attention": "all"},
            "use_bidirectional_attention='all' is not supported: no token may attend",
        ),
        (GEMMA4 | {"num_kv_shared_layers": -1}, "num_kv_shared_layers=-1 is not usable: expected a whole number from"),
        (GEMMA4 | {"num_kv_shared_layers": 2}, "=2 is not usable: expected less than num_hidden_layers=2"),
        (
            GEMMA4 | {"num_kv_shared_layers": 1},
            "num_kv_shared_layers=1 is not usable: expected less, as the first 1 layers keep the KV caches, and "
            "none of them is of type full_attention",
        ),
        (GEMMA4 | {"hidden_size_per_layer_input": -8}, "layer_input=-8 is not usable: expected a whole"),
        (
            GEMMA4 | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99},
            "vocab_size_per_layer_input=99 is not usable: expected at least vocab_size=100",
        ),
        (
            GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
            "num_attention_heads=4 is not a multiple of 3, the key/value heads of full_attention layers",
        ),
        (GEMMA4 | {"global_head_dim": 0}, "head_dim=0 is not usable"),
        (GEMMA4 | {"global_head_dim": 15}, "head_dim=15 of full_attention layers is not usable: expected an even"),
        (
            GEMMA4 | {"per_layer_config": {"1": {"intermediate_size": 96}}},
            "per_layer_config: intermediate_size may not differ between layers; only head_dim and num_key_value_heads",
        ),
        (
            GEMMA4 | {"layer_types": [FULL, FULL], "per_layer_config": {"1": {"head_dim": 32}}},
            "per_layer_config: full_attention layers differ in head_dim or num_key_value_heads: expected the same",
        ),
        (GEMMA4 | {"per_layer_config": {"1": {"skip": ["mlp"]}}}, "per_layer_config: skip=mlp is not supported"),
        (
            GEMMA4 | {"layer_types": ["chunked_attention", FULL]},
            "layer_types: chunked_attention is not supported: expected full_attention or sliding_attention",
        ),
        (GEMMA4 | {"rope_parameters": {FULL: ROPES[FULL]}}, "rope_parameters"),
        (GEMMA4 | {"rope_parameters": ROPES[FULL]}, "rope_parameters"),
        (
            GEMMA4 | {"rope_parameters": ROPES},
            "partial_rotary_factor=0.5 is not supported with rope type 'default', only with 'proportional'",
        ),
        (GEMMA4 | {"final_logit_softcapping": 0.0}, "final_logit_softcapping=0.0 is not usable: expected a positive"),
        (GEMMA4 | {"hidden_activation": "mish"}, "hidden_activation 'mish' is not supported: expected one of gelu"),
        (GEMMA4_EXPERTS | {"num_experts": None}, "num_experts=None is not usable"),
        (GEMMA4_EXPERTS | {"top_k_experts": 5}, "top_k_experts=5 is not usable: expected at most num_experts=4"),
        (GEMMA4_EXPERTS | {"moe_intermediate_size": 0}, "moe_intermediate_size=0 is not usable"),
        (DEEPSEEK2 | {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is not usable: expected at most 4096"),
        (DEEPSEEK2 | {"n_routed_experts": 10**6}, "n_routed_experts=1000000 is not usable: expected at most 4096"),
        (DEEPSEEK2 | {"n_shared_experts": 10**40}, "n_shared_experts=1(0){40} is not usable: expected at most"),
        (DEEPSEEK2 | {"rope_scaling": {FULL: ROPES[FULL]}}, "one entry per layer type: expected a single one, as"),
        (DEEPSEEK2 | {"rope_scaling": YARN | {"mscale_all_dim": 1e308}}, "mscale_all_dim=1e.308 is not usable"),
        (DEEPSEEK2 | {"rope_scaling": YARN | {"beta_fast": 1e-300}}, "beta_fast=1e-300 is not usable: expected a numb"),
        (DEEPSEEK2 | {"rope_scaling": YARN, "rope_theta": 1.0}, "rope_theta=1 is not usable: expected more than 1"),
        (GLM4 | {"rope_theta": 10**400}, "rope_theta=1(0){400} is not usable: expected a number from 1e-12 to 1e.18"),
        (GLM4 | {"rope_scaling": YARN | {"original_max_position_embeddings": 0.5}}, "embeddings=0.5 is not usable"),
        (GEMMA4 | {"per_layer_config": {"0": {"sliding_window": 5}}}, "per_layer_config: sliding_window may not"),
        (
            GEMMA4 | {"rope_parameters": None, "rope_scaling": None},
            "rope_parameters has no entry for sliding_attention",
        ),
        (OPT | {"activation_function": "tanh"}, "activation_function 'tanh' is not supported: expected one of gelu"),
        (OPT | {"num_attention_heads": 5}, "hidden_size=32 is not a multiple of num_attention_heads=5"),
        (OPT | {"ffn_dim": 0}, "ffn_dim=0 is not usable"),
        (OPT | {"word_embed_proj_dim": 0}, "word_embed_proj_dim=0 is not usable"),
        (OPT | {"num_hidden_layers": 5000}, "num_hidden_layers=5000 is not usable: expected at most 4096"),
        (OPT | {"enable_bias": "no"}, "enable_bias"),
        (
            GLM4 | {"per_layer_config": {"1": {"rms_norm_eps": 0.1}}},
            "per_layer_config: rms_norm_eps may not differ between layers of glm4",
        ),
        (OPT | {"per_layer_config": {"0": {"ffn_dim": 96}}}, "per_layer_config: ffn_dim may not differ between layers"),
        (
            OLMO3 | {"rope_parameters": {kind: YARN | {"rope_theta": 1e4, "truncate": False} for kind in ROPES}},
            "rope_parameters: truncate=False is not supported with one entry per layer type",
        ),
        (DEEPSEEK3 | {"head_dim": 4}, "head_dim=4 is not supported: expected qk_rope_head_dim=8"),
        (DEEPSEEK3 | {"scoring_func": "softmax"}, "scoring_func='softmax' is not supported: expected 'sigmoid'"),
        (DEEPSEEK3 | {"topk_method": "greedy"}, "topk_method='greedy' is not supported: expected 'noaux_tc'"),
        (DEEPSEEK3 | {"moe_layer_freq": 2}, "moe_layer_freq=2 is not supported: expected 1"),
        (DEEPSEEK3 | {"n_group": 3}, "n_group=3 is not usable: expected a divisor of n_routed_experts=8"),
        (DEEPSEEK3 | {"topk_group": 5}, "topk_group=5 is not usable: expected at most n_group=4"),
        (DEEPSEEK3 | {"num_experts_per_tok": 5}, "expected at most 4, the experts in topk_group=2 of n_group=4 groups"),
        (DEEPSEEK3 | {"n_group": 8, "topk_group": 4}, "n_group=8 is not usable: expected groups of at least 2 experts"),
        (DEEPSEEK3 | {"first_k_dense_replace": 3}, "first_k_dense_replace=3 is not usable: expected at most .*=2"),
        (DEEPSEEK3 | {"n_shared_experts": -1}, "n_shared_experts=-1 is not usable"),
        (DEEPSEEK3 | {"n_shared_experts": None}, "n_shared_experts"),
        (DEEPSEEK3 | {"kv_lora_rank": 0}, "kv_lora_rank=0 is not usable"),
        (DEEPSEEK3 | {"routed_scaling_factor": 0.0}, "routed_scaling_factor=0.0 is not usable"),
        (DEEPSEEK2 | {"scoring_func": "sigmoid"}, "scoring_func='sigmoid' is not supported: expected 'softmax'"),
        (DEEPSEEK2 | {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported: expected greedy or"),
        (DEEPSEEK2 | {"num_experts_per_tok": 9}, "num_experts_per_tok=9 is not usable: expected at most .*=8"),
        (
            DEEPSEEK3 | {"rope_parameters": YARN | {"factor": None, "mscale_all_dim": 1.0}},
            "mscale_all_dim=1.0 needs a factor: set factor",
        ),
        (GLM4_MOE | {"scoring_func": "tanh"}, "scoring_func='tanh' is not supported: expected 'sigmoid'"),
        (GLM4_LITE | {"topk_method": "greedy"}, "topk_method='greedy' is not supported: expected 'noaux_tc'"),
        (GLM4_LITE | {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        (GLM4_LITE | {"mlp_layer_types": ["dense", "wide"]}, "mlp_layer_types"),
        (MIXTRAL | {"num_experts_per_tok": 5}, "num_experts_per_tok=5 is not usable: expected at most num_local_exp"),
        (MIXTRAL | {"num_local_experts": 0}, "num_local_experts=0 is not usable"),
        (MIXTRAL | {"sliding_window": 0}, "sliding_window=0 is not usable"),
        (QWEN2_MOE | {"num_experts_per_tok": 0}, "num_experts_per_tok=0 is not usable"),
        (QWEN2_MOE | {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size=0 is not usable"),
        (QWEN3_MOE | {"moe_intermediate_size": 0}, "moe_intermediate_size=0 is not usable"),
        (QWEN3_MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step=0 is not usable"),
        (QWEN3_MOE | {"mlp_only_layers": ["a"]}, "mlp_only_layers"),
        (LLAMA4 | {"attention_chunk_size": None}, "attention_chunk_size=None is not usable"),
        (LLAMA4 | {"floor_scale": 0}, "floor_scale=0 is not usable"),
        (LLAMA4 | {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step=0 is not usable"),
        (LLAMA4 | {"layer_types": [FULL, WINDOW]}, "sliding_attention is not supported: expected full_attention or ch"),
        (
            LLAMA4 | {"no_rope_layers": [1], "layer_types": [FULL, FULL]},
            r"no_rope_layers=\[1\] is not usable: expected a 0 or 1 for each of .*=2",
        ),
        (LLAMA4 | {"rope_parameters": YARN}, "rope_parameters: an attention_factor other than 1 is not supported with"),
        (GPT_OSS | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported: expected silu"),
        (GPT_OSS | {"num_experts_per_tok": 5}, "num_experts_per_tok=5 is not usable: expected at most num_local_exp"),
        (GPT_OSS | {"layer_types": [FULL, "linear_attention"]}, "linear_attention"),
        (OLMOE | {"clip_qkv": 8.0}, "clip_qkv=8.0 is not supported: expected null"),
        (ERNIE | {"use_bias": True}, "use_bias=True is not supported: expected false, as the head has no bias"),
        (ERNIE | {"moe_norm_min": 0.5}, "moe_norm_min=0.5 is not supported: expected at most 1e-12"),
        (ERNIE | {"moe_layer_start_index": -2}, "moe_layer_start_index=-2 is not usable"),
        (MINIMAX | {"attn_type_list": [1, 0]}, r"attn_type_list=\[1, 0\] is not supported: expected 1 for all layers"),
        (MINIMAX | {"scoring_func": "softmax"}, "scoring_func='softmax' is not supported: expected 'sigmoid'"),
        (
            GRANITE4 | {"layer_types": ["mamba", "sliding_attention"]},
            "layer_types: sliding_attention is not supported: expected full_attention or linear_attention",
        ),
        (GRANITE4 | {"mamba_n_groups": 3}, "mamba_n_heads=8 is not a multiple of mamba_n_groups=3"),
        (
            GRANITE4 | {"mamba_d_head": 16, "mamba_expand": 2},
            "mamba_n_heads=8 with mamba_d_head=16 is not usable: expected 64",
        ),
        (GRANITE4 | {"mamba_d_conv": 1}, "mamba_d_conv=1 is not usable: expected at least 2"),
        (GRANITE4 | {"mamba_d_state": 0}, "mamba_d_state=0 is not usable: expected a positive whole number"),
        (
            GRANITE4 | {"time_step_limit": [2.0, 1.0]},
            r"time_step_limit=\(2.0, 1.0\) is not usable: expected two numbers",
        ),
        (GRANITE4 | {"time_step_limit": None}, "time_step_limit=None is not usable"),
        (GRANITE4 | {"mamba_n_heads": None}, "mamba_n_heads=None is not usable: expected a positive whole number"),
        (GRANITE4 | {"mamba_d_head": "8"}, "mamba_d_head='8' is not usable: expected a positive whole number"),
        (GRANITE4 | {"mamba_expand": 2.0}, "mamba_expand=2.0 is not usable: expected a positive whole number"),
        (
            GRANITE4 | {"layer_types": ["mamba", 1]},
            r"layer_types=\['mamba', 1\] is not usable: expected a list with the",
        ),
        (
            GRANITE4 | {"layers_block_type": 7},
            "layers_block_type=7 is not usable: expected a list with the type of each",
        ),
        (GRANITE4 | {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported with Mamba-2: expected silu"),
        (MAMBA2 | {"n_groups": 3}, "num_heads=8 is not a multiple of n_groups=3"),
        (MAMBA2 | {"head_dim": 16, "expand": 2}, "num_heads=8 with head_dim=16 is not usable: expected 64 in all"),
        (MAMBA2 | {"conv_kernel": 1}, "conv_kernel=1 is not usable"),
        (MAMBA2 | {"layer_norm_epsilon": 2.0}, "layer_norm_epsilon=2.0 is not usable"),
        (MAMBA2 | {"hidden_act": "relu"}, "hidden_act='relu' is not supported with Mamba-2"),
        (
            NEMOTRON_H | {"hybrid_override_pattern": "M*-X"},
            r"hybrid_override_pattern='M\*-X' is not supported: expected",
        ),
        (NEMOTRON_H | {"hybrid_override_pattern": ""}, "hybrid_override_pattern='' is not supported"),
        (NEMOTRON_H | {"hybrid_override_pattern": None}, "hybrid_override_pattern=None is not supported"),
        (NEMOTRON_H | {"layers_block_type": "moe"}, "layers_block_type='moe' is not usable: expected a list with the"),
        (NEMOTRON_H | {"mamba_num_heads": 2**24}, "mamba_num_heads=16777216 is not usable: expected at most 4096"),
        (NEMOTRON_H | {"n_groups": 5}, "mamba_num_heads=8 is not a multiple of n_groups=5"),
        (NEMOTRON_H | {"mamba_hidden_act": "gelu"}, "mamba_hidden_act='gelu' is not supported with Mamba-2"),
        (NEMOTRON_H | {"mlp_hidden_act": "tanh"}, "mlp_hidden_act 'tanh' is not supported"),
        (NEMOTRON_H | {"n_routed_experts": 2, "n_group": 2}, "n_routed_experts=2 is not usable: expected at least two"),
        (NEMOTRON_H | {"moe_latent_size": 0}, "moe_latent_size=0 is not usable"),
        (NEMOTRON_H | {"sliding_window": 8}, "sliding_window=8 is not supported"),
        (EXAONE4 | {"sliding_window": 0}, "sliding_window=0 is not usable"),
        (HY_V3 | {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        (
            QWEN3_5 | {"layer_types": [LINEAR, WINDOW]},
            "layer_types: sliding_attention is not supported for qwen3_5_text: expected linear_attention or full_atten",
        ),
        (QWEN3_5 | {"layer_types": [LINEAR]}, "must be equal to the number of `layer_types`"),
        (
            QWEN3_5 | {"linear_num_value_heads": 5},
            "linear_num_value_heads=5 is not a multiple of linear_num_key_heads=2",
        ),
        (QWEN3_5 | {"linear_num_key_heads": 0}, "linear_num_key_heads=0 is not usable: expected a positive whole"),
        (
            QWEN3_5 | {"linear_num_value_heads": 2**24},
            "linear_num_value_heads=16777216 is not usable: expected at most",
        ),
        (QWEN3_5 | {"num_attention_heads": 2**24}, "num_attention_heads=16777216 is not usable: expected at most 4096"),
        (QWEN3_5 | {"linear_key_head_dim": -8}, "linear_key_head_dim=-8 is not usable: expected a positive whole"),
        (QWEN3_5 | {"linear_value_head_dim": 2**30}, "linear_value_head_dim=1073741824 is not usable: expected at mo"),
        (QWEN3_5 | {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim=1 is not usable: expected 2 to 16"),
        (QWEN3_5 | {"linear_conv_kernel_dim": 17}, "linear_conv_kernel_dim=17 is not usable: expected at most 16"),
        (QWEN3_5 | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported: expected silu, as it follows convol"),
        (QWEN3_NEXT | {"mlp_only_layers": [2]}, r"mlp_only_layers=\[2\] is not usable: expected layers below 2"),
        (QWEN3_NEXT | {"decoder_sparse_step": 0}, "decoder_sparse_step=0 is not usable"),
        (QWEN3_NEXT | {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size=0 is not usable"),
        (QWEN3_5_MOE | {"num_experts_per_tok": 5}, "num_experts_per_tok=5 is not usable: expected at most num_experts"),
        (
            LFM2 | {"layer_types": [CONV, WINDOW]},
            "layer_types: sliding_attention is not supported: expected conv or full_attention",
        ),
        (LFM2 | {"layer_types": [CONV]}, "layer_types"),
        (LFM2 | {"conv_L_cache": 1}, "conv_L_cache=1 is not usable: expected at least 2 tokens"),
        (LFM2 | {"conv_L_cache": 257}, "conv_L_cache=257 is not usable: expected at most 256"),
        (LFM2 | {"norm_eps": 1.0}, "norm_eps=1.0 is not usable: expected a number from 0 to 1"),
        (LFM2 | {"block_multiple_of": 0}, "block_multiple_of=0 is not usable: expected a positive whole number"),
        (LFM2 | {"block_ffn_dim_multiplier": -1.0}, "block_ffn_dim_multiplier=-1.0 is not usable: expected a positive"),
        (LFM2 | {"intermediate_size": 1}, "block_ffn_dim_multiplier=1 is not usable with intermediate_size=1: two"),
        (LFM3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported for sliding_attention"),
        (
            LFM2 | {"block_ffn_dim_multiplier": 1e308},
            r"=1e\+308 is not usable with intermediate_size=48: two thirds of it",
        ),
        (LFM2 | {"block_ffn_dim_multiplier": 2**63}, "block_ffn_dim_multiplier=9.22337e.18 is not usable with interm"),
        (LFM2 | {"block_ffn_dim_multiplier": 1e-9}, "block_ffn_dim_multiplier=1e-09 is not usable with intermediate_s"),
        (LFM2 | {"head_dim": "8"}, "head_dim='8' is not usable: expected a positive whole number"),
        (LFM2_MOE | {"layer_types": None}, "layer_types is None: expected one for each of num_hidden_layers=2"),
        (LFM2_MOE | {"num_dense_layers": 3}, "num_dense_layers=3 is not usable: expected at most num_hidden_layers=2"),
        (LFM2_MOE | {"num_experts_per_tok": 5}, "num_experts_per_tok=5 is not usable: expected at most num_experts=4"),
        (LFM3 | {"sliding_window": None}, "no window is set: set sliding_window to a number of tokens"),
        (LFM3 | {"layer_types": ["linear_attention", CONV]}, "layer_types: linear_attention is not supported"),
        (named("GemmaForCausalLM", "gemma", use_bidirectional_attention=True), "no token may attend to later ones"),
    ],
)
def test_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message) as caught:
        open_config(tmp_path, config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["bert", "gemma3-encoder", "modernbert", "nomic-bert"])
def test_an_encoder_that_is_refused_is_not_said_to_run_as_a_decoder(name: str, tmp_path: Path) -> None:
    architecture, config = CASES[name]
    field = "hidden_act" if hasattr(config, "hidden_act") else "hidden_activation"
    with pytest.raises(UnsupportedModelError, match=f"{field} 'quick_gelu' is not supported") as caught:
        open_config(tmp_path, config.to_dict() | {"architectures": [architecture], field: "quick_gelu"})
    assert "--model-impl" not in str(caught.value)


def test_transformers_before_it_knew_per_layer_config() -> None:
    require_like_layers(SimpleNamespace(model_type="llama"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (PHI3 | {"rope_scaling": LONGROPE}, 256),
        (OLMO3 | {"rope_scaling": YARN}, 256),
        (OLMO3 | {"rope_scaling": YARN, "layer_types": [FULL, FULL]}, 400),
        (SMOLLM3 | {"rope_scaling": YARN}, 400),
        (SMOLLM3 | {"no_rope_layers": [0, 0]}, 256),
        (MINISTRAL3 | {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}}, 400),
        (MINISTRAL3 | {"rope_parameters": YARN, "original_max_position_embeddings": 128}, 512),
        (LLAMA | {"rope_parameters": YARN | {"factor": None}}, 256),
        (LLAMA | {"rope_parameters": YARN | {"factor": None}, "original_max_position_embeddings": 64}, 256),
        (OPT, 256),
    ],
)
def test_the_longest_sequence(config: dict[str, Any], longest: int, tmp_path: Path) -> None:
    assert open_config(tmp_path, config).spec.max_model_len == longest
    with pytest.raises(ConfigError, match=rf"={longest + 1} .*at most {longest}, .*max_position_embeddings 256"):
        open_config(tmp_path, config, max_model_len=longest + 1)


def test_a_number_that_the_installed_transformers_does_not_know_has_its_default() -> None:
    assert positive_number(SimpleNamespace(), "swiglu_limit", 7.0) == 7.0
    assert positive_number(SimpleNamespace(swiglu_limit=1.5), "swiglu_limit", 7.0) == 1.5
