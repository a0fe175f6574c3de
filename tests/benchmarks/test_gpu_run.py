"""The run on a GPU, on a machine without one: nothing stops it, all is kept, and every figure has its place."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.autograd import DeviceType

from benchmarks import gpu_run
from benchmarks.gpu import layers, memory, part, parts, place, sampling, speed, traces
from benchmarks.gpu.goals import GOALS, gpu_table, verdict
from benchmarks.gpu.parts import PARTS, Cost, Part
from benchmarks.gpu.place import SCALES, Place
from benchmarks.gpu_run import Run, line, run_parts
from benchmarks.limits import Limits
from benchmarks.results_page import write_page
from tests.ring import ROOT

TRIED = {
    "good": Part("it works", "tried:good", Cost(1)),
    "bad": Part("it fails", "tried:bad", Cost(1)),
    "stuck": Part("it hangs", "tried:stuck", Cost(1)),
    "last": Part("it works, too", "tried:good", Cost(1)),
    "long": Part("there is no time for it", "tried:good", Cost(10_000)),
}
OF_PARTS = """
import subprocess, sys, time

def good(place):
    yield {"what": "speed", "measured": 2.0, "target": 1.0}

def bad(place):
    yield from good(place)
    raise RuntimeError("this one fails")

def stuck(place):
    yield from good(place)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left behind"])
    time.sleep(600)
"""
OF_EVERY_PROCESS = """
import sys, types
from benchmarks.gpu import parts
from benchmarks.gpu.parts import Cost, Part

runs = {"good": "good", "bad": "bad", "stuck": "stuck", "last": "good"}
parts.PARTS = {name: Part("", f"tried:{function}", Cost(1)) for name, function in runs.items()}
sys.modules["benchmarks.gpu.place"] = types.SimpleNamespace(SCALES={"tiny": None}, Place=lambda *_: None)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Of parts that were made for it."""
    (tmp_path / "tried.py").write_text(OF_PARTS)
    (tmp_path / "sitecustomize.py").write_text(OF_EVERY_PROCESS)
    monkeypatch.setattr(gpu_run, "PARTS", TRIED)
    monkeypatch.setattr(parts, "_LEAST_BOUND", 2.0)
    path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "clients" / "python")))
    return Run(tmp_path, "cpu", "tiny", {**os.environ, "PYTHONPATH": path})


def outcomes(results: Mapping[str, Any]) -> dict[str, str]:
    return {name: re.split("[ :]", result["outcome"])[0] for name, result in results.items()}


def left_behind() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except OSError:
            continue
        found += [str(process)] if b"left behind" in words else []
    return found


def test_a_part_that_fails_or_hangs_stops_no_other_and_is_run_again(run: Run) -> None:
    names = ["good", "bad", "stuck", "last"]
    results = run_parts(run, names, 1.0, {})
    assert outcomes(results) == {"good": "done", "bad": "failed", "stuck": "hung", "last": "done"}
    kept = json.loads(run.results.read_text())
    assert kept["parts"] == results
    assert len(kept["figures"]) == 4, "also of what came before the fault"
    assert "RuntimeError: this one fails" in results["bad"]["output"]
    assert len(results["stuck"]["output"]) <= 60
    assert "===== stuck: hung" in run.log.read_text()
    end = time.monotonic() + 20
    while left_behind() and time.monotonic() < end:
        time.sleep(0.05)
    assert not left_behind()
    known = gpu_run._known(run)
    assert known == results
    assert gpu_run._known(Run(run.out, "cuda", "full", {})) == {}, "of another device"
    assert json.loads((run.out / "gpu-run-cpu-tiny.json").read_text()) == kept, "but nothing is lost"
    again = [name for name in names if known[name]["outcome"] != "done"]
    assert again == ["bad", "stuck"]
    without_time = run_parts(Run(run.out, "cuda", "tiny", run.environment), ["stuck"], 0.0, known)
    assert outcomes(without_time)["stuck"] == "left"
    assert without_time["stuck"]["rows"] == known["stuck"]["rows"] != [], "figures are not lost"


def test_output_and_rows_of_any_kind_stop_no_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (rows := run.out / "of.rows").write_bytes(b'{"what": "a", "measured": NaN}\n[1]\n\xff\n{"what": "cut o')
    assert [row["what"] for row in gpu_run._rows(rows)] == ["a"]
    assert gpu_run._rows(run.out / "none.rows") == []
    run.log.write_bytes(b"before\n" + b"\xff" * 3_000_000 + b"\nlast")
    told = gpu_run._last_lines(run.log, 7)
    assert (len(told), len(told[0]), told[1]) == (2, 2000, "last")
    assert gpu_run._last_lines(run.log, 3_000_008) == ["last"]

    def on_a_full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(gpu_run, "write_json", on_a_full_disk)
    assert outcomes(run_parts(run, ["good"], 1.0, {})) == {"good": "done"}


@pytest.mark.parametrize(
    "earlier", ['{"device": "cpu"', "[]", "{}", '{"device": "cpu", "scale": "tiny", "parts": [1]}']
)
def test_results_that_cannot_be_read_are_put_aside(run: Run, earlier: str) -> None:
    run.results.write_text(earlier)
    assert gpu_run._known(run) == {}
    assert (run.out / "gpu-run-not-read.json").read_text() == earlier


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (file := tmp_path / "a file").touch()
    with pytest.raises(SystemExit, match="name another folder"):
        gpu_run._prepare(file)


def test_parts_that_are_not_chosen_keep_their_results(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run_parts(run, ["good", "bad"], 1.0, {})
    monkeypatch.setattr(gpu_run, "_environment", lambda *_: run.environment)
    monkeypatch.setattr(sys, "argv", ["gpu_run", "--device", "cpu", "--out", str(run.out), "--parts", "last"])
    with pytest.raises(SystemExit) as ended:
        gpu_run.main()
    assert not ended.value.code, "what failed earlier is told by its own run"
    kept = json.loads(run.results.read_text())["parts"]
    assert outcomes(kept) == {"good": "done", "bad": "failed", "last": "done"}


def test_what_does_not_fit_into_the_time_is_left_out(run: Run) -> None:
    on_gpu = Run(run.out, "cuda", "tiny", run.environment)
    results = run_parts(on_gpu, ["long", "good"], 0.5, {})
    assert outcomes(results) == {"long": "left", "good": "done"}
    assert results["long"]["outcome"] == "left out: 10000 s are needed, 30 s are left"


def test_what_is_known_of_other_parts_is_kept(run: Run) -> None:
    earlier = {"rows": [{"what": "speed", "measured": 1.0}], "output": [], "seconds": 1.0}
    known = {name: earlier | {"outcome": outcome} for name, outcome in (("bad", "failed with 1"), ("long", "done"))}
    on_gpu = Run(run.out, "cuda", "tiny", run.environment)
    results = run_parts(on_gpu, ["good", "long"], 0.5, known)
    assert outcomes(results) == {"bad": "failed", "good": "done", "long": "left"}
    assert results["long"]["rows"] == results["bad"]["rows"] == earlier["rows"]
    assert len(json.loads(run.results.read_text())["figures"]) == 3


def test_rows_of_a_rehearsal_name_no_model_that_did_not_run() -> None:
    row = GOALS["decode-1"].reached(0.9)
    rehearsed = part._told(row, Namespace(device="cpu", scale="tiny"))
    assert (rehearsed["what"], rehearsed["target"]) == (f"rehearsal of: {row['what']}", None)
    assert part._told(row, Namespace(device="cuda", scale="full")) == row
    start = {"what": "start of tiny-llama", "measured": 1.0, "target": None}
    assert part._told(start, Namespace(device="cpu", scale="tiny")) == start


def test_eight_minutes_are_enough_for_all_that_comes_first() -> None:
    assert [row["part"] for row in parts.table() if row["so far, min"] > 8] == ["launches", "generate"]
    assert [row["part"] for row in parts.table()] == list(PARTS)
    files = {one.runs for one in PARTS.values() if one.runs.endswith(".py")}
    assert all((ROOT / "tests" / "gpu" / file).exists() for file in files)
    told = (ROOT / "docs" / "how-to" / "gpu.md").read_text()
    for name, one in PARTS.items():
        assert f"| `{name}` | {one.proves} | {one.cost.fixed:g} | {one.cost.terabytes:g} " in told
        assert f"| {one.cost.petaflops:g} | {one.cost.seconds:.0f} |" in told


PLACE = Place("cpu", SCALES["tiny"], Path())


@pytest.mark.parametrize(
    ("measure", "goals"),
    [
        (speed.measure, ["decode-1", "decode-64", "decode-256", "prefill-2048", "prefill-8192"]),
        (sampling.measure, ["sampled", "penalized"]),
        (memory.measure, ["memory", "allocated"]),
    ],
)
def test_parts_measure_what_their_goals_say(measure: Any, goals: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "limits", lambda _: Limits(1e10, 1e11))  # taking them is the slow part
    rows = {row["what"]: row for row in measure(PLACE)}
    assert all(rows[GOALS[name].what]["measured"] >= 0 for name in goals)
    assert all(line(row).startswith(f"  {what}: ") for what, row in rows.items())
    json.dumps(list(rows.values()))


def test_a_trace_is_small_and_tells_the_longest_kernels(tmp_path: Path) -> None:
    rows = list(traces.measure(Place("cpu", SCALES["tiny"], tmp_path)))
    assert [(tmp_path / row["file"]).stat().st_size < 1 << 20 for row in rows] == [True, True]
    assert all(row["longest"][0][2] >= row["longest"][1][2] > 0 for row in rows)


def test_a_profiler_that_sees_no_kernel_has_not_measured_zero() -> None:
    on_host = SimpleNamespace(device_type=DeviceType.CPU, key="aten::mm", count=1)
    with pytest.raises(RuntimeError, match="seen no kernel"):
        Place("cuda", SCALES["tiny"], Path()).kernels(SimpleNamespace(key_averages=lambda: [on_host]))


def test_a_library_that_fails_leaves_the_figures_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_a_compiler(*_: object) -> float:
        raise RuntimeError("Could not find nvcc")

    monkeypatch.setattr(layers, "_attend", lambda *_: 2.0)
    libraries = {"one": without_a_compiler, "other": lambda *_: 1.0, "not here": lambda *_: None}
    monkeypatch.setattr(layers, "_LIBRARIES", libraries)
    rows = list(layers._attention_beside(PLACE))
    assert [(row["measured"], row["other ms"]) for row in rows] == [(0.5, 1e3), (0.5, 1e3)]
    assert "one is left out: RuntimeError: Could not find nvcc" in capsys.readouterr().out


def test_products_are_of_weights_that_come_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(layers, "_seconds", lambda _, layer, nbytes, x: float(not seen.append(nbytes)))
    assert layers._products(PLACE)["measured"] == 1.0
    assert seen == [2 * 128 * 128] * 4 + [2 * 256 * 128] * 4, "each beside cuBLAS, for both numbers of rows"


def test_an_engine_waits_for_memory_that_a_killed_one_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [70 << 30, 70 << 30, 2 << 30, 0]
    monkeypatch.setattr(Place, "taken", lambda _: taken.pop(0))
    monkeypatch.setattr(Place, "reserved", lambda _: 1 << 30)
    Place("cuda", SCALES["tiny"], Path()).wait_for_memory()
    assert taken == [0], "and no longer"
    monkeypatch.setattr(place, "_RETURN_TIMEOUT", 0.1)
    monkeypatch.setattr(Place, "taken", lambda _: 70 << 30)
    Place("cuda", SCALES["tiny"], Path()).wait_for_memory()


def test_float32_is_not_rounded_and_caches_need_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/kept")
    environment = gpu_run._environment("cuda", tmp_path / "none")
    assert environment["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "0"
    assert environment["TRITON_CACHE_DIR"] == str(ROOT / "build" / "gpu-caches" / "triton")
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/kept"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not gpu_run._kept().is_relative_to(ROOT), "of a tree that cannot be written to"


def test_lines_and_tables_say_what_was_reached() -> None:
    row = {"what": "decode", "measured": 0.812, "target": 0.8, "of": "bandwidth", "step ms": 4.5}
    assert verdict(row) is True
    assert line(row) == "  decode: 0.812 × bandwidth (≥ 0.8) reached; step ms 4.5"
    assert verdict(row | {"at most": True}) is False
    assert "SHORT" in line(row | {"measured": 0.7})
    assert verdict(row | {"target": None}) is None
    assert line({"what": "imports", "measured": None, "missing": 0}) == "  imports: missing 0"
    told = gpu_table({"h100": [GOALS["decode-1"].reached(0.81)], "h200": [GOALS["memory"].reached(1.1)]})
    assert len(told) == len(GOALS)
    assert [(row["h100"], row["h200"]) for row in told if row["what"] == GOALS["decode-1"].what] == [
        ("0.81", "not measured")
    ]
    assert "1.1, short" in [row["h200"] for row in told]


def test_the_page_has_a_column_for_each_card_and_none_for_a_rehearsal(run: Run, tmp_path: Path) -> None:
    run_parts(run, ["good"], 1.0, {})
    whole = json.loads(run.results.read_text())
    (results := tmp_path / "results").mkdir()
    starts = whole | {"figures": {"warm": [{"stage": "all", "seconds": 1.0}]}}
    (results / "starts.json").write_text(json.dumps(starts))
    measured = whole | {"device": "cuda", "scale": "full", "figures": [GOALS["decode-1"].reached(0.9)]}
    (results / "gpu-h100.json").write_text(json.dumps(measured))
    write_page(results, page := tmp_path / "RESULTS.md")
    [decode] = [
        each for each in page.read_text().splitlines() if GOALS["decode-1"].what in each and "determ" not in each
    ]
    assert decode.split("|")[-2].strip() == "0.9"
    (results / "gpu-h200.json").write_text(json.dumps(whole))
    with pytest.raises(SystemExit, match=r"gpu-h200\.json is of a rehearsal"):
        write_page(results, page)
