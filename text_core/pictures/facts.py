"""Reads a model's facts: fields of config.json and preprocessor_config.json, with checks that all families need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from text_core.pictures.base import FACTS, PictureFacts, Resample

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
MAX_VIEW_SIDE = 16384
"""Most pixels along a side that a configuration may ask for."""


def integer(
    fields: Mapping[str, Any],
    path: str,
    default: int | None = None,
    *,
    file: str,
    least: int = 1,
    most: int = 2**31 - 1,
) -> int:
    """A whole number of nested ``fields``, whose names ``path`` joins by dots. None (null) counts as missing.

    Raises ``ValueError`` naming file and field.
    """
    value: Any = fields
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        value = default
    if value is None:
        raise ValueError(f"{file} lacks {path}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{file}: {path} is {value!r}, not a whole number from {least} to {most}")
    return value


def flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """A truth value of preprocessor_config.json. Raises ``ValueError``."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{PREPROCESSOR}: {name} is {value!r}, not true or false")
    return value


def number(fields: Mapping[str, Any], name: str, default: float) -> float:
    """A number ≥ 0 of preprocessor_config.json. Raises ``ValueError``."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
        raise ValueError(f"{PREPROCESSOR}: {name} is {value!r}, not a number ≥ 0")
    return float(value)


def resample(fields: Mapping[str, Any], default: Resample) -> Resample:
    """The filter. Raises ``ValueError``."""
    value = fields.get("resample")
    if value is None:
        return default
    if isinstance(value, bool) or value not in tuple(Resample):
        known = ", ".join(f"{one.value} ({one.name.lower()})" for one in Resample)
        raise ValueError(f"{PREPROCESSOR}: resample is {value!r}; expected one of {known}")
    return Resample(value)


def color(fields: Mapping[str, Any], name: str, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Red, green and blue in [0, 255]. Raises ``ValueError``."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, list | tuple) or len(value) != 3 or any(type(one) is not int for one in value):
        raise ValueError(f"{PREPROCESSOR}: {name} is {value!r}, not three whole numbers")
    red, green, blue = value
    if not all(0 <= one <= 255 for one in value):
        raise ValueError(f"{PREPROCESSOR}: {name} is {value!r}; each must be from 0 to 255")
    return red, green, blue


def must_resize(fields: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if the configuration switches off what makes pictures fit the model."""
    if not flag(fields, "do_resize", True):
        raise ValueError(f"{PREPROCESSOR}: do_resize is false, which is not supported: pictures must fit the model")


def token_of(facts: PictureFacts, fields: tuple[str, ...], usual: str) -> tuple[str, int]:
    """Text and id of a special token: the id from the first of config.json's ``fields`` that is there, the text by it.

    ``usual``: its text, where the tokenizer's tokens do not tell. Raises ``ValueError``.
    """
    token_id = next((facts.config[name] for name in fields if facts.config.get(name) is not None), None)
    if token_id is None:
        token_id = facts.special_tokens.get(usual)
    if token_id is None:
        raise ValueError(f"{CONFIG} lacks {' or '.join(fields)}, and the tokenizer has no token {usual}")
    if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
        raise ValueError(f"{CONFIG}: {fields[0]} is {token_id!r}, not a token's id")
    if not facts.special_tokens or facts.special_tokens.get(usual) == token_id:
        return usual, token_id
    texts = [text for text, listed in facts.special_tokens.items() if listed == token_id]
    if not texts:
        raise ValueError(f"{CONFIG}: {fields[0]} is {token_id}, which is none of the tokenizer's added tokens")
    return texts[0], token_id


def most_tokens(facts: PictureFacts) -> int:
    """The most tokens of an item. Raises ``ValueError``."""
    if facts.max_tokens < 1:
        raise ValueError(f"{FACTS}: max_tokens is {facts.max_tokens}, not ≥ 1")
    return facts.max_tokens
