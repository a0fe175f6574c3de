r"""Rewrites known look-ahead patterns, which libraries put into their schemas, as equivalents without look-ahead.

Look-ahead in general cannot be compiled. Decimals have a digit before the point here, as ``str`` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_MAX_DIGITS = 64
"""Maximum total digits of a decimal: every position of the point becomes an alternative."""

_ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
)
_SECONDS = r"\d+(?:[.,]\d+)?S"
_TIME = rf"T(?:\d+H(?:\d+M)?(?:{_SECONDS})?|\d+M(?:{_SECONDS})?|{_SECONDS})"
_DAYS = r"(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)"
_ZOD_DURATION = (
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
    rf"^P(?:\d+W|{_DAYS}(?:{_TIME})?|{_TIME})$",
)
_WHOLE = dict((_ZOD_EMAIL, _ZOD_DURATION))

_SIGN = r"^[+-]?"
_PYDANTIC_SIGN = re.escape(r"^(?!^[-+.]*$)[+-]?0*")


def _any_decimal(_: re.Match[str]) -> str:
    return rf"{_SIGN}\d+(?:\.\d*)?$"


def _with_places(found: re.Match[str]) -> str:
    return rf"{_SIGN}\d+(?:\.\d{{0,{found['places']}}}0*)?$"


def _with_digits(found: re.Match[str]) -> str:
    digits = int(found["digits"])
    if digits > _MAX_DIGITS:
        return found[0]
    pointed = [rf"{_whole_part(whole)}\.\d{{0,{digits - whole}}}0*" for whole in range(digits + 1)]
    return rf"{_SIGN}(?:{'|'.join([_whole_part(digits), *pointed])})$"


def _with_both(found: re.Match[str]) -> str:
    places = min(int(found["places"]), int(found["counted"]) - 1)
    return rf"{_SIGN}{_whole_part(int(found['whole']))}(?:\.\d{{0,{places}}}0*)?$"


def _whole_part(digits: int) -> str:
    """At least one digit, at most ``digits`` after leading zeros."""
    return rf"0*\d{{1,{digits}}}" if digits else "0+"


_DECIMALS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"\\d\*\\\.\?\\d\*\$", _any_decimal),
    (r"\\d\*\\\.\?\\d\{0,(?P<places>\d{1,4})\}0\*\$", _with_places),
    (
        r"\(\?:\\d\{0,(?P<digits>\d{1,4})\}\|\(\?=\[\\d\.\]\{1,(?P<counted>\d{1,4})\}0\*\$\)\\d\*\\\.\\d\*0\*\$\)",
        _with_digits,
    ),
    (
        r"\(\?:\\d\{0,(?P<whole>\d{1,4})\}\|\(\?=\[\\d\.\]\{1,(?P<counted>\d{1,4})\}0\*\$\)"
        r"\\d\{0,(?P=whole)\}\\\.\\d\{0,(?P<places>\d{1,4})\}0\*\$\)",
        _with_both,
    ),
)
"""Pydantic's patterns (up to 2.12) for ``Decimal`` with limits on: nothing, decimal places, digits, both."""


def without_look_ahead(pattern: str) -> str:
    """``pattern``, or its equivalent without look-ahead if it has a known shape."""
    if "(?!" not in pattern:
        return pattern
    if (known := _WHOLE.get(pattern)) is not None:
        return known
    for shape, written in _DECIMALS:
        if (found := re.fullmatch(_PYDANTIC_SIGN + shape, pattern)) is not None:
            return written(found)
    return pattern
