"""The version of a release: where it is written, how it is set, and what would be wrong with a new one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)
UNRELEASED = "Unreleased"
CHANGELOG = "CHANGELOG.md"
SERVER = "pyproject.toml"


class ReleaseError(Exception):
    """A release cannot be made; the text says why, and what to do."""


class _Place(NamedTuple):
    """Where a version is written."""

    path: str
    pattern: str
    """Its group is what a release replaces."""
    new: Callable[[str], str] = str
    optional: bool = False
    """Whether there may be no such file."""


def bound(version: str) -> str:
    """The clients that a server of this version takes: its own, and later ones that break nothing."""
    major, minor, _ = version.split(".")
    return f">={version},<{f'0.{int(minor) + 1}' if major == '0' else int(major) + 1}"


PLACES = (
    _Place(SERVER, r'(?m)^version = "(.*)"'),
    _Place(SERVER, r'(?m)^    "ringline(>=.*)",', bound),
    _Place("clients/python/pyproject.toml", r'(?m)^version = "(.*)"'),
    _Place("clients/typescript/package.json", r'(?m)^  "version": "(.*)"', optional=True),
    _Place("clients/typescript/package-lock.json", r'(?m)^(?:  |      )"version": "(.*)"', optional=True),
    _Place("deploy/helm/ringline/Chart.yaml", r"(?m)^(?:version|appVersion): (.*)$", optional=True),
)
_LOCK_HEAD = 12
"""Lines of an npm lock before its first dependency."""


def current(root: Path) -> str:
    """The version of the server's distribution. Raises ``ReleaseError``."""
    found = re.search(PLACES[0].pattern, (root / SERVER).read_text())
    if found is None:
        raise ReleaseError(f'{SERVER} has no line `version = "…"`')
    return found[1]


def check(root: Path, version: str, tags: list[str]) -> None:
    """Raise ``ReleaseError`` if ``version`` is malformed, there already, or not above what there is."""
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version: expected three numbers, such as 0.2.0")
    text = (root / CHANGELOG).read_text()
    if f"v{version}" in tags or f"\n## {version}\n" in text or f"\n## {version}, " in text:
        where = f"git has the tag v{version}" if f"v{version}" in tags else f"{CHANGELOG} has a section for it"
        raise ReleaseError(f"{version} is there already: {where}; choose a higher version")
    highest = max([current(root), *(tag[1:] for tag in tags if VERSION.fullmatch(tag[1:]))], key=_numbers)
    if _numbers(version) <= _numbers(highest):
        raise ReleaseError(f"{version} is not above {highest}, the version that there is: choose a higher one")
    _notes(text)


def changes(root: Path, version: str, date: str) -> dict[str, str]:
    """The files that a release changes, by path, with their new texts. Raises ``ReleaseError``."""
    texts: dict[str, str] = {}
    for place in PLACES:
        if place.optional and not (root / place.path).exists():
            continue
        text = texts.get(place.path) or (root / place.path).read_text()
        texts[place.path] = _set(place, text, place.new(version))
    texts[CHANGELOG] = _dated((root / CHANGELOG).read_text(), version, date)
    return texts


def _set(place: _Place, text: str, new: str) -> str:
    head, rest = text, ""
    if place.path.endswith("-lock.json"):
        lines = text.splitlines(keepends=True)
        head, rest = "".join(lines[:_LOCK_HEAD]), "".join(lines[_LOCK_HEAD:])
    matches = list(re.finditer(place.pattern, head))
    if not matches:
        raise ReleaseError(f"{place.path} has no line like {place.pattern}: is the version written elsewhere now?")
    for match in reversed(matches):
        head = head[: match.start(1)] + new + head[match.end(1) :]
    return head + rest


def _notes(text: str) -> str:
    """What is new since the last release. Raises ``ReleaseError`` if there is nothing."""
    _, found, rest = text.partition(f"\n## {UNRELEASED}\n")
    notes = rest.partition("\n## ")[0].strip()
    if not found or not any(line.startswith("- ") for line in notes.splitlines()):
        raise ReleaseError(f"{CHANGELOG} has nothing under {UNRELEASED}: say what is new, by what users notice")
    return notes


def _dated(text: str, version: str, date: str) -> str:
    """The changelog with what is new under the version, below an empty section for what comes next."""
    _notes(text)
    return text.replace(f"\n## {UNRELEASED}\n", f"\n## {UNRELEASED}\n\n## {version}, {date}\n", 1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def shown(root: Path, texts: dict[str, str]) -> Iterator[str]:
    """The lines that change, for people."""
    for path, text in texts.items():
        old = (root / path).read_text().splitlines()
        yield from (f"{path}: {line.strip()}" for line in text.splitlines() if line and line not in old)
