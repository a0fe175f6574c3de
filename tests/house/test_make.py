"""What `make` installs when, and with which Python: to run takes less than to test, and nothing is installed twice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
STAMPS = {"run": ".venv/.installed-to-run", "test": ".venv/.installed"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh one, as far as make looks."""
    for name in (
        ".ci/which-python",
        "Makefile",
        "constraints.txt",
        "pyproject.toml",
        "clients/python/pyproject.toml",
        "engine_core/kernels/build.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".venv").mkdir()
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one that does not take itself for a part of the make that runs the tests, and that finds ``bin`` first."""
    ours = ("MAKEFLAGS", "MAKELEVEL", "PYTHON")
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    variables["PATH"] = f"{checkout / 'bin'}{os.pathsep}{variables['PATH']}"
    command = ["make", *arguments]
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=False)


def shown_by(checkout: Path, target: str) -> list[str]:
    """What make would do."""
    done = make(checkout, "-n", target)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith(".ci/which-python check")]


def installs(checkout: Path, target: str) -> list[str]:
    """What pip would be asked to install into .venv."""
    pips = [line for line in shown_by(checkout, target) if line.startswith(".venv/bin/python -m pip")]
    return [line.rpartition(" ")[2].strip("'") for line in pips]


def test_the_tests_that_commands_name_are_there() -> None:
    for target in ("test-grammars", "test-python", "test-gpu"):
        named = re.findall(r"tests/[\w./-]+", "\n".join(shown_by(ROOT, target)))
        assert named, target
        assert not [path for path in named if not (ROOT / path).exists()], target


def test_a_demo_installs_what_runs_and_the_tests_the_rest(checkout: Path) -> None:
    assert installs(checkout, "demo") == [".[engine]"]
    (checkout / STAMPS["run"]).touch()
    assert installs(checkout, "demo") == []
    assert installs(checkout, "lint") == [".[engine,dev]"]


def test_a_demo_after_all_is_installed_installs_nothing(checkout: Path) -> None:
    (touched,) = [line.split()[1:] for line in shown_by(checkout, "lint") if line.startswith("touch ")]
    assert sorted(touched) == sorted(STAMPS.values())


def test_a_first_demo_shows_what_is_installed(checkout: Path) -> None:
    """It takes minutes."""
    shown = shown_by(checkout, "demo")
    (pip,) = [line for line in shown if " -m pip " in line]
    assert not {"--quiet", "-q"} & set(pip.split())
    assert shown[0].startswith('echo "Installing Ringline, ')


@pytest.mark.parametrize("target", ["demo", "lint"])
def test_a_changed_pin_is_installed_anew(checkout: Path, target: str) -> None:
    for stamp in STAMPS.values():
        (checkout / stamp).touch()
    assert installs(checkout, target) == []
    os.utime(checkout / "constraints.txt", (2**31, 2**31))
    assert len(installs(checkout, target)) == 1


def pretend(checkout: Path, versions: dict[str, str]) -> None:
    """Put programs there that say they are these Pythons; one without a version does not run, as some of pyenv's."""
    for name, version in versions.items():
        python = checkout / name
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f"#!/bin/sh\necho {version}" if version else "#!/bin/sh\nexit 127")
        python.chmod(0o755)


@pytest.fixture
def pythons(checkout: Path) -> Path:
    """A checkout on a machine whose python3 is too old, and where pyenv has a 3.13 that is not chosen."""
    there = {"python3": "3.10", "python3.13": "", "python3.12": "3.12", "python3.11": "3.11"}
    pretend(checkout, {f"bin/{name}": version for name, version in there.items()})
    return checkout


def test_the_first_python_that_will_do_is_taken(pythons: Path) -> None:
    assert "test -x .venv/bin/python || python3.12 -m venv .venv" in shown_by(pythons, "demo")


def test_further_environments_have_the_python_of_the_first(pythons: Path) -> None:
    pretend(pythons, {".venv/bin/python": "3.13"})
    assert make(pythons, "check-python").returncode == 0
    shown = shown_by(pythons, ".venv-cpu/.installed")
    assert "test -x .venv-cpu/bin/python || .venv/bin/python -m venv .venv-cpu" in shown


NEEDED = "but Ringline needs Python 3.11, 3.12 or 3.13"
TAKE = f"{NEEDED}: run `make demo PYTHON=python3.12`"
REFUSED = {
    "too old": ({}, ["PYTHON=python3"], f"python3 is Python 3.10, {TAKE}"),
    "too new": ({"bin/python3.14": "3.14"}, ["PYTHON=python3.14"], f"python3.14 is Python 3.14, {TAKE}"),
    "does not run": ({}, ["PYTHON=python3.13"], f"python3.13 does not run, {TAKE}"),
    "none will do": (
        {"bin/python3.12": "", "bin/python3.11": ""},
        [],
        f"python3 is Python 3.10, {NEEDED}: install one of them, then run `make demo`",
    ),
    "the environment's is too old": (
        {".venv/bin/python": "3.10"},
        [],
        f".venv has Python 3.10, {NEEDED}: run `make clean`, then `make demo`",
    ),
    "the environment's is another": (
        {".venv/bin/python": "3.11"},
        ["PYTHON=python3.12"],
        ".venv has Python 3.11, not 3.12: run `make clean`, then `make demo PYTHON=python3.12`",
    ),
}


@pytest.mark.parametrize(("there", "arguments", "refusal"), REFUSED.values(), ids=REFUSED)
def test_a_python_that_will_not_do_is_refused_before_anything_is_installed(
    pythons: Path, there: dict[str, str], arguments: list[str], refusal: str
) -> None:
    pretend(pythons, there)
    done = make(pythons, "demo", *arguments)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == refusal
    assert not done.stdout


@pytest.mark.parametrize("project", ["pyproject.toml", "clients/python/pyproject.toml"])
def test_make_takes_the_pythons_that_are_promised(project: str, pythons: Path) -> None:
    declared = tomllib.loads((ROOT / project).read_text())["project"]
    promised = SpecifierSet(declared["requires-python"])
    versions = [f"3.{minor}" for minor in range(8, 17)]
    taken = []
    for version in versions:
        pretend(pythons, {"bin/python": version})
        if make(pythons, "check-python", "PYTHON=python").returncode == 0:
            taken.append(version)
    assert taken == [version for version in versions if version in promised]
    classified = [name.rpartition(" ")[2] for name in declared["classifiers"] if " :: Python :: 3." in name]
    assert classified == taken


def test_compiling_kernels_says_how_many_files_are_done(checkout: Path) -> None:
    compiler = checkout / "bin" / "g++"  # takes no minute
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nfor output; do :; done\n: > "$output"\n')
    compiler.chmod(0o755)
    library = checkout / "engine_core/kernels/libringline_cpu.so"
    done = make(checkout, str(library.relative_to(checkout)), f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    told = [line.split() for line in done.stdout.splitlines()]
    files = len(told) - 2
    assert told[1:] == [*([f"{number}", "of", f"{files}", "files"] for number in range(1, files + 1)), [str(library)]]
    assert files > 3
    assert library.exists()
