"""Text offline: what output adds to a prompt, tokenizers by transformers, and which revision is whose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader import checkpoint
from engine_core.model_loader.tokenizer import load_tokenizer, text_after, tokenizer_directory
from services.text.incremental_decoder import IncrementalDecoder, left_context
from services.text.tokenizer import Tokenizer

from ...services.text.trained_tokenizers import CORPUS, byte_level, sentencepiece_bpe, unigram

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "tiny"


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


def test_a_tokenizer_of_transformers_equals_the_rings() -> None:
    ours, rings = load_tokenizer(ModelConfig(model=str(TINY))), Tokenizer.from_directory(TINY)
    for text in CORPUS[:3]:
        assert ours.encode(text) == rings.encode(text)
        assert ours.decode([*rings.encode(text), *rings.eos_token_ids]) == text


def test_offline_and_in_the_ring_tokenizer_json_decides(tmp_path: Path) -> None:
    """transformers' class for Llama drops the space that it says comes first, and its ids are others."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "legacy": true}')
    (tmp_path / "tokenizer.json").write_text(sentencepiece_bpe()._tokenizer.to_str())
    ours, rings = load_tokenizer(ModelConfig(model=str(tmp_path))), Tokenizer.from_directory(tmp_path)
    for text in ("the fox", " the fox", "  the\n fox "):
        assert ours.encode(text) == rings.encode(text) == sentencepiece_bpe().encode(text)


def test_a_damaged_tokenizer_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="the tokenizer cannot be read: "):
        load_tokenizer(ModelConfig(model=str(tmp_path)))


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (ModelConfig(model="some/model"), ("some/model", None)),
        (ModelConfig(model="some/model", revision="v1"), ("some/model", "v1")),
        (ModelConfig(model="some/model", revision="v1", tokenizer="some/model"), ("some/model", "v1")),
        (ModelConfig(model="some/model", revision="v1", tokenizer_revision="v2"), ("some/model", "v2")),
        (ModelConfig(model="some/model", revision="v1", tokenizer="other/one"), ("other/one", None)),
        (
            ModelConfig(model="some/model", revision="v1", tokenizer="other/one", tokenizer_revision="v2"),
            ("other/one", "v2"),
        ),
    ],
)
def test_a_revision_is_that_of_its_own_repository(
    config: ModelConfig, asked: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = []

    def download(model: str, revision: str | None, download_dir: str | None, weights: bool) -> Path:
        downloads.append((model, revision))
        return TINY

    monkeypatch.setattr(checkpoint, "download", download)
    with tokenizer_directory(config) as directory:
        assert directory == TINY
    assert downloads == [asked]


@pytest.mark.parametrize("name", ["qwen.tiktoken", "tiktoken.model", "tokenizer.model"])
def test_ranks_in_tiktokens_format_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """Also under SentencePiece's name, where transformers would split texts in a way of its own."""
    (tmp_path / name).write_text("IQ== 0\nIg== 1\n/w== 2\n")
    with (
        pytest.raises(CheckpointError, match=rf"its tokenizer in {name}, in tiktoken's format, which is not supported"),
        tokenizer_directory(ModelConfig(model=str(tmp_path))),
    ):
        pass
