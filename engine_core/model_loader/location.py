"""What the name of a checkpoint refers to: a directory, or a hub id.

Neither torch nor the hub's library is imported before something is downloaded, by huggingface_hub, which finds its
token, cache and offline mode on its own.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader.formats import file_problem, missing_config

_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_WEIGHTS = ("model*.safetensors",)
_OTHER_COPIES = ("original/*", "consolidated*", "onnx/*")
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


def find_directory(model: str, revision: str | None, download_dir: str | None, *, weights: bool) -> Path:
    """The directory that ``model`` names, or that it is downloaded to, with or without its weights.

    Raises ``ConfigError`` for an empty name, ``CheckpointError`` where nothing is found.
    """
    return local_directory(model) or download(model, revision, download_dir, weights)


def download(model: str, revision: str | None, download_dir: str | None, weights: bool) -> Path:
    """Download a snapshot of the hub id ``model``, or find it in the cache; returns its directory.

    Raises ``CheckpointError`` when it does not exist, may not be read, or cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub import errors

    at = model if revision is None else f"{model} at revision {revision}"
    try:
        return Path(
            huggingface_hub.snapshot_download(
                model,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=[*_SMALL_FILES, *(_WEIGHTS if weights else ())],
                ignore_patterns=list(_OTHER_COPIES),
            )
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{at} is gated: ask for access on its page, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{model} is not a directory, and the hub has no such repository, or it is private: check the name, or log "
            "in with `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{model} has no revision {revision}: give one of its branches, tags or commits"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise CheckpointError(_not_cached(model, revision, at, download_dir)) from error
    except Exception as error:  # the errors of the hub library's HTTP client differ by release
        raise CheckpointError(f"{at} cannot be downloaded: {' '.join(str(error).split())}") from error


def _not_cached(model: str, revision: str | None, at: str, download_dir: str | None) -> str:
    """What is wrong where nothing can be downloaded, and what to do."""
    from huggingface_hub import constants

    cache = download_dir or constants.HF_HUB_CACHE
    if constants.HF_HUB_OFFLINE:
        why, remedy = "HF_HUB_OFFLINE is set, so nothing is downloaded", "unset it"
    else:
        why, remedy = "the hub cannot be reached", "check the network"
    given = {"--revision": revision, "--cache-dir": download_dir}
    options = "".join(f" {flag} {value}" for flag, value in given.items() if value)
    return (
        f"{at} is not a directory, and not in the cache {cache}; {why}: {remedy}, run `hf download {model}{options}` "
        "where there is a network, or give a directory"
    )
