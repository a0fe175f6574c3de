"""Checkpoints by hub id, through huggingface_hub, which finds its token, cache and offline mode on its own."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from engine_core.errors import CheckpointError

_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_WEIGHTS = ("model*.safetensors",)
_OTHER_COPIES = ("original/*", "consolidated*", "onnx/*")


def download(model: str, revision: str | None, download_dir: str | None, weights: bool) -> Path:
    """Download a snapshot of the hub id ``model``, or find it in the cache; returns its directory.

    Raises ``CheckpointError`` when it does not exist, may not be read, or cannot be reached.
    """
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
    except GatedRepoError as error:
        raise CheckpointError(
            f"{at} is gated: ask for access on its page, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{model} is not a directory, and the hub has no such repository, or it is private: check the name, or log "
            "in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{model} has no revision {revision}: give one of its branches, tags or commits"
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(_not_cached(model, revision, at, download_dir)) from error
    except Exception as error:  # the errors of the hub library's HTTP client differ by release
        raise CheckpointError(f"{at} cannot be downloaded: {' '.join(str(error).split())}") from error


def _not_cached(model: str, revision: str | None, at: str, download_dir: str | None) -> str:
    """What is wrong where nothing can be downloaded, and what to do."""
    cache = download_dir or huggingface_hub.constants.HF_HUB_CACHE
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        why, remedy = "HF_HUB_OFFLINE is set, so nothing is downloaded", "unset it"
    else:
        why, remedy = "the hub cannot be reached", "check the network"
    given = {"--revision": revision, "--cache-dir": download_dir}
    options = "".join(f" {flag} {value}" for flag, value in given.items() if value)
    return (
        f"{at} is not a directory, and not in the cache {cache}; {why}: {remedy}, run `hf download {model}{options}` "
        "where there is a network, or give a directory"
    )
