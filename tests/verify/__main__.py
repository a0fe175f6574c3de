"""``python -m tests.verify [SUITE …]``: every long suite, one after the other. Exits 1 if one of them failed.

A suite that has passed is not run again until a file changes that it depends on, by its imports and the data that it
reads: run the same command after an interruption, and it goes on. Results and output are kept in .verify/, by commit.
Each suite gets a line when it ends: whether it passed, how long it took, and its figure.

The suites:

"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.guard import end_with_this_program
from tests.verify.results import BusyError, Result, Results
from tests.verify.suites import SUITES, Suite

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 3.0
"""Times as long as a suite usually takes, until it is ended."""
GRACE = 20.0
"""Seconds in which an interrupted suite may end the services that it started."""
SHOWN = 20
"""Lines of a failed suite's output."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
"""Of every suite: several processes share the cores."""


def main() -> int:
    names = [suite.name for suite in SUITES]
    listed = "\n".join(f"  {suite.name:10} {suite.minutes:3g} min  {suite.what}" for suite in SUITES)
    parser = argparse.ArgumentParser(
        prog="python -m tests.verify",
        description=f"{__doc__}{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", metavar="SUITE", nargs="*", help="only these (default: all)")
    parser.add_argument("--again", action="store_true", help="also those that have passed with the files as they are")
    given = parser.parse_args()
    if unknown := [name for name in given.suites if name not in names]:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = [suite for suite in SUITES if suite.name in (given.suites or names)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = Results(ROOT)
    try:
        with results.held():
            return verify(chosen, results, again=given.again)
    except BusyError as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", flush=True)
        return 130


def verify(suites: Sequence[Suite], results: Results, *, again: bool = False) -> int:
    """Run what has not passed with the files as they are, and print a line for each; returns the exit code."""
    known = {} if again else {suite.name: result for suite in suites if (result := results.passed(suite))}
    minutes = sum(suite.minutes for suite in suites if suite.name not in known)
    print(f"{len(suites) - len(known)} of {len(suites)} suites to run, about {minutes:.0f} minutes", flush=True)
    failed = False
    for suite in suites:
        if suite.name in known:
            _show(known[suite.name], f"passed at {known[suite.name].commit}, and what it depends on is the same")
            continue
        result = run(suite, results)
        _show(result, "" if result.passed else f"FAILED: {results.log(suite)}")
        if not result.passed:
            failed = True
            print("".join(f"    {line}\n" for line in results.output(suite).splitlines()[-SHOWN:]), flush=True)
    return 1 if failed else 0


def run(suite: Suite, results: Results) -> Result:
    """Run a suite to its end, or until it takes far too long, and keep what it found."""
    inputs, log, begun = results.digest(suite), results.log(suite), time.monotonic()
    with log.open("w") as output:
        # A session of its own, so that all of it can be ended. A shell's background would make it ignore SIGINT.
        process = subprocess.Popen(
            suite.command,
            cwd=results.checkout,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        end_with_this_program(process)
        try:
            process.wait(PATIENCE * 60 * suite.minutes)
        except subprocess.TimeoutExpired:
            output.write(f"ended after {PATIENCE * suite.minutes:g} minutes: it usually takes {suite.minutes:g}\n")
        finally:
            _end(process)
    passed = process.returncode == 0
    if passed and results.digest(suite) != inputs:
        passed = False
        with log.open("a") as output:
            output.write("files that it depends on were changed while it ran: run it again\n")
    figure = suite.figure(results.output(suite))
    result = Result(suite.name, inputs, results.commit, passed, round(time.monotonic() - begun, 1), figure)
    results.keep(result)
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a suite and all that it started."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
    finally:  # also when this is interrupted itself, by whoever does not want to wait
        with contextlib.suppress(ProcessLookupError):  # nothing is left of it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _show(result: Result, remark: str) -> None:
    minutes, seconds = divmod(round(result.seconds), 60)
    print(f"{result.suite:10} {minutes:3}:{seconds:02}  {result.figure}{'  ' if remark else ''}{remark}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
