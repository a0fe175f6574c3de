"""Text by a tokenizer of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine_core.errors import ConfigError
from engine_core.llm import LLM, SamplingParams
from engine_core.offline.text import text_after
from text_core.incremental_decoder import IncrementalDecoder, left_context
from text_core.tokenizer import Tokenizer

from ...text_core.trained_tokenizers import CORPUS, byte_level, sentencepiece_bpe, unigram

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "tiny"


class Letters:
    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def test_a_tokenizer_of_ones_own_encodes_and_decodes_and_no_more() -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    with LLM(TINY, tokenizer=Letters(), dtype="float32", max_model_len=256, kv_cache_memory_bytes="16MiB") as llm:
        [result] = llm.generate("abc", greedy)
        assert result.prompt_token_ids == [97, 98, 99]
        assert result.choices[0].text == "".join(map(chr, result.choices[0].token_ids))
        for field, value in (("stop", "a"), ("skip_special_tokens", False), ("regex", "a")):
            with pytest.raises(ValueError, match=f"^sampling_params: {field}: needs the model's own tokenizer"):
                llm.generate("abc", replace(greedy, **{field: value}))
        with pytest.raises(ValueError, match=r"^messages: a chat needs the model's own tokenizer"):
            llm.chat([{"role": "user", "content": "Hello"}], greedy)


def test_what_is_no_tokenizer_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(
        ConfigError, match="tokenizer=5 is not usable: expected a directory, a hub id or an object with"
    ):
        LLM("there is no such model", tokenizer=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("trained", [byte_level, sentencepiece_bpe, unigram])
def test_text_after_a_prompt_is_what_the_ring_streams(trained: Callable[[], Tokenizer]) -> None:
    """Wherever a text is cut into prompt and output: inside of words and of characters too."""
    tokenizer = trained()
    pieces = tokenizer.pieces()
    for text in {*CORPUS}:
        ids = tokenizer.encode(text)
        for cut in range(1, len(ids)):
            prompt, output = ids[:cut], ids[cut:]
            decoder = IncrementalDecoder(pieces, left_context(pieces, prompt))
            streamed = "".join(map(decoder.push, output)) + decoder.flush()
            assert text_after(tokenizer, prompt, output) == streamed
