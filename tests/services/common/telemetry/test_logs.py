"""Logs as lines that a machine or a person can read."""

import io
import json
import logging
import os
from contextlib import suppress

import pytest
import structlog

from services.common.config.settings import TelemetrySettings
from services.common.telemetry import logs as rate_limited_log
from services.common.telemetry.logs import RateLimitedLog, configure_logs, human_bytes, report_fatal

log = structlog.get_logger()


@pytest.fixture(autouse=True)
def _logs_as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def configured(log_format="json", log_level="info"):
    stream = io.StringIO()
    configure_logs(TelemetrySettings(log_format=log_format, log_level=log_level), "engine", stream)
    return stream


def records(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_log_without_a_reader_or_room_stops_nothing(log_format):
    reading, writing = os.pipe()
    os.close(reading)
    for file in (writing, os.open("/dev/full", os.O_WRONLY)):
        with suppress(OSError), os.fdopen(file, "w", buffering=1) as stream:
            configure_logs(TelemetrySettings(log_format=log_format), "engine", stream)
            log.warning("stopping")
            logging.getLogger("library").warning("stopping")
            stopped = file
        assert stopped == file


def test_a_json_line_has_what_every_line_has_first_and_the_request_it_is_about():
    stream = configured()
    with structlog.contextvars.bound_contextvars(request_id="42-7"):
        log.info("admitted", tokens=3)
    log.warning("alone", path=io)
    first, second = records(stream)
    assert list(first)[:4] == ["time", "level", "service", "event"]
    assert first | {"time": None} == {
        "time": None,
        "level": "info",
        "service": "engine",
        "event": "admitted",
        "tokens": 3,
        "request_id": "42-7",
    }
    assert "request_id" not in second
    assert second["path"] == repr(io)  # what JSON does not know is written, not an error


def test_the_level_holds_and_an_error_has_its_traceback():
    stream = configured(log_level="warning")
    log.info("not this")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("this")
    (record,) = records(stream)
    assert record["event"] == "this"
    assert "ValueError: why" in record["exception"]


def test_libraries_that_log_in_their_own_way_write_the_same_lines():
    stream = configured()
    logging.getLogger("grpc").warning("a %s", "thing")
    logging.getLogger("grpc").info("chatter")
    (record,) = records(stream)
    assert (record["event"], record["logger"], record["service"]) == ("a thing", "grpc", "engine")


def test_a_client_that_leaves_is_no_error_of_grpc():
    stream = configured()
    grpc_log = logging.getLogger("grpc._cython.cygrpc")
    grpc_log.error("ExecuteBatchError raised in core by servicer method [/a.B/C]")
    grpc_log.error("Unexpected [KeyError] raised by servicer method [/a.B/C]")
    assert [record["event"] for record in records(stream)] == [
        "Unexpected [KeyError] raised by servicer method [/a.B/C]"
    ]


def test_auto_is_json_where_nobody_watches_and_for_people_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    piped = configured("auto")
    log.info("hello")
    assert records(piped)[0]["event"] == "hello"
    terminal = Terminal()
    configure_logs(TelemetrySettings(log_format="auto"), "engine", terminal)
    log.info("hello", n=1)
    assert "hello" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_the_end_of_a_process_is_told_in_the_form_of_its_log(capsys):
    stream = configured()
    report_fatal("no room")
    assert [(r["level"], r["event"], r["error"]) for r in records(stream)] == [("critical", "fatal", "no room")]
    configured("console")
    report_fatal("no room")
    assert capsys.readouterr().err == "error: no room\n"


STAGE = {"name": "load weights", "seconds": 0.412, "bytes": 7_654_321, "detail": "", "peer": None}


def test_people_read_sizes_with_units_and_machines_read_numbers():
    console = configured("console")
    log.info("stage", **STAGE)
    log.info("stage advanced", done_bytes=2048, total_bytes=2**31)
    first, second = console.getvalue().splitlines()
    assert first.endswith("stage name='load weights' seconds=0.412 bytes='7.3 MiB' service=engine")
    assert "done_bytes='2.0 KiB'" in second
    assert "total_bytes='2.0 GiB'" in second
    as_json = configured("json")
    log.info("stage", **STAGE)
    assert records(as_json)[0].items() >= STAGE.items()


def test_what_a_client_named_a_request_does_not_move_the_cursor():
    console = configured("console")
    log.info("admitted", client_request_id="\x1b[2Jgone\u202e")
    assert r"client_request_id=\x1b[2Jgone\u202e" in console.getvalue()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (2048, "2.0 KiB"), (7_654_321, "7.3 MiB"), (2**41, "2.0 TiB")]
)
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text


class Lines:
    """Where lines of a log are kept."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))


def test_what_comes_too_often_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, now = Lines(), 0.5
    monkeypatch.setattr(rate_limited_log.time, "monotonic", lambda: now)
    limited = RateLimitedLog(lines, "denied")
    for now in (0.5, 0.6, 1.4, 1.6, 1.7, 9.0, 10.0):
        limited.write(peer=now)
    assert lines.told == [
        ("denied", {"peer": 0.5, "not_logged_before": 0}),
        ("denied", {"peer": 1.6, "not_logged_before": 2}),
        ("denied", {"peer": 9.0, "not_logged_before": 1}),
        ("denied", {"peer": 10.0, "not_logged_before": 0}),
    ]
