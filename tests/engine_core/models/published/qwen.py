"""Qwen's models of text, and models distilled into them."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Fields, Published, experts, model, refused, serves, sizes, text

_COMMON = {"rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936}
QWEN2 = model("Qwen2ForCausalLM", "qwen2") | _COMMON
QWEN2 |= {"max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": 32768, "tie_word_embeddings": False}
_LARGE = {"vocab_size": 152064}
_TIED = {"tie_word_embeddings": True}
_QWEN2_MOE = QWEN2 | model("Qwen2MoeForCausalLM", "qwen2_moe", norm_topk_prob=False, decoder_sparse_step=1)
_QWEN3 = {"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1e6, "sliding_window": None}
QWEN3 = model("Qwen3ForCausalLM", "qwen3", attention_bias=False, tie_word_embeddings=False) | _COMMON | _QWEN3
QWEN3_MOE = QWEN3 | model("Qwen3MoeForCausalLM", "qwen3_moe", norm_topk_prob=True, decoder_sparse_step=1)
QWEN3_MOE |= {"mlp_only_layers": []}
DELTA_NET: Fields = {
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
}
_ROTATION = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True}


def _qwen3_5(kind: str, text_sizes: Fields) -> Fields:
    """A composite; ``kind`` follows the name of its text model's type."""
    layers = ["linear_attention"] * 3 + ["full_attention"]
    text_config = {"model_type": f"qwen3_5{kind}_text", "vocab_size": 248320, "rms_norm_eps": 1e-6, **DELTA_NET}
    text_config |= text_sizes | {"layer_types": layers * (text_sizes["num_hidden_layers"] // 4)}
    text_config |= {"rope_parameters": _ROTATION | {"mrope_section": [11, 11, 10]}, "attn_output_gate": True}
    text_config |= {"mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32", "dtype": "bfloat16"}
    outer = model(f"Qwen3_5{kind.title().replace('_', '')}ForConditionalGeneration", f"qwen3_5{kind}")
    return outer | {"text_config": text_config, "vision_config": {"depth": 27}, "tie_word_embeddings": False}


QWENS: tuple[Published, ...] = (
    serves("Qwen/Qwen1.5-7B-Chat", 7.721, QWEN2 | sizes(4096, 11008, 32, 32)),
    serves("Qwen/Qwen2-0.5B-Instruct", 0.494, QWEN2 | sizes(896, 4864, 24, 14, 2) | _TIED),
    serves("Qwen/Qwen2.5-0.5B-Instruct", 0.494, QWEN2 | sizes(896, 4864, 24, 14, 2) | _TIED),
    serves("Qwen/Qwen2.5-1.5B-Instruct", 1.544, QWEN2 | sizes(1536, 8960, 28, 12, 2) | _TIED),
    serves("Qwen/Qwen2.5-3B-Instruct", 3.086, QWEN2 | sizes(2048, 11008, 36, 16, 2) | _TIED),
    serves("Qwen/Qwen2.5-7B-Instruct", 7.616, QWEN2 | sizes(3584, 18944, 28, 28, 4) | _LARGE),
    serves("Qwen/Qwen2.5-14B-Instruct", 14.770, QWEN2 | sizes(5120, 13824, 48, 40, 8) | _LARGE),
    serves("Qwen/Qwen2.5-Coder-32B-Instruct", 32.764, QWEN2 | sizes(5120, 27648, 64, 40, 8) | _LARGE),
    serves("Qwen/Qwen2.5-72B-Instruct", 72.706, QWEN2 | sizes(8192, 29568, 80, 64, 8) | _LARGE),
    serves(
        "Qwen/QwQ-32B", 32.764, QWEN2 | sizes(5120, 27648, 64, 40, 8) | _LARGE | {"max_position_embeddings": 131072}
    ),
    serves(
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        1.777,
        QWEN2 | sizes(1536, 8960, 28, 12, 2) | {"max_position_embeddings": 131072, "rope_theta": 10000},
    ),
    serves("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 32.764, QWEN2 | sizes(5120, 27648, 64, 40, 8) | _LARGE),
    serves(
        "Qwen/Qwen1.5-MoE-A2.7B-Chat",
        14.316,
        _QWEN2_MOE | sizes(2048, 5632, 24, 16) | experts(60, 4, 1408, shared_expert_intermediate_size=5632),
    ),
    serves(
        "Qwen/Qwen2-57B-A14B-Instruct",
        57.409,
        _QWEN2_MOE | sizes(3584, 18944, 28, 28, 4) | experts(64, 8, 2560, shared_expert_intermediate_size=20480),
    ),
    serves("Qwen/Qwen3-0.6B", 0.596, QWEN3 | sizes(1024, 3072, 28, 16, 8) | _TIED),
    serves("Qwen/Qwen3-1.7B", 1.721, QWEN3 | sizes(2048, 6144, 28, 16, 8) | _TIED),
    serves(
        "Qwen/Qwen3-4B-Instruct-2507",
        4.022,
        QWEN3 | sizes(2560, 9728, 36, 32, 8) | _TIED | {"max_position_embeddings": 262144, "rope_theta": 5e6},
    ),
    serves("Qwen/Qwen3-8B", 8.191, QWEN3 | sizes(4096, 12288, 36, 32, 8)),
    serves("Qwen/Qwen3-14B", 14.768, QWEN3 | sizes(5120, 17408, 40, 40, 8)),
    serves("Qwen/Qwen3-32B", 32.762, QWEN3 | sizes(5120, 25600, 64, 64, 8)),
    serves(
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
        8.191,
        QWEN3
        | sizes(4096, 12288, 36, 32, 8)
        | {
            "max_position_embeddings": 131072,
            "rope_scaling": {
                "attn_factor": 0.8782488562869419,
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
                "rope_type": "yarn",
            },
        },
    ),
    serves("Qwen/Qwen3-Reranker-0.6B", 0.596, QWEN3 | sizes(1024, 3072, 28, 16, 8) | _TIED | {"vocab_size": 151669}),
    serves("Qwen/Qwen3-30B-A3B", 30.532, QWEN3_MOE | sizes(2048, 6144, 48, 32, 4) | experts(128, 8, 768)),
    serves(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        30.532,
        QWEN3_MOE | sizes(2048, 6144, 48, 32, 4) | experts(128, 8, 768) | {"max_position_embeddings": 262144},
    ),
    serves("Qwen/Qwen3-235B-A22B", 235.094, QWEN3_MOE | sizes(4096, 12288, 94, 64, 4) | experts(128, 8, 1536)),
    serves(
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        480.155,
        QWEN3_MOE
        | sizes(6144, 8192, 62, 96, 8)
        | experts(160, 8, 2560, shared_expert_intermediate_size=0, max_position_embeddings=262144, qkv_bias=False),
    ),
    serves(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        79.674,
        model("Qwen3NextForCausalLM", "qwen3_next", rope_theta=1e7, partial_rotary_factor=0.25, **_COMMON)
        | sizes(2048, 5120, 48, 16, 2)
        | experts(512, 10, 512, shared_expert_intermediate_size=512, norm_topk_prob=True, decoder_sparse_step=1)
        | DELTA_NET,
    ),
    text("Qwen/Qwen3.5-9B", 8.954, _qwen3_5("", sizes(4096, 12288, 32, 16, 4))),
    text(
        "Qwen/Qwen3.5-35B-A3B",
        34.661,
        _qwen3_5("_moe", sizes(2048, 0, 40, 16, 2) | experts(256, 8, 512, shared_expert_intermediate_size=512)),
    ),
    refused(
        "Qwen/Qwen-7B-Chat",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("QWenLMHeadModel", "qwen", auto_map={"AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel"})
        | {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "kv_channels": 128},
    ),
)
