"""Which files of a directory, or of a repository on the hub, are a GGUF checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from engine_core.errors import CheckpointError

SUFFIX = ".gguf"
PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""The name of a file of a split model."""
_BESIDE_MODELS = ("mmproj", "imatrix")
"""Prefixes of GGUF files that are not language models: image encoders, and statistics of weights."""
_MOST_NAMED = 20


def is_gguf(path: PurePath) -> bool:
    """Whether ``path`` has the name of a GGUF file."""
    return path.suffix.lower() == SUFFIX


def models_among(names: Iterable[str]) -> list[str]:
    """The files that are models, sorted; of a split model, the first file."""
    return sorted(
        name
        for name in names
        if is_gguf(path := PurePath(name))
        and not path.name.startswith(_BESIDE_MODELS)
        and ((part := PART.fullmatch(path.name)) is None or int(part["number"]) == 1)
    )


def model_name(path: PurePath) -> str:
    """The name of the model with this (first) file."""
    part = PART.fullmatch(path.name)
    return part["stem"] if part else path.stem


def parts_of(name: str) -> str:
    """An ``fnmatch`` pattern for all files of the model whose (first) file is ``name``."""
    part = PART.fullmatch(name)
    return f"{part['stem']}-?????-of-{part['count']}.gguf" if part else name


def model_file(directory: Path) -> Path | None:
    """The GGUF model in a directory; None if it has none, or safetensors files.

    Raises ``CheckpointError`` if it has several.
    """
    if any(directory.glob("*.safetensors")):
        return None
    models = models_among(path.name for path in directory.glob("*") if path.is_file())
    if len(models) > 1:
        raise CheckpointError(f"{directory} has {several(models)}: give one of the files")
    return directory / models[0] if models else None


def several(models: Sequence[str]) -> str:
    """The number of models, and their names."""
    more = ", …" if len(models) > _MOST_NAMED else ""
    return f"{len(models)} models in GGUF ({', '.join(models[:_MOST_NAMED])}{more})"
