"""The long suites: how each is run, what its result depends on, and which figures of its output are kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_DATA = ("checkpoints", "engine_core/kernels/cpu", "engine_core/kernels/build.py", "constraints.txt", "pyproject.toml")
"""What no module imports: models, the sources of kernels, and the versions of packages."""
_COMMANDS = "services.cli.commands"
_RING = ("services.cli.__main__", f"{_COMMANDS}.engine", f"{_COMMANDS}.processor", f"{_COMMANDS}.detokenizer")
"""Services that a suite starts."""
_STACK = (*_RING, f"{_COMMANDS}.serve")
_GATEWAY = (*_STACK, f"{_COMMANDS}.gateway")
_PYTEST = ("-m", "pytest", "-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder", "--max-worker-restart=0")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
"""Of every suite: several processes share the cores."""
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
    begins: tuple[str, ...]
    """The modules where its code begins, in its own process and in those that it starts."""
    figures: Mapping[str, str]
    """By name, a pattern: the figure is the sum of the numbers in its group, or how often it occurs."""
    data: tuple[str, ...] = _DATA
    """Git's path patterns of further files that its result depends on."""
    mark: str | None = None
    """That of pytest's tests which are part of it."""

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
        what="kernels in all their shapes, and longer property tests",
        arguments=(*_PYTEST, "--wide"),
        minutes=10,
        begins=("tests.conftest", "tests.engine_core.kernels.compiled", *_STACK),
        mark="wide",
        data=(
            *(*_DATA, "deploy/helm", "deploy/kubernetes"),
            *(f"tests/engine_core/{room}" for room in ("attention", "kernels", "ops", "quantization")),
        ),
        figures=_TESTS,
    ),
    Suite(
        name="models",
        what="every family of models, beside transformers",
        arguments=(*_PYTEST, "--models"),
        minutes=12,
        begins=("tests.conftest",),
        mark="models",
        figures=_TESTS,
    ),
    Suite(
        name="distributed",
        what="engines of several processes, and their ranks killed",
        arguments=("-m", "pytest", "--distributed"),
        minutes=25,
        begins=("tests.conftest", *_STACK),
        mark="distributed",
        figures=_TESTS,
    ),
    Suite(
        name="grammars",
        what="JSON Schemas by the thousand, beside jsonschema",
        arguments=(*_PYTEST, "--grammars", "tests/text_core/grammar", "tests/engine_core/structured_output"),
        minutes=8,
        begins=("tests.conftest",),
        mark="grammars",
        data=(*_DATA, "tests/text_core/grammar", "tests/engine_core/structured_output"),
        figures=_TESTS,
    ),
    Suite(
        name="speculation",
        what="every drafter for every kind of model, beside none",
        arguments=(*_PYTEST, "--speculation", "tests/engine_core"),
        minutes=8,
        begins=("tests.conftest",),
        mark="speculation",
        figures=_TESTS,
    ),
    Suite(
        name="stubs",
        what="stubs of Go, Java and C#, against a ring",
        arguments=("-m", "tests.stubs"),
        minutes=2,
        begins=("tests.stubs.__main__", *_STACK),
        data=(*_DATA, "protos", "tests/stubs", "tests/clients/node", "clients/python"),
        figures={"answers": r"compiled, and answered", "generated": r"  generated$"},
    ),
    Suite(
        name="vectors",
        what="a published embedding model by every way in, beside transformers",
        arguments=("-m", "tests.vectors"),
        minutes=5,
        begins=("tests.vectors.__main__", *_GATEWAY),
        figures={"ways": r"bits equal", "problems": r"^problems: (\d+)"},
    ),
    Suite(
        name="doors",
        what="stock clients of the HTTP door",
        arguments=("-m", "tests.doors"),
        minutes=12,
        begins=("tests.doors.__main__", *_GATEWAY),
        mark="doors",
        data=(*_DATA, "tests/doors"),
        figures={**_TESTS, **_PROBLEMS},
    ),
    Suite(
        name="rolling",
        what="the model changes under load",
        arguments=("-m", "tests.rolling"),
        minutes=4,
        begins=("tests.rolling.__main__", *_RING),
        figures={"requests": r"(\d+) requests in", "problems": r"(\d+) problems"},
    ),
    Suite(
        name="mixed",
        what="services of two releases in one ring, and one that is upgraded",
        arguments=("-m", "tests.mixed"),
        minutes=11,
        begins=("tests.mixed.__main__", *_RING),
        data=(*_DATA, "protos", "clients/python"),
        figures={"requests": r"(\d+) requests  ", "refused": r"(\d+) refused", "problems": r"(\d+) problems"},
    ),
    Suite(
        name="npm",
        what="services are killed under streams of the client for TypeScript",
        arguments=("-m", "tests.npm"),
        minutes=5,
        begins=("tests.npm.__main__", *_RING),
        data=(*_DATA, "protos/ringline/inference", "protos/ringline/types", "clients/typescript"),
        figures={"streams": r"(\d+) streams \(", **_PROBLEMS},
    ),
    Suite(
        name="scheduler",
        what="the scheduler's property test",
        arguments=("-m", "tests.engine_core.scheduling.soak", "--seconds", "300"),
        minutes=5,
        begins=("tests.engine_core.scheduling.soak",),
        data=("constraints.txt",),
        figures={"rounds of 200 examples": r"round \d+ .*no failure"},
    ),
    Suite(
        name="chaos",
        what="services are killed, hung and cut off under load",
        arguments=("-m", "tests.chaos", "--seconds", "300"),
        minutes=9,
        begins=("tests.chaos.__main__", *_RING),
        figures={"requests": r"(\d+) requests \(", **_PROBLEMS},
    ),
    Suite(
        name="images",
        what="the same with chats that have pictures",
        arguments=("-m", "tests.chaos", "--kind", "images", "--seconds", "120", "--pauses", "2", "--rolling", "0"),
        minutes=5,
        begins=("tests.chaos.__main__", "text_core.pictures.child", *_RING),
        figures={"requests": r"(\d+) requests \(", **_PROBLEMS},
    ),
    Suite(
        name="adapters",
        what="the same with adapters that are replaced meanwhile",
        arguments=("-m", "tests.chaos", "--kind", "adapters", "--seconds", "120", "--pauses", "0", "--rolling", "1"),
        minutes=5,
        begins=("tests.chaos.__main__", *_RING),
        figures={"requests": r"(\d+) requests \(", **_PROBLEMS},
    ),
    Suite(
        name="pictures",
        what="damaged pictures by the thousand",
        arguments=("-m", "tests.services.processor.media.damaged_pictures"),
        minutes=4,
        begins=("tests.services.processor.media.damaged_pictures", "text_core.pictures.child"),
        data=("constraints.txt",),
        figures={"pictures": r"^(\d+) pictures of seed", "unexpected": r"^UNEXPECTED "},
    ),
    Suite(
        name="ranks",
        what="ranks of engines are killed, stopped and cut off, too",
        arguments=("-m", "tests.chaos", "--ranks", "--seconds", "300"),
        minutes=12,
        begins=("tests.chaos.__main__", *_RING),
        figures={"requests": r"(\d+) requests \(", **_PROBLEMS},
    ),
    Suite(
        name="abuse",
        what="attacks beside clients that behave",
        arguments=("-m", "tests.abuse", "--seconds", "300"),
        minutes=7,
        begins=("tests.abuse.__main__", *_RING),
        figures={"phases": r" s$", **_PROBLEMS},
    ),
    Suite(
        name="walks",
        what="the tutorials, as a reader would follow them",
        arguments=("-m", "tests.docs.site.walks"),
        minutes=6,
        begins=("tests.docs.site.walks", *_GATEWAY),
        data=(*_DATA, "docs/start", "docs/tutorials", "clients/python"),
        figures={"blocks": r": (\d+) blocks in", **_PROBLEMS},
    ),
    Suite(
        name="fuzz",
        what="mutated messages to every service",
        arguments=("-m", "tests.fuzz", "--inputs", "30000"),
        minutes=10,
        begins=("tests.fuzz.__main__", *_GATEWAY),
        figures={"inputs": r"(\d+) inputs in"},
    ),
)
