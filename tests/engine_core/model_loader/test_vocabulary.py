"""Vocabularies are compared token by token, whatever file lists them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.vocabulary import read_vocabulary, vocabulary_difference

from ...text_core.trained_tokenizers import CORPUS

NORMAL, CONTROL, UNUSED = 1, 3, 5


@cache
def trained(size: int = 400, every: int = 1) -> str:
    """A ``tokenizer.json`` with two markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS[::every], trainer)
    tokenizer.add_special_tokens([AddedToken("<|begin|>"), AddedToken("<|end|>")])
    return tokenizer.to_str()


def checkpoint(directory: Path, tokenizer: str | None) -> ModelConfig:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    if tokenizer is not None:
        (directory / "tokenizer.json").write_text(tokenizer)
    return ModelConfig(str(directory))


def difference(tmp_path: Path, one: str | None, other: str | None, sizes: tuple[int, int] = (512, 512)) -> str | None:
    return vocabulary_difference((checkpoint(tmp_path / "one", one), checkpoint(tmp_path / "other", other)), sizes)


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(trained()) | changes)


def test_other_markers_make_no_other_vocabulary(tmp_path: Path) -> None:
    added = json.loads(trained())["added_tokens"]
    others = [added[0] | {"content": "<s>"}, added[1], added[1] | {"id": 402, "content": "<think>"}]
    assert difference(tmp_path, trained(), changed(added_tokens=others), (402, 512)) is None


def test_tokens_trained_on_other_texts_differ(tmp_path: Path) -> None:
    found = difference(tmp_path, trained(), trained(every=3))
    assert found is not None
    number = int(found.split()[1])
    assert found.startswith(f"token {number} is ")
    assert 256 <= number < 400


def test_a_larger_vocabulary_is_another(tmp_path: Path) -> None:
    found = difference(tmp_path, trained(), trained(420))
    assert found is not None
    assert "token 402 is missing" in found


def test_the_file_of_a_gguf_model_lists_the_same_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(trained())
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(402)]
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*tokens, "[PAD402]"])
    writer.add_token_types([NORMAL] * 400 + [CONTROL] * 2 + [UNUSED])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    own = checkpoint(tmp_path / "one", trained())
    assert vocabulary_difference((own, ModelConfig(str(file))), (402, 403)) is None
    other = checkpoint(tmp_path / "other", trained(every=3))
    assert vocabulary_difference((other, ModelConfig(str(file))), (402, 403)) is not None


def test_a_unigram_model_lists_its_tokens_in_order(tmp_path: Path) -> None:
    def unigram(*tokens: str) -> str:
        return json.dumps({"model": {"type": "Unigram", "vocab": [[token, -1.0] for token in tokens]}})

    assert difference(tmp_path, unigram("a", "b"), unigram("a", "c")) == "token 1 is 'b' in one and 'c' in the other"


def test_without_a_list_of_tokens_sizes_decide(tmp_path: Path) -> None:
    assert difference(tmp_path, trained(), None, (512, 512)) is None
    both = ModelConfig(str(tmp_path / "one")), ModelConfig(str(tmp_path / "other"))
    assert vocabulary_difference(both, (512, 1024)) == "one has 512 tokens and the other 1,024"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"vocab": {"a": "x"}}}', '{"model": {"vocab": [1]}}'])
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "one", content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        read_vocabulary(tmp_path / "one")
