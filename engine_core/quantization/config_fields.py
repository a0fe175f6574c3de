"""Fields of ``quantization_config``, checked as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine_core.errors import CheckpointError, UnsupportedModelError

GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024)
WHOLE_ROWS = -1
"""Group size in checkpoints where all inputs of an output are one group."""


class ConfigFields:
    """The fields of one method; errors name the method and the field."""

    def __init__(self, method: str, fields: Mapping[str, Any], place: str = "quantization_config") -> None:
        """``method``: for error messages; ``place``: of the fields in config.json."""
        self.method = method
        self.fields = fields
        self._place = place

    def one_of(self, name: str, accepted: Iterable[Any], default: Any = None) -> Any:
        """The value, or the default if missing. Raises ``UnsupportedModelError`` unless it is ``accepted``."""
        value = self.fields.get(name, default)
        known = tuple(accepted)
        # Types must match: 1 == True, and 4.0 is no number of bits.
        if not any(type(value) is type(each) and value == each for each in known):
            expected = ", ".join(repr(each) for each in known)
            raise UnsupportedModelError(
                f"{self.method}: {self._place}.{name}={value!r:.80} is not supported: expected one of {expected}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false, or the default if missing or null. Raises ``CheckpointError``."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.unusable(name, "true or false")
        return value

    def group_size(self, name: str = "group_size", default: int | None = None) -> int | None:
        """Inputs of a group; None: all."""
        value: int = self.one_of(name, (WHOLE_ROWS, *GROUP_SIZES), default)
        return None if value == WHOLE_ROWS else value

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if missing or null."""
        value = self.fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.unusable(name, "a list of strings")
        return tuple(value)

    def pair(self, name: str) -> tuple[int, int] | None:
        """Two positive integers; None if missing or null."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int and each > 0 for each in value):
            raise self.unusable(name, "two positive integers")
        return value[0], value[1]

    def objects(self, name: str) -> dict[str, Mapping[str, Any]]:
        """An object of objects; empty if missing or null."""
        value = self.fields.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
            raise self.unusable(name, "an object of objects")
        return value

    def unusable(self, name: str, expected: str) -> CheckpointError:
        value = self.fields.get(name)
        return CheckpointError(f"{self.method}: {self._place}.{name}={value!r:.80} is not usable: expected {expected}")


def is_linear(name: str) -> bool:
    """Whether the layer with prefix ``name`` is in a decoder layer or a tower: not the head, nor the embedding tied to
    it.
    """
    return any(place in f".{name}." for place in (".layers.", ".visual."))


def groups_in_words(size: int | None) -> str:
    """For a person; None: all inputs are one group."""
    return "whole rows" if size is None else f"groups of {size}"
