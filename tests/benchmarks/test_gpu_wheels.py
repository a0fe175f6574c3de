"""A machine without a network gets what it lacks from a folder of wheels: no more, and one gap stops nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import wheels as gpu_wheels
from benchmarks.gpu.wheels import PackagesMissingError, gather, install, name_of, platform_tags, requirements
from benchmarks.gpu.wheels import _choose as choose
from benchmarks.gpu.wheels import _replace as replace
from benchmarks.gpu.wheels import _ResolutionError as ResolutionError
from tests.ring import ROOT


def wheel(folder: Path, name: str, version: str, needs: tuple[str, ...] = (), module: str = "") -> Path:
    """A wheel of one module in the namespace ``shared``."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"shared/{module or name}.py", f"version = {version!r}\n")
        archive.writestr(f"{about}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def needing(monkeypatch: pytest.MonkeyPatch, *needed: str) -> None:
    monkeypatch.setattr(gpu_wheels, "requirements", lambda: list(needed))


def test_requirements_are_those_of_the_services_and_the_engine() -> None:
    names = {name_of(requirement) for requirement in requirements()}
    assert {"click", "grpcio-health-checking", "llguidance", "torch", "pytest-timeout"} <= names
    assert not {"ringline", "ringline-server", "pytest", "ray", "opentelemetry-sdk"} & names
    assert "protobuf>=6.31.1,<8" in requirements()
    assert names >= gpu_wheels.NOT_CARRIED


def test_installs_what_is_missing_and_names_what_cannot_be(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wheel(wheels, "ringline_one", "1.0", needs=("ringline_two>=2", "click"), module="old")
    wheel(wheels, "ringline_two", "2.1")
    wheel(wheels, "click", "99.0")
    needing(monkeypatch, "click>=8.1", "ringline-one")
    target = tmp_path / "target"
    assert install(wheels, target) == ["ringline-one 1.0", "ringline-two 2.1"]
    assert names_in(target / "shared") == ["old.py", "ringline_two.py"]

    first.unlink()
    wheel(wheels, "ringline_one", "2.0", needs=("ringline_two>=2",), module="new")
    needing(monkeypatch, "ringline-absent>=3", "ringline-one>=2")
    with pytest.raises(PackagesMissingError, match=r"make gpu-wheels") as raised:
        install(wheels, target)
    assert list(raised.value.problems) == ["ringline-absent>=3"]
    assert raised.value.installed == ["ringline-one 2.0"]
    assert names_in(target / "shared") == ["new.py", "ringline_two.py"]
    assert names_in(target) == ["ringline_one-2.0.dist-info", "ringline_two-2.1.dist-info", "shared"]


NOWHERE = "Could not find a version that satisfies the requirement {} (from versions: none)"


@pytest.mark.parametrize("words", [NOWHERE, "Cannot install these, since they conflict"], ids=["named", "not named"])
def test_one_impossible_requirement_does_not_stop_the_others(words: str) -> None:
    asked = []

    def resolve(wanted: list[str]) -> dict[str, str]:
        asked.append(wanted)
        for one in wanted:
            if one in "cf":
                raise ResolutionError(words.format(one))
        return dict.fromkeys(wanted, "1.0")

    chosen, problems = choose(list("abcdefgh"), resolve)
    assert set(chosen) == set("abdegh")
    assert problems == {one: words.format(one) for one in "cf"}
    assert len(asked) <= 13


def test_wheels_for_an_older_glibc_run_too() -> None:
    tags = platform_tags("manylinux_2_28_x86_64")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} <= set(tags)
    assert "manylinux_2_31_x86_64" not in tags
    assert platform_tags("linux_riscv64") == ["linux_riscv64"]


def test_gathers_what_is_carried_in_place_of_what_was_there(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels, "ringline_one", "1.0")
    (tmp_path / "index").mkdir()
    for name in ("ringline_one", "pip"):
        wheel(tmp_path / "index", name, "2.0")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "index"), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    needing(monkeypatch, "ringline-one", "torch>=2.11")
    gathered = gather(wheels, "3.12", gpu_wheels.PLATFORM)
    assert [path.name for path in gathered] == ["pip-2.0-py3-none-any.whl", "ringline_one-2.0-py3-none-any.whl"]
    assert sorted(wheels.iterdir()) == gathered


def test_refuses_more_than_may_travel(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = wheel(wheels, "ringline_one", "1.0")
    monkeypatch.setattr(gpu_wheels, "LIMIT_MIB", 0.0001)
    with pytest.raises(RuntimeError, match=r"above 0.0001 MiB: add what such a machine has to NOT_CARRIED"):
        replace(wheels, [wheel(tmp_path, "ringline_one", "2.0")])
    assert list(wheels.iterdir()) == [before]


def test_needs_nothing_but_the_standard_library() -> None:
    code = "import benchmarks.gpu.wheels as wheels; assert wheels.requirements()"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, env={}, check=True)
