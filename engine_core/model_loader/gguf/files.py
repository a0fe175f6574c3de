"""Which files of a directory, or of a repository on the hub, are a GGUF checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

SUFFIX = ".gguf"
PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""The name of a file of a split model."""
_PROJECTOR = "mmproj"
"""In the names of files with the encoder of a multimodal model."""
_STATISTICS = "imatrix"
"""Begins the names of files with statistics of weights."""
_MOST_NAMED = 20


def is_gguf(path: PurePath) -> bool:
    """Whether ``path`` has the name of a GGUF file."""
    return path.suffix.lower() == SUFFIX


def is_projector_name(name: str) -> bool:
    """Whether the name of a GGUF file says that it is a projector."""
    return is_gguf(PurePath(name)) and _PROJECTOR in PurePath(name).name.lower()


def models_among(names: Iterable[str]) -> list[str]:
    """The files that are models, sorted; of a split model, the first file."""
    return sorted(
        name
        for name in names
        if is_gguf(path := PurePath(name))
        and not is_projector_name(name)
        and not path.name.startswith(_STATISTICS)
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


def several(models: Sequence[str]) -> str:
    """The number of models, and their names."""
    more = ", …" if len(models) > _MOST_NAMED else ""
    return f"{len(models)} models in GGUF ({', '.join(models[:_MOST_NAMED])}{more})"
