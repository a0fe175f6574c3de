"""The hygiene of a process: what it may load, how it ends, and whose death is its own."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from services.common.config.errors import ExitCode, FatalError
from services.common.process.run import new_incarnation, run_service
from tests.processes import alive
from tests.programs import python
from tests.ring import ROOT
from tests.waiting import until


def test_a_forbidden_module_is_not_loaded_yet_nor_later_nor_a_part_of_it():
    code = """
from services.common.process.run import forbid_imports
import colorsys
for forbidden in (("colorsys",), ("mailbox", "xmlrpc")):
    try:
        forbid_imports(forbidden)
    except AssertionError as error:
        print(error)
for name in ("mailbox", "xmlrpc.client"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
import tabnanny
"""
    done = python(code)
    expected = [f"{name} must not be loaded in this process" for name in ("colorsys", "mailbox", "xmlrpc")]
    assert done.stdout.splitlines() == expected, done.stderr


def test_what_the_cpu_tiers_share_needs_nothing_heavy():
    common = ("config", "links", "process", "rpc", "security", "telemetry")
    shared = ("ring", "cli.supervise", *(f"common.{room}" for room in common))
    rooms = ("text_core", "text_core.grammar", "text_core.parsing", *(f"services.{room}" for room in shared))
    code = f"""
from services.common.process.run import forbid_imports
forbid_imports()
import importlib, pkgutil
for room in {rooms}:
    package = importlib.import_module(room)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{{room}}.{{module.name}}")
"""
    assert python(code).stderr == ""


class Expected(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FatalError("no room"), ExitCode.STARTUP, "error: no room\n"),
        (FatalError("bad flag", ExitCode.USAGE), ExitCode.USAGE, "error: bad flag\n"),
        (Expected("a checkpoint is missing"), 9, "error: a checkpoint is missing\n"),
    ],
)
def test_an_error_that_was_expected_is_one_line_and_a_code(error, code, said, capsys):
    async def main():
        raise error

    assert run_service(main, {Expected: 9}) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "error",
    [Expected("what is\nthis"), ExceptionGroup("unhandled errors", [ExceptionGroup("", [Expected("what is this")])])],
)
def test_an_error_that_was_not_expected_shows_its_traceback_and_is_named(error):
    async def main():
        raise error

    with capture_logs() as logs:
        assert run_service(main) == ExitCode.FAILURE
    assert [(entry["log_level"], entry["error"]) for entry in logs] == [("critical", "Expected: what is this")]


@pytest.mark.parametrize("begin", ["asyncio.to_thread", "partial(loop.run_in_executor, DaemonThreadPool(1, 'start'))"])
def test_work_that_is_left_in_a_thread_does_not_keep_the_process(begin):
    code = f"""
import asyncio, sys, time
from functools import partial
from services.common.process.run import DaemonThreadPool, run_service
async def main():
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future({begin}(time.sleep, 1000))
    assert await asyncio.to_thread(str.upper, "done") == "DONE"
    work.cancel()
    print("last words", end="")
    return 7
sys.exit(run_service(main))
"""
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (7, "last words", "")


CHILD = """
import time
from services.common.process.run import die_with_parent
die_with_parent()
print("bound", flush=True)
time.sleep(60)
"""

PARENT = f"""
import os, subprocess, sys, time
env = {{**os.environ, "RINGLINE_PARENT_PID": str(os.getpid())}}
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=env, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_the_children_of_a_killed_process_die_with_it():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    asyncio.run(until(lambda: not alive(child)))


def test_a_child_whose_parent_died_before_it_looked_ends_at_once():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = python(CHILD, env={"RINGLINE_PARENT_PID": str(gone.pid)})
    assert (done.returncode, done.stdout) == (ExitCode.FAILURE, "")


def test_it_is_the_start_in_milliseconds_above_twenty_random_bits():
    before = time.time_ns() // 1_000_000
    incarnations = [new_incarnation() for _ in range(50)]
    after = time.time_ns() // 1_000_000
    assert all(before <= incarnation >> 20 <= after for incarnation in incarnations)
    assert len({incarnation & (2**20 - 1) for incarnation in incarnations}) > 40
    assert max(incarnations) < 2**64  # fixed64 in Hello
