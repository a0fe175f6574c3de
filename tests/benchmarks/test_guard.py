"""Whatever ends a program, what it has started ends too: also what is stopped, and what its own children started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import alive
from tests.programs import program
from tests.ring import ROOT

_OWN_CHILD = "import subprocess, time; print(subprocess.Popen(['sleep', '99']).pid, flush=True); time.sleep(99)"
_PROGRAM = f"""
import os, signal, subprocess, sys, time
from benchmarks.guard import end_with_this_program

command = [sys.executable, "-c", {_OWN_CHILD!r}]
leader = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True)
alone = subprocess.Popen(["sleep", "99"])
for process in (leader, alone):
    end_with_this_program(process)
print(os.getpid(), leader.pid, int(leader.stdout.readline()), alone.pid, flush=True)
os.killpg(leader.pid, signal.SIGSTOP)
time.sleep(99)
"""


def test_the_end_of_make_is_that_of_what_it_runs(tmp_path: Path) -> None:
    program("make", "make")
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "Makefile").write_text(f"all:\n\tA=1 {sys.executable} program.py\n")
    command = ["make", "-s", "-C", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as make:
        assert make.stdout is not None
        pids = [int(word) for word in make.stdout.readline().split()]
        make.kill()
        assert_ended(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_program(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert all(map(alive, pids))
        starter.send_signal(number)
        starter.wait(30)
        assert_ended(pids)


def assert_ended(pids: list[int]) -> None:
    assert len(pids) == 4
    end = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, pids))
