"""Gemma, with and without pictures."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Fields, Published, model, refused, serves, sizes, text

_GEMMA = model("GemmaForCausalLM", "gemma", head_dim=256, hidden_activation=None, hidden_act="gelu_pytorch_tanh")
_GEMMA |= {"rms_norm_eps": 1e-6, "vocab_size": 256000, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}
_GEMMA2 = _GEMMA | model("Gemma2ForCausalLM", "gemma2", attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
_GEMMA2 |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096}
_GEMMA3 = {"head_dim": 256, "max_position_embeddings": 32768, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6}
_GEMMA3 |= {"rope_local_base_freq": 10000, "rope_theta": 1e6, "sliding_window": 512, "vocab_size": 262144}
_GEMMA3_ALONE = model("Gemma3ForCausalLM", "gemma3_text", sliding_window_pattern=6, torch_dtype="bfloat16") | _GEMMA3
_STRETCHED = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}


def _gemma3(**text_fields: object) -> Fields:
    """With pictures, from 4B on."""
    config = {"model_type": "gemma3_text", **_STRETCHED, **text_fields}
    vision = {"model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896}
    return model("Gemma3ForConditionalGeneration", "gemma3", text_config=config, vision_config=vision) | {
        "eos_token_id": [1, 106],
        "mm_tokens_per_image": 256,
        "torch_dtype": "bfloat16",
    }


def _gemma3n(layers: int, inner: int, **fields: object) -> Fields:
    text_config = {
        "model_type": "gemma3n_text",
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * (layers - 10),
        "altup_num_inputs": 4,
        "head_dim": 256,
        "hidden_size": 2048,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": [inner] * layers,
        "laurel_rank": 64,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * (layers // 5),
        "num_attention_heads": 8,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "sliding_window": 512,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
        **fields,
    }
    fields = {"text_config": text_config, "vision_config": {}, "audio_config": {}}
    return model("Gemma3nForConditionalGeneration", "gemma3n", **fields)


def _gemma4(pattern: int, shape: Fields, **text_fields: object) -> Fields:
    """One in ``pattern`` layers sees all tokens."""
    kinds = ["sliding_attention"] * (pattern - 1) + ["full_attention"]
    config = {
        "model_type": "gemma4_text",
        "layer_types": kinds * (shape["num_hidden_layers"] // pattern),
        "final_logit_softcapping": 30.0,
        "global_head_dim": 512,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "tie_word_embeddings": True,
        "vocab_size": 262144,
        **shape,
        **text_fields,
    }
    return model("Gemma4ForConditionalGeneration", "gemma4", text_config=config, vision_config={}) | {
        "audio_config": None,
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
    }


_NO_TABLES = {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "max_position_embeddings": 262144}
_NO_TABLES |= {"sliding_window": 1024, "use_bidirectional_attention": "vision"}

GEMMAS: tuple[Published, ...] = (
    serves("google/gemma-2b-it", 2.506, _GEMMA | sizes(2048, 16384, 18, 8, 1)),
    serves("google/gemma-7b-it", 8.538, _GEMMA | sizes(3072, 24576, 28, 16)),
    serves("google/gemma-2-2b-it", 2.614, _GEMMA2 | sizes(2304, 9216, 26, 8, 4)),
    serves("google/gemma-2-9b-it", 9.242, _GEMMA2 | sizes(3584, 14336, 42, 16, 8)),
    serves(
        "google/gemma-2-27b-it",
        27.227,
        _GEMMA2 | sizes(4608, 36864, 46, 32, 16) | {"head_dim": 128, "query_pre_attn_scalar": 144},
    ),
    serves("google/gemma-3-270m-it", 0.268, _GEMMA3_ALONE | sizes(640, 2048, 18, 4, 1)),
    serves("google/gemma-3-1b-it", 1.000, _GEMMA3_ALONE | sizes(1152, 6912, 26, 4, 1)),
    text("google/gemma-3-4b-it", 3.880, _gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34)),
    text("google/medgemma-4b-it", 3.880, _gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34)),
    text("google/gemma-3-12b-it", 11.766, _gemma3(**sizes(3840, 15360, 48, 16, 8))),
    text(
        "google/gemma-3-27b-it",
        27.009,
        _gemma3(**sizes(5376, 21504, 62, 32, 16), head_dim=128, query_pre_attn_scalar=168),
    ),
    text(
        "google/gemma-4-E2B-it",
        4.629,
        _gemma4(5, sizes(1536, 6144, 35, 8, 1), num_kv_shared_layers=20, use_double_wide_mlp=True),
    ),
    text("google/gemma-4-E4B-it", 7.463, _gemma4(6, sizes(2560, 10240, 42, 8, 2), num_kv_shared_layers=18)),
    text(
        "google/gemma-4-31B-it",
        30.697,
        _gemma4(6, sizes(5376, 21504, 60, 32, 16) | _NO_TABLES, num_global_key_value_heads=4),
    ),
    text(
        "google/gemma-4-26B-A4B-it",
        25.233,
        _gemma4(
            6,
            sizes(2816, 2112, 30, 16, 8) | _NO_TABLES,
            enable_moe_block=True,
            moe_intermediate_size=704,
            num_experts=128,
            num_global_key_value_heads=2,
            top_k_experts=8,
        ),
    ),
    text("google/gemma-3n-E2B-it", 4.435, _gemma3n(30, 8192, num_kv_shared_layers=10)),
    text("google/gemma-3n-E4B-it", 6.835, _gemma3n(35, 16384, num_kv_shared_layers=15)),
    refused(
        "google/paligemma2-3b-mix-224",
        "a multimodal model (vision_config) of a class whose text is not served",
        model("PaliGemmaForConditionalGeneration", "paligemma", text_config={"model_type": "gemma2"}, vision_config={}),
    ),
    refused(
        "google/recurrentgemma-2b-it",
        "a hybrid of attention and recurrent layers (block_types)",
        model("RecurrentGemmaForCausalLM", "recurrent_gemma", lru_width=2560, hidden_size=2560, vocab_size=256000)
        | {"block_types": ["recurrent", "recurrent", "attention"], "num_attention_heads": 10},
    ),
    refused(
        "google/t5gemma-2b-2b-prefixlm-it",
        "an encoder-decoder or a part of one",
        model("T5GemmaForConditionalGeneration", "t5gemma", is_encoder_decoder=True, encoder={}, decoder={}),
    ),
    serves(
        "google/embeddinggemma-300m",
        0.3029,
        _GEMMA3_ALONE
        | {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
        | sizes(768, 1152, 24, 3, 1),
    ),
)
