"""The engine on an NVIDIA GPU in a few minutes: proofs and figures in the order of their worth, each kept as it comes.

    make gpu-run                                    # eight minutes, into gpu-run/
    make gpu-run MINUTES=15 OUT=/tmp/h100           # as much as fits into a quarter of an hour
    make gpu-run GPU="--parts speed sampling"       # some parts; --list shows all, with what they take
    make gpu-run GPU=--skip-done                    # what is missing or has failed in OUT
    make gpu-run GPU="--device cpu --scale tiny"    # a rehearsal without a GPU: every part, small

Each part runs in a process of its own, is killed where it hangs, and stops no other. OUT/gpu-run.json has the rows and
the last lines of each part and is rewritten after each; OUT/output.log has all that they printed. Nothing is
downloaded: weights are random, and packages that are missing are installed from .gpu-wheels, which `make gpu-wheels`
fills.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.goals import verdict
from benchmarks.gpu.parts import PARTS, table
from benchmarks.guard import end_with_this_program
from benchmarks.report import Row, document, print_table, write_json

_ROOT = Path(__file__).resolve().parents[1]
_LAST_LINES = 60
_LEAST_SECONDS = 5.0
"""Less time than that is not worth a start."""
_END_TIMEOUT = 10.0
_FLOAT32_AS_IT_IS = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0", "NVIDIA_TF32_OVERRIDE": "0"}
"""Some images have cuBLAS round it to TF32, and then no tokens are those of a CPU."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, and where it goes."""

    out: Path
    device: str
    scale: str
    environment: Mapping[str, str]

    @property
    def results(self) -> Path:
        """The results of all parts, as one document."""
        return self.out / "gpu-run.json"

    @property
    def log(self) -> Path:
        """All that parts have printed."""
        return self.out / "output.log"


def line(row: Row) -> str:
    """A row as one readable line."""
    if row.get("measured") is None:
        told = ", ".join(f"{name} {value}" for name, value in row.items() if name not in ("what", "measured", "target"))
        return f"  {row['what']}: {told}"
    reached = {True: " reached", False: " SHORT", None: ""}[verdict(row)]
    extra = {name: value for name, value in row.items() if name not in ("measured", "target")}
    told = ", ".join(f"{name} {value:.3g}" for name, value in extra.items() if isinstance(value, float))
    bound = "" if row.get("target") is None else f" ({'≤' if row.get('at most') else '≥'} {row['target']:g})"
    return f"  {row['what']}: {row['measured']:.3g}{bound}{reached}" + (f"; {told}" if told else "")


def run_part(run: Run, name: str, bound: float) -> dict[str, Any]:
    """Run a part for at most ``bound`` seconds; returns its result."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        rows, output = Path(directory) / "rows", Path(directory) / "output"
        command = [sys.executable, "-m", "benchmarks.gpu.part", name, "--rows", str(rows), "--out", str(run.out)]
        command += ["--device", run.device, "--scale", run.scale, "--bound", str(bound)]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=dict(run.environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end_with_this_program(process)
        outcome = _outcome(process, bound)
        told = output.read_text(errors="replace")
        found = [json.loads(each) for each in rows.read_text().splitlines()] if rows.exists() else []
    with run.log.open("a") as log:
        log.write(f"\n===== {name}: {outcome}\n{told}")
    seconds = round(time.monotonic() - begun, 1)
    return {"outcome": outcome, "seconds": seconds, "rows": found, "output": told.splitlines()[-_LAST_LINES:]}


def _outcome(process: subprocess.Popen[bytes], bound: float) -> str:
    """Wait for a part, and end all of its group: done, failed or hung."""
    try:
        outcome = "done" if process.wait(bound) == 0 else f"failed with {process.returncode}"
    except subprocess.TimeoutExpired:
        outcome = f"hung: killed after {bound:.0f} s"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # what hangs in a driver cannot be killed
        process.wait(_END_TIMEOUT)
    return outcome


def run_parts(run: Run, names: Sequence[str], minutes: float, known: dict[str, Any]) -> dict[str, Any]:
    """Run parts, and write the results after each; ``known``: those of an earlier run, kept until they run again."""
    end = time.monotonic() + 60 * minutes
    results = dict(known)
    for name in names:
        left = end - time.monotonic()
        expected = PARTS[name].cost.seconds if run.device == "cuda" else _LEAST_SECONDS
        if left < max(_LEAST_SECONDS, expected):
            told = f"left out: {expected:.0f} s are needed, {left:.0f} s are left"
            results[name] = {"outcome": told, "rows": known.get(name, {}).get("rows", [])}
        else:
            print(f"{name}: {PARTS[name].proves}", flush=True)
            results[name] = run_part(run, name, min(left, PARTS[name].bound))
        _write(run, results)
        _show(run, name, results[name])
    return results


def _write(run: Run, results: Mapping[str, Any]) -> None:
    """Replace the file as a whole: a run may be cut off at any moment."""
    ordered = {name: results[name] for name in PARTS if name in results}
    rows = [row for result in ordered.values() for row in result["rows"]]
    whole = document("gpu", rows) | {"device": run.device, "scale": run.scale, "parts": ordered}
    partial = run.results.with_suffix(".partial")
    write_json(partial, whole)
    partial.replace(run.results)


def _show(run: Run, name: str, result: Mapping[str, Any]) -> None:
    for row in result["rows"]:
        print(line(row if run.device == "cuda" else {**row, "target": None}))  # a rehearsal reaches nothing
    seconds = f" in {result['seconds']:g} s" if "seconds" in result else ""
    print(f"  {name}: {result['outcome']}{seconds}", flush=True)
    if result["outcome"].startswith(("failed", "hung")):
        print("\n".join(f"    {each}" for each in result["output"][-_LAST_LINES:]), flush=True)


def _environment(device: str, wheels: Path) -> dict[str, str]:
    """The variables of parts: the tree on the path, and what had to be installed before it."""
    path = [str(_ROOT), str(_ROOT / "clients" / "python")]
    if wheels.is_dir():
        from benchmarks.gpu.wheels import install

        path.append(str(target := _ROOT / "build" / "gpu-packages"))
        try:
            print("installed from wheels:", ", ".join(install(wheels, target)) or "nothing was missing", flush=True)
        except Exception as error:  # preflight says what is missing
            print(f"wheels: {error}", flush=True)
    paths = [*path, *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "passive"}
    more["PYTHONDONTWRITEBYTECODE"] = ""  # or every process compiles the sources of torch again
    more |= {} if device == "cuda" else {"TRITON_INTERPRET": "1"}
    return {**_caches(), **os.environ, **more, **_FLOAT32_AS_IT_IS, "HF_HUB_OFFLINE": "1"}


def _caches() -> dict[str, str]:
    """Where compilers keep what they make: in the tree, as there may be no home that can be written to."""
    kept = _ROOT / "build" / "gpu-caches"
    return {"TRITON_CACHE_DIR": str(kept / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(kept / "inductor")}


def main() -> None:
    """Run parts. Ends with 1 where one of them failed, hung or was left out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-run"), help="where results go (%(default)s)")
    parser.add_argument("--minutes", type=float, default=8.0, help="that all parts may take (%(default)g)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all, in order")
    parser.add_argument("--skip-done", action="store_true", help="keep what OUT has of parts that are done")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument(
        "--scale", choices=("full", "tiny"), help="of models and work; default: full on a GPU, else tiny"
    )
    parser.add_argument("--wheels", type=Path, default=_ROOT / ".gpu-wheels", help="missing packages (%(default)s)")
    parser.add_argument("--list", action="store_true", help="show the parts and what each takes on an H100")
    arguments = parser.parse_args()
    if arguments.list:
        print_table(table())
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    scale = arguments.scale or ("full" if arguments.device == "cuda" else "tiny")
    environment = _environment(arguments.device, arguments.wheels)
    run = Run(arguments.out.resolve(), arguments.device, scale, environment)
    known = _known(run)
    names = [name for name in PARTS if name in arguments.parts]
    if arguments.skip_done:
        names = [name for name in names if known.get(name, {}).get("outcome") != "done"]
    if not arguments.skip_done:
        known = {name: result for name, result in known.items() if name not in names}
    results = run_parts(run, names, arguments.minutes, known)
    done = sum(result["outcome"] == "done" for result in results.values())
    print(f"{done} of {len(results)} parts done; results are in {run.results}")
    raise SystemExit(any(results[name]["outcome"] != "done" for name in names))


def _known(run: Run) -> dict[str, Any]:
    """The results of an earlier run in the same folder, on the same device and at the same scale."""
    try:
        earlier = json.loads(run.results.read_text())
    except (OSError, ValueError):
        return {}
    same = (earlier.get("device"), earlier.get("scale")) == (run.device, run.scale)
    parts: dict[str, Any] = earlier["parts"] if same else {}
    return parts


if __name__ == "__main__":
    main()
