"""``python -m tests.rolling``: change the model of a ring under load. Exits 1 if anything was wrong."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.rolling.run import Options, Rollout, run
from tests.rolling.variants import Change


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rolling", description=__doc__)
    parser.add_argument("--change", action="append", choices=list(Change), help="only this one (default: all)")
    parser.add_argument("--size", type=int, default=2, help="of each service (default: 2)")
    parser.add_argument("--rate", type=float, default=3.0, help="requests per second (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: 1)")
    parser.add_argument("--keep", type=Path, default=None, help="a short path for models and logs, which stay")
    given = parser.parse_args()
    changes = tuple(map(Change, given.change)) if given.change else tuple(Change)
    options = Options(given.seed, changes, given.size, given.rate, keep=given.keep)
    rollouts = asyncio.run(run(options, Rollout.show))
    return 1 if any(rollout.problems for rollout in rollouts) else 0


if __name__ == "__main__":
    sys.exit(main())
