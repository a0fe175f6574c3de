"""What must be equal on all ranks of an engine, so that their parts form one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

import engine_core
from engine_core.errors import ExecutorError
from engine_core.kernels.build import source_digest
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.digest import digest_of
from engine_core.structured_output.compiler import library_version


def identity_of(checkpoint: Checkpoint) -> dict[str, str]:
    """The build of this process and its reading of the checkpoint, by name."""
    root = Path(engine_core.__file__).parent.parent
    rooms = ("engine_core", "text_core")
    sources = [path.read_text("utf-8") for room in rooms for path in sorted((root / room).rglob("*.py"))]
    return {
        "engine_core": digest_of(*sources),
        "native kernels": source_digest(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "llguidance": library_version() or "(none)",
        "checkpoint": digest_of(
            json.dumps(checkpoint.fields, sort_keys=True), repr(checkpoint.spec), repr(checkpoint.config)
        ),
    }


def require_equal(identities: Sequence[Mapping[str, str]], names: Sequence[str]) -> None:
    """Raise ``ExecutorError`` for the first rank that differs from rank 0, naming the difference."""
    first = identities[0]
    for identity, name in zip(identities, names, strict=True):
        for what, value in identity.items():
            if value != first[what]:
                raise ExecutorError(
                    f"{name} has another {what} than {names[0]}: {value} and {first[what]}. Give every host of the "
                    "engine the same installation and the same checkpoint, and ranks the same kind of processor."
                )
