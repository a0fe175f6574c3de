"""What a supervisor shows of its children's logs."""

import io
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from services.cli.supervise.child_logs import ChildLogs, death_reason


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(event, level="info", **more):
    return json.dumps({"time": "2026-01-01T00:00:00Z", "level": level, "service": "engine", "event": event, **more})


STAGE = record("stage", name="load weights", seconds=0.412, bytes=7_654_321, detail="numerics abc")


def shown(*lines, **kwargs):
    out, stream = io.StringIO(), io.StringIO()
    logs = ChildLogs(out=out, stream=stream, **{"as_json": False, **kwargs})
    for line in lines:
        if line == "READY":
            logs.ready("ready: here")
        else:
            logs.line("engine", line)
    return out.getvalue().splitlines(), stream.getvalue().splitlines()


def test_as_json_events_pass_as_they_are_and_other_lines_become_events():
    events = [record("attached"), STAGE]
    others = ["no json", '{"torn', '{"of": "another program"}', "ü 😀"]
    out, stream = shown(*events, *others, as_json=True)
    assert out == []
    assert stream[:2] == events
    told = [json.loads(line) for line in stream[2:]]
    assert [line.pop("line") for line in told] == others
    for line in told:
        age = datetime.now(UTC) - datetime.fromisoformat(line.pop("time"))
        assert timedelta(0) <= age < timedelta(minutes=1)
        assert line == {"level": "info", "service": "engine", "event": "output"}


def test_a_stage_is_one_line_with_its_seconds_and_bytes():
    out, stream = shown(record("stage started", name="load weights"), STAGE)
    assert (out, stream) == (["  engine: load weights            0.41 s    7.3 MiB  numerics abc"], [])


def test_a_stage_that_takes_long_says_so_when_it_begins():
    out, stream = shown(record("stage started", name="compile kernels", detail="native kernels: takes a minute"))
    assert (out, stream) == (
        ["  engine: compile kernels              …             native kernels: takes a minute"],
        [],
    )


def test_until_ready_people_see_stages_and_what_needs_attention():
    lines = [record("attached", peer="p"), record("slow disk", "warning"), "Segmentation fault", record("serving")]
    out, stream = shown(*lines)
    assert out == ["  engine: serving"]
    assert "slow disk" in stream[0]
    assert stream[1:] == ["engine: Segmentation fault"]


def test_a_gateway_that_waits_for_an_engine_needs_no_attention_until_ready():
    waiting = record("no processor serves yet", "warning")
    assert shown(waiting) == ([], [])
    _, (line,) = shown("READY", waiting)
    assert "no processor serves yet" in line


def test_an_engine_that_begins_to_serve_says_which_model_clients_see():
    out, _ = shown(record("serving", address="unix:e", model_digest="b29a"))
    assert out == ["  engine: serving model_digest b29a"]


def test_an_engine_that_serves_adapters_says_how_many_there_are():
    assert shown(record("adapters known", adapters=3)) == (["  engine: adapters known: 3"], [])


def test_afterwards_they_see_everything():
    out, stream = shown(record("attached", peer="p"), "READY", record("detached", peer="p"), STAGE)
    assert out == ["ready: here"]
    assert ["attached" in line for line in stream] == [False, False]
    assert "peer=p" in stream[0]
    assert "load weights" in stream[1]


def test_their_times_are_local_as_those_of_the_supervisor_are(monkeypatch):
    monkeypatch.setenv("TZ", "Etc/GMT-5")  # five hours before Greenwich
    time.tzset()
    try:
        _, (line, other) = shown("READY", record("attached"), record("odd").replace("2026", "twenty-six"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert line.startswith("2026-01-01 05:00:00 [info")
    assert other.startswith("twenty-six-01")


def test_unless_it_should_be_quiet():
    out, stream = shown("READY", record("detached"), record("serving"), record("it burns", "error"), quiet=True)
    assert (out, len(stream)) == (["ready: here"], 1)
    assert "it burns" in stream[0]


class Unread(Terminal):
    def flush(self):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_reader_that_is_gone_is_no_reason_to_stop(as_json):
    logs = ChildLogs(as_json=as_json, out=Unread(), stream=Unread())
    advanced = record("stage advanced", name="load weights", done_bytes=30, total_bytes=60)
    for line in (advanced, STAGE, "Segmentation fault", record("it burns", "error")):
        logs.line("engine", line)
    logs.ready("ready: here")


def test_a_fatal_error_is_left_to_who_tells_what_follows_from_it():
    assert shown(record("fatal", "critical", error="no room")) == ([], [])


def test_a_terminal_sees_how_far_a_stage_is_on_a_line_that_the_next_replaces():
    out = Terminal()
    logs = ChildLogs(as_json=False, out=out, stream=io.StringIO())
    logs.line("engine", record("stage advanced", name="load weights", done_bytes=30, total_bytes=60))
    assert out.getvalue() == "\r\x1b[K  engine: load weights 50 %"
    logs.line("engine", record("stage advanced", name="compile kernels", done_files=3, total_files=8))
    assert out.getvalue().endswith("\r\x1b[K  engine: compile kernels 3 of 8 files")
    logs.line("engine", STAGE)
    assert out.getvalue().split("\r\x1b[K")[-1].startswith("  engine: load weights            0.41 s")


def test_without_a_terminal_a_line_says_now_and_then_how_far_a_stage_is():
    out, times = io.StringIO(), iter([100.0, 114.0, 115.0, 129.0, 131.0, 132.0, 150.0, 151.0])
    logs = ChildLogs(as_json=False, out=out, stream=io.StringIO(), clock=lambda: next(times))
    logs.line("engine", record("stage started", name="compile kernels", detail="takes a minute"))
    for done in (1, 2, 3, 4, 8):
        logs.line("engine", record("stage advanced", name="compile kernels", done_files=done, total_files=8))
    logs.line("engine", record("stage started", name="load weights"))
    logs.line("engine", record("stage advanced", name="load weights", done_bytes=30, total_bytes=60))
    begun, *told = out.getvalue().splitlines()
    assert begun.endswith("takes a minute")
    assert [line.split() for line in told] == [
        ["engine:", "compile", "kernels", "…", *how_far.split()] for how_far in ("2 of 8 files", "4 of 8 files")
    ]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([record("stage"), record("fatal", "critical", error="no room"), record("ended")], "no room"),
        ([record("fatal", "critical", error="old"), record("fatal", "critical", error="new")], "new"),
        (["one", "two "], "two"),
        (["Traceback (most recent call last):", "  File …", "KeyError: 'x'"], "KeyError: 'x'"),
        (
            [record("unexpected error", "critical", error="KeyError: 'x'", exception="Traceback …\nKeyError: 'x'")],
            "unexpected error: KeyError: 'x'",
        ),
        (["noise", record("stage")], ""),
        ([record("an RPC broke", "error", error="long ago"), record("stage")], ""),
        ([], ""),
        (['{"event": 3}', "[1]"], "[1]"),
    ],
)
def test_a_death_is_explained_by_the_last_critical_event_or_the_last_words(lines, why):
    assert death_reason(lines) == why
