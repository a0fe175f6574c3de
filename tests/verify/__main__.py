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
from tests.verify.suites import ENVIRONMENT, SUITES, Suite

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 3.0
"""Times as long as a suite usually takes, until it is ended."""
GRACE = 20.0
"""Seconds in which an interrupted suite may end the services that it started."""
SHOWN = 20
"""Lines of a failed suite's output."""
LONGEST_LINE = 500
"""Characters of such a line."""


def main() -> int:
    names = [suite.name for suite in SUITES]
    listed = "\n".join(f"  {suite.name:12} {suite.minutes:3g} min  {suite.what}" for suite in SUITES)
    parser = argparse.ArgumentParser(
        prog="python -m tests.verify",
        description=f"{__doc__}{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", metavar="SUITE", nargs="*", help="only these (default: all)")
    parser.add_argument("--again", action="store_true", help="also those that have passed with the files as they are")
    parser.add_argument("--list", action="store_true", help="say which of them would be run, and run none")
    given = parser.parse_args()
    if unknown := [name for name in given.suites if name not in names]:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = [suite for suite in SUITES if suite.name in (given.suites or names)]
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background would make it ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        results = Results(ROOT)
        if given.list:
            return show_state(chosen, results)
        with results.held():
            return verify(chosen, results, again=given.again)
    except (BusyError, OSError) as error:
        print(error)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"git cannot be asked what there is: {error.stderr.decode(errors='replace').strip()}")
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", flush=True)
        return 130


def show_state(suites: Sequence[Suite], results: Results) -> int:
    """Print what is known of each suite; returns the exit code."""
    for suite in suites:
        result = results.passed(suite)
        print(f"{suite.name:12} {f'passed at {result.commit}' if result else f'to run, {suite.minutes:g} minutes'}")
    return 0


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
            last = results.output(suite).splitlines()[-SHOWN:]
            print("".join(f"    {line[:LONGEST_LINE]}\n" for line in last), flush=True)
    return 1 if failed else 0


def run(suite: Suite, results: Results) -> Result:
    """Run a suite to its end, or until it takes far too long, and keep what it found."""
    inputs, log, begun = results.digest(suite), results.log(suite), time.monotonic()
    log.unlink(missing_ok=True)  # a run that was killed may still write to it
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
            pass_fds=results.lock,
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
    if passed and not results.are_still(inputs, suite):
        passed = False
        with log.open("a") as output:
            output.write("files that it depends on were changed while it ran: run it again\n")
    figure = suite.figure(results.output(suite))
    result = Result(suite.name, inputs, results.commit, passed, round(time.monotonic() - begun, 1), figure)
    results.keep(result)
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a suite and what it started in its group."""
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
    print(f"{result.suite:12} {minutes:3}:{seconds:02}  {result.figure}{'  ' if remark else ''}{remark}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
