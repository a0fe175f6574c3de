"""Which GGUF file a name means: the file itself, or the only checkpoint of a directory."""

from __future__ import annotations

import re
from pathlib import Path

from engine_core.errors import CheckpointError

SUFFIX = ".gguf"
_LATER_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf")
_FIRST_PART = re.compile(r".*-00001-of-\d{5}\.gguf")


def gguf_file(path: Path) -> Path | None:
    """``path`` if it is such a file, or the one in it, the first of several that make one checkpoint; None where there
    is none, or where ``path`` has a config.json.

    Raises ``CheckpointError`` where a directory has several checkpoints.
    """
    if path.suffix == SUFFIX and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(file for file in path.glob(f"*{SUFFIX}") if not file.name.startswith("mmproj"))
    files = [file for file in files if _FIRST_PART.fullmatch(file.name) or not _LATER_PART.fullmatch(file.name)]
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5])
        raise CheckpointError(f"{path} has {len(files)} GGUF checkpoints ({names}): give one of the files")
    return files[0] if files else None
