"""Mistral's models of text, and fine-tuned ones."""

from __future__ import annotations

from tests.engine_core.models.published.entry import Published, model, serves, sizes

MISTRAL = model("MistralForCausalLM", "mistral", rms_norm_eps=1e-5, tie_word_embeddings=False, torch_dtype="bfloat16")
MISTRAL |= {"max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": None, "vocab_size": 32768}
_FIRST = MISTRAL | sizes(4096, 14336, 32, 32, 8) | {"rope_theta": 1e4, "sliding_window": 4096, "vocab_size": 32000}
_TEKKEN = MISTRAL | {"head_dim": 128, "max_position_embeddings": 131072, "vocab_size": 131072}
_MIXTRAL = MISTRAL | model("MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2)

MISTRALS: tuple[Published, ...] = (
    serves("mistralai/Mistral-7B-v0.1", 7.242, _FIRST),
    serves("HuggingFaceH4/zephyr-7b-beta", 7.242, _FIRST),
    serves("mistralai/Mistral-7B-Instruct-v0.3", 7.248, MISTRAL | sizes(4096, 14336, 32, 32, 8)),
    serves("mistralai/Mistral-Nemo-Instruct-2407", 12.248, _TEKKEN | sizes(5120, 14336, 40, 32, 8)),
    serves(
        "mistralai/Ministral-8B-Instruct-2410",
        8.020,
        _TEKKEN
        | sizes(4096, 12288, 36, 32, 8)
        | {"rope_theta": 1e8, "max_position_embeddings": 32768, "sliding_window": 32768},
    ),
    serves("mistralai/Mistral-Small-24B-Instruct-2501", 23.572, _TEKKEN | sizes(5120, 32768, 40, 32, 8)),
    serves("mistralai/Devstral-Small-2507", 23.572, _TEKKEN | sizes(5120, 32768, 40, 32, 8) | {"rope_theta": 1e9}),
    serves("mistralai/Codestral-22B-v0.1", 22.247, MISTRAL | sizes(6144, 16384, 56, 48, 8)),
    serves(
        "mistralai/Mistral-Large-Instruct-2407", 122.610, MISTRAL | sizes(12288, 28672, 88, 96, 8) | {"head_dim": 128}
    ),
    serves(
        "mistralai/Mixtral-8x7B-Instruct-v0.1", 46.703, _MIXTRAL | sizes(4096, 14336, 32, 32, 8) | {"vocab_size": 32000}
    ),
    serves("mistralai/Mixtral-8x22B-Instruct-v0.1", 140.630, _MIXTRAL | sizes(6144, 16384, 56, 48, 8)),
    serves("ServiceNow-AI/Apriel-Nemotron-15b-Thinker", 14.970, _TEKKEN | sizes(5120, 14336, 50, 32, 8)),
    serves(
        "mistralai/Mamba-Codestral-7B-v0.1",
        7.285,
        model("Mamba2ForCausalLM", "mamba2", hidden_size=4096, num_hidden_layers=64, state_size=128, vocab_size=32768),
    ),
)
