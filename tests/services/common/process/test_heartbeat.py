"""Processes that are stopped, or whose event loop hangs, are ended by those who started them, or by themselves."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from services.cli.supervise.supervisor import ChildSpec
from services.common.config.variable_names import HEARTBEAT_PIPE_VARIABLE
from services.common.process.heartbeat import HEARTBEAT_INTERVAL, HeartbeatLimits, HeartbeatMonitor, Phase
from tests.processes import alive
from tests.programs import python, ringline
from tests.ring import ROOT
from tests.services.cli.supervise.test_supervisor import Running

IMPATIENT = HeartbeatLimits(starting=60.0, running=1.0, ending=60.0)

BEATING = """
import asyncio, os, signal, sys, time
from services.common.process.heartbeat import heartbeat
async def main():
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: time.sleep(3600))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    async with heartbeat(lambda: {running}, loop_limit={loop_limit}):
        await asyncio.sleep(0)
        print("up", os.getpid(), flush=True)
        await stopped.wait()
{start}
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
asyncio.run(main())
sys.exit(7)
"""


def beating(running=True, loop_limit=3600.0, start=""):
    """A program whose event loop beats; SIGTERM ends it with 7, and SIGUSR1 hangs it."""
    code = BEATING.format(running=running, loop_limit=loop_limit, start=start)
    return (sys.executable, "-c", code)


def spec(**kwargs):
    return ChildSpec("engine", beating(**kwargs), {**os.environ, "PYTHONPATH": str(ROOT)})


async def test_a_child_that_stands_still_is_started_again():
    running = Running(spec(), limits=IMPATIENT)
    running.supervisor.allow_restarts()
    await running.until("up")
    first = running.pid()
    with capture_logs() as logs:
        os.kill(first, signal.SIGSTOP)
        await running.until("up", 2)
    assert running.pid() != first
    (died,) = (record for record in logs if record["event"] == "died")
    assert re.fullmatch(r"it was killed: it gave no sign of life for \d+\.\d s", died["reason"])
    await running.end()


def test_silence_is_measured_by_one_who_looks():
    heartbeats = HeartbeatMonitor(HeartbeatLimits(starting=10.0, running=2.0, ending=5.0))

    def looks(start, seconds):
        return [heartbeats.check(start + i * HEARTBEAT_INTERVAL) for i in range(int(seconds / HEARTBEAT_INTERVAL) + 1)]

    assert not any(looks(0.0, 10.0))
    os.write(heartbeats.writing, Phase.RUNNING.value * 3)
    assert not any(looks(10.0, 2.0))
    assert heartbeats.check(12.5) == "it gave no sign of life for 2.5 s"
    os.write(heartbeats.writing, Phase.RUNNING.value)
    assert heartbeats.check(1000.0) is None
    assert heartbeats.check(2000.0) is None, "the supervisor was asleep"
    os.write(heartbeats.writing, Phase.RUNNING.value + Phase.ENDING.value)
    assert not any(looks(2000.5, 5.0))
    assert heartbeats.check(2006.0) is not None
    os.close(heartbeats.writing)
    assert heartbeats.check(2006.5) is not None, "nobody is left who could give one"
    heartbeats.close()


def test_an_event_loop_that_hangs_ends_its_process_with_its_stack_in_the_log():
    code = beating(
        loop_limit=0.6,
        start="from services.common.telemetry.logs import *\nfrom services.common.config.settings import *\n"
        "configure_logs(TelemetrySettings(log_format='json'), 'engine')",
    )
    process = subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout.readline().startswith("up")
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    (record,) = map(json.loads, errors.splitlines())
    assert (record["event"], record["limit"]) == ("the event loop hangs", 0.6)
    assert any("<lambda>" in frame for frame in record["stacks"]["MainThread"])


INHERITED = """
import asyncio, os
from services.common.process.heartbeat import heartbeat
pipe = int(os.environ[{variable!r}])
async def main():
    async with heartbeat(lambda: True):
        await asyncio.sleep(0)
        print(os.get_inheritable(pipe), {variable!r} in os.environ)
asyncio.run(main())
"""


def test_what_a_child_starts_in_turn_does_not_beat_for_it():
    reading, writing = os.pipe()
    code = INHERITED.format(variable=HEARTBEAT_PIPE_VARIABLE)
    done = python(code, env={HEARTBEAT_PIPE_VARIABLE: str(writing)}, pass_fds=[writing])
    os.close(writing)
    assert done.stdout.split() == ["False", "False"]
    assert os.read(reading, 100) == Phase.RUNNING.value + Phase.ENDING.value
    os.close(reading)


SUPERVISED = """
import sys
from services.cli.commands.supervise import run_child
from services.common.process.heartbeat import HeartbeatLimits
sys.exit(run_child(tuple(sys.argv[2:]), HeartbeatLimits(running=float(sys.argv[1]))))
"""


class Supervised:
    """A program under the first process of a container."""

    def __init__(self, *argv, limit=60.0):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISED, str(limit), *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.child = int(self.process.stdout.readline().split()[1])

    def end(self):
        try:
            _, errors = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_container_ends_as_its_service_does_which_gets_its_signals(number, code):
    supervised = Supervised(*beating())
    supervised.process.send_signal(number)
    assert supervised.end()[0] == code


def test_a_container_ends_when_its_service_stands_still():
    supervised = Supervised(*beating(), limit=1.0)
    os.kill(supervised.child, signal.SIGUSR1)
    code, errors = supervised.end()
    assert code == 128 + signal.SIGKILL
    assert errors.startswith("killing the service: it gave no sign of life for ")
    assert not alive(supervised.child)


def test_the_first_process_of_a_container_buries_orphans_and_waits_for_its_service():
    """Like any first process: it is the parent of whoever loses theirs."""
    orphan = "subprocess.Popen(['sh', '-c', 'true & exec true'])"
    start = f"import ctypes, subprocess\n{orphan}.wait()"
    supervised = Supervised(*beating(start=start))
    supervised.process.terminate()
    assert supervised.end()[0] == 7


def test_the_command_takes_the_options_of_its_service():
    done = ringline("supervise", "detokenizer", "--port", "-1", "--help")
    assert (done.returncode, "ringline detokenizer" in done.stdout) == (0, True)
