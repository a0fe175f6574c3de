"""Other laboratories' models of text."""

from __future__ import annotations

from tests.engine_core.models.published.entry import (
    Fields,
    Published,
    falls_back,
    model,
    refused,
    serves,
    sizes,
)

_HUNYUAN_ROPE = {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0}
_HUNYUAN_ROPE |= {"mscale_all_dim": 1.0, "type": "dynamic"}
_LONG_MOE = {"long_factor": [2.0] * 64, "short_factor": [1.0] * 64, "type": "longrope"}
_LONG_MOE |= {"long_mscale": 1.243163121016122, "short_mscale": 1.243163121016122}
_LONG_MOE |= {"original_max_position_embeddings": 4096}
_LONG = {"long_factor": [1.0 + at / 8 for at in range(48)], "short_factor": [1.0] * 48, "type": "longrope"}
_PHI3 = model("Phi3ForCausalLM", "phi3", rms_norm_eps=1e-5, rope_theta=10000.0, torch_dtype="bfloat16")
_PHI3 |= {
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "original_max_position_embeddings": 4096,
}
_PHI3 |= {"tie_word_embeddings": False, "vocab_size": 32064, "max_position_embeddings": 4096, "sliding_window": 2047}
_PHI3_LONG = {"max_position_embeddings": 131072, "rope_scaling": _LONG, "sliding_window": 262144}
_OLMO2 = model("Olmo2ForCausalLM", "olmo2", rms_norm_eps=1e-6, rope_theta=5e5, tie_word_embeddings=False)
_OLMO2 |= {"max_position_embeddings": 4096, "vocab_size": 100352}
_WINDOWS = ["sliding_attention"] * 3 + ["full_attention"]
_OLMO3 = _OLMO2 | model(
    "Olmo3ForCausalLM", "olmo3", max_position_embeddings=65536, sliding_window=4096, vocab_size=100278
)
_OLMO3 |= {
    "rope_scaling": {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "yarn",
    }
}
_GRANITE = model(
    "GraniteForCausalLM", "granite", embedding_multiplier=12.0, residual_multiplier=0.22, rms_norm_eps=1e-5
)
_GRANITE |= {"max_position_embeddings": 131072, "rope_theta": 1e7, "tie_word_embeddings": True, "vocab_size": 49159}
_GPT_OSS = model("GptOssForCausalLM", "gpt_oss", attention_bias=True, head_dim=64, hidden_act="silu", swiglu_limit=7.0)
_GPT_OSS |= {
    "initial_context_length": 4096,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
}
_GPT_OSS |= {"rms_norm_eps": 1e-5, "rope_theta": 150000, "tie_word_embeddings": False, "vocab_size": 201088}
_GPT_OSS |= {
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
}
_COHERE = model(
    "CohereForCausalLM", "cohere", layer_norm_eps=1e-5, logit_scale=0.0625, rope_theta=8e6, use_qk_norm=False
)
_COHERE |= {"max_position_embeddings": 8192, "vocab_size": 256000}
_COHERE2 = model(
    "Cohere2ForCausalLM", "cohere2", layer_norm_eps=1e-5, logit_scale=0.25, position_embedding_type="rope_gptj"
)
_COHERE2 |= {
    "max_position_embeddings": 132096,
    "rope_theta": 50000,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
_COHERE2 |= {
    "layer_switch": 4,
    "order_of_interleaved_layers": "local_attn_first",
    "rotary_pct": 1.0,
    "vocab_size": 256000,
    "head_dim": 128,
}
_NEOX = model("GPTNeoXForCausalLM", "gpt_neox", rotary_pct=0.25, rotary_emb_base=10000, use_parallel_residual=True)
_NEOX |= {
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
_STARCODER2 = model("Starcoder2ForCausalLM", "starcoder2", use_bias=True, norm_epsilon=1e-5, sliding_window=4096)
_STARCODER2 |= {
    "max_position_embeddings": 16384,
    "vocab_size": 49152,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_type": "layer_norm",
    "rope_theta": 1e6,
}
_STABLE = model(
    "StableLmForCausalLM", "stablelm", layer_norm_eps=1e-5, partial_rotary_factor=0.25, tie_word_embeddings=False
)
_STABLE |= {"max_position_embeddings": 4096, "vocab_size": 100352, "rope_theta": 10000}
_EXAONE = model("Exaone4ForCausalLM", "exaone4", rms_norm_eps=1e-5, rope_theta=1e6, vocab_size=102400)
_LLAMA3_ROPE = {
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def _opt(hidden: int, inner: int, layers: int, heads: int, **fields: object) -> Fields:
    config = model("OPTForCausalLM", "opt", hidden_size=hidden, ffn_dim=inner, num_hidden_layers=layers)
    config |= {"num_attention_heads": heads, "word_embed_proj_dim": hidden, "do_layer_norm_before": True}
    return config | {"activation_function": "relu", "max_position_embeddings": 2048, "vocab_size": 50272, **fields}


def _code(module: str, name: str) -> Fields:
    return {"auto_map": {"AutoModelForCausalLM": f"{module}.{name}"}}


LABS: tuple[Published, ...] = (
    serves(
        "HuggingFaceTB/SmolLM3-3B",
        3.075,
        model(
            "SmolLM3ForCausalLM",
            "smollm3",
            max_position_embeddings=65536,
            rms_norm_eps=1e-6,
            rope_theta=5e6,
            vocab_size=128256,
            tie_word_embeddings=True,
            no_rope_layers=[1, 1, 1, 0] * 9,
            no_rope_layer_interval=4,
            use_sliding_window=False,
            layer_types=["full_attention"] * 36,
        )
        | sizes(2048, 11008, 36, 16, 4),
    ),
    serves("microsoft/Phi-3-mini-4k-instruct", 3.821, _PHI3 | sizes(3072, 8192, 32, 32)),
    serves("microsoft/Phi-3.5-mini-instruct", 3.821, _PHI3 | sizes(3072, 8192, 32, 32) | _PHI3_LONG),
    serves("microsoft/Phi-3-medium-4k-instruct", 13.960, _PHI3 | sizes(5120, 17920, 40, 40, 10)),
    serves(
        "microsoft/phi-4",
        14.660,
        _PHI3
        | sizes(5120, 17920, 40, 40, 10)
        | {
            "vocab_size": 100352,
            "rope_theta": 250000,
            "sliding_window": None,
            "max_position_embeddings": 16384,
            "original_max_position_embeddings": 16384,
        },
    ),
    serves(
        "microsoft/Phi-4-mini-instruct",
        3.836,
        _PHI3
        | sizes(3072, 8192, 32, 24, 8)
        | _PHI3_LONG
        | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "vocab_size": 200064},
    ),
    falls_back(
        "microsoft/phi-2",
        2.780,
        model(
            "PhiForCausalLM",
            "phi",
            partial_rotary_factor=0.4,
            layer_norm_eps=1e-5,
            max_position_embeddings=2048,
            vocab_size=51200,
            hidden_act="gelu_new",
            qk_layernorm=False,
            tie_word_embeddings=False,
        )
        | sizes(2560, 10240, 32, 32),
    ),
    refused(
        "microsoft/Phi-3.5-MoE-instruct",
        "longrope",
        model("PhiMoEForCausalLM", "phimoe", num_local_experts=16, num_experts_per_tok=2, rope_scaling=_LONG_MOE)
        | _code("modeling_phimoe", "PhiMoEForCausalLM")
        | sizes(4096, 6400, 32, 32, 8),
    ),
    refused(
        "microsoft/Phi-3-small-8k-instruct",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("Phi3SmallForCausalLM", "phi3small")
        | _code("modeling_phi3_small", "Phi3SmallForCausalLM")
        | sizes(4096, 14336, 32, 32, 8),
    ),
    refused(
        "microsoft/Phi-4-multimodal-instruct",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("Phi4MMForCausalLM", "phi4mm", audio_processor={}, vision_lora={})
        | _code("modeling_phi4mm", "Phi4MMForCausalLM")
        | sizes(3072, 8192, 32, 24, 8),
    ),
    serves(
        "openai/gpt-oss-20b",
        20.915,
        _GPT_OSS
        | sizes(2880, 2880, 24, 64, 8)
        | {"num_local_experts": 32, "layer_types": ["sliding_attention", "full_attention"] * 12},
    ),
    serves(
        "openai/gpt-oss-120b",
        116.829,
        _GPT_OSS
        | sizes(2880, 2880, 36, 64, 8)
        | {"num_local_experts": 128, "layer_types": ["sliding_attention", "full_attention"] * 18},
    ),
    refused(
        "openai-community/gpt2",
        "not named …ForCausalLM",
        model(
            "GPT2LMHeadModel", "gpt2", n_embd=768, n_layer=12, n_head=12, n_ctx=1024, n_positions=1024, vocab_size=50257
        ),
    ),
    falls_back(
        "allenai/OLMo-1B-hf",
        1.177,
        model(
            "OlmoForCausalLM",
            "olmo",
            clip_qkv=None,
            max_position_embeddings=2048,
            vocab_size=50304,
            tie_word_embeddings=True,
        )
        | sizes(2048, 8192, 16, 16),
    ),
    serves("allenai/OLMo-2-1124-7B-Instruct", 7.299, _OLMO2 | sizes(4096, 11008, 32, 32)),
    serves("allenai/OLMo-2-0325-32B-Instruct", 32.234, _OLMO2 | sizes(5120, 27648, 64, 40, 8)),
    serves("allenai/Olmo-3-7B-Instruct", 7.298, _OLMO3 | sizes(4096, 11008, 32, 32) | {"layer_types": _WINDOWS * 8}),
    serves("allenai/Olmo-3-32B-Think", 32.234, _OLMO3 | sizes(5120, 27648, 64, 40, 8) | {"layer_types": _WINDOWS * 16}),
    serves(
        "allenai/OLMoE-1B-7B-0924-Instruct",
        6.919,
        model("OlmoeForCausalLM", "olmoe", num_experts=64, num_experts_per_tok=8, norm_topk_prob=False, clip_qkv=None)
        | sizes(2048, 1024, 16, 16),
    ),
    serves(
        "ibm-granite/granite-3.3-2b-instruct",
        2.534,
        _GRANITE | sizes(2048, 8192, 40, 32, 8) | {"attention_multiplier": 0.015625, "logits_scaling": 8.0},
    ),
    serves(
        "ibm-granite/granite-3.3-8b-instruct",
        8.171,
        _GRANITE | sizes(4096, 12800, 40, 32, 8) | {"attention_multiplier": 0.0078125, "logits_scaling": 16.0},
    ),
    serves(
        "ibm-granite/granite-3.1-3b-a800m-instruct",
        3.299,
        model(
            "GraniteMoeForCausalLM",
            "granitemoe",
            vocab_size=49155,
            tie_word_embeddings=True,
            num_local_experts=40,
            num_experts_per_tok=8,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            attention_multiplier=0.015625,
            logits_scaling=6.0,
        )
        | sizes(1536, 512, 32, 24, 8),
    ),
    serves(
        "ibm-granite/granite-4.0-h-tiny",
        6.939,
        model(
            "GraniteMoeHybridForCausalLM",
            "granitemoehybrid",
            vocab_size=100352,
            tie_word_embeddings=True,
            layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
            num_local_experts=64,
            num_experts_per_tok=6,
            shared_intermediate_size=1024,
            mamba_n_heads=48,
            mamba_d_state=128,
        )
        | sizes(1536, 512, 40, 12, 4),
    ),
    serves(
        "ibm-granite/granite-4.0-micro",
        3.403,
        model(
            "GraniteMoeHybridForCausalLM",
            "granitemoehybrid",
            vocab_size=100352,
            tie_word_embeddings=True,
            layer_types=["attention"] * 40,
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=8192,
            mamba_n_heads=128,
            mamba_d_state=256,
            position_embedding_type="rope",
        )
        | sizes(2560, 8192, 40, 40, 8),
    ),
    falls_back(
        "ibm-granite/granite-20b-code-instruct-8k",
        20.074,
        model(
            "GPTBigCodeForCausalLM",
            "gpt_bigcode",
            n_embd=6144,
            n_head=48,
            n_inner=24576,
            n_layer=52,
            n_positions=8192,
            multi_query=True,
            activation_function="gelu",
            vocab_size=49152,
        ),
    ),
    falls_back(
        "bigcode/starcoderbase-1b",
        1.137,
        model(
            "GPTBigCodeForCausalLM",
            "gpt_bigcode",
            n_embd=2048,
            n_head=16,
            n_inner=8192,
            n_layer=24,
            n_positions=8192,
            multi_query=True,
            activation_function="gelu_pytorch_tanh",
            vocab_size=49152,
        ),
    ),
    falls_back("bigcode/starcoder2-3b", 3.030, _STARCODER2 | sizes(3072, 12288, 30, 24, 2)),
    falls_back(
        "bigcode/starcoder2-15b", 15.957, _STARCODER2 | sizes(6144, 24576, 40, 48, 4) | {"tie_word_embeddings": False}
    ),
    falls_back("stabilityai/stablelm-2-1_6b-chat", 1.645, _STABLE | sizes(2048, 5632, 24, 32) | {"use_qkv_bias": True}),
    falls_back(
        "stabilityai/stablelm-zephyr-3b",
        2.795,
        _STABLE | sizes(2560, 6912, 32, 32) | {"vocab_size": 50304, "use_qkv_bias": False},
    ),
    falls_back(
        "stabilityai/stablelm-2-12b-chat",
        12.143,
        _STABLE
        | sizes(5120, 13824, 40, 32, 8)
        | {"use_qkv_bias": False, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    falls_back("CohereLabs/c4ai-command-r-v01", 34.981, _COHERE | sizes(8192, 22528, 40, 64)),
    falls_back(
        "CohereLabs/aya-expanse-8b",
        8.028,
        _COHERE | sizes(4096, 14336, 32, 32, 8) | {"logit_scale": 0.125, "rope_theta": 10000},
    ),
    falls_back(
        "CohereLabs/c4ai-command-r-plus",
        103.811,
        _COHERE | sizes(12288, 33792, 64, 96, 8) | {"use_qk_norm": True, "logit_scale": 0.8333333333333334},
    ),
    falls_back("CohereLabs/c4ai-command-r7b-12-2024", 8.028, _COHERE2 | sizes(4096, 14336, 32, 32, 8)),
    falls_back("CohereLabs/c4ai-command-a-03-2025", 111.058, _COHERE2 | sizes(12288, 36864, 64, 96, 8)),
    serves(
        "LGAI-EXAONE/EXAONE-4.0-1.2B",
        1.279,
        _EXAONE
        | sizes(2048, 4096, 30, 32, 8)
        | {
            "head_dim": 64,
            "max_position_embeddings": 65536,
            "rope_scaling": _LLAMA3_ROPE,
            "sliding_window": None,
            "sliding_window_pattern": None,
            "layer_types": ["full_attention"] * 30,
            "tie_word_embeddings": True,
        },
    ),
    serves(
        "LGAI-EXAONE/EXAONE-4.0-32B",
        32.003,
        _EXAONE
        | sizes(5120, 27392, 64, 40, 8)
        | {
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rope_scaling": _LLAMA3_ROPE,
            "sliding_window": 4096,
            "sliding_window_pattern": "LLLG",
            "layer_types": _WINDOWS * 16,
            "tie_word_embeddings": False,
        },
    ),
    refused(
        "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("ExaoneForCausalLM", "exaone", num_layers=32, hidden_size=4096)
        | _code("modeling_exaone", "ExaoneForCausalLM"),
    ),
    serves(
        "baidu/ERNIE-4.5-0.3B-PT",
        0.361,
        model(
            "Ernie4_5ForCausalLM",
            "ernie4_5",
            head_dim=128,
            max_position_embeddings=131072,
            rms_norm_eps=1e-5,
            rope_theta=5e5,
            use_bias=False,
            vocab_size=103424,
            tie_word_embeddings=True,
        )
        | sizes(1024, 3072, 18, 16, 2),
    ),
    serves(
        "baidu/ERNIE-4.5-21B-A3B-PT",
        21.825,
        model(
            "Ernie4_5_MoeForCausalLM",
            "ernie4_5_moe",
            moe_num_experts=64,
            moe_k=6,
            moe_intermediate_size=1536,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
        )
        | sizes(2560, 12288, 28, 20, 4),
    ),
    falls_back(
        "tencent/Hunyuan-7B-Instruct",
        7.505,
        model(
            "HunYuanDenseV1ForCausalLM",
            "hunyuan_v1_dense",
            head_dim=128,
            max_position_embeddings=262144,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            vocab_size=128167,
            tie_word_embeddings=True,
            use_qk_norm=True,
            rope_scaling=_HUNYUAN_ROPE,
        )
        | sizes(4096, 14336, 32, 32, 8),
    ),
    falls_back(
        "tencent/Hunyuan-A13B-Instruct",
        80.393,
        model(
            "HunYuanMoEV1ForCausalLM",
            "hunyuan_v1_moe",
            head_dim=128,
            max_position_embeddings=32768,
            moe_intermediate_size=[3072] * 32,
            moe_topk=[8] * 32,
            num_experts=64,
            num_shared_expert=[1] * 32,
            rms_norm_eps=1e-5,
            rope_scaling=_HUNYUAN_ROPE,
            rope_theta=10000.0,
            tie_word_embeddings=True,
            use_qk_norm=True,
            vocab_size=128167,
        )
        | _code("hunyuan", "HunYuanMoEV1ForCausalLM")
        | sizes(4096, 3072, 32, 32, 8),
    ),
    serves(
        "ByteDance-Seed/Seed-OSS-36B-Instruct",
        36.151,
        model(
            "SeedOssForCausalLM",
            "seed_oss",
            attention_bias=True,
            attention_out_bias=False,
            head_dim=128,
            max_position_embeddings=524288,
            mlp_bias=False,
            rms_norm_eps=1e-6,
            rope_scaling={"rope_type": "default"},
            rope_theta=1e7,
            vocab_size=155136,
            tie_word_embeddings=False,
            attention_dropout=0.1,
            residual_dropout=0.1,
        )
        | sizes(5120, 27648, 64, 80, 8),
    ),
    refused(
        "internlm/internlm2_5-7b-chat",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("InternLM2ForCausalLM", "internlm2")
        | _code("modeling_internlm2", "InternLM2ForCausalLM")
        | sizes(4096, 14336, 32, 32, 8),
    ),
    serves(
        "internlm/internlm3-8b-instruct",
        8.804,
        model("InternLM3ForCausalLM", "internlm3")
        | _code("modeling_internlm3", "InternLM3ForCausalLM")
        | sizes(4096, 10240, 48, 32, 2),
    ),
    falls_back(
        "nvidia/Nemotron-Mini-4B-Instruct",
        4.191,
        model(
            "NemotronForCausalLM",
            "nemotron",
            head_dim=128,
            hidden_act="relu2",
            max_position_embeddings=4096,
            norm_eps=1e-5,
            partial_rotary_factor=0.5,
            rope_theta=10000,
            vocab_size=256000,
            tie_word_embeddings=False,
        )
        | sizes(3072, 9216, 32, 24, 8),
    ),
    serves(
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        8.889,
        model(
            "NemotronHForCausalLM",
            "nemotron_h",
            hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
            ssm_state_size=128,
            mamba_num_heads=128,
            mamba_head_dim=80,
            vocab_size=131072,
        )
        | _code("modeling_nemotron_h", "NemotronHForCausalLM")
        | sizes(4480, 15680, 56, 40, 8),
    ),
    serves(
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        31.578,
        model(
            "NemotronHForCausalLM",
            "nemotron_h",
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            ssm_state_size=128,
            mamba_num_heads=64,
            mamba_head_dim=64,
            n_routed_experts=128,
            num_experts_per_tok=6,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
            routed_scaling_factor=2.5,
            vocab_size=131072,
        )
        | _code("modeling_nemotron_h", "NemotronHForCausalLM")
        | sizes(2688, 1856, 52, 32, 2),
    ),
    falls_back(
        "arcee-ai/AFM-4.5B",
        4.619,
        model(
            "ArceeForCausalLM",
            "arcee",
            hidden_act="relu2",
            head_dim=128,
            max_position_embeddings=65536,
            rms_norm_eps=1e-5,
            rope_scaling={
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 20.0,
                "mscale": 1.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "type": "yarn",
            },
            rope_theta=10000.0,
            vocab_size=128004,
            tie_word_embeddings=False,
        )
        | sizes(2560, 18432, 36, 20, 4),
    ),
    falls_back(
        "swiss-ai/Apertus-8B-Instruct-2509",
        8.053,
        model(
            "ApertusForCausalLM",
            "apertus",
            hidden_act="xielu",
            max_position_embeddings=65536,
            qk_norm=True,
            post_norm=False,
            rms_norm_eps=1e-5,
            rope_scaling=_LLAMA3_ROPE | {"factor": 8.0},
            rope_theta=12000000,
            vocab_size=131072,
            tie_word_embeddings=False,
        )
        | sizes(4096, 21504, 32, 32, 8),
    ),
    falls_back(
        "openbmb/MiniCPM3-4B",
        4.074,
        model(
            "MiniCPM3ForCausalLM",
            "minicpm3",
            kv_lora_rank=256,
            q_lora_rank=768,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
            max_position_embeddings=32768,
            scale_emb=12,
            scale_depth=1.4,
            dim_model_base=256,
            vocab_size=73448,
            rms_norm_eps=1e-5,
        )
        | _code("modeling_minicpm", "MiniCPM3ForCausalLM")
        | sizes(2560, 6400, 62, 40),
    ),
    falls_back(
        "kyutai/helium-1-2b",
        2.024,
        model(
            "HeliumForCausalLM",
            "helium",
            head_dim=128,
            max_position_embeddings=4096,
            rms_norm_eps=1e-8,
            rope_theta=20000.0,
            vocab_size=64000,
            tie_word_embeddings=False,
        )
        | sizes(2048, 8192, 28, 16, 8),
    ),
    refused(
        "tiiuae/falcon-7b-instruct",
        "it does not attend through transformers' AttentionInterface",
        model(
            "FalconForCausalLM",
            "falcon",
            hidden_size=4544,
            num_hidden_layers=32,
            num_attention_heads=71,
            multi_query=True,
            parallel_attn=True,
            new_decoder_architecture=False,
            alibi=False,
            bias=False,
            vocab_size=65024,
        ),
    ),
    refused(
        "tiiuae/falcon-rw-1b",
        "it does not attend through transformers' AttentionInterface",
        model(
            "FalconForCausalLM",
            "falcon",
            hidden_size=2048,
            num_hidden_layers=24,
            num_attention_heads=32,
            multi_query=False,
            parallel_attn=False,
            alibi=True,
            bias=True,
            vocab_size=50304,
        ),
    ),
    refused(
        "tiiuae/Falcon-H1-7B-Instruct",
        "a hybrid of attention and state-space layers (mamba_d_ssm)",
        model("FalconH1ForCausalLM", "falcon_h1", mamba_d_ssm=3072, mamba_n_heads=24) | sizes(3072, 12288, 44, 12, 2),
    ),
    refused(
        "tiiuae/falcon-mamba-7b-instruct",
        "a model of state-space layers (state_size)",
        model(
            "FalconMambaForCausalLM",
            "falcon_mamba",
            hidden_size=4096,
            state_size=16,
            num_hidden_layers=64,
            vocab_size=65024,
        ),
    ),
    refused(
        "state-spaces/mamba-2.8b-hf",
        "a model of state-space layers (state_size)",
        model("MambaForCausalLM", "mamba", hidden_size=2560, state_size=16, num_hidden_layers=64, vocab_size=50280),
    ),
    refused(
        "ai21labs/AI21-Jamba-1.5-Mini",
        "a hybrid of attention and state-space layers (mamba_d_state)",
        model("JambaForCausalLM", "jamba", attn_layer_period=8, mamba_d_state=16, num_experts=16, num_experts_per_tok=2)
        | sizes(4096, 14336, 32, 32, 8),
    ),
    serves(
        "LiquidAI/LFM2-1.2B",
        1.17,
        model("Lfm2ForCausalLM", "lfm2", block_ff_dim=12288, full_attn_idxs=[2, 5, 8, 10, 12, 14])
        | {"conv_L_cache": 3, "tie_embedding": True, "vocab_size": 65536}
        | sizes(2048, 12288, 16, 32, 8),
    ),
    serves(
        "LiquidAI/LFM2-8B-A1B",
        8.34,
        model(
            "Lfm2MoeForCausalLM",
            "lfm2_moe",
            conv_L_cache=3,
            layer_types=["full_attention" if at in (2, 6, 10, 14, 18, 21) else "conv" for at in range(24)],
            moe_intermediate_size=1792,
            num_dense_layers=2,
            num_experts=32,
            num_experts_per_tok=4,
            vocab_size=65536,
        )
        | sizes(2048, 7168, 24, 32, 8),
    ),
    refused(
        "RWKV/rwkv-4-169m-pile",
        "a model of recurrent layers (rescale_every)",
        model(
            "RwkvForCausalLM",
            "rwkv",
            hidden_size=768,
            num_hidden_layers=12,
            rescale_every=6,
            attention_hidden_size=768,
            vocab_size=50277,
        ),
    ),
    serves("facebook/opt-125m", 0.1252, _opt(768, 3072, 12, 12)),
    serves("facebook/opt-350m", 0.3312, _opt(1024, 4096, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False)),
    serves("facebook/opt-6.7b", 6.658, _opt(4096, 16384, 32, 32)),
    falls_back("EleutherAI/pythia-70m", 0.0704, _NEOX | sizes(512, 2048, 6, 8) | {"vocab_size": 50304}),
    falls_back("EleutherAI/pythia-6.9b", 6.857, _NEOX | sizes(4096, 16384, 32, 32) | {"vocab_size": 50432}),
    falls_back("EleutherAI/gpt-neox-20b", 20.554, _NEOX | sizes(6144, 24576, 44, 64) | {"vocab_size": 50432}),
    refused(
        "EleutherAI/gpt-j-6b",
        "it does not attend through transformers' AttentionInterface",
        model(
            "GPTJForCausalLM",
            "gptj",
            n_embd=4096,
            n_head=16,
            n_layer=28,
            n_positions=2048,
            rotary_dim=64,
            vocab_size=50400,
        ),
    ),
    refused(
        "EleutherAI/gpt-neo-1.3B",
        "it does not attend through transformers' AttentionInterface",
        model(
            "GPTNeoForCausalLM",
            "gpt_neo",
            hidden_size=2048,
            num_layers=24,
            num_heads=16,
            attention_types=[[["global", "local"], 12]],
            window_size=256,
            vocab_size=50257,
        ),
    ),
    refused(
        "Salesforce/codegen-350M-mono",
        "it does not attend through transformers' AttentionInterface",
        model("CodeGenForCausalLM", "codegen", n_embd=1024, n_head=16, n_layer=20, rotary_dim=32, vocab_size=51200),
    ),
    refused(
        "bigscience/bloom-560m",
        "BloomForCausalLM does not run through transformers: config.json has no max_position_embeddings",
        model("BloomForCausalLM", "bloom", n_embed=1024, n_layer=24, num_attention_heads=16, vocab_size=250880),
    ),
    refused(
        "mosaicml/mpt-7b-instruct",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model(
            "MPTForCausalLM",
            "mpt",
            d_model=4096,
            n_layers=32,
            n_heads=32,
            vocab_size=50432,
            attn_config={"alibi": True},
        )
        | _code("modeling_mpt", "MPTForCausalLM"),
    ),
    serves(
        "MiniMaxAI/MiniMax-M2",
        228.69,
        model(
            "MiniMaxM2ForCausalLM",
            "minimax_m2",
            num_local_experts=256,
            num_experts_per_tok=8,
            scoring_func="sigmoid",
            rotary_dim=64,
            use_qk_norm=True,
        )
        | _code("modeling_minimax_m2", "MiniMaxM2ForCausalLM")
        | sizes(3072, 1536, 62, 48, 8),
    ),
    refused(
        "MiniMaxAI/MiniMax-Text-01",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("MiniMaxText01ForCausalLM", "minimax_text_01", attn_type_list=[0] * 7 + [1])
        | _code("modeling_minimax_text_01", "MiniMaxText01ForCausalLM"),
    ),
    refused(
        "MiniMaxAI/MiniMax-Text-01-hf",
        "a hybrid of attention and other layers (layer_types: linear_attention)",
        model(
            "MiniMaxForCausalLM",
            "minimax",
            layer_types=["linear_attention"] * 7 + ["full_attention"],
            num_local_experts=32,
        )
        | sizes(6144, 9216, 80, 64, 8),
    ),
    refused(
        "databricks/dbrx-instruct",
        "a mixture of experts (moe_num_experts=16), which runs only where it was tried",
        model(
            "DbrxForCausalLM",
            "dbrx",
            d_model=6144,
            ffn_config={"moe_num_experts": 16, "moe_top_k": 4},
            n_layers=40,
            n_heads=48,
        ),
    ),
    refused(
        "xai-org/grok-2",
        "a mixture of experts (num_local_experts=8), which runs only where it was tried",
        model("Grok1ForCausalLM", "git", num_local_experts=8, num_experts_per_tok=2) | sizes(8192, 32768, 64, 64, 8),
    ),
    refused(
        "baichuan-inc/Baichuan2-7B-Chat",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("BaichuanForCausalLM", "baichuan")
        | _code("modeling_baichuan", "BaichuanForCausalLM")
        | sizes(4096, 11008, 32, 32),
    ),
    refused(
        "inclusionAI/Ling-mini-2.0",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("BailingMoeV2ForCausalLM", "bailing_moe", num_experts=256, num_experts_per_tok=8)
        | _code("modeling_bailing_moe_v2", "BailingMoeV2ForCausalLM")
        | sizes(2048, 5120, 20, 16, 4),
    ),
    serves(
        "rednote-hilab/dots.llm1.inst",
        142.774,
        model(
            "Dots1ForCausalLM",
            "dots1",
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            vocab_size=152064,
            n_routed_experts=128,
            num_experts_per_tok=6,
            n_shared_experts=2,
        )
        | sizes(4096, 10944, 62, 32),
    ),
    refused(
        "XiaomiMiMo/MiMo-7B-RL",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("MiMoForCausalLM", "mimo", num_nextn_predict_layers=1)
        | _code("modeling_mimo", "MiMoForCausalLM")
        | sizes(4096, 11008, 36, 32, 8),
    ),
    refused(
        "GSAI-ML/LLaDA-8B-Instruct",
        "a diffusion language model, which does not generate token by token",
        model("LLaDAModelLM", "llada", d_model=4096, n_layers=32) | _code("modeling_llada", "LLaDAModelLM"),
    ),
    refused(
        "microsoft/bitnet-b1.58-2B-4T",
        "is quantized with BitNet, which is not supported",
        model(
            "BitNetForCausalLM",
            "bitnet",
            quantization_config={
                "quant_method": "bitnet",
                "linear_class": "autobitlinear",
                "quantization_mode": "offline",
            },
        )
        | sizes(2560, 6912, 30, 20, 5),
    ),
)
