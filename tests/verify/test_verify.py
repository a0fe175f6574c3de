"""Suites run once for the files that they depend on, each leaves a line, and none of their inputs is forgotten."""

from __future__ import annotations

import fnmatch
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.report import Report
from tests.house.pieces import imported
from tests.processes import alive
from tests.verify.__main__ import PATIENCE, ROOT, verify
from tests.verify.results import Results
from tests.verify.suites import SUITES, Suite

SAYS_SEVEN = "print('7 found')"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "code.py").write_text("1\n")
    (tmp_path / "README.md").write_text("1\n")
    (tmp_path / ".gitignore").write_text(".verify/\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path


def suite(program: str, *, name: str = "some", minutes: float = 1.0) -> Suite:
    return Suite(name, "", ("-c", program), minutes, ("engine",), {"found": r"(\d+) found", "words": "why"})


def test_what_has_passed_is_run_again_only_when_its_inputs_change(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def shown() -> list[str]:
        assert verify([suite(SAYS_SEVEN)], Results(checkout)) == 0
        return capfd.readouterr().out.splitlines()

    first, line = shown()
    assert first == "1 of 1 suites to run, about 1 minutes"
    name, _, *figure = line.split()
    assert (name, figure) == ("some", ["7", "found"])
    for untouched in ("README.md", "new.py"):
        (checkout / untouched).write_text("2\n")
        assert shown()[0] == "0 of 1 suites to run, about 0 minutes"
    for changed in ("engine/code.py", "engine/new.py"):
        (checkout / changed).write_text("2\n")
        assert shown()[0].startswith("1 of 1 suites to run")
    (checkout / "engine" / "code.py").unlink()
    assert shown()[0].startswith("1 of 1 suites to run")
    _, line = shown()
    assert line.endswith(f"7 found  passed at {Results(checkout).commit}, and what it depends on is the same")


def test_a_failure_is_shown_and_run_again_and_the_others_go_on(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suites = [suite("print('why'); raise SystemExit(2)", name="bad"), suite(SAYS_SEVEN, name="good")]
    for to_run in ("2 of 2", "1 of 2"):
        assert verify(suites, Results(checkout)) == 1
        shown = capfd.readouterr().out
        assert shown.startswith(to_run)
        assert "FAILED: " in shown
        assert "\n    why\n" in shown
        assert "7 found" in shown


def test_output_that_is_no_text_has_a_figure(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """That of a suite that was ended within a character, say."""
    ends_early = suite("import sys; sys.stdout.buffer.write(b'7 found \\xe2\\x80'); sys.exit(1)")
    assert verify([ends_early], Results(checkout)) == 1
    assert "7 found" in capfd.readouterr().out


def test_a_suite_that_does_not_end_is_ended_with_all_that_it_started(checkout: Path) -> None:
    child = "import subprocess, time; print(subprocess.Popen(['sleep', '61']).pid, flush=True); time.sleep(60)"
    sleeps = suite(child, minutes=1 / 60 / PATIENCE)
    assert verify([sleeps], Results(checkout)) == 1
    output = Results(checkout).log(sleeps).read_text()
    assert "it usually takes" in output
    assert not alive(int(output.split()[0]))


def test_files_changed_meanwhile_leave_no_result_to_rely_on(checkout: Path) -> None:
    changes = "import pathlib; pathlib.Path('engine/code.py').write_text('3')"
    assert verify([suite(changes)], Results(checkout)) == 1


def test_an_interruption_ends_the_suite_and_leaves_no_result(checkout: Path) -> None:
    interrupts = (
        "import os, signal, time; print(os.getpid(), flush=True); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    results, sleeps = Results(checkout), suite(interrupts)
    with pytest.raises(KeyboardInterrupt):
        verify([sleeps], results)
    assert not alive(int(results.log(sleeps).read_text().split()[0]))
    assert not list(checkout.glob(".verify/*/*.json"))


def test_a_second_interruption_ends_a_suite_that_takes_its_time(checkout: Path) -> None:
    interrupts_twice = """
import os, signal, time
def interrupt(*_):
    os.kill(os.getppid(), signal.SIGINT)
signal.signal(signal.SIGINT, interrupt)
print(os.getpid(), flush=True)
interrupt()
time.sleep(60)
"""
    results, stays = Results(checkout), suite(interrupts_twice)
    with pytest.raises(KeyboardInterrupt):
        verify([stays], results)
    assert not alive(int(results.log(stays).read_text().split()[0]))


@pytest.mark.parametrize(
    ("name", "output", "figure"),
    [
        ("wide", "....\n283 passed, 5 deselected in 168.00s (0:02:48)\n", "283 passed"),
        ("models", "F..\n1 failed, 12 passed in 3.00s\n", "12 passed, 1 failed"),
        ("fuzz", "engine: 10 inputs in 1 s, 3 to 4\nprocessor: 20 inputs in 2 s,", "30 inputs"),
        (
            "scheduler",
            "1 s  round 1  5 calls, no failure\n2 s  round 2  9 calls, no failure\n",
            "2 rounds of 200 examples",
        ),
        (
            "chaos",
            "\n".join(["calm: 9 s, 12 requests (0 cancelled", *Report(seed=1, exit_codes={"engine-0": 3}).lines()]),
            "12 requests, 1 problems",
        ),
    ],
)
def test_figures(name: str, output: str, figure: str) -> None:
    (chosen,) = (suite for suite in SUITES if suite.name == name)
    assert chosen.figure(output) == figure


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_all_that_a_suite_imports_is_among_its_inputs(suite: Suite) -> None:
    patterns = [pattern.removeprefix(":(glob)") for pattern in suite.inputs]
    begun = [path for path in _modules(suite) if path.exists()]
    assert begun
    missed = {str(path.relative_to(ROOT)) for path in _closure(begun)}
    missed = {name for name in missed if not any(_matches(name, pattern) for pattern in patterns)}
    assert not missed


def _matches(name: str, pattern: str) -> bool:
    if "*" in pattern:
        return fnmatch.fnmatch(name, pattern) and name.count("/") == pattern.count("/")
    return name == pattern or name.startswith(f"{pattern}/")


def _modules(suite: Suite) -> Iterator[Path]:
    """Where it begins: its module, or the tests that bear its mark."""
    module = suite.arguments[1]
    if module != "pytest":
        yield from _files(module + ".__main__")
        yield from _files(module)
        return
    for path in (ROOT / "tests").rglob("*.py"):
        if "node_modules" not in path.parts and f"pytest.mark.{suite.name}" in path.read_text():
            yield path


def _closure(paths: list[Path]) -> set[Path]:
    """Those files, and all of this tree that they import, wherever in a file."""
    found: set[Path] = set()
    while paths:
        path = paths.pop()
        if path in found:
            continue
        found.add(path)
        for name in imported(path.read_text()):
            paths += [*_files(name), *_files(name.rpartition(".")[0])]
    return found


def _files(module: str) -> list[Path]:
    path = ROOT / module.replace(".", "/")
    return [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
