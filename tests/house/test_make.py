"""What `make` installs when: to run takes less than to test, and nothing is installed twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAMPS = {"run": ".venv/.installed-to-run", "test": ".venv/.installed"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh one, as far as make looks."""
    for name in (
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


def shown_by(checkout: Path, target: str) -> list[str]:
    """What make would do. It must not take itself for a part of the make that runs the tests."""
    variables = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "-n", target], cwd=checkout, env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def installs(checkout: Path, target: str) -> list[str]:
    """What pip would be asked to install into .venv."""
    pips = [line for line in shown_by(checkout, target) if line.startswith(".venv/bin/python -m pip")]
    return [line.rpartition(" ")[2].strip("'") for line in pips]


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
