"""A supervisor's children live, die, return and end as they should, and none is left behind."""

import asyncio
import io
import os
import signal
import sys
from dataclasses import replace

import pytest

from services.cli.supervise.child_logs import ChildLogs
from services.cli.supervise.supervisor import ChildFailed, ChildSpec, RestartPolicy, Supervisor
from services.common.links.redial import Backoff
from services.common.process.heartbeat import HEARTBEAT_LIMITS
from tests.processes import alive
from tests.ring import ROOT
from tests.waiting import until

PRELUDE = """
import json, os, signal, subprocess, sys, time
def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)
"""
FOREVER = "say('up')\nsignal.pause()"
POLITE = """
def on_term(*_):
    say('ending', at=time.monotonic())
    time.sleep(0.1)
    say('ended', at=time.monotonic())
    sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
say('up')
while True:
    signal.pause()
"""
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('up')\nwhile True:\n    time.sleep(60)"


def child(name, code):
    return ChildSpec(name, (sys.executable, "-c", PRELUDE + code), dict(os.environ))


class Running:
    """A supervisor under way, with what its children said."""

    def __init__(self, *specs, grace=60.0, show=lambda name, line: None, limits=HEARTBEAT_LIMITS):
        self.lines = []
        self.show = show
        self.heard = asyncio.Event()
        self.supervisor = Supervisor(specs, grace=grace, on_line=self.on_line, limits=limits)
        self.task = asyncio.create_task(self.supervisor.run())

    def on_line(self, name, line):
        self.lines.append((name, line))
        self.show(name, line)
        self.heard.set()

    def said(self, text):
        return [name for name, line in self.lines if text in line]

    async def until(self, text, times=1):
        async with asyncio.timeout(60):
            while len(self.said(text)) < times and not self.task.done():
                self.heard.clear()
                wait = asyncio.create_task(self.heard.wait())
                await asyncio.wait({wait, self.task}, return_when=asyncio.FIRST_COMPLETED)
                wait.cancel()
        assert len(self.said(text)) >= times, (self.lines, self.task)

    def pid(self, index=0):
        return self.supervisor.children[index].pid

    async def end(self):
        self.supervisor.stop()
        await asyncio.wait_for(self.task, 60)


async def test_children_end_in_the_reverse_of_their_order_each_when_the_one_before_has():
    running = Running(*(child(name, POLITE) for name in ("engine", "detokenizer", "processor")))
    await running.until("up", 3)
    await running.end()
    assert running.said("ending") == running.said("ended") == ["processor", "detokenizer", "engine"]
    events = [line for _, line in running.lines if "end" in line]
    assert ["ending" in line for line in events] == [True, False] * 3


async def test_a_killed_child_is_started_again_with_its_death_explained():
    running = Running(child("engine", FOREVER), child("other", FOREVER))
    running.supervisor.allow_restarts()
    await running.until("up", 2)
    first, other = running.pid(0), running.pid(1)
    os.kill(first, signal.SIGKILL)
    await running.until("up", 3)
    assert running.pid(0) != first
    assert running.pid(1) == other
    await running.end()
    assert not alive(other)


async def test_a_child_that_dies_too_often_ends_everything_with_its_last_words():
    running = Running(child("other", FOREVER), child("engine", "print('the disk is on fire')\nsys.exit(5)"))
    running.supervisor.allow_restarts()
    with pytest.raises(ChildFailed, match=r"^engine died 5 times within 60 s; the last time: the disk") as caught:
        await asyncio.wait_for(running.task, 60)
    assert caught.value.code == 5
    assert len(running.said("fire")) == 5


async def test_a_child_that_the_others_do_not_need_may_die_as_often_as_it_likes(monkeypatch):
    monkeypatch.setattr("services.cli.supervise.supervisor.RestartPolicy.delay", lambda self, now: None)
    running = Running(child("engine", FOREVER), replace(child("gateway", "say('hot')\nsys.exit(5)"), needed=False))
    monkeypatch.setattr("services.cli.supervise.supervisor._LONGEST_PAUSE", 0.01)
    running.supervisor.allow_restarts()
    await running.until("hot", 3)
    assert not running.task.done()
    await running.end()


@pytest.mark.parametrize(
    ("end", "exit_code", "words"),
    [
        ("say('fatal', level='critical', error='it does not fit')\nsay('more')\nsys.exit(2)", 2, "it does not fit"),
        ("say('fatal', level='critical', error='it does not fit')\nsys.exit(3)", 3, "it does not fit"),
        ("raise KeyError('why')", 1, "KeyError: 'why'"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 1, "it was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, r"it was killed by SIGKILL \(by hand, or out of memory\)"),
        ("sys.exit(0)", 1, "it ended with code 0"),
    ],
)
async def test_a_death_before_everything_served_ends_everything_at_once_with_one_line(end, exit_code, words):
    running = Running(child("engine", "say('up')\n" + end), child("other", POLITE))
    with pytest.raises(ChildFailed, match=f"^engine: {words}$") as caught:
        await asyncio.wait_for(running.task, 60)
    assert caught.value.code == exit_code
    assert running.said("up").count("engine") == 1


async def test_the_traceback_of_an_unexpected_error_is_shown_once(tmp_path):
    argv = (sys.executable, str(ROOT / "tests/services/common/process/small_service.py"), str(tmp_path / "socket"))
    shown = io.StringIO()
    logs = ChildLogs(as_json=False, out=shown, stream=shown)
    running = Running(ChildSpec("engine", argv, {**os.environ, "PYTHONPATH": str(ROOT)}), show=logs.line)
    await running.until("serving")
    os.kill(running.pid(), signal.SIGUSR2)
    with pytest.raises(ChildFailed, match=r"^engine: unexpected error: RuntimeError: it broke$") as caught:
        await asyncio.wait_for(running.task, 60)
    assert (shown.getvalue() + str(caught.value)).count("Traceback") == 1


async def test_once_everything_served_the_same_code_is_followed_by_a_restart():
    running = Running(child("engine", "say('up')\ntime.sleep(0.1)\nsys.exit(3)"))
    running.supervisor.allow_restarts()
    await running.until("up", 2)
    await running.end()


async def test_a_child_that_does_not_end_is_killed_after_its_grace(monkeypatch):
    monkeypatch.setattr("services.cli.supervise.supervisor._KILL_MARGIN", 0.3)
    running = Running(child("engine", DEAF), grace=0.1)
    await running.until("up")
    pid = running.pid()
    await running.end()
    assert not alive(pid)


async def test_a_second_stop_kills_at_once():
    running = Running(child("engine", DEAF), child("other", DEAF), grace=1000.0)
    await running.until("up", 2)
    pids = [running.pid(0), running.pid(1)]
    running.supervisor.stop()
    await asyncio.sleep(0.05)
    await running.end()
    assert not any(alive(pid) for pid in pids)


async def test_what_a_child_started_ends_with_it():
    grandchild = "p = subprocess.Popen(['sleep', '60'])\nsay('up', grandchild=p.pid)\nsignal.pause()"
    running = Running(child("engine", grandchild))
    running.supervisor.allow_restarts()
    await running.until("up")
    pid = int(running.lines[0][1].rpartition(" ")[2].rstrip("}"))
    assert alive(pid)
    os.kill(running.pid(), signal.SIGKILL)
    await running.until("up", 2)
    await until(lambda: not alive(pid))
    await running.end()


async def test_children_do_not_outlive_a_run_that_is_cancelled():
    running = Running(child("engine", POLITE))
    await running.until("up")
    pid = running.pid()
    running.task.cancel()
    await asyncio.wait({running.task})
    assert not alive(pid)


async def test_a_stop_while_a_child_waits_for_its_restart_does_not_wait_for_it(monkeypatch):
    monkeypatch.setattr("services.cli.supervise.supervisor.RestartPolicy.delay", lambda self, now: 1000.0)
    running = Running(child("engine", "say('up')\nsys.exit(1)"))
    running.supervisor.allow_restarts()
    await running.until("up")
    async with asyncio.timeout(60):
        await running.supervisor.children[0].ended.wait()
    await running.end()


async def test_lines_beyond_any_measure_and_progress_bars_do_not_stop_the_reading():
    code = "print('x' * 3_000_000)\nprint('10 %\\r50 %\\r100 %')\nsys.stdout.buffer.write(b'\\xff\\n')\n" + FOREVER
    running = Running(child("engine", code))
    await running.until("up")
    assert [line for _, line in running.lines if len(line) < 100][:2] == ["100 %", "�"]
    await running.end()


KILLED = """
import asyncio, os, sys
from services.cli.supervise.supervisor import ChildSpec, Supervisor
bound = '''
import os, time
from services.common.process.run import die_with_parent
die_with_parent()
print("up", os.getpid(), flush=True)
time.sleep(60)
'''
specs = [ChildSpec(name, (sys.executable, "-c", bound), dict(os.environ)) for name in "abc"]
asyncio.run(Supervisor(specs, grace=1, on_line=lambda name, line: print(line, flush=True)).run())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
async def test_no_child_outlives_a_supervisor_that_is_killed_outright():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    pids = [int((await asyncio.wait_for(process.stdout.readline(), 60)).split()[1]) for _ in range(3)]
    assert all(alive(pid) for pid in pids)
    process.kill()
    await process.wait()
    await until(lambda: not any(alive(pid) for pid in pids))


def test_five_deaths_in_a_minute_are_too_many():
    policy = RestartPolicy(Backoff(0.2, 5.0, uniform=lambda low, high: high))
    assert [policy.delay(now) for now in (0, 1, 2, 3)] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert policy.delay(59.9) is None


def test_deaths_far_apart_are_never_too_many_and_wait_shortly():
    policy = RestartPolicy(Backoff(0.2, 5.0, uniform=lambda low, high: high))
    assert [policy.delay(now) for now in range(0, 2000, 100)] == pytest.approx([0.2] * 20)
    policy = RestartPolicy(Backoff(0.2, 5.0, uniform=lambda low, high: high))
    assert all(policy.delay(now) is not None for now in range(0, 2000, 16))  # four in any minute
