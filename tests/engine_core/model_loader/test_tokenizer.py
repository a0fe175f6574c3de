"""Where a tokenizer's files come from, and which revision is whose."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader import location
from engine_core.model_loader.tokenizer import tokenizer_directory

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "tiny"


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (ModelConfig(model="some/model"), ("some/model", None)),
        (ModelConfig(model="some/model", revision="v1"), ("some/model", "v1")),
        (ModelConfig(model="some/model", revision="v1", tokenizer="some/model"), ("some/model", "v1")),
        (ModelConfig(model="some/model", revision="v1", tokenizer_revision="v2"), ("some/model", "v2")),
        (ModelConfig(model="some/model", revision="v1", tokenizer="other/one"), ("other/one", None)),
        (ModelConfig(model="some/model", tokenizer="other/one", tokenizer_revision="v2"), ("other/one", "v2")),
    ],
)
def test_a_revision_is_that_of_its_own_repository(
    config: ModelConfig, asked: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    download = Mock(return_value=TINY)
    monkeypatch.setattr(location, "download", download)
    with tokenizer_directory(config) as directory:
        assert directory == TINY
    assert [(call.args[0].repository, call.args[1]) for call in download.call_args_list] == [asked]


@pytest.mark.parametrize("name", ["qwen.tiktoken", "tiktoken.model", "tokenizer.model"])
def test_ranks_in_tiktokens_format_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """Also under SentencePiece's name, where transformers would split texts in a way of its own."""
    (tmp_path / name).write_text("IQ== 0\nIg== 1\n/w== 2\n")
    with (
        pytest.raises(CheckpointError, match=rf"its tokenizer in {name}, in tiktoken's format, which is not supported"),
        tokenizer_directory(ModelConfig(model=str(tmp_path))),
    ):
        pass
