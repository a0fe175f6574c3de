"""The bytes of tokens, against the detokenizer's, of every kind of tokenizer that families publish."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from llguidance import LLTokenizer

from tests.text_core.families import FAMILIES
from tests.text_core.trained_tokenizers import KINDS, byte_level, tokenizer_json
from text_core.grammar.token_table import TokenTableError, token_table
from text_core.tokenizer import Tokenizer, TokenizerError

UNUSED = 7
"""Tokens that the model has and the tokenizer has not."""

FILES: dict[str, Mapping[str, bytes]] = {
    **{name: {"tokenizer.json": tokenizer_json(make()).encode()} for name, make in KINDS.items()},
    **{name: FAMILIES[name].files() for name in ("qwen3_moe", "deepseek_v3", "gemma3_text", "phi3", "mixtral")},
    "declared beside": {
        "tokenizer.json": tokenizer_json(byte_level()).encode(),
        "tokenizer_config.json": json.dumps(
            {
                "eos_token": "</s>",
                "pad_token": "<|pad|>",
                "image_token": {"content": "the", "special": False},
                "extra_special_tokens": ["[one]", {"content": "[two]", "special": False, "lstrip": True}],
            }
        ).encode(),
        "special_tokens_map.json": json.dumps({"cls_token": "[cls]"}).encode(),
    },
}


@pytest.mark.parametrize("name", FILES)
def test_bytes_of_tokens(name: str) -> None:
    reference = Tokenizer.from_files(FILES[name])
    loaded = token_table(reference, reference.vocab_size + UNUSED, [2], with_slices=False)
    assert loaded.vocab_size == reference.vocab_size + UNUSED
    for token in range(reference.vocab_size):
        expected = reference.token_bytes(token)
        # No text has the byte FF, which llguidance marks special tokens with.
        assert loaded.decode_bytes([token]) == expected or (expected == b"\xff" and loaded.is_special_token(token))
    special = {token for token in range(reference.vocab_size) if loaded.is_special_token(token)}
    assert reference.special_token_ids <= special
    # It takes added tokens like <think> for special ones, whatever their flags say: a grammar must name them by id.
    for token in special - reference.special_token_ids:
        assert reference.token_bytes(token).strip(b"<>") != reference.token_bytes(token) or token in bytes_ff(reference)
    assert all(loaded.is_special_token(token) for token in range(reference.vocab_size, loaded.vocab_size))


def table_of(spec: object, vocab_size: int) -> LLTokenizer:
    tokenizer = Tokenizer.from_files({"tokenizer.json": json.dumps(spec).encode()})
    return token_table(tokenizer, vocab_size, [2], with_slices=True)


def bytes_ff(tokenizer: Tokenizer) -> set[int]:
    return {token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"\xff"}


def test_texts_are_not_cut_as_prompts_are() -> None:
    spec = json.loads(tokenizer_json(byte_level()))
    spec["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    spec["padding"]["pad_to_multiple_of"] = None
    text = "the quick brown fox jumps over"
    assert table_of(spec, 500).tokenize_str(text) == byte_level().encode(text)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, r"decoder \(WordPiece\)"),
        ({"decoder": None}, r"decoder \(none\)"),
        ({"added_tokens": 5}, "cannot be read: Cannot instantiate"),
        ({"model": {"type": "Other", "vocab": {}}}, "cannot be read"),
    ],
)
def test_tokenizers_that_grammars_cannot_be_matched_with(changed: dict[str, object], problem: str) -> None:
    with pytest.raises((TokenizerError, TokenTableError), match=problem):
        table_of(json.loads(tokenizer_json(byte_level())) | changed, 500)


def test_bytes_that_the_decoder_writes_as_text() -> None:
    spec = json.loads(tokenizer_json(byte_level()))
    spec["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    assert table_of(spec, 500).vocab_size == 500
    spec["added_tokens"].append({**spec["added_tokens"][-1], "content": "<0x7B>", "id": 479})
    with pytest.raises(TokenTableError, match="writes the token <0x7B> as text"):
        table_of(spec, 500)


def test_a_tokenizer_with_more_entries_than_the_model_has_logits() -> None:
    """Added tokens that the model cannot put out are left out; a vocabulary that it cannot is refused."""
    spec = json.loads(tokenizer_json(byte_level()))
    spec["added_tokens"].append({**spec["added_tokens"][-1], "content": "<beyond>", "id": 479})
    assert table_of(spec, 479).vocab_size == 479
    with pytest.raises(TokenTableError, match="vocab size too small; 300 vs 478"):
        table_of(spec, 300)
