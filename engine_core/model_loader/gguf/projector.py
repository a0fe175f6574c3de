"""Projectors: GGUF files with the encoder of a multimodal model's pictures or sound, which lie beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.gguf.files import SUFFIX, is_projector_name, models_among, several
from engine_core.model_loader.gguf.reader import GgufFile, read_gguf

_ARCHITECTURE = "clip"


def require_language_model(file: GgufFile) -> None:
    """Raise ``UnsupportedModelError`` for a projector."""
    if file.metadata.get("general.architecture") == _ARCHITECTURE:
        raise UnsupportedModelError(
            f"{file.path} is a projector (general.architecture={_ARCHITECTURE}), the encoder of a multimodal model's "
            "pictures or sound, and no language model: give the model's own file; its text alone is served"
        )


def projectors_beside(path: Path) -> list[str]:
    """The projectors, by their names, in the directory of a GGUF file."""
    return sorted(each.name for each in path.parent.glob(f"*{SUFFIX}") if is_projector_name(each.name))


def model_file(directory: Path) -> Path | None:
    """The GGUF model in a directory; None if it has none, or safetensors files.

    Raises ``CheckpointError`` if it has several, or a projector alone.
    """
    if any(directory.glob("*.safetensors")):
        return None
    names = [path.name for path in directory.glob("*") if path.is_file()]
    models = models_among(names)
    if len(models) > 1:
        models = _language_models(directory, models)
    if len(models) > 1:
        raise CheckpointError(f"{directory} has {several(models)}: give one of the files")
    if not models and not (directory / "config.json").exists() and (found := sorted(filter(is_projector_name, names))):
        require_language_model(read_gguf(directory / found[0]))
    return directory / models[0] if models else None


def _language_models(directory: Path, models: Sequence[str]) -> list[str]:
    """Without projectors whose names do not say that they are."""
    found = []
    for name in models:
        try:
            is_model = read_gguf(directory / name).metadata.get("general.architecture") != _ARCHITECTURE
        except CheckpointError:
            is_model = True
        found += [name] if is_model else []
    return found
