"""The bytes of tokens, against the detokenizer's, of every kind of tokenizer that families publish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine_core.structured_output.tokenizer import GrammarsUnavailableError, load_tokenizer
from services.text.tokenizer import Tokenizer
from tests.services.text.families import FAMILIES
from tests.services.text.trained_tokenizers import KINDS, byte_level, tokenizer_json

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
def test_bytes_of_tokens(name: str, tmp_path: Path) -> None:
    for file, content in FILES[name].items():
        (tmp_path / file).write_bytes(content)
    reference = Tokenizer.from_files(FILES[name])
    loaded = load_tokenizer(tmp_path, reference.vocab_size + UNUSED, [2])
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


def bytes_ff(tokenizer: Tokenizer) -> set[int]:
    return {token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"\xff"}


def test_texts_are_not_cut_as_prompts_are(tmp_path: Path) -> None:
    spec = json.loads(tokenizer_json(byte_level()))
    spec["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    spec["padding"]["pad_to_multiple_of"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    text = "the quick brown fox jumps over"
    assert load_tokenizer(tmp_path, 500, [2]).tokenize_str(text) == byte_level().encode(text)


@pytest.mark.parametrize(
    ("changed", "eos", "problem"),
    [
        ({}, [], "no eos token"),
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, [2], r"decoder \(WordPiece\)"),
        ({"decoder": None}, [2], r"decoder \(none\)"),
        ({"added_tokens": 5}, [2], "cannot be read: TypeError"),
        ({"model": {"type": "Other", "vocab": {}}}, [2], "cannot be used"),
    ],
)
def test_tokenizers_that_grammars_cannot_be_matched_with(
    changed: dict[str, object], eos: list[int], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer_json(byte_level())) | changed))
    with pytest.raises(GrammarsUnavailableError, match=problem):
        load_tokenizer(tmp_path, 500, eos)


def test_a_tokenizer_with_more_entries_than_the_model_has_logits(tmp_path: Path) -> None:
    """Added tokens that the model cannot put out are left out; a vocabulary that it cannot is refused."""
    spec = json.loads(tokenizer_json(byte_level()))
    spec["added_tokens"].append({**spec["added_tokens"][-1], "content": "<beyond>", "id": 479})
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert load_tokenizer(tmp_path, 479, [2]).vocab_size == 479
    with pytest.raises(GrammarsUnavailableError, match="vocab size too small; 300 vs 478"):
        load_tokenizer(tmp_path, 300, [2])
