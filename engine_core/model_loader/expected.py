"""The tensors that a model needs, and the check that a checkpoint has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_core.errors import CheckpointError

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ExpectedTensors:
    """The tensors that a model needs; a checkpoint must have all of them, and others only if they are redundant."""

    shapes: Mapping[str, tuple[int, ...]]
    is_redundant: Callable[[str], bool] = lambda name: False
    renamed: Callable[[str], str] = lambda name: name
    """From a name in a file to the name in ``shapes``."""
    is_left_out: Callable[[str], bool] = lambda name: False
    """Whether a tensor, by its name in a file, belongs to a part of the checkpoint that the model lacks."""
    repeats: Callable[[str], str | None] = lambda name: None
    """The tensor that a redundant one must equal, if any."""
    must_be_zero: Callable[[str], bool] = lambda name: False
    """Whether a tensor that is not in ``shapes`` may be there if all its numbers are zero."""
    share: float = 1.0
    """About which fraction of them will be taken."""
    quantized: bool = False
    """Whether integer and 8-bit types are allowed."""


def check_tensors(path: Path, found: Mapping[str, tuple[int, ...]], expected: ExpectedTensors, source: str) -> None:
    """Raise ``CheckpointError`` unless the shapes ``found`` are those ``expected`` from ``source`` (for the message).

    Redundant tensors may have any shape, and an empty tensor is redundant: transformers saves those of shared experts
    of size 0. Tensors that must be zero, and are, are not among ``found``.
    """
    shapes = expected.shapes
    missing = [name for name in shapes if name not in found]
    unexpected = [
        f"{name} with numbers other than zero" if expected.must_be_zero(name) else name
        for name, shape in found.items()
        if name not in shapes and 0 not in shape and not expected.is_redundant(name)
    ]
    misshaped = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in shapes.items()
        if name in found and found[name] != shape
    ]
    problems = (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped))
    found_problems = [f"{len(names)} {problem} ({some(names)})" for problem, names in problems if names]
    if found_problems:
        raise CheckpointError(f"{path}: tensors do not fit {source}: {'; '.join(found_problems)}")


def some(names: Iterable[str]) -> str:
    """A few names, and the number of the others."""
    ordered = sorted(names)
    more = len(ordered) - _NAMES_SHOWN
    return ", ".join(ordered[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
