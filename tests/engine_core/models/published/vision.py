"""Models that also see or hear, beside Gemma's and GLM's."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Fields, Published, experts, model, refused, sizes, text
from tests.engine_core.models.published.llama import LLAMA3
from tests.engine_core.models.published.mistral import MISTRAL
from tests.engine_core.models.published.qwen import QWEN2

_MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "max_position_embeddings": 128000}
_TIED = {"tie_word_embeddings": True}
_SMALL = sizes(1536, 8960, 28, 12, 2) | _TIED
_7B = sizes(3584, 18944, 28, 28, 4) | {"vocab_size": 152064, "tie_word_embeddings": False}
_72B = sizes(8192, 29568, 80, 64, 8) | {"vocab_size": 152064, "tie_word_embeddings": False}
_QWEN3_VL = {
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
    "rope_theta": 5e6,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
_30B = sizes(2048, 6144, 48, 32, 4) | experts(128, 8, 768)
_TEKKEN = {"head_dim": 128, "rms_norm_eps": 1e-5, "vocab_size": 131072, "model_type": "mistral", "sliding_window": None}
_SMALL3 = sizes(5120, 32768, 40, 32, 8) | _TEKKEN | {"max_position_embeddings": 131072, "rope_theta": 1e9}
_QUERIES = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0}
_QUERIES |= {"mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1e6, "rope_type": "yarn"}
_MINISTRAL3 = _TEKKEN | {"model_type": "ministral3", "max_position_embeddings": 262144, "rope_parameters": _QUERIES}
_STATIC_FP8 = {
    "activation_scheme": "static",
    "dequantize": False,
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
    "quant_method": "fp8",
    "weight_block_size": None,
}
_LLAMA4_ROPE = {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
_LLAMA4_ROPE |= {"original_max_position_embeddings": 8192}
_TEXT_OF = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16"}


_DEEPSEEK_OCR = model(
    "DeepseekOCRForCausalLM",
    "deepseek_vl_v2",
    auto_map={"AutoModel": "modeling_deepseekocr.DeepseekOCRForCausalLM"},
    language_config=model("DeepseekV2ForCausalLM", "deepseek_v2")
    | sizes(1280, 6848, 12, 10, 10)
    | {"first_k_dense_replace": 1, "max_position_embeddings": 8192, "moe_intermediate_size": 896, "n_group": 1}
    | {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "topk_group": 1, "use_mla": False}
    | {"kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    | {"topk_method": "greedy", "vocab_size": 129280},
    projector_config={"input_dim": 2048, "model_type": "mlp_projector", "n_embed": 1280, "projector_type": "linear"},
    vision_config={
        "image_size": 1024,
        "mlp_ratio": 3.7362,
        "model_name": "deeplip_b_l",
        "model_type": "vision",
        "width": {
            "clip-l-14-224": {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14, "width": 1024},
            "sam_vit_b": {
                "downsample_channels": [512, 1024],
                "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12,
                "layers": 12,
                "width": 768,
            },
        },
    },
)


def _both(architecture: str, model_type: str, text_config: Fields, **fields: object) -> Fields:
    """A config.json with one of the text model inside."""
    return model(architecture, model_type, text_config=text_config, vision_config={}, **fields)


def _qwen2_vl(generation: str, *shapes: Fields) -> Fields:
    """Flat, as they are published."""
    config = dict(QWEN2 | _MROPE)
    for shape in shapes:
        config |= shape
    name = {"2": "Qwen2VL", "2_5": "Qwen2_5_VL"}[generation]
    return config | model(
        f"{name}ForConditionalGeneration", f"qwen{generation}_vl", vision_config={"hidden_size": 1280}
    )


def _qwen3_vl(shape: Fields) -> Fields:
    mixed = "num_experts" in shape
    kind = "qwen3_vl_moe" if mixed else "qwen3_vl"
    inner = {"model_type": f"{kind}_text"} | _QWEN3_VL | shape
    name = "Qwen3VLMoeForConditionalGeneration" if mixed else "Qwen3VLForConditionalGeneration"
    return _both(name, kind, inner, tie_word_embeddings=inner["tie_word_embeddings"])


def _mistral3(inner: Fields, **fields: object) -> Fields:
    return _both("Mistral3ForConditionalGeneration", "mistral3", inner, **fields)


VISION: tuple[Published, ...] = (
    text("Qwen/Qwen2-VL-2B-Instruct", 1.544, _qwen2_vl("2", _SMALL)),
    text("Qwen/Qwen2-VL-72B-Instruct", 72.706, _qwen2_vl("2", _72B)),
    text("Qwen/Qwen2.5-VL-3B-Instruct", 3.086, _qwen2_vl("2_5", sizes(2048, 11008, 36, 16, 2), _TIED)),
    text("Qwen/Qwen2.5-VL-7B-Instruct", 7.616, _qwen2_vl("2_5", _7B)),
    text("ByteDance-Seed/UI-TARS-1.5-7B", 7.616, _qwen2_vl("2_5", _7B)),
    text("Qwen/Qwen3-VL-4B-Instruct", 4.022, _qwen3_vl(sizes(2560, 9728, 36, 32, 8) | _TIED)),
    text("Qwen/Qwen3-VL-8B-Instruct", 8.191, _qwen3_vl(sizes(4096, 12288, 36, 32, 8))),
    text("Qwen/Qwen3-VL-30B-A3B-Instruct", 30.532, _qwen3_vl(_30B)),
    text(
        "Qwen/Qwen3-VL-235B-A22B-Instruct",
        235.094,
        _qwen3_vl(sizes(4096, 12288, 94, 64, 4) | experts(128, 8, 1536)),
    ),
    text(
        "Qwen/Qwen2-Audio-7B-Instruct",
        7.755,
        model("Qwen2AudioForConditionalGeneration", "qwen2_audio", audio_config={"model_type": "qwen2_audio_encoder"})
        | {
            "text_config": {
                "intermediate_size": 11008,
                "max_position_embeddings": 8192,
                "model_type": "qwen2",
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000,
                "sliding_window": 32768,
                "torch_dtype": "bfloat16",
                "use_mrope": False,
                "vocab_size": 156032,
            }
        },
    ),
    text(
        "Qwen/Qwen2.5-Omni-7B",
        7.616,
        model("Qwen2_5OmniModel", "qwen2_5_omni", talker_config={"model_type": "qwen2_5_omni_talker"})
        | {
            "enable_audio_output": True,
            "thinker_config": {
                "architectures": ["Qwen2_5OmniNaViTThinkerForConditionalGeneration"],
                "model_type": "qwen2_5_omni_thinker",
                "text_config": _7B | _MROPE | {"model_type": "qwen2_5_omni_text", "rope_theta": 1e6},
            },
            "token2wav_config": {"model_type": "qwen2_5_omni_token2wav"},
        },
    ),
    text(
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        30.533,
        model("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe", talker_config={}, code2wav_config={})
        | {
            "thinker_config": {
                "model_type": "qwen3_omni_moe_thinker",
                "text_config": {"model_type": "qwen3_omni_moe_text"}
                | _QWEN3_VL
                | _30B
                | {"max_position_embeddings": 65536, "rope_theta": 1e6, "vocab_size": 152064, "norm_topk_prob": True},
            }
        },
    ),
    text("mistralai/Mistral-Small-3.2-24B-Instruct-2506", 23.572, _mistral3(_SMALL3, tie_word_embeddings=False)),
    text(
        "mistralai/Ministral-3-3B-Instruct-2512",
        3.429,
        _mistral3(
            _MINISTRAL3 | sizes(3072, 9216, 26, 32, 8) | {"tie_word_embeddings": True}, quantization_config=_STATIC_FP8
        ),
    ),
    text(
        "mistralai/Ministral-3-8B-Instruct-2512",
        8.490,
        _mistral3(
            _MINISTRAL3 | sizes(4096, 14336, 34, 32, 8), tie_word_embeddings=False, quantization_config=_STATIC_FP8
        ),
    ),
    text(
        "mistral-community/pixtral-12b",
        12.248,
        _both("LlavaForConditionalGeneration", "llava", _TEKKEN | sizes(5120, 14336, 40, 32, 8) | {"rope_theta": 1e9}),
    ),
    text(
        "mistralai/Voxtral-Mini-3B-2507",
        4.014,
        model("VoxtralForConditionalGeneration", "voxtral", audio_config={"model_type": "voxtral_encoder"})
        | {
            "text_config": {"model_type": "llama", "head_dim": 128, "rope_theta": 1e8, "vocab_size": 131072}
            | sizes(3072, 8192, 30, 32, 8)
            | {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
        },
    ),
    text(
        "llava-hf/llava-1.5-7b-hf",
        6.739,
        _both(
            "LlavaForConditionalGeneration",
            "llava",
            _TEXT_OF | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064},
            tie_word_embeddings=False,
        ),
    ),
    text(
        "llava-hf/llava-v1.6-mistral-7b-hf",
        7.242,
        _both(
            "LlavaNextForConditionalGeneration",
            "llava_next",
            MISTRAL | sizes(4096, 14336, 32, 32, 8) | {"vocab_size": 32064},
            tie_word_embeddings=False,
        ),
    ),
    text(
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",
        7.615,
        _both(
            "LlavaOnevisionForConditionalGeneration",
            "llava_onevision",
            QWEN2 | _7B | {"vocab_size": 152000},
            tie_word_embeddings=False,
        ),
    ),
    text(
        "HuggingFaceTB/SmolVLM-Instruct",
        1.812,
        _both(
            "Idefics3ForConditionalGeneration",
            "idefics3",
            _TEXT_OF
            | sizes(2048, 8192, 24, 32)
            | {"max_position_embeddings": 16384, "rope_theta": 273768.0, "vocab_size": 49155},
            tie_word_embeddings=False,
        ),
    ),
    text(
        "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
        0.4093,
        _both(
            "SmolVLMForConditionalGeneration",
            "smolvlm",
            _TEXT_OF
            | sizes(960, 2560, 32, 15, 5)
            | {"head_dim": 64, "max_position_embeddings": 8192, "rope_theta": 100000, "vocab_size": 49280},
            tie_word_embeddings=False,
        ),
    ),
    text(
        "HuggingFaceM4/Idefics3-8B-Llama3",
        8.030,
        _both(
            "Idefics3ForConditionalGeneration",
            "idefics3",
            LLAMA3 | sizes(4096, 14336, 32, 32, 8) | {"vocab_size": 128259, "max_position_embeddings": 131072},
            tie_word_embeddings=False,
        ),
    ),
    text(
        "OpenGVLab/InternVL3-8B-hf",
        7.613,
        _both(
            "InternVLForConditionalGeneration",
            "internvl",
            QWEN2
            | _7B
            | {"vocab_size": 151674, "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}},
            tie_word_embeddings=False,
        ),
    ),
    text(
        "CohereLabs/aya-vision-8b",
        8.028,
        _both(
            "AyaVisionForConditionalGeneration",
            "aya_vision",
            sizes(4096, 14336, 32, 32, 8)
            | {"model_type": "cohere2", "layer_norm_eps": 1e-5, "logit_scale": 0.25, "max_position_embeddings": 8192}
            | {"rope_theta": 50000, "sliding_window": 4096, "sliding_window_pattern": 4, "vocab_size": 256000},
        ),
    ),
    text(
        "ibm-granite/granite-vision-3.3-2b",
        2.534,
        _both(
            "LlavaNextForConditionalGeneration",
            "llava_next",
            sizes(2048, 8192, 40, 32, 8)
            | {"model_type": "granite", "architectures": ["GraniteForCausalLM"], "attention_multiplier": 0.015625}
            | {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22, "vocab_size": 49156}
            | {"max_position_embeddings": 131072, "rope_theta": 300000, "tie_word_embeddings": True},
            tie_word_embeddings=True,
        ),
    ),
    text(
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        107.77,
        _both(
            "Llama4ForConditionalGeneration",
            "llama4",
            sizes(5120, 8192, 48, 40, 8)
            | {
                "model_type": "llama4_text",
                "attention_chunk_size": 8192,
                "head_dim": 128,
                "interleave_moe_layer_step": 1,
                "intermediate_size_mlp": 16384,
                "max_position_embeddings": 10485760,
                "no_rope_layers": [],
                "num_local_experts": 16,
                "rope_scaling": _LLAMA4_ROPE,
                "rope_theta": 500000.0,
                "vocab_size": 202048,
            },
            tie_word_embeddings=False,
        ),
    ),
    text(
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        400.7,
        _both(
            "Llama4ForConditionalGeneration",
            "llama4",
            {
                "model_type": "llama4_text",
                "attention_chunk_size": 8192,
                "interleave_moe_layer_step": 2,
                "max_position_embeddings": 1048576,
                "no_rope_layers": [],
                "num_local_experts": 128,
                "rope_scaling": None,
                "use_qk_norm": False,
            },
            tie_word_embeddings=False,
        ),
    ),
    refused(
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
        "a multimodal model (vision_config) of a class whose text is not served",
        _both(
            "MllamaForConditionalGeneration",
            "mllama",
            {"model_type": "mllama_text_model"} | sizes(4096, 14336, 40, 32, 8),
        ),
    ),
    text(
        "PaddlePaddle/PaddleOCR-VL",
        0.467,
        model("PaddleOCRVLForConditionalGeneration", "paddleocr_vl", vision_config={}, head_dim=128, vocab_size=103424)
        | {"use_bias": False, "tie_word_embeddings": False, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
        | {"auto_map": {"AutoModelForCausalLM": "modeling_paddleocr_vl.PaddleOCRVLForConditionalGeneration"}}
        | {
            "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
            "rope_theta": 5e5,
        }
        | sizes(1024, 3072, 18, 16, 2),
    ),
    refused(
        "OpenGVLab/InternVL3-8B",
        "a multimodal model (vision_config) of a class whose text is not served",
        model(
            "InternVLChatModel", "internvl_chat", llm_config={"architectures": ["Qwen2ForCausalLM"]}, vision_config={}
        )
        | {"auto_map": {"AutoModelForCausalLM": "modeling_internvl_chat.InternVLChatModel"}},
    ),
    refused(
        "openbmb/MiniCPM-V-4_5",
        "a multimodal model (vision_config) of a class whose text is not served",
        model(
            "MiniCPMV", "minicpmv", vision_config={}, auto_map={"AutoModelForCausalLM": "modeling_minicpmv.MiniCPMV"}
        ),
    ),
    refused(
        "microsoft/Phi-3.5-vision-instruct",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model("Phi3VForCausalLM", "phi3_v", auto_map={"AutoModelForCausalLM": "modeling_phi3_v.Phi3VForCausalLM"})
        | {"embd_layer": {"embedding_cls": "image"}, "img_processor": {}}
        | sizes(3072, 8192, 32, 32),
    ),
    text("deepseek-ai/DeepSeek-OCR", 2.9, _DEEPSEEK_OCR),
    refused(
        "openai/whisper-large-v3",
        "a speech model",
        model("WhisperForConditionalGeneration", "whisper", is_encoder_decoder=True, d_model=1280, encoder_layers=32),
    ),
    refused(
        "openai/clip-vit-large-patch14",
        "a multimodal model (vision_config) of a class whose text is not served",
        model("CLIPModel", "clip", text_config={}, vision_config={}),
    ),
)
