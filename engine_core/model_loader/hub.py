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
        raise CheckpointError(f"{at} is gated: its owner must grant you access, and a token must be set") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{at} is neither a directory nor a repository that may be read") from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{model} has no revision {revision}") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{at} is neither a directory nor in the download cache, and the hub cannot be reached"
        ) from error
    except Exception as error:  # the errors of the hub library's HTTP client differ by release
        raise CheckpointError(f"{at} cannot be downloaded: {' '.join(str(error).split())}") from error
