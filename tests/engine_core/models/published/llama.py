"""Llama and what is published as one."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Published, model, refused, serves, sizes

_LLAMA = model("LlamaForCausalLM", "llama", rms_norm_eps=1e-5, tie_word_embeddings=False, torch_dtype="bfloat16")
_LLAMA2 = _LLAMA | {"vocab_size": 32000, "max_position_embeddings": 4096}
_CODE = _LLAMA | {"max_position_embeddings": 16384, "rope_theta": 1e6}
LLAMA3 = _LLAMA | {"vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 5e5}
_STRETCHED = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA31 = LLAMA3 | {
    "eos_token_id": [128001, 128008, 128009],
    "max_position_embeddings": 131072,
    "rope_scaling": _STRETCHED,
}
_LLAMA32 = LLAMA31 | {"rope_scaling": _STRETCHED | {"factor": 32.0}, "tie_word_embeddings": True}
_SMOLLM2 = _LLAMA | {
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 1e5,
    "tie_word_embeddings": True,
}

LLAMAS: tuple[Published, ...] = (
    serves("meta-llama/Llama-2-7b-chat-hf", 6.738, _LLAMA2 | sizes(4096, 11008, 32, 32)),
    serves("meta-llama/Llama-2-13b-chat-hf", 13.016, _LLAMA2 | sizes(5120, 13824, 40, 40)),
    serves("meta-llama/Llama-2-70b-chat-hf", 68.977, _LLAMA2 | sizes(8192, 28672, 80, 64, 8)),
    serves("codellama/CodeLlama-7b-Instruct-hf", 6.739, _CODE | sizes(4096, 11008, 32, 32) | {"vocab_size": 32016}),
    serves(
        "codellama/CodeLlama-34b-Instruct-hf", 33.744, _CODE | sizes(8192, 22016, 48, 64, 8) | {"vocab_size": 32000}
    ),
    serves("meta-llama/Meta-Llama-3-8B-Instruct", 8.030, LLAMA3 | sizes(4096, 14336, 32, 32, 8)),
    serves("meta-llama/Llama-3.1-8B-Instruct", 8.030, LLAMA31 | sizes(4096, 14336, 32, 32, 8)),
    serves("meta-llama/Llama-3.3-70B-Instruct", 70.554, LLAMA31 | sizes(8192, 28672, 80, 64, 8)),
    serves("meta-llama/Llama-3.1-405B-Instruct", 405.853, LLAMA31 | sizes(16384, 53248, 126, 128, 8)),
    serves("meta-llama/Llama-3.2-1B-Instruct", 1.236, _LLAMA32 | sizes(2048, 8192, 16, 32, 8) | {"head_dim": 64}),
    serves("meta-llama/Llama-3.2-3B-Instruct", 3.213, _LLAMA32 | sizes(3072, 8192, 28, 24, 8) | {"head_dim": 128}),
    serves("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8.030, LLAMA31 | sizes(4096, 14336, 32, 32, 8)),
    serves("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 70.554, LLAMA31 | sizes(8192, 28672, 80, 64, 8)),
    serves(
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        1.100,
        _LLAMA2 | sizes(2048, 5632, 22, 32, 4) | {"max_position_embeddings": 2048},
    ),
    serves("HuggingFaceTB/SmolLM2-135M-Instruct", 0.1345, _SMOLLM2 | sizes(576, 1536, 30, 9, 3)),
    serves("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1.711, _SMOLLM2 | sizes(2048, 8192, 24, 32)),
    serves(
        "01-ai/Yi-1.5-9B-Chat",
        8.829,
        _LLAMA | sizes(4096, 11008, 48, 32, 4) | {"vocab_size": 64000, "rms_norm_eps": 1e-6, "rope_theta": 5e6},
    ),
    serves(
        "01-ai/Yi-34B",
        34.389,
        _LLAMA | sizes(7168, 20480, 60, 56, 8) | {"vocab_size": 64000, "rope_theta": 5e6},
    ),
    serves(
        "deepseek-ai/deepseek-coder-6.7b-instruct",
        6.740,
        _CODE
        | sizes(4096, 11008, 32, 32)
        | {"vocab_size": 32256, "rope_theta": 1e5, "rope_scaling": {"factor": 4.0, "type": "linear"}},
    ),
    serves(
        "tiiuae/Falcon3-7B-Instruct",
        7.456,
        _LLAMA | sizes(3072, 23040, 28, 12, 4) | {"head_dim": 256, "vocab_size": 131072, "rope_theta": 1000042},
    ),
    serves(
        "nvidia/Llama-3.1-Minitron-4B-Width-Base", 4.513, LLAMA31 | sizes(3072, 9216, 32, 32, 8) | {"head_dim": 128}
    ),
    serves("utter-project/EuroLLM-9B-Instruct", 9.152, _LLAMA | sizes(4096, 12288, 42, 32, 8) | {"vocab_size": 128000}),
    serves(
        "ByteDance-Seed/Seed-Coder-8B-Instruct", 8.250, LLAMA3 | sizes(4096, 14336, 32, 32, 8) | {"vocab_size": 155136}
    ),
    serves(
        "ibm-granite/granite-3b-code-instruct-2k",
        3.482,
        _LLAMA
        | sizes(2560, 10240, 32, 32)
        | {"vocab_size": 49152, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    refused(
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
        "needs code from its checkpoint (auto_map in config.json), which is never executed",
        model(
            "DeciLMForCausalLM", "nemotron-nas", auto_map={"AutoModelForCausalLM": "modeling_decilm.DeciLMForCausalLM"}
        )
        | {"block_configs": [{"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.625}}]},
    ),
)
