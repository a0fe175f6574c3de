"""Checkpoints that are published in few bits."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Fields, Published, experts, refused, serves, sizes
from tests.engine_core.models.published.latents import GLM45_AIR, KIMI_K2
from tests.engine_core.models.published.llama import LLAMA3, LLAMA31
from tests.engine_core.models.published.mistral import MISTRAL
from tests.engine_core.models.published.qwen import QWEN2, QWEN3, QWEN3_MOE

_QWEN25_7B = QWEN2 | sizes(3584, 18944, 28, 28, 4) | {"vocab_size": 152064}
_QWEN3_8B = QWEN3 | sizes(4096, 12288, 36, 32, 8)
_QWEN3_30B = QWEN3_MOE | sizes(2048, 6144, 48, 32, 4) | experts(128, 8, 768)
_LLAMA31_8B = LLAMA31 | sizes(4096, 14336, 32, 32, 8)
_AWQ = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
_GPTQ = {"bits": 4, "damp_percent": 0.01, "desc_act": False, "group_size": 128, "quant_method": "gptq", "sym": True}
_GPTQ |= {"static_groups": False, "true_sequential": True}
_BLOCKS = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
_NF4 = {
    "_load_in_4bit": True,
    "_load_in_8bit": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "llm_int8_skip_modules": None,
    "llm_int8_threshold": 6.0,
    "load_in_4bit": True,
    "load_in_8bit": False,
    "quant_method": "bitsandbytes",
}


def _compressed(form: str, weights: Fields, inputs: Fields | None = None, ignore: list[str] | None = None) -> Fields:
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"]}
    group["weights"] = {"actorder": None, "block_structure": None, "dynamic": False, "symmetric": True, **weights}
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "ignore": ["lm_head"] if ignore is None else ignore,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


_W4A16 = {"group_size": 128, "num_bits": 4, "strategy": "group", "type": "int"}
_PER_TOKEN = {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True}
_W8A8 = _compressed(
    "int-quantized", {"num_bits": 8, "strategy": "channel", "type": "int"}, _PER_TOKEN | {"type": "int"}
)
_FP8_DYNAMIC = {"num_bits": 8, "strategy": "channel", "type": "float"}, _PER_TOKEN | {"type": "float"}
_NVFP4 = {"group_size": 16, "num_bits": 4, "strategy": "tensor_group", "type": "float"}
_KIMI_KEPT = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]


def _with(config: Fields, quantization: Fields) -> Fields:
    return config | {"quantization_config": quantization}


QUANTIZED: tuple[Published, ...] = (
    serves("Qwen/Qwen2.5-7B-Instruct-AWQ", 7.616, _with(_QWEN25_7B, _AWQ)),
    serves("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", 7.616, _with(_QWEN25_7B, _GPTQ)),
    serves("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", 7.616, _with(_QWEN25_7B, _GPTQ | {"bits": 8})),
    serves("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", 8.030, _with(_LLAMA31_8B, _AWQ)),
    serves(
        "TheBloke/Mistral-7B-Instruct-v0.2-GPTQ",
        7.242,
        _with(MISTRAL | sizes(4096, 14336, 32, 32, 8) | {"vocab_size": 32000}, _GPTQ | {"desc_act": True}),
    ),
    serves("Qwen/Qwen3-8B-AWQ", 8.191, _with(_QWEN3_8B, _AWQ)),
    serves("Qwen/Qwen3-8B-FP8", 8.191, _with(_QWEN3_8B, _BLOCKS)),
    serves(
        "Qwen/Qwen3-30B-A3B-GPTQ-Int4",
        30.532,
        _with(_QWEN3_30B, _GPTQ | {"checkpoint_format": "gptq", "lm_head": False}),
    ),
    serves(
        "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
        30.532,
        _with(
            _QWEN3_30B,
            _BLOCKS | {"modules_to_not_convert": ["lm_head", *(f"model.layers.{at}.mlp.gate" for at in range(48))]},
        ),
    ),
    serves(
        "RedHatAI/Meta-Llama-3-8B-Instruct-FP8",
        8.030,
        _with(
            LLAMA3 | sizes(4096, 14336, 32, 32, 8),
            {"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"},
        ),
    ),
    serves(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
        8.030,
        _with(_LLAMA31_8B, _compressed("float-quantized", *_FP8_DYNAMIC)),
    ),
    serves(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
        8.030,
        _with(_LLAMA31_8B, _compressed("pack-quantized", _W4A16)),
    ),
    serves("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", 8.030, _with(_LLAMA31_8B, _W8A8)),
    serves("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", 8.030, _with(_LLAMA31_8B, _NF4)),
    serves("zai-org/GLM-4.5-Air-FP8", 106.85, _with(GLM45_AIR, _compressed("float-quantized", *_FP8_DYNAMIC))),
    serves(
        "moonshotai/Kimi-K2-Thinking",
        1026.4,
        _with(KIMI_K2, _compressed("pack-quantized", _W4A16 | {"group_size": 32}, ignore=_KIMI_KEPT)),
    ),
    serves(
        "RedHatAI/Llama-3.1-8B-Instruct-NVFP4",
        8.030,
        _with(_LLAMA31_8B, _compressed("nvfp4-pack-quantized", _NVFP4)),
    ),
    refused(
        "nvidia/Llama-3.1-8B-Instruct-FP8",
        "is quantized with ModelOpt, which is not supported",
        _with(_LLAMA31_8B, {"quant_algo": "FP8", "quant_method": "modelopt", "producer": {"name": "modelopt"}}),
    ),
    refused(
        "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
        "is quantized with MLX, which is not supported",
        _LLAMA31_8B | {"quantization": {"bits": 4, "group_size": 64}},
    ),
    refused(
        "meta-llama/Llama-3.1-405B-Instruct-FP8",
        "is quantized with FP8 (FBGEMM), which is not supported",
        _with(
            LLAMA31 | sizes(16384, 53248, 126, 128, 8),
            {"activation_scale_ub": 1200.0, "modules_to_not_convert": [], "quant_method": "fbgemm_fp8"},
        ),
    ),
    refused(
        "ISTA-DASLab/Meta-Llama-3.1-8B-Instruct-AQLM-PV-2Bit-1x16-hf",
        "is quantized with AQLM, which is not supported",
        _with(_LLAMA31_8B, {"in_group_size": 8, "nbits_per_codebook": 16, "num_codebooks": 1, "quant_method": "aqlm"}),
    ),
)
