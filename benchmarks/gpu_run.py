"""The engine on an NVIDIA GPU in a few minutes: proofs and figures in the order of their worth, each kept as it comes.

    make gpu-run                                    # eight minutes, into gpu-run/
    make gpu-run MINUTES=15 OUT=/tmp/h100           # as much as fits into a quarter of an hour
    make gpu-run GPU="--parts speed sampling"       # some parts; --list shows all, with what they take
    make gpu-run GPU=--skip-done                    # what is missing or has failed in OUT
    make gpu-run GPU="--device cpu"                 # a rehearsal without a GPU: every part, small

Each part runs in a process of its own, is killed where it hangs, and stops no other. OUT/gpu-run.json has the rows and
the last lines of each part and is rewritten after each; what it has of parts that do not run this time is kept.
OUT/output.log gets what parts print, as they print it. Nothing is downloaded: weights are random, and packages that are
missing are installed from .gpu-wheels, which `make gpu-wheels` fills.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
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
from io import FileIO
from pathlib import Path
from typing import Any

from benchmarks.gpu.goals import NOT_MEASURED, gpu_table, verdict
from benchmarks.gpu.parts import PARTS, table
from benchmarks.guard import end_with_this_program
from benchmarks.report import Row, document, print_table, write_json

_ROOT = Path(__file__).resolve().parents[1]
_LAST_LINES = 60
_LAST_BYTES = 1 << 18
"""Of what a part has printed, no more is read: it may have printed gigabytes, or one line of them."""
_LINE_LENGTH = 2000
_LEAST_SECONDS = 5.0
"""Less time than that is not worth a start."""
_END_TIMEOUT = 10.0
_FLOAT32_AS_IT_IS = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0", "NVIDIA_TF32_OVERRIDE": "0"}
"""Some images have cuBLAS round it to TF32, and then no tokens are those of a CPU."""
_SLOWER = 4.0
"""How many times as long as a GPU a CPU may take for its small rehearsal of a part."""
_UNITS = ("seconds", "MiB", "TFLOP/s")
"""What figures are in that are no shares or multiples."""
_NOT_TOLD = ("what", "measured", "target", "of")


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, and where it goes."""

    out: Path
    device: str
    scale: str
    environment: Mapping[str, str]

    @property
    def is_rehearsal(self) -> bool:
        """Whether its figures say nothing about a GPU."""
        return (self.device, self.scale) != ("cuda", "full")

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
        told = ", ".join(f"{name} {value}" for name, value in row.items() if name not in _NOT_TOLD)
        return f"  {row['what']}: {told}"
    of = row.get("of", "")
    measured = f"{row['measured']:.3g} {of if of in _UNITS else f'× {of}'}"
    reached = {True: " reached", False: " SHORT", None: ""}[verdict(row)]
    extra = {name: value for name, value in row.items() if name not in (*_NOT_TOLD, "at most")}
    told = ", ".join(f"{name} {value:.4g}" for name, value in extra.items() if isinstance(value, int | float))
    bound = "" if row.get("target") is None else f" ({'≤' if row.get('at most') else '≥'} {row['target']:g})"
    return f"  {row['what']}: {measured}{bound}{reached}" + (f"; {told}" if told else "")


def run_part(run: Run, name: str, bound: float) -> dict[str, Any]:
    """Run a part for at most ``bound`` seconds; returns its result. What it prints and measures is in files at once."""
    begun = time.monotonic()
    rows = run.out / f"{name}.rows"
    rows.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.part", name, "--rows", str(rows), "--out", str(run.out)]
    command += ["--device", run.device, "--scale", run.scale, "--bound", str(bound)]
    with run.log.open("ab", buffering=0) as log:
        _note(log, f"\n===== {name}\n")
        first = log.tell()
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=dict(run.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end_with_this_program(process)
        outcome = _outcome(process, bound)
        told = _last_lines(run.log, first)
        _note(log, f"===== {name}: {outcome}\n")
    found = _rows(rows)
    rows.unlink(missing_ok=True)
    seconds = round(time.monotonic() - begun, 1)
    return {"outcome": outcome, "seconds": seconds, "rows": found, "output": told}


def _note(log: FileIO, text: str) -> None:
    """Add to the log, if the disk has room: a full one stops no part."""
    with suppress(OSError):
        log.write(text.encode())


def _last_lines(log: Path, first: int) -> list[str]:
    """The last lines of a log, none from before its byte ``first``, and no more of each than can be shown."""
    with log.open("rb") as file:
        file.seek(max(first, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        told = file.read(_LAST_BYTES).decode(errors="replace")
    return [each[:_LINE_LENGTH] for each in told.splitlines()[-_LAST_LINES:]]


def _rows(file: Path) -> list[Row]:
    """The rows that a part has written whole: one that was killed, or had a full disk, may have cut off the last."""
    found = []
    for each in file.read_text(errors="replace").splitlines() if file.exists() else []:
        with suppress(ValueError):
            found.append(json.loads(each))
    return [row for row in found if isinstance(row, dict) and "what" in row]


def _outcome(process: subprocess.Popen[bytes], bound: float) -> str:
    """Wait for a part, and end all of its group: done, failed or hung."""
    try:
        outcome = "done" if process.wait(bound) == 0 else f"failed with {process.returncode}"
    except subprocess.TimeoutExpired:
        outcome = f"hung or too slow: killed after {bound:.0f} s"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # what hangs in a driver cannot be killed
        process.wait(_END_TIMEOUT)
    return outcome


def run_parts(run: Run, names: Sequence[str], minutes: float, known: Mapping[str, Any]) -> dict[str, Any]:
    """Run parts, and write the results after each; ``known``: those of an earlier run, kept until a part runs again."""
    end = time.monotonic() + 60 * minutes
    results = dict(known)
    for number, name in enumerate(names, 1):
        part, left = PARTS[name], end - time.monotonic()
        expected, slower = (part.cost.seconds, 1.0) if run.device == "cuda" else (_LEAST_SECONDS, _SLOWER)
        if left < max(_LEAST_SECONDS, expected):
            outcome = f"left out: {expected:.0f} s are needed, {max(0.0, left):.0f} s are left"
            print(f"[{number} of {len(names)}] {name}: {outcome}", flush=True)
            results[name] = {"rows": [], **known.get(name, {}), "outcome": outcome}
        else:
            about = f"about {expected:.0f} s, " if run.device == "cuda" else ""
            print(f"[{number} of {len(names)}] {name} ({about}{left:.0f} s left): {part.proves}", flush=True)
            results[name] = run_part(run, name, min(left, slower * part.bound))
            _show(name, results[name])
        _write(run, results)
    return results


def _write(run: Run, results: Mapping[str, Any]) -> None:
    """Replace the file as a whole: a run may be cut off at any moment."""
    ordered = {name: results[name] for name in PARTS if name in results}
    rows = [row for result in ordered.values() for row in result["rows"]]
    whole = document("gpu", rows) | {"device": run.device, "scale": run.scale, "parts": ordered}
    partial = run.results.with_suffix(".partial")
    try:
        write_json(partial, whole)
        partial.replace(run.results)
    except OSError as error:
        print(f"  the results could not be written, the next parts run all the same: {error}", flush=True)


def _show(name: str, result: Mapping[str, Any]) -> None:
    for row in result["rows"]:
        print(line(row))
    print(f"  {name}: {result['outcome']} in {result['seconds']:g} s", flush=True)
    if _is_fault(result):
        print("\n".join(f"    {each}" for each in result["output"]), flush=True)


def _is_fault(result: Mapping[str, Any]) -> bool:
    return str(result["outcome"]).startswith(("failed", "hung"))


def _conclude(run: Run, results: Mapping[str, Any]) -> None:
    """Print the targets with what was measured, and what there is still to do."""
    table = gpu_table({"here": [row for result in results.values() for row in result["rows"]]})
    measured = [row for row in table if row["here"] != NOT_MEASURED]  # nothing in a rehearsal: no row is a goal's
    if measured:
        print_table(measured, "Figures and their targets")
    missing = {name: result["outcome"] for name, result in results.items() if result["outcome"] != "done"}
    print(f"\n{len(results) - len(missing)} of {len(results)} parts done; results are in {run.results}")
    for name, outcome in missing.items():
        print(f"  {name}: {outcome}")
    if missing:
        print(f"Why: see above, or {run.log}. The same command with --skip-done, and OUT, runs only these parts.")


def _require(device: str) -> None:
    """Nothing can run without these. Raises ``SystemExit``."""
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"{sys.executable} has no torch: name a Python that has it, `make gpu-run PYTHON=…`")
    if device == "cuda":
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise SystemExit(f"there is no NVIDIA driver here ({error}): --device cpu rehearses without") from None


def _environment(device: str, wheels: Path) -> dict[str, str]:
    """The variables of parts: the tree on the path, and what had to be installed before it."""
    path = [str(_ROOT), str(_ROOT / "clients" / "python")]
    if wheels.is_dir():
        from benchmarks.gpu.wheels import install

        path.append(str(target := _kept() / "gpu-packages"))
        try:
            print("installed from wheels:", ", ".join(install(wheels, target)) or "nothing was missing", flush=True)
        except Exception as error:  # preflight says what is missing
            print(f"wheels: {error}", flush=True)
    paths = [*path, *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "passive"}
    more["PYTHONDONTWRITEBYTECODE"] = ""  # or every process compiles the sources of torch again
    more |= {} if device == "cuda" else {"TRITON_INTERPRET": "1"}
    return {**_caches(), **os.environ, **more, **_FLOAT32_AS_IT_IS, "HF_HUB_OFFLINE": "1"}


def _kept() -> Path:
    """Where what is made for a run is kept: in the tree, or among temporary files if the tree cannot be written to."""
    return _ROOT / "build" if os.access(_ROOT, os.W_OK) else Path(tempfile.gettempdir()) / "ringline-gpu-run"


def _caches() -> dict[str, str]:
    """Where compilers keep what they make: not at home, which may not be writable."""
    kept = _kept() / "gpu-caches"
    return {"TRITON_CACHE_DIR": str(kept / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(kept / "inductor")}


def main() -> None:
    """Run parts. Ends with 1 where one failed or hung."""
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
    if not arguments.minutes > 0:
        parser.error(f"--minutes is {arguments.minutes:g}: it must be above 0")
    _require(arguments.device)
    _prepare(arguments.out)
    scale = arguments.scale or ("full" if arguments.device == "cuda" else "tiny")
    environment = _environment(arguments.device, arguments.wheels)
    run = Run(arguments.out.resolve(), arguments.device, scale, environment)
    if run.is_rehearsal:
        print(f"A rehearsal ({run.device}, {scale}): models and work are small, and figures say nothing about a GPU.")
    print(f"While a part runs, what it prints is in {run.log}", flush=True)
    known = _known(run)
    names = [name for name in PARTS if name in arguments.parts]
    if arguments.skip_done:
        names = [name for name in names if known.get(name, {}).get("outcome") != "done"]
    try:
        results = run_parts(run, names, arguments.minutes, known)
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted: {run.results} has the parts before; --skip-done goes on") from None
    _conclude(run, results)
    raise SystemExit(any(_is_fault(results[name]) for name in names))


def _prepare(out: Path) -> None:
    """Make the folder of results. Raises ``SystemExit`` where none can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / "output.log").open("ab"):
            pass
    except OSError as error:
        raise SystemExit(f"results cannot be written to {out} ({error}): name another folder, OUT=…") from None


def _known(run: Run) -> dict[str, Any]:
    """The results of an earlier run in the same folder. Those of another device or scale are put aside."""
    try:
        earlier = json.loads(run.results.read_text())
        of = (str(earlier["device"]), str(earlier["scale"]))
        parts = {name: result for name, result in earlier["parts"].items() if {"rows", "outcome"} <= result.keys()}
    except OSError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError):  # cut off, or of an older layout
        of, parts = ("not", "read"), {}
    if of != (run.device, run.scale):
        run.results.rename(run.out / f"gpu-run-{'-'.join(of)}.json")
        return {}
    return parts


if __name__ == "__main__":
    main()
