"""Type checkers read an installed wheel of the client: mypy and pyright, in a project that has nothing else."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import output_of, run
from tests.ring import ROOT

HERE = Path(__file__).resolve().parent
PYRIGHT = HERE / "node" / "node_modules" / "pyright" / "index.js"
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
STUBS = ("grpc-stubs", "google-stubs")
"""Packages of types-grpcio and types-protobuf, which a project may have or not."""
PROGRAMS = PROGRAM, MISTAKES = ["program.py", "mistakes.py"]
needs_node = pytest.mark.skipif(
    not (shutil.which("node") and PYRIGHT.exists()), reason="no Node: `make setup` installs"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy, as a build leaves files behind."""
    directory = tmp_path_factory.mktemp("wheel")
    leave_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT / "clients" / "python", directory / "client", ignore=leave_out)
    return directory / output_of(sys.executable, "-c", BUILD, directory, cwd=directory / "client").splitlines()[-1]


@pytest.fixture(scope="module", params=["alone", pytest.param("with stubs", marks=pytest.mark.wide)])
def project(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs, and an environment with the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(HERE / "typed", folder, dirs_exist_ok=True)
    venv.create(folder / ".venv", symlinks=True, with_pip=False)
    (packages,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in ("grpc", "google", *(STUBS if request.param == "with stubs" else ())):
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
    return folder


Found = dict[str, list[tuple[int, str]]]
"""By program, lines and words."""


def mypy(project: Path) -> Found:
    """What it finds."""
    python = project / ".venv" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unreachable", "--cache-dir", "/dev/null"]
    # Neither this repository nor what its environment has is on its path.
    own = {"MYPYPATH": "", "PYTHONPATH": ""}
    done = run(*command, "--python-executable", python, *PROGRAMS, cwd=project, env=own)
    assert not done.stderr, done.stderr
    assert f"checked {len(PROGRAMS)} source files" in done.stdout, done.stdout
    found: Found = {name: [] for name in PROGRAMS}
    for line in done.stdout.splitlines()[:-1]:
        name, number, kind, words = line.split(":", 3)
        if kind.strip() == "error":
            found[name].append((int(number), words.strip()))
    return found


def pyright(project: Path) -> Found:
    """What it finds; it counts lines from 0."""
    settings = {"typeCheckingMode": "strict", "venvPath": ".", "venv": ".venv", "include": PROGRAMS}
    (project / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run("node", PYRIGHT, "--outputjson", cwd=project, env={"PYTHONPATH": ""})
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS), done.stdout
    found: Found = {name: [] for name in PROGRAMS}
    for one in report["generalDiagnostics"]:
        found[Path(one["file"]).name].append((one["range"]["start"]["line"] + 1, one["message"]))
    return found


@pytest.mark.parametrize("check", [mypy, pytest.param(pyright, marks=needs_node)])
def test_a_strict_program_has_the_types_that_it_expects(project: Path, check: Callable[[Path], Found]) -> None:
    found = check(project)
    assert found[PROGRAM] == []
    lines = (project / MISTAKES).read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert {number for number, _ in found[MISTAKES]} == wrong
