"""What the Dockerfile says, read without a Docker engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Stage:
    """From one FROM to the next."""

    base: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Instructions and what follows them, continued lines joined."""

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.lines if name == instruction]

    def words(self, instruction: str) -> list[str]:
        """The only such instruction in its exec form, which needs no shell."""
        (rest,) = self.all(instruction)
        words = json.loads(rest)
        assert all(isinstance(word, str) for word in words)
        return words


def arguments() -> dict[str, str]:
    """The build arguments with their defaults, wherever they are declared."""
    found = {}
    for match in re.finditer(r"^ARG (\w+)(?:=(.*))?$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        found[match[1]] = match[2] or ""
    return found


def stages() -> dict[str, Stage]:
    """By name, in order."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    current: Stage | None = None
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            found[alias] = current = Stage(base)
        elif name and current is not None:
            current.lines.append((name, rest))
    return found


def lineage(name: str) -> list[Stage]:
    """A stage and all that it is made from by FROM, the nearest first."""
    found, known = [], stages()
    while name in known:
        found.append(known[name])
        name = known[name].base
    return found
