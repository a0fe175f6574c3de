"""Programs of stock clients: run in the client's environment, they print what the client showed them, by subject."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.doors.environments import HERE, NODE, Environment, of_node, of_python
from tests.programs import run

ASKED: dict[str, Any] = json.loads((HERE / "programs" / "asked.json").read_text())
"""What every client asks; the programs read it, too."""

ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "",  # what they import is compiled once
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Variables of every client: it asks nobody but the door."""


@dataclass(frozen=True)
class Shown:
    """What a program showed."""

    client: str
    """With its version."""
    subjects: dict[str, dict[str, Any]] = field(repr=False)

    def __call__(self, subject: str) -> Any:
        """What it showed of a subject; fails as the program did there."""
        shown = self.subjects[subject]
        assert "failed" not in shown, f"{self.client}: {subject}\n{shown['failed']}"
        return shown["shown"]


def run_python(client: str, program: str, *arguments: str) -> Shown:
    """Run programs/``program``.py with a client of Python."""
    environment = of_python(client)
    return _run(environment, environment.python, HERE / "programs" / f"{program}.py", *arguments)


def run_node(client: str, program: str, *arguments: str) -> Shown:
    """Run node/``client``/``program``.mjs."""
    return _run(of_node(client), NODE, HERE / "node" / client / f"{program}.mjs", *arguments)


def _run(environment: Environment, *command: str | Path) -> Shown:
    assert environment.is_made, f"{environment.name} is not installed: run `python -m tests.doors`, which does that"
    done = run(*command, env=ENVIRONMENT, timeout=280)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"subject":')]
    assert done.returncode == 0, done.stdout + done.stderr
    return Shown(versions(environment), {line["subject"]: line for line in lines})


def versions(environment: Environment) -> str:
    """The client's own packages, with their versions."""
    packages = ", ".join(f"{package} {version}" for package, version in environment.packages)
    return f"{packages} ({environment.language})"
