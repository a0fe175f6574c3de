"""One part, in this process: ``python -m benchmarks.gpu.part speed --rows FILE --out DIR``.

Its rows are added to the file as they are measured, so that those before a hang or a crash are kept.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.parts import PARTS
from benchmarks.report import Row

_WARNING = 5.0
"""Seconds before the bound at which every thread tells where it is."""
_OF_GPUS = frozenset(goal.what for goal in GOALS.values())


def main() -> None:
    """Run a part. Ends with 1 where what it proves does not hold, or it could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=list(PARTS))
    parser.add_argument("--rows", type=Path, required=True, help="where rows go, a line of JSON each")
    parser.add_argument("--out", type=Path, required=True, help="where traces go")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    parser.add_argument("--bound", type=float, required=True, help="seconds after which it will be killed")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(max(1.0, arguments.bound - _WARNING))
    with arguments.rows.open("a", buffering=1) as file:
        for row in _rows(arguments):
            print(json.dumps(_told(row, arguments)), file=file)


def _told(row: Row, arguments: argparse.Namespace) -> Row:
    """In a rehearsal, the row of a goal names work on a GPU that was not done: it says so, and has no target."""
    if (arguments.device, arguments.scale) == ("cuda", "full") or row["what"] not in _OF_GPUS:
        return row
    return {**row, "what": f"rehearsal of: {row['what']}", "target": None}


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    runs = PARTS[arguments.name].runs
    if runs.endswith(".py"):
        from benchmarks.gpu.proofs import run_tests

        yield from run_tests(arguments.name, runs, arguments.device)
        return
    from benchmarks.gpu.place import SCALES, Place

    module, _, function = runs.partition(":")
    place = Place(arguments.device, SCALES[arguments.scale], arguments.out)
    yield from getattr(importlib.import_module(module), function)(place)


if __name__ == "__main__":
    main()
