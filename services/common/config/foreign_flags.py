"""Flags of other programs on a command's line: each sets an option of ours, has no effect, or is answered.

``vllm_options`` and ``llama_server_options`` have a table for each program. ``translate`` rewrites a command line
before it is parsed, so that a flag of theirs is parsed, checked and refused as the option that it sets.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

OBJECTS = frozenset(
    {
        "limit_mm_per_prompt",
        "mm_processor_kwargs",
        "override_generation_config",
        "pooler_config",
        "speculative_config",
    }
)
"""Options with a JSON object. As vLLM does, --option.member VALUE sets a member; VALUE is JSON, or else text."""
_SHORT_WITH_NUMBER = re.compile(r"(-[A-Za-z]+)(\d+)")
"""-tp2, which is -tp 2."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A flag that sets an option of ours. Of a bool, --no-x unsets it."""

    option: str
    """Its Python name."""
    values: Mapping[str, str | None] = field(default_factory=dict)
    """Values that have another name here; None leaves the option out."""
    value: str | None = None
    """The value that the flag sets, if it takes none itself."""
    others: str | None = None
    """A list option that gets all values but the first: those that follow, if MODEL came before. That of ``option``: it
    gets all of them."""
    by_commas: bool = False
    """Whether commas separate the values for ``others``, too."""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A flag that is taken and ignored, with a warning: no token and no answer depends on it."""

    why: str
    """The rest of a sentence that begins "--x has no effect: "."""
    takes_value: bool = False
    only: tuple[str, ...] = ()
    """The only values that may be ignored; () for all. Of a flag without ``takes_value``, the value may be left out."""
    otherwise: str = ""
    """What there is instead of other values, the rest of a sentence that begins with flag and value."""


Answer = str
"""What there is instead of a flag that is refused: the rest of a sentence that begins with it."""
ForeignFlags = Mapping[str, Alias | NoEffect | Answer]
"""By name, without dashes at its beginning and with ``_`` for others; a name without "no_" covers that with it."""


def table(*rooms: Mapping[tuple[str, ...], Alias | NoEffect | Answer]) -> dict[str, Alias | NoEffect | Answer]:
    """One table of several whose entries have several names; the first entry of a name counts."""
    entries: dict[str, Alias | NoEffect | Answer] = {}
    for room in rooms:
        for names, entry in room.items():
            for name in names:
                entries.setdefault(name, entry)
    return entries


def entry_of(flag: str, foreign: ForeignFlags) -> Alias | NoEffect | Answer | None:
    """The entry of a flag, such as --ctx-size, --no-mmap or --compilation-config.level."""
    name = flag.lstrip("-").replace("-", "_")
    stem = name.partition(".")[0]
    for each in (name, stem, stem.removeprefix("no_")):
        if each in foreign:
            return foreign[each]
    number = _SHORT_WITH_NUMBER.fullmatch(flag)
    return None if number is None else foreign.get(number[1].removeprefix("-"))


def _number_in(flag: str, foreign: ForeignFlags) -> str | None:
    """The value in -tp2; None for a flag that has a number in its name."""
    number = _SHORT_WITH_NUMBER.fullmatch(flag)
    return None if number is None or flag.removeprefix("-") in foreign else number[2]


@dataclass(frozen=True, slots=True)
class Translation:
    """A command line in our flags."""

    words: list[str]
    ignored: dict[str, str]
    """Flags without effect, with the reason."""


def translate(words: Iterable[str], options: Iterable[click.Option], foreign: ForeignFlags) -> Translation:
    """``words`` with flags of ``foreign`` rewritten; other flags, and values, stay as they are.

    ``options``: the command's own, which win over ``foreign``. Raises ``UsageError`` for a value that has no meaning
    here.
    """
    return _Translator(options, foreign).translate(words)


class _Translator:
    def __init__(self, options: Iterable[click.Option], foreign: ForeignFlags) -> None:
        self._foreign = foreign
        self._by_name = {option.name: option for option in options}
        self._by_flag = {
            flag: option for option in self._by_name.values() for flag in (*option.opts, *option.secondary_opts)
        }
        self._rest: deque[str] = deque()
        self._ignored: dict[str, str] = {}
        self._model_given = False
        self._members: dict[str, dict[str, Any]] = {}

    def translate(self, words: Iterable[str]) -> Translation:
        self._rest = deque(words)
        translated: list[str] = []
        while self._rest:
            translated += self._next(self._rest.popleft())
        for flag in self._members:
            if any(word.partition("=")[0] == flag for word in translated):
                raise click.UsageError(f"{flag} is given as a whole and by members: choose one.")
        objects = [f"{flag}={json.dumps(members)}" for flag, members in self._members.items()]
        return Translation(objects + translated, self._ignored)

    def _next(self, word: str) -> Iterator[str]:
        """The translation of ``word`` and of what belongs to it."""
        flag, equals, value = word.partition("=")
        dashed = flag.replace("_", "-")
        if flag not in self._by_flag and dashed in self._by_flag:  # vLLM takes both spellings
            flag, word = dashed, dashed + equals + value
        entry = entry_of(flag, self._foreign) if word[:1] == "-" else None
        own = self._by_flag.get(flag)
        if own is not None and not (isinstance(entry, Alias) and entry.option == own.name):
            entry = None
        if own is None and isinstance(entry, Alias) and entry.option in OBJECTS and "." in flag:  # such as -sc.model
            flag = "--" + entry.option.replace("_", "-") + flag[flag.index(".") :]
            entry = None
        inline = value if equals else None
        if own is None and entry is not None and inline is None:
            inline = _number_in(flag, self._foreign)
        if word == "--":
            yield word
            yield from self._rest
            self._rest.clear()
        elif isinstance(entry, Alias) and entry.option in self._by_name:
            yield from self._alias(flag, entry, inline)
        elif isinstance(entry, NoEffect):
            self._ignore(flag, entry, inline)
        elif own is None and self._is_member(flag):
            self._add_member(flag, inline)
        elif isinstance(entry, str) and not flag.startswith("--"):  # click would read -hff as -h -f -f
            raise click.UsageError(f"{flag} {entry}.")
        else:
            yield word
            self._model_given |= word[:1] != "-" or (own is not None and own.name == "model")
            if own is not None and _takes_value(own) and inline is None and self._rest:
                yield self._rest.popleft()

    def _alias(self, flag: str, entry: Alias, inline: str | None) -> Iterator[str]:
        option = self._by_name[entry.option]
        flags = [each for each in option.opts if each.startswith("--")]
        if not _takes_value(option):
            is_negative = flag.lstrip("-").startswith("no-") != (entry.value == "false")
            yield option.secondary_opts[0] if is_negative else flags[0]
            return
        value = entry.value or inline
        if value is None:
            if not self._rest:
                yield flags[0]  # click says what is missing
                return
            value = self._rest.popleft()
        self._model_given |= entry.option == "model"
        if entry.others is not None:
            value, *others = [*(value.split(",") if entry.by_commas else [value]), *self._following()]
            if entry.others == entry.option:
                value = ",".join([value, *others])
            elif others:
                yield f"{self._flag_of_others(flag, entry.others, others)}={','.join(others)}"
        known = entry.values.get(value, value)
        if known is not None:
            yield f"{flags[0]}={known}"

    def _is_member(self, flag: str) -> bool:
        """Whether it is of an object, such as --limit-mm-per-prompt.image."""
        option = self._by_flag.get(flag.partition(".")[0].replace("_", "-"))
        return "." in flag and option is not None and option.name in OBJECTS

    def _add_member(self, flag: str, inline: str | None) -> None:
        if inline is None and not self._rest:
            raise click.UsageError(f"Option '{flag}' requires an argument.")
        text = self._rest.popleft() if inline is None else inline
        first, *path, last = flag.split(".")
        members = self._members.setdefault(first.replace("_", "-"), {})
        for name in path:
            members = members.setdefault(name, {})
            if not isinstance(members, dict):
                raise click.UsageError(f"{flag}: {name} has a value already.")
        try:
            members[last] = json.loads(text)
        except (ValueError, RecursionError):
            members[last] = text

    def _flag_of_others(self, flag: str, others: str, names: list[str]) -> str:
        option = self._by_name.get(others)
        if option is None:
            raise click.UsageError(
                f"{flag} has the further names {', '.join(names)}: give one here, and the others to "
                f"`ringline processor --{others.replace('_', '-')}`."
            )
        return option.opts[0]

    def _following(self) -> Iterator[str]:
        """Further values of a flag. Before MODEL, the next word is that."""
        while self._model_given and self._rest and not self._rest[0].startswith("-"):
            yield self._rest.popleft()

    def _ignore(self, flag: str, entry: NoEffect, inline: str | None) -> None:
        value = inline
        if value is None and self._rest and (entry.takes_value or self._rest[0] in entry.only):
            value = self._rest.popleft()
        if value is not None and entry.only and value not in entry.only:
            raise click.UsageError(f"{flag} {value} {entry.otherwise}.")
        while value is not None and value.isdigit() and self._rest and self._rest[0].isdigit():
            self._rest.popleft()  # of a list, such as --cudagraph-capture-sizes 1 2 4
        self._ignored[flag] = entry.why


def _takes_value(option: click.Option) -> bool:
    return not option.is_flag
