"""``python -m tests.chaos``: inject faults into a ring under load. Exits 1 if anything was wrong."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from tests.chaos import pictures, vectors
from tests.chaos.adapters import kind
from tests.chaos.models import KINDS
from tests.chaos.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of chaos (default: 600)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults and the load (default: drawn)")
    parser.add_argument("--report", type=Path, default=None, help="write the report there, as JSON")
    parser.add_argument("--keep", type=Path, default=None, help="a short path for the services' logs, which stay")
    parser.add_argument(
        "--rolling", type=int, default=1, help="times that every process is replaced, one after the other (default: 1)"
    )
    parser.add_argument("--concurrency", type=int, default=12, help="requests at a time (default: 12)")
    parser.add_argument(
        "--pauses", type=int, default=5, help="times that each fault happens alone, to see its pause (default: 5)"
    )
    parser.add_argument(
        "--kind",
        choices=[*KINDS, pictures.KIND, vectors.KIND, kind.KIND],
        default=None,
        help="of the model (default: the bundled one)",
    )
    parser.add_argument(
        "--ranks", action="store_true", help="engines of two ranks, of two stages and of one process; ranks fail, too"
    )
    parser.add_argument(
        "--data-parallel", action="store_true", help="engines that divide the machine, like those of one `serve`"
    )
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    options = Options(
        seed,
        given.seconds,
        given.rolling,
        given.concurrency,
        pauses=given.pauses,
        ranks=given.ranks,
        divided=given.data_parallel,
        kind=given.kind,
        keep=given.keep,
    )
    report = asyncio.run(run(options))
    print("\n".join(report.lines()))
    if given.report is not None:
        report.write(given.report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
