"""The comparison of two commits finds what differs, with the kernels of each instruction set."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest

from benchmarks import bits
from benchmarks.workers.bits import Library
from engine_core.kernels import library
from engine_core.kernels.library import KernelsUnavailableError, load_kernels

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _native_kernels() -> None:
    try:
        load_kernels()
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


def test_kernels_that_are_denied_are_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(Library, "given", set())
    fastest = library.load_kernels().instruction_set
    assert Library.given == {f"kernels {fastest}"}
    monkeypatch.setattr(Library, "denied", {f"kernels {name}" for name in library.INSTRUCTION_SETS})
    with pytest.raises(KernelsUnavailableError):
        library.load_kernels()
    assert library.load_int8_kernels().instruction_set in library.INT8_INSTRUCTION_SETS


@pytest.mark.wide
def test_one_bit_is_a_difference(tmp_path: Path) -> None:
    jobs = bits.make_jobs(tmp_path / "models", "mistral float32 int8")
    bits.answer({tmp_path / "before": ROOT, tmp_path / "now": ROOT}, jobs, fastest=True)
    [row], first = bits.compare(tmp_path / "before", tmp_path / "now")
    assert row["requests"] == row["of them equal"] > 200
    assert row["verdict"] == "equal"
    assert first is None

    [path] = (tmp_path / "now").glob("*.json")
    found = json.loads(path.read_text())
    found["reported 7"][-2] += "0"
    path.write_text(json.dumps(found))
    [row], first = bits.compare(tmp_path / "before", tmp_path / "now")
    assert row["requests"] - row["of them equal"] == row["rows"] - row["of these equal"] == 1
    assert first is not None
    assert first.startswith("mistral float32 int8 (")
    assert "reported 7: choice" in first

    path.unlink()
    assert "nothing now" in (bits.compare(tmp_path / "before", tmp_path / "now")[1] or "")
