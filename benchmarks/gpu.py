"""The engine on an NVIDIA GPU: every figure that has a target, with the GPU's limits measured in the same minute.

    make bench-gpu                                            # all parts, each in a separate process
    make bench-gpu GPU="--parts decode-1 prefill --json gpu.json"

Each part is printed as soon as it is measured, so that the results remain if there is no time for the others. Random
weights are made on the GPU; nothing is downloaded. ``served`` needs the packages of the services, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu_parts import PARTS
from benchmarks.gpu_targets import GOALS, verdict
from benchmarks.report import Row, document, output_options, write_json

_SECONDS = 240.0
"""The longest that a part may take."""


def line(row: Row) -> str:
    """A row as one readable line."""
    if row.get("measured") is None:
        return f"- {row['what']}: not measured: {row['problem']}"
    reached = {True: "reached", False: "MISSED", None: "no target"}[verdict(row)]
    extra = {name: value for name, value in row.items() if name not in ("measured", "target")}
    told = ", ".join(f"{name} {value:.3g}" for name, value in extra.items() if isinstance(value, float))
    bound = "" if row.get("target") is None else f" ({'≤' if row.get('at most') else '≥'} {row['target']:g})"
    return f"- {row['what']}: {row['measured']:.3g}{bound} {reached}; {told}"


def measure(part: str) -> Row:
    """Run a part in a separate process; if it fails, the row says why."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--run", part]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"what": GOALS[part].what, "measured": None, "problem": f"it took more than {_SECONDS:g} s"}
    if result.returncode != 0:
        return {"what": GOALS[part].what, "measured": None, "problem": "\n".join(result.stderr.splitlines()[-12:])}
    row: Row = json.loads(result.stdout.splitlines()[-1])
    return row


def run_all(parts: Sequence[str], path: Path | None) -> list[Row]:
    """Measure and print one part after the other, rewriting the file after each."""
    rows: list[Row] = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    for part in parts:
        rows.append(measure(part))
        print(line(rows[-1]), flush=True)
        if path is not None:
            write_json(path, document("gpu", rows))
    return rows


def main() -> None:
    """Measure the given parts. Ends with 1 if a target was missed or a part failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    output_options(parser)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all, in order")
    parser.add_argument("--run", choices=list(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    if arguments.run is not None:
        print(json.dumps(PARTS[arguments.run]()))
        return
    rows = run_all(arguments.parts, arguments.json)
    raise SystemExit(any(row.get("measured") is None or verdict(row) is False for row in rows))


if __name__ == "__main__":
    main()
