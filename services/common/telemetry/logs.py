"""Structured logs on stderr: levels, the two formats, and rate-limited events.

One line per event, as JSON (``{"time", "level", "service", "event", …}``) or in console format. Modules log with
``structlog.get_logger()``; fields bound with ``structlog.contextvars.bound_contextvars(request_id=…)`` are on every
line that any module writes inside the block.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from io import TextIOBase
from typing import TYPE_CHECKING, Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from services.common.config.variable_names import hidden_by_service_links, unknown_variables

if TYPE_CHECKING:
    from services.common.config.settings import TelemetrySettings

_GRPC = "grpc._cython.cygrpc"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
RATE_LIMIT = 1.0
"""Seconds between two lines of a ``RateLimitedLog``."""


def logs_json(settings: TelemetrySettings, stream: TextIO) -> bool:
    """Whether logs on ``stream`` are JSON."""
    return settings.log_format == "json" or (settings.log_format == "auto" and not stream.isatty())


def configure_logs(settings: TelemetrySettings, service: str, stream: TextIO | None = None) -> None:
    """Send the logs of this process, those of libraries included, to ``stream`` (default: stderr)."""
    stream = cast("TextIO", _LogStream(stream or sys.stderr))
    as_json = logs_json(settings, stream)
    level = _LEVELS[settings.log_level]

    def name_service(_logger: Any, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=as_json, key="time"),
        name_service,
    ]
    render: list[Processor] = (
        [
            structlog.processors.format_exc_info,
            _put_first,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ]
        if as_json
        else [console_renderer(stream.isatty())]
    )
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,  # a second configuration (tests, the demo) must reach every module's logger
    )
    # Libraries log through the standard library; their warnings and errors get the same format.
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.getLogger(_GRPC).addFilter(_is_not_a_disconnect)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))


class _LogStream(TextIOBase):
    """Writes to ``stream`` what it takes: a service serves on, and stops, where its log has no reader or no room."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def _is_not_a_disconnect(record: logging.LogRecord) -> bool:
    """False for the traceback that gRPC logs when a client disconnects while its status is written."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")


def warn_of_unknown_variables() -> None:
    """Log each ``RINGLINE_…`` variable of the environment that no process reads, or that Kubernetes set."""
    for name, nearest in unknown_variables(os.environ):
        structlog.get_logger().warning("unknown variable", variable=name, nearest=nearest)
    for name in hidden_by_service_links(os.environ):
        structlog.get_logger().warning(
            "variable ignored",
            variable=name,
            value=os.environ[name],
            reason="Kubernetes sets it for a Service of this name: rename that, or set enableServiceLinks: false",
        )


def warn_of_ignored_flags(ignored: Mapping[str, str]) -> None:
    """Log each flag that a command takes and that changes nothing, with the reason."""
    for flag, why in ignored.items():
        structlog.get_logger().warning("flag has no effect", flag=flag, reason=why)


def _put_first(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Move the fields that every line has to the front, so that lines align."""
    return {**{key: event[key] for key in ("time", "level", "service", "event") if key in event}, **event}


def console_renderer(colors: bool) -> Processor:
    """Renders an event in console format: sizes have units, ``time`` is local, and empty fields are left out."""
    render = structlog.dev.ConsoleRenderer(
        colors=colors,
        timestamp_key="time",
        pad_event_to=0,
        sort_keys=False,  # each event orders its fields for reading
        exception_formatter=structlog.dev.plain_traceback,
    )

    def for_people(logger: Any, method: str, event: EventDict) -> str:
        shown = {key: _for_people(key, value) for key, value in event.items() if value is not None and value != ""}
        return str(render(logger, method, shown))

    return for_people


def _for_people(key: str, value: Any) -> Any:
    """A value in console format: sizes (``bytes``, ``…_bytes``) with units, local times, control characters escaped."""
    if key == "time":
        with suppress(TypeError, ValueError):  # a line of another program may have any type here
            return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if key.rpartition("_")[2] == "bytes" and isinstance(value, int):
        return human_bytes(value)
    if isinstance(value, str) and key != "exception" and not value.isprintable():
        return repr(value)[1:-1]
    return value


def human_bytes(count: int) -> str:
    """A size with a unit, such as ``7.3 MiB``."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def report_fatal(message: str) -> None:
    """Log why the process ends: as one JSON event ``fatal`` with ``error``, or as one plain line.

    Before ``configure_logs`` (the options are not known yet) the line is plain.
    """
    processors = structlog.get_config()["processors"] if structlog.is_configured() else []
    if any(isinstance(processor, structlog.processors.JSONRenderer) for processor in processors):
        structlog.get_logger().critical("fatal", error=message)
    else:
        print(f"error: {message}", file=sys.stderr, flush=True)


class RateLimitedLog:
    """Logs one kind of event, at level info, at most once in ``RATE_LIMIT`` seconds."""

    def __init__(self, log: Any, event: str) -> None:
        """``log``: the logger of the module that reports the event."""
        self._log = log
        self._event = event
        self._written_at: float | None = None
        self._skipped = 0

    def write(self, **fields: object) -> None:
        """Log the event, or count it for the field ``not_logged_before`` of the next line."""
        now = time.monotonic()
        if self._written_at is not None and now - self._written_at < RATE_LIMIT:
            self._skipped += 1
            return
        self._log.info(self._event, **fields, not_logged_before=self._skipped)
        self._written_at, self._skipped = now, 0
