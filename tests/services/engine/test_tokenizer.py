"""The tokenizer's files as the engine sends them: read as they are, or converted from an older kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from services.engine.tokenizer import CHUNK_BYTES, chunks, fingerprint_of, read_tokenizer
from services.text.tokenizer import Tokenizer
from tests.ring import MODEL

SENTENCES = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"] * 20


@pytest.fixture(scope="module")
def sentencepiece_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the days before tokenizer.json: a SentencePiece model and a class name."""
    directory = tmp_path_factory.mktemp("sentencepiece")
    corpus = directory / "corpus.txt"
    corpus.write_text("\n".join(SENTENCES))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(directory / "tokenizer"),
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_what_is_there_is_sent_as_it_is() -> None:
    files = read_tokenizer(ModelConfig(model=str(MODEL)))
    assert files["tokenizer.json"] == (MODEL / "tokenizer.json").read_bytes()
    assert "chat_template.jinja" in files
    assert not any(name.endswith(".safetensors") for name in files)


def test_an_older_kind_is_converted(sentencepiece_checkpoint: Path) -> None:
    files = read_tokenizer(ModelConfig(model=str(sentencepiece_checkpoint)))
    ours = Tokenizer.from_files(files)
    reference = AutoTokenizer.from_pretrained(sentencepiece_checkpoint)
    for text in (SENTENCES[0], "Zebras… 日本語"):
        assert ours.encode(text) == reference(text).input_ids
        assert ours.decode(ours.encode(text)) == reference.decode(reference(text).input_ids, skip_special_tokens=True)


def test_another_tokenizer_can_be_named(sentencepiece_checkpoint: Path) -> None:
    named = read_tokenizer(ModelConfig(model=str(sentencepiece_checkpoint), tokenizer=str(MODEL)))
    assert fingerprint_of(named) == fingerprint_of(read_tokenizer(ModelConfig(model=str(MODEL))))


def test_what_cannot_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer"):
        read_tokenizer(ModelConfig(model=str(tmp_path)))
    shutil.copytree(MODEL, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="tokenizer"):
        fingerprint_of(read_tokenizer(ModelConfig(model=str(tmp_path / "broken"))))


def test_chunks_are_bounded_and_complete() -> None:
    files = {"tokenizer.json": bytes(range(256)) * 10_000, "chat_template.jinja": b""}
    sent = list(chunks(files))
    assert max(len(chunk.data) for chunk in sent) <= CHUNK_BYTES
    for name, data in files.items():
        assert b"".join(chunk.data for chunk in sent if chunk.name == name) == data
        assert {chunk.total_bytes for chunk in sent if chunk.name == name} == {len(data)}
