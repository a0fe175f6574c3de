"""Converts callers' numbers to Python's, because numpy's overflow and keep their types in mixed arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Set
from numbers import Integral, Real
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Convert numpy's numbers, and collections of them, to Python's; return anything else unchanged."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:  # from a fraction, which the type check will refuse
            return value
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, Set):
        return frozenset(map(plain, value))
    return value
