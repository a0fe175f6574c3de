"""The chat template of an option, instead of a checkpoint's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import ConfigError
from engine_core.model_loader.chat_template import with_template

TEXT = "{% for message in messages %}{{ message.content }}{% endfor %}"
FILES = {"tokenizer.json": b"{}", "chat_template.jinja": b"old", "additional_chat_templates/rag.jinja": b"old"}


@pytest.mark.parametrize("as_file", [True, False])
def test_an_option_replaces_every_template_of_the_checkpoint(as_file: bool, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(TEXT)
    given = str(tmp_path / "t.jinja") if as_file else TEXT
    expected = {"tokenizer.json": b"{}", "chat_template.jinja": TEXT.encode()}
    assert with_template(FILES, ModelConfig(model="m", chat_template=given)) == expected
    assert with_template(FILES, ModelConfig(model="m")) == FILES


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "t.jinja")
    with pytest.raises(ConfigError, match=r"chat_template=.*expected a file that can be read.*\(No such file"):
        with_template(FILES, ModelConfig(model="m", chat_template=missing))


def test_a_file_that_is_no_template_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**20 + 1)
    for given, words in {
        str(tmp_path / "pipe"): "a regular file, or the text",
        str(tmp_path): "a regular file, or the text",
        "/dev/zero": "a regular file, or the text",
        str(tmp_path / "large"): "a file of at most 1048576 bytes",
        "a\0b": "a file that can be read",
    }.items():
        with pytest.raises(ConfigError, match=f"chat_template=.*expected {words}"):
            with_template(FILES, ModelConfig(model="m", chat_template=given))
