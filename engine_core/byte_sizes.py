"""Sizes in bytes as people write them: 512MiB, 4GiB, 1.5GB."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_LONGEST = 64
"""Characters; Python takes quadratic time for the digits of longer numbers."""


def parse_bytes(text: str) -> int:
    """The bytes that ``text`` says, as the flags of a service read it. Raises ``ValueError``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip()[: _LONGEST + 1])
    if match is None or len(match[0]) > _LONGEST or match[2].upper() not in _UNITS:
        raise ValueError("expected a number of bytes (such as 1048576, 512MiB or 4GiB)")
    return round(Fraction(match[1]) * _UNITS[match[2].upper()])
