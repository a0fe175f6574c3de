"""DeepSeek, Moonshot and GLM."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Fields, Published, experts, model, refused, serves, sizes, text


def _own(file: str, name: str) -> Fields:
    """The code that checkpoints carry, which nothing needs where there is a model for it."""
    return {
        "auto_map": {
            "AutoConfig": f"configuration_{file}.{name}Config",
            "AutoModelForCausalLM": f"modeling_{file}.{name}ForCausalLM",
        }
    }


_LATENT = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}
_YARN |= {"original_max_position_embeddings": 4096, "type": "yarn"}
_EXACT = _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
_DEEPSEEK2 = model("DeepseekV2ForCausalLM", "deepseek_v2") | _own("deepseek", "DeepseekV2") | _LATENT
_DEEPSEEK2 |= {
    "first_k_dense_replace": 1,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "n_shared_experts": 2,
}
_DEEPSEEK2 |= {
    "norm_topk_prob": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": _YARN,
    "rope_theta": 10000,
    "scoring_func": "softmax",
}
_DEEPSEEK2 |= {"seq_aux": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 102400}
_LITE = _DEEPSEEK2 | sizes(2048, 10944, 27, 16) | experts(64, 6, 1408, counted="n_routed_experts")
_LITE |= {"n_group": 1, "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0}
_FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
_DEEPSEEK3 = _DEEPSEEK2 | model("DeepseekV3ForCausalLM", "deepseek_v3") | _own("deepseek", "DeepseekV3")
_DEEPSEEK3 |= {"n_shared_experts": 1, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
V3 = (
    _DEEPSEEK3
    | sizes(7168, 18432, 61, 128)
    | experts(256, 8, 2048, counted="n_routed_experts", n_group=8, topk_group=4)
)
V3 |= {"first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "quantization_config": _FP8}
V3 |= {"rope_scaling": _EXACT, "routed_scaling_factor": 2.5, "vocab_size": 129280}
_KIMI_SHAPE = sizes(7168, 18432, 61, 64) | experts(384, 8, 2048, counted="n_routed_experts", n_group=1, topk_group=1)
_KIMI_SHAPE |= {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "vocab_size": 163840}
_KIMI_SHAPE |= {"max_position_embeddings": 131072, "rope_scaling": _EXACT | {"factor": 32.0}, "rope_theta": 50000.0}
_KIMI_SHAPE |= {"routed_scaling_factor": 2.827}
KIMI_K2 = V3 | _KIMI_SHAPE | {"model_type": "kimi_k2"}
_GLM = model(
    "GlmForCausalLM", "glm", attention_bias=True, head_dim=128, partial_rotary_factor=0.5, rms_norm_eps=1.5625e-7
)
_GLM |= {"max_position_embeddings": 131072, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 151552}
_GLM4 = _GLM | model("Glm4ForCausalLM", "glm4", rms_norm_eps=1e-5, max_position_embeddings=32768)
_GLM_MOE = _GLM4 | model(
    "Glm4MoeForCausalLM", "glm4_moe", n_group=1, topk_group=1, n_shared_experts=1, norm_topk_prob=True
)
_GLM_MOE |= {"max_position_embeddings": 131072, "num_nextn_predict_layers": 1, "rope_theta": 1e6, "rope_scaling": None}
GLM45 = _GLM_MOE | sizes(5120, 12288, 92, 96, 8) | experts(160, 8, 1536, counted="n_routed_experts", use_qk_norm=True)
GLM45 |= {"first_k_dense_replace": 3, "routed_scaling_factor": 2.5}
GLM45_AIR = (
    _GLM_MOE | sizes(4096, 10944, 46, 96, 8) | experts(128, 8, 1408, counted="n_routed_experts", use_qk_norm=False)
)
GLM45_AIR |= {"first_k_dense_replace": 1, "routed_scaling_factor": 1.0}
_FLASH = model("Glm4MoeLiteForCausalLM", "glm4_moe_lite") | sizes(2048, 10240, 47, 20) | _LATENT
_FLASH |= experts(64, 4, 1536, counted="n_routed_experts", n_shared_experts=1, first_k_dense_replace=1, n_group=1)
_FLASH |= {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "topk_group": 1, "topk_method": "noaux_tc"}
_FLASH |= {"max_position_embeddings": 202752, "rope_theta": 1e6, "routed_scaling_factor": 1.8, "vocab_size": 154880}
_FLASH |= {"norm_topk_prob": True, "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0}
_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}, "partial_rotary_factor": 0.5}

LATENTS: tuple[Published, ...] = (
    serves("deepseek-ai/DeepSeek-V2-Lite-Chat", 15.706, _LITE),
    serves("deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct", 15.706, _LITE),
    serves(
        "deepseek-ai/DeepSeek-V2.5",
        235.741,
        _DEEPSEEK2
        | sizes(5120, 12288, 60, 128)
        | experts(160, 6, 1536, counted="n_routed_experts", n_group=8, topk_group=3, q_lora_rank=1536)
        | {"routed_scaling_factor": 16.0, "topk_method": "group_limited_greedy"},
    ),
    serves("deepseek-ai/DeepSeek-V3-0324", 671.026, V3),
    serves("deepseek-ai/DeepSeek-R1", 671.026, V3),
    serves("deepseek-ai/DeepSeek-V3.1", 671.026, V3 | {"quantization_config": _FP8 | {"scale_fmt": "ue8m0"}}),
    refused(
        "deepseek-ai/DeepSeek-V3.2-Exp",
        "a model with sparse attention (index_topk)",
        V3
        | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "auto_map": None}
        | {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048},
    ),
    refused(
        "deepseek-ai/DeepSeek-V4-Flash",
        "a mixture of experts (n_routed_experts=256), which runs only where it was tried",
        model(
            "DeepseekV4ForCausalLM",
            "deepseek_v4",
            hidden_size=4096,
            num_hidden_layers=43,
            num_attention_heads=64,
            head_dim=512,
            num_key_value_heads=1,
            n_routed_experts=256,
            compress_ratios=[128, 128, *[4, 128] * 20, 4, 0],
        ),
    ),
    refused(
        "deepseek-ai/deepseek-moe-16b-chat",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("DeepseekForCausalLM", "deepseek")
        | _own("deepseek", "Deepseek")
        | sizes(2048, 10944, 28, 16)
        | experts(64, 6, 1408, counted="n_routed_experts"),
    ),
    serves(
        "moonshotai/Moonlight-16B-A3B-Instruct",
        15.960,
        _DEEPSEEK3
        | sizes(2048, 11264, 27, 16)
        | experts(64, 6, 1408, counted="n_routed_experts", n_shared_experts=2, n_group=1, topk_group=1)
        | {"max_position_embeddings": 8192, "rope_scaling": None, "rope_theta": 50000.0, "routed_scaling_factor": 2.446}
        | {"num_nextn_predict_layers": 0, "rms_norm_eps": 1e-5, "vocab_size": 163840},
    ),
    serves("moonshotai/Kimi-K2-Instruct", 1026.4, KIMI_K2),
    refused(
        "moonshotai/Kimi-Linear-48B-A3B-Instruct",
        "a hybrid of attention and linear attention (linear_attn_config)",
        model(
            "KimiLinearForCausalLM",
            "kimi_linear",
            auto_map={"AutoModelForCausalLM": "modeling_kimi.KimiLinearForCausalLM"},
        )
        | {"linear_attn_config": {"kda_layers": [1, 2, 3]}, "num_experts": 256}
        | sizes(2304, 9216, 27, 32),
    ),
    text(
        "moonshotai/Kimi-K2.5",
        1026.4,
        model(
            "KimiK25ForConditionalGeneration",
            "kimi_k25",
            text_config=KIMI_K2 | {"architectures": ["DeepseekV3ForCausalLM"]},
            vision_config={"vt_num_hidden_layers": 27},
        ),
    ),
    refused(
        "moonshotai/Kimi-VL-A3B-Instruct",
        "a multimodal model (vision_config) of a class whose text is not served",
        model("KimiVLForConditionalGeneration", "kimi_vl", text_config={"model_type": "deepseek_v3"}, vision_config={})
        | {"auto_map": {"AutoModelForCausalLM": "modeling_kimi_vl.KimiVLForConditionalGeneration"}},
    ),
    serves("zai-org/glm-4-9b-chat-hf", 9.400, _GLM | sizes(4096, 13696, 40, 32, 2)),
    serves("zai-org/GLM-4-9B-0414", 9.400, _GLM4 | sizes(4096, 13696, 40, 32, 2)),
    serves("zai-org/GLM-4-32B-0414", 32.566, _GLM4 | sizes(6144, 23040, 61, 48, 2) | {"attention_bias": False}),
    serves("zai-org/GLM-4.5-Air", 106.85, GLM45_AIR),
    serves("zai-org/GLM-4.6", 352.797, GLM45 | {"max_position_embeddings": 202752}),
    serves("zai-org/GLM-4.7-Flash", 29.943, _FLASH),
    refused(
        "zai-org/GLM-5",
        "a model with sparse attention (index_topk)",
        model("GlmMoeDsaForCausalLM", "glm_moe_dsa", index_topk=2048, index_n_heads=32, index_head_dim=128)
        | sizes(6144, 12288, 78, 64)
        | experts(256, 8, 2048, counted="n_routed_experts", n_shared_experts=1),
    ),
    refused(
        "zai-org/glm-4-9b-chat",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model(
            "ChatGLMModel",
            "chatglm",
            auto_map={"AutoModelForCausalLM": "modeling_chatglm.ChatGLMForConditionalGeneration"},
            hidden_size=4096,
            num_layers=40,
        ),
    ),
    text(
        "zai-org/GLM-4.1V-9B-Thinking",
        9.400,
        model(
            "Glm4vForConditionalGeneration", "glm4v", tie_word_embeddings=False, vision_config={"model_type": "glm4v"}
        )
        | {
            "text_config": {k: v for k, v in _GLM4.items() if k not in ("architectures", "head_dim")}
            | {"model_type": "glm4v_text"}
            | sizes(4096, 13696, 40, 32, 2)
            | _MROPE
        },
    ),
    text(
        "zai-org/GLM-4.5V",
        106.85,
        model("Glm4vMoeForConditionalGeneration", "glm4v_moe", tie_word_embeddings=False, vision_config={"depth": 24})
        | {"text_config": GLM45_AIR | {"model_type": "glm4v_moe_text"} | _MROPE},
    ),
)
