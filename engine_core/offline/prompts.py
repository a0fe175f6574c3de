"""Reads prompts for ``LLM.generate``: text, token ids, or a dictionary of either, alone or in a list.

Anything else raises ``TypeError``; a dictionary with other keys, or text that is empty or not valid UTF-8,
``ValueError``. Both name the place.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Number
from typing import Any, TypedDict

from engine_core.errors import written
from engine_core.media import MediaItem
from engine_core.offline.pictures import PictureFile, read_picture

_TEXT, _IDS, _MEDIA = "prompt", "prompt_token_ids", "multi_modal_data"
_ACCEPTED = f'text, a list of token ids, {{"{_TEXT}": text}} or {{"{_IDS}": ids}}'


class TextPrompt(TypedDict):
    """A prompt of text."""

    prompt: str


class PicturesPrompt(TypedDict):
    """A prompt of text in which the model's placeholder stands for each picture."""

    prompt: str
    multi_modal_data: Mapping[str, Any]
    """``{"image": picture}``, or a list of pictures."""


class TokensPrompt(TypedDict):
    """A prompt of token ids."""

    prompt_token_ids: Sequence[int]


PromptInput = str | Sequence[int] | TextPrompt | PicturesPrompt | TokensPrompt


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: its ids, or text to tokenize."""

    place: str
    """In the caller's input, such as ``prompts[3]``."""
    text: str | None
    token_ids: tuple[int, ...] | None
    pictures: tuple[PictureFile, ...] = ()
    """What the placeholders in ``text`` stand for, while there are no ids."""
    media: tuple[MediaItem, ...] = ()
    """Pictures among the ids."""


def read_prompts(prompts: object, name: str = "prompts") -> list[Prompt]:
    """All prompts, in order. A list of numbers is one prompt of token ids. ``name``: of the argument."""
    if isinstance(prompts, str | Mapping):
        return [_read(prompts, name)]
    items = _items(prompts)
    if items is None:
        raise TypeError(f"{name} {_shown(prompts)}; expected {_ACCEPTED}, or a list of these")
    if len(items) and isinstance(items[0], Number):
        return [_read(items, name)]
    return [_read(item, f"{name}[{index}]") for index, item in enumerate(items)]


def _read(prompt: object, place: str) -> Prompt:
    if isinstance(prompt, str):
        return _text(prompt, place)
    if not isinstance(prompt, Mapping):
        return Prompt(place, None, _token_ids(prompt, place, _ACCEPTED))
    if prompt.keys() == {_TEXT, _MEDIA}:
        text = _read({_TEXT: prompt[_TEXT]}, place)
        return replace(text, pictures=_pictures(prompt[_MEDIA], f"{place}[{_MEDIA!r}]"))
    if len(prompt) != 1 or (key := next(iter(prompt))) not in (_TEXT, _IDS):
        has = ", ".join(map(reprlib.repr, prompt)) or "none"
        expected = f"{_TEXT!r} or {_IDS!r} alone, or {_TEXT!r} and {_MEDIA!r}"
        raise ValueError(f"{place} has the keys {has}; expected {expected}")
    value, place = prompt[key], f"{place}[{key!r}]"
    if key == _IDS:
        return Prompt(place, None, _token_ids(value, place, "a list of token ids"))
    if not isinstance(value, str):
        raise TypeError(f"{place} {_shown(value)}; expected text")
    return _text(value, place)


def _pictures(data: object, place: str) -> tuple[PictureFile, ...]:
    if not isinstance(data, Mapping) or data.keys() != {"image"}:
        keys = ", ".join(map(reprlib.repr, data)) if isinstance(data, Mapping) else ""
        found = f"has the keys {keys or 'none'}" if isinstance(data, Mapping) else _shown(data)
        raise ValueError(f"{place} {found}; expected {{'image': picture}}, or a list of pictures")
    given, place = data["image"], f"{place}['image']"
    if not isinstance(given, list | tuple):
        return (read_picture(given, place),)
    return tuple(read_picture(one, f"{place}[{index}]") for index, one in enumerate(given))


def _text(value: str, place: str) -> Prompt:
    if not value:
        raise ValueError(f"{place} is empty; expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(value[error.start]):04X} at position {error.start}, half of a surrogate pair"
        raise ValueError(f"{place} has {found}; expected text that UTF-8 can encode") from None
    return Prompt(place, value, None)


def _token_ids(value: object, place: str, accepted: str) -> tuple[int, ...]:
    items = _items(value)
    if items is None:
        raise TypeError(f"{place} {_shown(value)}; expected {accepted}")
    for index, item in enumerate(items if set(map(type, items)) - {int} else ()):
        if type(item) is bool or not isinstance(item, Integral):
            raise TypeError(f"{place}[{index}] {_shown(item)}; expected a token id, an integer")
    return tuple(map(int, items))


def _items(value: object) -> Sequence[Any] | None:
    """The items of a sequence, an array or a tensor; None for anything else."""
    if hasattr(value, "tolist"):  # numpy arrays and torch tensors, to Python's numbers
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return value
    return None


def _shown(value: object) -> str:
    of_type = "" if value is None else f", of type {type(value).__name__}"
    return f"is {written(value, reprlib.repr)}{of_type}"
