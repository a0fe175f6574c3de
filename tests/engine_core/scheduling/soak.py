"""The scheduler's property test for longer, with other seeds each time: ``make test-scheduler``.

Every round is one run of hypothesis with its own seed, which decides everything in it. A failure is shrunk, printed as
the calls that bring it about, and followed by the command that runs its round again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from itertools import count

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import SchedulerMachine

EXAMPLES = 200
"""In each round."""


class CountedMachine(SchedulerMachine):
    """Counts what was tried."""

    examples = 0
    calls = 0
    """Of ``schedule``."""

    def __init__(self):
        super().__init__()
        CountedMachine.examples += 1

    def plan(self):
        super().plan()
        CountedMachine.calls += 1


def run_round(number: int) -> bool:
    """Try ``EXAMPLES`` examples; False if one failed."""
    seed(number)(CountedMachine)
    limits = settings(
        max_examples=EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(CountedMachine, settings=limits)
    except Exception:
        traceback.print_exc()
        print(f"failed; to run this round again: make test-scheduler SEED={number}", flush=True)
        return False
    return True


def main() -> int:
    """Run rounds and report; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run the scheduler's property test with many seeds.")
    parser.add_argument("--seconds", type=float, default=1800.0, help="after which no round begins (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this round alone")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return 0 if run_round(arguments.seed) else 1
    seeds, begun = random.SystemRandom(), time.monotonic()
    for rounds in count(1):
        if not run_round(seeds.getrandbits(32)):
            return 1
        seconds = time.monotonic() - begun
        tried = f"{CountedMachine.examples:,} examples, {CountedMachine.calls:,} calls of schedule"
        print(f"{seconds:6.0f} s  round {rounds}  {tried}, no failure", flush=True)
        if seconds >= arguments.seconds:
            return 0
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
