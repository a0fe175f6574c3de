"""Read a checkpoint's small JSON files, which may be broken in any way."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from engine_core.errors import CheckpointError
from engine_core.model_loader.formats import is_lfs_pointer, lfs_problem, missing_config

_MOST_BYTES = 16 << 20
"""Limit for files such as config.json, which have kilobytes."""


def read_object(path: Path, optional: bool = False) -> dict[str, Any]:
    """The JSON object in a file; empty if optional and missing. Raises ``CheckpointError``."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may block forever
            raise CheckpointError(f"{path} is not a regular file: download the checkpoint again")
        if found.st_size > _MOST_BYTES:
            problem = f"{path} has {found.st_size} bytes: expected at most {_MOST_BYTES}"
            raise CheckpointError(f"{problem}; download the checkpoint again")
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        if optional:
            return {}
        if path.name == "config.json":
            raise CheckpointError(missing_config(path.parent)) from error
        raise CheckpointError(f"{path.parent} has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        if is_lfs_pointer(path):
            raise CheckpointError(lfs_problem(path)) from error
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return content
