"""The server's wheel has all that it needs where there is no repository: the bundled model, the kernels' sources."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.programs import output_of
from tests.ring import MODEL, ROOT

BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def build(kind: str, source: Path, output: Path) -> Path:
    """Build ``source`` with the setuptools that is here."""
    return output / output_of(sys.executable, "-c", BUILD, f"build_{kind}", output, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the source distribution, so that this has all of it too; in a copy, as a build leaves files behind."""
    directory = tmp_path_factory.mktemp("wheel")
    copy = directory / "copy"
    for name in ("checkpoints", "engine_core", "services", "text_core"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, copy)
    sdist = build("sdist", copy, directory)
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    return build("wheel", directory / sdist.name.removesuffix(".tar.gz"), directory)


def test_the_bundled_model_is_found_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "from services.cli.commands.serve import bundled_model; print(bundled_model())"
    elsewhere = tmp_path / "services"  # not in it either: the working directory is no place for a model
    found = Path(output_of(sys.executable, "-c", code, cwd=elsewhere, env={"PYTHONPATH": str(tmp_path)}).strip())
    assert found.is_relative_to(tmp_path)
    expected = {path.name for path in MODEL.iterdir() if path.suffix in (".json", ".jinja", ".safetensors")}
    assert len(expected) >= 5
    assert {path.name for path in found.iterdir()} == expected
    for name in expected:
        assert (found / name).read_bytes() == (MODEL / name).read_bytes()


def test_a_wheel_has_all_that_runs_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("engine_core", "services", "text_core"):
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert sources == {name for name in names if name.startswith(package) and name.endswith(".py")}
    kernels = ROOT / "engine_core" / "kernels" / "cpu"
    assert {path.relative_to(ROOT).as_posix() for path in kernels.rglob("*.*")} <= names
    assert "services/processor/live_page/page.html" in names
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"engine_core", "services", "text_core"}
