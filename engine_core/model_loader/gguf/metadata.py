"""Typed access to a GGUF file's metadata; a missing or unusable field is an error naming field and file."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.gguf.reader import GgufFile, Value, shown

MOST_LAYERS = 2**16


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of ``file``; the architecture's own are named without its prefix."""

    file: GgufFile
    architecture: str
    """``general.architecture``."""

    @classmethod
    def of(cls, file: GgufFile) -> Metadata:
        """Raise ``CheckpointError`` unless ``general.architecture`` is a name."""
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise CheckpointError(f"{file.path} names no architecture (general.architecture={architecture!r})")
        return cls(file, architecture)

    def has(self, name: str) -> bool:
        return self._value(name) is not None

    def is_list(self, name: str) -> bool:
        value = self._value(name)
        return isinstance(value, Sequence) and not isinstance(value, str)

    def of_layers(self, name: str, layers: int, default: int | None = None) -> list[int]:
        """The whole number, or the boolean, of each of the first ``layers``; a file may have one for all."""
        if not self.is_list(name):
            return [self.integer(name, default)] * (layers if 0 <= layers < MOST_LAYERS else 0)
        found = self._value(name)
        assert isinstance(found, Sequence)
        if len(found) > MOST_LAYERS:
            raise self._problem(name, found, f"at most {MOST_LAYERS} values")
        whole = [each for each in found if isinstance(each, int)]
        if not whole or len(whole) != len(found) or len(found) not in (layers, self.integer("block_count")):
            raise self._problem(name, found, f"{layers} whole numbers, one for each layer")
        return whole[:layers]

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number, or the common value of a list with an entry per layer."""
        value = self._value(name)
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            if len(value) > MOST_LAYERS:
                raise self._problem(name, value, f"at most {MOST_LAYERS} values")
            if len(set(value)) > 1:
                raise self._problem(name, value, "the same for all layers, as the model has no other")
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._problem(name, value, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number: the shortest decimal that rounds to the file's float32."""
        value = self._value(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._problem(name, value, "a number")
        written = (float(f"{value:.{digits}g}") for digits in range(1, 10))
        return next((each for each in written if _as_float32(each) == value), float(value))

    def require(self, name: str, expected: float) -> None:
        """Raise ``UnsupportedModelError`` if the file has another number than the only one that the model knows."""
        if (found := self.number(name, expected)) != expected:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.key(name)}={found:g} is not supported: expected {expected:g}"
            )

    def text(self, name: str, default: str) -> str:
        value = self._value(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._problem(name, value, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._problem(name, value, "true or false")
        return value

    def _value(self, name: str) -> Value | None:
        return self.file.metadata.get(self.key(name))

    def key(self, name: str) -> str:
        """The name in the file."""
        return name if name.startswith(("general.", "tokenizer.")) else f"{self.architecture}.{name}"

    def _problem(self, name: str, value: Value | None, expected: str) -> CheckpointError:
        found = f"{self.key(name)}={shown(value)}" if value is not None else f"no {self.key(name)}"
        return CheckpointError(f"{self.file.path}: {found}: expected {expected}")


def _as_float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf
