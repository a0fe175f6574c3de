"""Projectors: never taken for the model, refused in its place, and named where they lie beside it."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from transformers import LlamaConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.llm import LLM
from engine_core.model_loader.gguf.config import describe
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.model_loader.gguf.tokenizer import tokenizer_files
from engine_core.model_loader.location import check_location, find_checkpoint
from tests.engine_core.model_loader.gguf.written import write_gguf
from tests.engine_core.models.tiny_models import SIZES, make_model, save_model

SENTENCE = r"^\S+ is a projector \(general\.architecture=clip\), the encoder of .*: give the model's own file; its text"


def named(path: Path, architecture: str) -> Path:
    """A file without tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_given_in_the_models_place(tmp_path: Path) -> None:
    file = named(tmp_path / "mmproj-F16.gguf", "clip")
    for refused in (describe, tokenizer_files):
        with pytest.raises(UnsupportedModelError, match=SENTENCE):
            refused(read_gguf(file))
    for given in (file, tmp_path):
        with pytest.raises(UnsupportedModelError, match=SENTENCE):
            check_location(str(given))


def test_in_the_models_directory_whatever_its_name(tmp_path: Path) -> None:
    model = named(tmp_path / "some-Q8_0.gguf", "llama")
    for name in ("mmproj-F16.gguf", "some-mmproj-F16.gguf", "vision.gguf"):
        named(tmp_path / name, "clip")
    assert find_checkpoint(str(tmp_path), None, None, weights=True) == model
    named(tmp_path / "other.gguf", "llama")
    with pytest.raises(CheckpointError, match=r"has 2 models in GGUF \(other\.gguf, some-Q8_0\.gguf\)"):
        check_location(str(tmp_path))


@pytest.mark.parametrize("is_wanted", [False, True])
def test_the_start_names_it(is_wanted: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    config = LlamaConfig(**SIZES)
    save_model(make_model(config), tmp_path / "original")
    (tmp_path / "models").mkdir()
    write_gguf(tmp_path / "original", config, tmp_path / "models/some.gguf")
    named(tmp_path / "models/mmproj-some.gguf", "clip")
    with LLM(str(tmp_path / "models"), kv_cache_memory_bytes=4 << 20, language_model_only=is_wanted):
        pass
    told = [str(each.message) for each in recwarn if "mmproj-some.gguf" in str(each.message)]
    assert [each.startswith("only text is served: mmproj-some.gguf, which lies beside") for each in told] == (
        [] if is_wanted else [True]
    )
