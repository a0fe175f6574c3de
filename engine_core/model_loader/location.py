"""Resolves a checkpoint's name: a directory, a GGUF file, a model in a Python package, or a hub id."""

from __future__ import annotations

import os
from pathlib import Path

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader.formats import file_problem, missing_config
from engine_core.model_loader.gguf.files import is_gguf, is_projector_name, model_name
from engine_core.model_loader.gguf.projector import model_file, require_language_model
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.model_loader.hub import HubModel, check_available, download
from engine_core.model_loader.packaged import PACKAGED_MODELS, PackagedModel, packaged_path

_ROOT = Path(__file__).resolve().parents[2]
_BUNDLED_MODELS = (_ROOT / "services" / "checkpoints" / "tiny", _ROOT / "checkpoints" / "tiny")
"""Where an installed wheel and the repository have it."""

EXPECTED = f"a directory, a GGUF file, a hub id or {', '.join(PACKAGED_MODELS)}"


def bundled_model() -> str | None:
    """The directory of the model that Ringline brings along; None if this installation has none."""
    return next((str(directory) for directory in _BUNDLED_MODELS if directory.is_dir()), None)


def local_path(model: str) -> Path | None:
    """The directory or the GGUF file that ``model`` names; None for a hub id.

    Raises ``ConfigError`` for an empty name, ``CheckpointError`` for any other.
    """
    if not model:
        raise ConfigError("model", model, EXPECTED)
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            if not os.access(path, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
                raise CheckpointError(f"{path} may not be read: give this process the right to list and to enter it")
            return path
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a user without a home directory
        raise CheckpointError(f"{model} cannot be a path: {getattr(error, 'strerror', None) or error}") from error
    if exists:
        if is_gguf(path):
            return path
        raise CheckpointError(file_problem(path))
    if model in PACKAGED_MODELS:
        return packaged_path(model)
    if HubModel.parse(model) is None:
        raise CheckpointError(_not_there(model))
    return None


def _not_there(model: str) -> str:
    """The error for a name that nothing has, and that is no hub id."""
    if "://" in model:
        return f"{model} is an address: give a model's hub id alone, such as Qwen/Qwen3-4B, or what you have downloaded"
    if model.startswith(("/", ".", "~")) or is_gguf(Path(model)):
        return f"{model} does not exist: check the path; in a container, only what is mounted can be seen"
    return f"{model} does not exist, and is no hub id, such as Qwen/Qwen3-4B: give one, or a directory or GGUF file"


def packaged_model(model: str) -> PackagedModel | None:
    """The model in a Python package that ``model`` names; None for any other, as of a path of the same name."""
    packaged = PACKAGED_MODELS.get(model)
    return None if packaged is None or Path(model).exists() else packaged


def check_location(model: str) -> None:
    """Raise what ``local_path`` raises, and ``CheckpointError`` for a directory that does not hold one checkpoint, or a
    file whose name says rightly that it is a projector.
    """
    path = local_path(model)
    if path is not None and is_projector_name(path.name) and not path.is_dir():
        require_language_model(read_gguf(path))
    if path is not None and path.is_dir() and model_file(path) is None and not (path / "config.json").exists():
        raise CheckpointError(missing_config(path))


def check_hub(model: str, revision: str | None, download_dir: str | None) -> None:
    """Raise ``CheckpointError`` if ``model`` is a hub id that can neither be downloaded nor found in the cache.

    Takes seconds where a download, which comes after torch is loaded, takes many.
    """
    hub_model = HubModel.parse(model) if local_path(model) is None else None
    if hub_model is not None:
        check_available(hub_model, revision, download_dir)


def served_name(model: str) -> str:
    """The default name of ``model`` for clients: of a directory or file, its last path component."""
    path = local_path(model)
    if path is None or model in PACKAGED_MODELS:
        return model
    if not path.is_dir():
        return model_name(path)
    name = path.resolve().name if path.name in ("", "..") else path.name  # ".", "..", "/"
    return name or model


def find_checkpoint(
    model: str, revision: str | None, download_dir: str | None, *, weights: bool, load_format: str = "auto"
) -> Path:
    """The directory or (first) GGUF file of ``model``, downloaded with or without its weights (those that
    ``load_format`` allows) if needed.

    Raises as ``local_path`` does, and ``CheckpointError`` if nothing is found.
    """
    path = find_path(model, revision, download_dir, weights=weights, load_format=load_format)
    return (model_file(path) or path) if path.is_dir() else path


def find_path(
    model: str, revision: str | None, download_dir: str | None, *, weights: bool, load_format: str = "auto"
) -> Path:
    """Like ``find_checkpoint``, but returns a directory even if its checkpoint is a GGUF file."""
    path = local_path(model)
    if path is not None:
        return path
    hub_model = HubModel.parse(model)
    assert hub_model is not None
    return download(hub_model, revision, download_dir, weights, load_format)


def tokenizer_source(config: ModelConfig) -> Path:
    """The directory or GGUF file of the tokenizer that ``config`` names, by default the model's.

    Raises as ``find_checkpoint`` does.
    """
    if config.tokenizer is None or config.tokenizer == config.model:
        revision = config.tokenizer_revision or config.revision
        return find_checkpoint(config.model, revision, config.download_dir, weights=False)
    path = find_path(config.tokenizer, config.tokenizer_revision, config.download_dir, weights=False)
    if not path.is_dir() or any((path / name).is_file() for name in ("tokenizer.json", "config.json")):
        return path
    return model_file(path) or path
