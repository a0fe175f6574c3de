"""Suites run once for the files that they depend on, each leaves a line, and none of their inputs is forgotten."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.chaos.report import Report
from tests.processes import alive
from tests.verify.__main__ import PATIENCE, ROOT, verify
from tests.verify.depends import Sources
from tests.verify.results import BusyError, Results
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
    return Suite(name, "", ("-c", program), minutes, (), {"found": r"(\d+) found", "words": "why"}, data=("engine",))


def _pid_in(text: str) -> int:
    """The line that is a number: gRPC may write others before it in a process that was forked."""
    return next(int(line) for line in text.splitlines() if line.isdigit())


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


def test_a_later_failure_counts_more_than_an_earlier_pass(checkout: Path) -> None:
    program = "import pathlib; print('7 found'); raise SystemExit(pathlib.Path('fails').exists())"
    assert verify([suite(program)], Results(checkout)) == 0
    (checkout / "fails").touch()
    assert verify([suite(program)], Results(checkout), again=True) == 1
    assert Results(checkout).passed(suite(program)) is None
    (checkout / "fails").unlink()
    assert verify([suite(program)], Results(checkout)) == 0
    assert Results(checkout).passed(suite(SAYS_SEVEN)) is None, "of another program"


def test_results_and_files_that_cannot_be_read_stop_nothing(checkout: Path) -> None:
    (checkout / "engine" / "odd.py").write_bytes(b"\xff")
    assert verify([suite(SAYS_SEVEN)], Results(checkout)) == 0
    (path,) = checkout.glob(".verify/*/some.json")
    path.write_text("{")
    assert verify([suite(SAYS_SEVEN)], Results(checkout)) == 0
    removes = suite("import pathlib; pathlib.Path('engine/odd.py').unlink()")
    assert verify([removes], Results(checkout)) == 1


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
    assert not alive(_pid_in(output))


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
    assert not alive(_pid_in(results.log(sleeps).read_text()))
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
    assert not alive(_pid_in(results.log(stays).read_text()))


RUNS_ONE = """
import os, pathlib, sys
from tests.verify.__main__ import verify
from tests.verify.results import BusyError, Results
from tests.verify.suites import Suite

print("begun", flush=True)
sleeps = Suite("sleeps", "", ("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"), 1.0, (), {}, ())
results = Results(pathlib.Path(sys.argv[1]))
with results.held():
    verify([sleeps], results)
"""


def test_a_second_run_is_refused_and_a_killed_one_leaves_nothing_running(checkout: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", RUNS_ONE, str(checkout)], cwd=ROOT) as first:
        results = Results(checkout)
        log = checkout / ".verify" / results.commit / "sleeps.log"
        assert until(lambda: log.exists() and log.read_text().strip() != "")
        with pytest.raises(BusyError, match=f"process {first.pid} verifies this checkout"), results.held():
            pass
        first.kill()
    pid = int(log.read_text().split()[0])
    assert until(lambda: not alive(pid))
    with results.held():
        pass


def until(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


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


@pytest.fixture(scope="module")
def depended_on() -> Mapping[str, set[str]]:
    """By suite, the files that its result depends on."""
    sources = Sources(ROOT)
    return {suite.name: sources.of(suite) for suite in SUITES}


ALL = {suite.name for suite in SUITES}


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("docs/how-to/gpu.md", set()),
        ("engine_core/README.md", set()),
        ("tests/services/gateway/conftest.py", set()),
        ("services/gateway/endpoints.py", {"doors", "fuzz", "vectors", "walks"}),
        ("services/gateway/page/index.html", {"doors", "fuzz", "vectors", "walks"}),
        ("engine_core/kernels/cpu/kernels.cpp", ALL - {"scheduler", "pictures"}),
        ("engine_core/scheduling/scheduler.py", ALL - {"pictures"}),
        ("engine_core/executor/ray/cluster.py", ALL - {"scheduler", "pictures"}),
        ("protos/ringline/engine/v1/engine.proto", {"stubs", "mixed"}),
        ("tests/chaos/faults.py", {"adapters", "chaos", "images", "ranks"}),
        ("constraints.txt", ALL),
    ],
)
def test_a_change_runs_the_suites_again_that_it_may_change(
    path: str, again: set[str], depended_on: Mapping[str, set[str]]
) -> None:
    assert (ROOT / path).exists()
    assert {name for name, files in depended_on.items() if path in files} == again


def test_modules_are_followed_by_imports_names_and_dots(checkout: Path) -> None:
    texts = {
        "engine_core/__init__.py": "",
        "engine_core/first.py": "from .second import thing\nMODULE = 'engine_core.third'\n",
        "engine_core/second.py": "def later():\n    import ringline.client\n",
        "engine_core/third.py": "import os\n",
        "engine_core/other.py": "",
        "clients/python/ringline/client.py": "",
        "engine_core/page.html": "",
        "engine_core/below/data.json": "",
        "data/table.json": "",
    }
    for name, text in texts.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    some = Suite("some", "", ("-c", ""), 1.0, ("engine_core.first",), {}, data=("data",))
    expected = set(texts) - {"engine_core/other.py", "engine_core/below/data.json"}
    assert Sources(checkout).of(some) == expected
    lost = Suite("lost", "", ("-c", ""), 1.0, ("engine_core.gone",), {})
    with pytest.raises(ValueError, match=r"no module engine_core\.gone"):
        Sources(checkout).of(lost)
