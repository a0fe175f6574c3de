"""No step takes more memory than the one that was profiled, whatever its requests ask for."""

from __future__ import annotations

import json
from pathlib import Path

from engine_core.llm import LLM
from engine_core.platforms.host_memory import measure_peak
from engine_core.request import SamplingParams

MIB = 1 << 20


def save_outline(directory: Path, vocab_size: int) -> Path:
    """A model of two thin layers with a wide head, for dummy weights."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_log_probabilities_of_prompts_stay_within_the_profile(tmp_path: Path) -> None:
    """Their logits are 96 MiB a step. What is kept of each chunk must not keep the chunk's own memory from the next."""
    options = {"load_format": "dummy", "num_threads": 1, "max_num_batched_tokens": 512, "max_num_seqs": 16}
    prompts = [[(7 * row + seq) % 49152 for row in range(700)] for seq in range(3)]
    with LLM(save_outline(tmp_path, 49152), **options) as llm:  # type: ignore[arg-type]
        with measure_peak() as peak:
            results = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=20))
        assert all(len(result.prompt_logprobs or ()) == 699 for result in results)
        assert peak.growth <= llm._engine.executor.step_bytes + 8 * MIB
