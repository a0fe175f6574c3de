"""What the name of a checkpoint refers to, as far as the local disk can tell: neither torch nor the hub is needed."""

from __future__ import annotations

import re
from pathlib import Path

from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader.formats import file_problem, missing_config

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def local_directory(model: str) -> Path | None:
    """The directory that ``model`` names; None where it may be a hub id.

    Raises ``ConfigError`` for an empty name, ``CheckpointError`` for one that is neither.
    """
    if not model:
        raise ConfigError("model", model, "a directory or a hub id")
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return path
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a user without a home directory
        raise CheckpointError(f"{model} is not a directory: {getattr(error, 'strerror', None) or error}") from error
    if exists:
        raise CheckpointError(file_problem(path))
    if not _HUB_ID.fullmatch(model):
        raise CheckpointError(f"{model} is not a directory")
    return None


def check_location(model: str) -> None:
    """Raise what ``local_directory`` raises, and ``CheckpointError`` for a directory that holds no checkpoint."""
    directory = local_directory(model)
    if directory is not None and not (directory / "config.json").exists():
        raise CheckpointError(missing_config(directory))


def served_name(model: str) -> str:
    """What clients call ``model`` unless the options say otherwise: a directory by its own name, a hub id whole."""
    directory = local_directory(model)
    if directory is None:
        return model
    name = directory.resolve().name if directory.name in ("", "..") else directory.name  # ".", "..", "/"
    return name or model
