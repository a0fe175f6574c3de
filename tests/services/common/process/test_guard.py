"""Whatever ends a program, what it has started ends too: also what is stopped, and what its own children started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.processes import alive
from tests.ring import ROOT

_OWN_CHILD = "import subprocess, time; print(subprocess.Popen(['sleep', '99']).pid, flush=True); time.sleep(99)"
_PROGRAM = f"""
import os, signal, subprocess, sys, time
from services.common.process.guard import end_with_this_program

command = [sys.executable, "-c", {_OWN_CHILD!r}]
leader = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True)
alone = subprocess.Popen(["sleep", "99"])
for process in (leader, alone):
    end_with_this_program(process)
print(leader.pid, int(leader.stdout.readline()), alone.pid, flush=True)
os.killpg(leader.pid, signal.SIGSTOP)
time.sleep(99)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_program(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(word) for word in program.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(alive, pids))
        program.send_signal(number)
        program.wait(30)
        end = time.monotonic() + 60
        while any(map(alive, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(alive, pids))
