"""What names a checkpoint: a directory, or a hub id, found in the download cache without a network; or else why not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from engine_core.config import LoadConfig, ModelConfig
from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.model_loader.hub import HubModel, download
from engine_core.model_loader.location import check_location, find_checkpoint, served_name
from tests.engine_core.model_loader.test_checkpoint import LLAMA
from tests.engine_core.models.driver import open_at

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def cached(cache: Path, revision: str) -> Path:
    """A cache laid out as huggingface_hub leaves it after a download."""
    repository = cache / "models--some--model"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(COMMIT)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    return snapshot


@pytest.mark.parametrize("revision", [None, "v2"])
def test_cached_snapshot(revision: str | None, tmp_path: Path) -> None:
    snapshot = cached(tmp_path, revision or "main")
    config = ModelConfig(model="some/model", revision=revision, download_dir=str(tmp_path))
    checkpoint = open_checkpoint(config, LoadConfig(load_format="dummy"))
    assert checkpoint.path == snapshot
    assert checkpoint.spec.name == "some/model"


@pytest.mark.parametrize(("is_offline", "why"), [(True, "HF_HUB_OFFLINE is set"), (False, "the hub cannot be reached")])
def test_not_in_the_cache(is_offline: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_offline:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=LocalEntryNotFoundError("no")))
    message = rf"^some/model is neither a directory nor a file, and not in the cache {tmp_path}; {why}.*hf download some/model --cache"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(ModelConfig(model="some/model", download_dir=str(tmp_path)), LoadConfig())


RESPONSE = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GatedRepoError("no", response=RESPONSE), "some/model at revision v2 is gated"),
        (
            RepositoryNotFoundError("no", response=RESPONSE),
            "is neither a directory nor a file, and the hub has no such repository",
        ),
        (RevisionNotFoundError("no", response=RESPONSE), "some/model has no revision v2"),
        (RuntimeError("refused"), "some/model at revision v2 cannot be downloaded: refused"),
        (OSError(28, "No space left on device"), "cannot be downloaded: .*No space left on device"),
    ],
)
def test_errors_of_the_hub(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=error))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(ModelConfig(model="some/model", revision="v2"), LoadConfig())


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_what_is_asked_for(load_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    downloading = Mock(return_value=str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloading)
    config = ModelConfig(model="some/model", revision="v2", download_dir="/cache")
    open_checkpoint(config, LoadConfig(load_format=load_format))
    (model,), asked = downloading.call_args
    assert (model, asked["revision"], asked["cache_dir"]) == ("some/model", "v2", "/cache")
    files = ["config.json", "tokenizer.model", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    files += ["consolidated.safetensors", "original/params.json", "pytorch_model.bin", "modeling.py"]
    chosen = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    weights = ["model-00001-of-00002.safetensors"] if load_format == "auto" else []
    assert list(chosen) == ["config.json", "tokenizer.model", *weights, "model.safetensors.index.json"]


def test_a_revision_not_in_the_cache_is_downloaded_as_such() -> None:
    with pytest.raises(CheckpointError, match=r"run `hf download some/model --revision v1` where"):
        download(HubModel("some/model"), "v1", None, weights=True)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("{}/little", "little"),
        ("{}/little/", "little"),
        ("{}/little/../other", "other"),
        ("other", "other"),
        (".", "little"),
        ("..", "models"),
        ("/", "/"),
        ("org/name", "org/name"),
        ("name", "name"),
    ],
)
def test_a_directory_is_served_by_its_own_name_and_a_hub_id_whole(
    model: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "models"
    (base / "little" / "other").mkdir(parents=True)
    (base / "other").mkdir()
    monkeypatch.chdir(base / "little")
    assert served_name(model.format(base)) == name


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{}/gone/", "is not a directory"),
        ("{}/gone", "is not a directory"),
        ("{}/a-file", "is a file"),
        ("{}", "has no config.json"),
        ("x" * 5000, "is not a directory: "),
        ("a/" * 3000, "is not a directory: "),
        ("~no-such-user-here/x", "is not a directory: "),
    ],
    ids=lambda text: text[:20],
)
def test_names_of_no_checkpoint(model: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    for look in (check_location, open_at):
        with pytest.raises(CheckpointError, match=message):
            look(model.format(tmp_path))


def test_no_model() -> None:
    with pytest.raises(
        ConfigError, match="model='' is not usable: expected a directory, a GGUF file, a hub id or smollm2"
    ):
        open_checkpoint(ModelConfig(), LoadConfig())
