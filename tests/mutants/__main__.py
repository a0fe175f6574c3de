"""``python -m tests.mutants``: are the tests strong?

Small changes are made to the code, one at a time, at random places, and the tests that execute the line are run: one of
them should fail. Coverage with contexts comes first, which tells what executes a line:

    make coverage
    python -m tests.mutants --count 100 --seed 1 --report mutants.json

The changes depend on the seed and the code alone, so that two sets of tests can be compared. They are made in copies of
the tree. A change is *caught* if a test fails that passes without it, *survives* if all pass, is *not executed* if no
test reaches its line, and *undecided* if the tests take longer than they may, or the one that fails always does.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData
from coverage.exceptions import CoverageException

from benchmarks.guard import end_with_this_program
from tests.mutants.changes import Change, changes_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine_core", "services", "text_core", "clients/python/ringline")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
MOST_TESTS = 25
"""Test functions that are run for a change: those that execute the fewest other lines, which are the quickest."""
LINKED = (".venv", ".venv-cpu", ".venv-oldest", "tests/clients/node/node_modules")
"""What tests need of a checkout besides what git has."""


@dataclass(frozen=True)
class Mutant:
    """A change of one file."""

    path: str
    change: Change

    def __str__(self) -> str:
        return f"{self.path}:{self.change.line} {self.change.what}: {self.change.text[:70]}"


@dataclass(frozen=True)
class Verdict:
    """What the tests said of a mutant."""

    mutant: str
    room: str
    outcome: str
    tests: int


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=_positive, default=100, help="changes (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--processes", type=_positive, default=2, help="changes tried at once (default: 2)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that the tests of a change may take (default: 30)")
    parser.add_argument(
        "--coverage", type=Path, default=ROOT / ".coverage", help="data with contexts (default: .coverage)"
    )
    parser.add_argument("--room", action="append", default=None, help="only this, such as services/ring; repeatable")
    parser.add_argument("--report", type=argparse.FileType("w"), default=None, help="write the verdicts there, as JSON")
    given = parser.parse_args()
    if unknown := set(given.room or ()) - _by_room().keys():
        parser.error(f"no room is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(_by_room()))}")
    try:
        executed = Executed(given.coverage)
    except CoverageException as error:
        parser.error(f"--coverage: {error}; `make coverage` measures it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    verdicts: list[Verdict] = []
    try:
        _print_verdicts(given, executed, verdicts)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    show(verdicts)
    return 0 if len(verdicts) == given.count else 130


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not usable: expected an integer, at least 1")
    return int(text)


def _print_verdicts(given: argparse.Namespace, executed: Executed, verdicts: list[Verdict]) -> None:
    """As they come; ``verdicts`` gets each."""
    for verdict in tried_all(drawn(given.count, given.seed, given.room), executed, given.processes, given.seconds):
        verdicts.append(verdict)
        print(f"{len(verdicts):3} {verdict.outcome:12} {verdict.tests:3} tests  {verdict.mutant}", flush=True)
        if given.report is not None:
            given.report.seek(0)
            json.dump([asdict(verdict) for verdict in verdicts], given.report, indent=1)
            given.report.flush()


def tried_all(mutants: Sequence[Mutant], executed: Executed, processes: int, seconds: float) -> Iterator[Verdict]:
    """In the order of ``mutants``, each in a copy of the tree that is free."""
    with ExitStack() as stack:
        free: SimpleQueue[Path] = SimpleQueue()
        for _ in range(processes):
            free.put(stack.enter_context(copied()))
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        stack.callback(_end_running)  # before the pool waits for them
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)

        def judge(mutant: Mutant, tests: Sequence[str]) -> Verdict:
            copy = free.get()
            try:
                outcome = tried(copy, mutant, tests, seconds) if tests else "not executed"
            finally:
                free.put(copy)
            return Verdict(str(mutant), room_of(mutant.path), outcome, len(tests))

        yield from pool.map(judge, mutants, map(executed.by, mutants))


def drawn(count: int, seed: int, only: Sequence[str] | None = None) -> list[Mutant]:
    """Every room has the same chance, whatever its size, and within it every change. ``only``: these rooms."""
    rooms = {room: made for room, made in _by_room().items() if only is None or room in only}
    source, names = random.Random(seed), sorted(rooms)
    made: list[Mutant] = []
    while len(made) < count:
        mutant = source.choice(rooms[source.choice(names)])
        made += [mutant] if _compiles(mutant) else []
    return made


def _compiles(mutant: Mutant) -> bool:
    """Not where Python before 3.12 is wrong about the place of what stands within a text."""
    try:
        ast.parse(mutant.change.applied((ROOT / mutant.path).read_bytes()))
    except SyntaxError:
        return False
    return True


@cache
def _by_room() -> dict[str, list[Mutant]]:
    """All changes of the code."""
    rooms: dict[str, list[Mutant]] = {}
    for top in ROOMS:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.endswith(GENERATED) and (made := changes_of(path.read_bytes())):
                rooms.setdefault(room_of(name), []).extend(Mutant(name, one) for one in made)
    return rooms


def room_of(path: str) -> str:
    """The folder below the package, or the package itself."""
    parts = Path(path).parts
    return "clients/python" if parts[0] == "clients" else "/".join(parts[:2]) if len(parts) > 2 else parts[0]


class Executed:
    """Which tests execute which line."""

    def __init__(self, path: Path) -> None:
        self._data = CoverageData(str(path))
        self._data.read()
        self._width: Counter[str] = Counter()
        if not any(Path(file).is_relative_to(ROOT) for file in self._data.measured_files()):
            raise CoverageException(f"{path} has nothing of {ROOT}")
        if not any(map(_test_of, self._data.measured_contexts())):
            raise CoverageException(f"{path} does not say by which test a line was executed")
        for file in self._data.measured_files():
            for contexts in self._data.contexts_by_lineno(file).values():
                self._width.update(contexts)

    def by(self, mutant: Mutant) -> list[str]:
        """The tests to run, as pytest names them."""
        by_line = self._data.contexts_by_lineno(str(ROOT / mutant.path))
        contexts: Iterable[str] = by_line.get(mutant.change.line, [])
        if contexts and not any(map(_test_of, contexts)):  # when it was imported: it may show in whatever else it does
            contexts = {context for every in by_line.values() for context in every}
        tests = {test: self._width[context] for context in contexts if (test := _test_of(context)) is not None}
        return sorted(filter(_is_there, tests), key=lambda test: (tests[test], test))[:MOST_TESTS]


@cache
def _is_there(test: str) -> bool:
    """Or pytest would fail for want of a test that has another name since coverage was measured."""
    path, name, *_ = test.split("::")
    return (ROOT / path).exists() and re.search(rf"\b{name}\b", (ROOT / path).read_text()) is not None


def _test_of(context: str) -> str | None:
    """Such as ``tests/a/test_b.py::test_c``: behind it there may be ``[1]``, ``@`` and its group, ``(call)``."""
    name = context.strip("|").partition(" (")[0].partition("[")[0].partition("@")[0]
    return name if "::" in name else None


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree, where changes disturb nobody."""
    with tempfile.TemporaryDirectory(prefix="mutants") as directory:
        copy = Path(directory) / "tree"
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        files = os.fsdecode(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout).split("\0")
        for name in filter(lambda name: (ROOT / name).is_file(), (*files, "engine_core/kernels/libringline_cpu.so")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
        for name in LINKED:
            (copy / name).symlink_to((ROOT / name).resolve())
        yield copy


def tried(copy: Path, mutant: Mutant, tests: Sequence[str], seconds: float) -> str:
    """Run the tests on the changed file; the one that fails, also on the file as it is."""
    source = (ROOT / mutant.path).read_bytes()
    (copy / mutant.path).write_bytes(mutant.change.applied(source))
    try:
        code, output = _run(copy, tests, seconds)
    finally:
        (copy / mutant.path).write_bytes(source)
    if code in (None, 0, 5):
        return {None: "undecided", 0: "survived", 5: "not executed"}[code]
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+?)(?:\[.*)?(?: - .*)?$", output, re.MULTILINE)[:1]
    return "caught" if _run(copy, failed or tests, seconds)[0] == 0 else "undecided"


_RUNNING: set[int] = set()
"""Process groups of tests."""


def _run(copy: Path, tests: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """pytest's exit code, None if it took too long, and its last words."""
    path = os.pathsep.join((str(copy), str(copy / "clients" / "python")))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-n0"]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        end_with_this_program(process)
        _RUNNING.add(process.pid)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _RUNNING.discard(process.pid)
            with suppress(ProcessLookupError):  # also what it has left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - (1 << 16)))
        return code, output.read()


def _end_running() -> None:
    for group in list(_RUNNING):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def show(verdicts: Sequence[Verdict]) -> None:
    """A line for each room, and the sum."""
    outcomes = ("caught", "survived", "undecided", "not executed")
    for room in [*sorted({verdict.room for verdict in verdicts}), "all"]:
        counts = Counter(verdict.outcome for verdict in verdicts if room in (verdict.room, "all"))
        print(f"{room:32} " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in outcomes if counts[outcome]))


if __name__ == "__main__":
    sys.exit(main())
