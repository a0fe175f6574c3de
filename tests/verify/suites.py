"""The long suites: how each is run, what its result depends on, and which figures of its output are kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_PRODUCT = ("engine_core", "services", "clients/python", "protos", "checkpoints", "pyproject.toml", "constraints.txt")
_HELPERS = (":(glob)tests/*.py", "benchmarks/guard.py")
_FLEET = (*_PRODUCT, "tests/chaos", *_HELPERS)
"""Of suites that start services, which share the fleet, the load and the ring."""
_PYTEST = ("-m", "pytest", "-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
_TESTS = {
    "passed": r"(\d+) passed",
    "failed": r"(\d+) failed",
    "errors": r"(\d+) errors?\b",
    "skipped": r"(\d+) skipped",
}
_PROBLEMS = {"problems": r"^PROBLEM "}


@dataclass(frozen=True)
class Suite:
    name: str
    what: str
    arguments: tuple[str, ...]
    """Of Python."""
    minutes: float
    """What it takes on two quiet cores. After three times as long it is ended, and has failed."""
    inputs: tuple[str, ...]
    """Git's path patterns of the files that its result depends on."""
    figures: Mapping[str, str]
    """By name, a pattern: the figure is the sum of the numbers in its group, or how often it occurs."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, *self.arguments]

    def figure(self, output: str) -> str:
        """All figures, in words."""
        found = {name: re.findall(pattern, output, re.MULTILINE) for name, pattern in self.figures.items()}
        sums = {name: sum(int(text) if text.isdecimal() else 1 for text in texts) for name, texts in found.items()}
        return ", ".join(f"{value:,} {name}" for name, value in sums.items() if value or name in ("passed", "problems"))


SUITES = (
    Suite(
        name="wide",
        what="kernels in all their shapes",
        arguments=(*_PYTEST, "--wide"),
        minutes=4,
        inputs=(*_PRODUCT, "tests", "benchmarks/guard.py"),
        figures=_TESTS,
    ),
    Suite(
        name="models",
        what="every family of models, beside transformers",
        arguments=(*_PYTEST, "--models"),
        minutes=12,
        inputs=(*_PRODUCT, "tests/engine_core", *_HELPERS),
        figures=_TESTS,
    ),
    Suite(
        name="distributed",
        what="engines of several processes, and their ranks killed",
        arguments=("-m", "pytest", "--distributed"),
        minutes=25,
        inputs=(*_PRODUCT, "tests/engine_core", "tests/services", "tests/chaos", *_HELPERS),
        figures=_TESTS,
    ),
    Suite(
        name="grammars",
        what="JSON Schemas by the thousand, beside jsonschema",
        arguments=(*_PYTEST, "--grammars", "tests/services/text/grammar", "tests/engine_core/structured_output"),
        minutes=8,
        inputs=(*_PRODUCT, "tests/services/text/grammar", "tests/engine_core/structured_output", *_HELPERS),
        figures=_TESTS,
    ),
    Suite(
        name="stubs",
        what="stubs of Go, Java and C#, against a ring",
        arguments=("-m", "tests.stubs"),
        minutes=2,
        inputs=(
            *_PRODUCT,
            "tests/stubs",
            "tests/clients",
            "tests/contract",
            "tests/services/processor",
            ":(glob)tests/services/*.py",
            *_HELPERS,
        ),
        figures={"answers": r"compiled, and answered", "generated": r"  generated$"},
    ),
    Suite(
        name="doors",
        what="stock clients of the HTTP door",
        arguments=("-m", "tests.doors"),
        minutes=12,
        inputs=(*_PRODUCT, "tests/doors", *_HELPERS),
        figures={**_TESTS, **_PROBLEMS},
    ),
    Suite(
        name="rolling",
        what="the model changes under load",
        arguments=("-m", "tests.rolling"),
        minutes=4,
        inputs=(*_FLEET, "tests/rolling"),
        figures={"requests": r"(\d+) requests in", "problems": r"(\d+) problems"},
    ),
    Suite(
        name="mixed",
        what="services of two releases in one ring",
        arguments=("-m", "tests.mixed"),
        minutes=8,
        inputs=(*_FLEET, "tests/mixed", "tests/contract"),
        figures={"requests": r"(\d+) requests  ", "refused": r"(\d+) refused", "problems": r"(\d+) problems"},
    ),
    Suite(
        name="scheduler",
        what="the scheduler's property test",
        arguments=("-m", "tests.engine_core.scheduling.soak", "--seconds", "300"),
        minutes=5,
        inputs=("engine_core", "tests/engine_core/scheduling", ":(glob)tests/engine_core/*.py", "constraints.txt"),
        figures={"rounds of 200 examples": r"round \d+ .*no failure"},
    ),
    Suite(
        name="chaos",
        what="services are killed, hung and cut off under load",
        arguments=("-m", "tests.chaos", "--seconds", "300"),
        minutes=9,
        inputs=_FLEET,
        figures={"requests": r"(\d+) requests \(", **_PROBLEMS},
    ),
    Suite(
        name="ranks",
        what="ranks of engines are killed, stopped and cut off, too",
        arguments=("-m", "tests.chaos", "--ranks", "--seconds", "300"),
        minutes=12,
        inputs=_FLEET,
        figures={"requests": r"(\d+) requests \(", **_PROBLEMS},
    ),
    Suite(
        name="abuse",
        what="attacks beside clients that behave",
        arguments=("-m", "tests.abuse", "--seconds", "300"),
        minutes=7,
        inputs=(*_FLEET, "tests/abuse"),
        figures={"phases": r" s$", **_PROBLEMS},
    ),
    Suite(
        name="fuzz",
        what="mutated messages to every service",
        arguments=("-m", "tests.fuzz", "--inputs", "30000"),
        minutes=10,
        inputs=(*_PRODUCT, "tests/fuzz", *_HELPERS),
        figures={"inputs": r"(\d+) inputs in"},
    ),
)
