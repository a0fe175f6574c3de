"""What a process tells about itself: structured logs on stderr.

One line per event, as JSON (``{"time", "level", "service", "event", …}``) or for people. Modules log with
``structlog.get_logger()``; what is bound with ``structlog.contextvars.bound_contextvars(request_id=…)`` is on every
line written meanwhile, in whatever module.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from services.config.environment import unknown_variables

if TYPE_CHECKING:
    from services.config.settings import TelemetrySettings

_GRPC = "grpc._cython.cygrpc"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
QUIET = 1.0
"""Seconds after a line before the next."""


def logs_json(settings: TelemetrySettings, stream: TextIO) -> bool:
    """Whether logs on ``stream`` are for machines."""
    return settings.log_format == "json" or (settings.log_format == "auto" and not stream.isatty())


def configure_logs(settings: TelemetrySettings, service: str, stream: TextIO | None = None) -> None:
    """Send the logs of this process, those of libraries included, to ``stream`` (default: stderr)."""
    stream = stream or sys.stderr
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
    # Libraries log through the standard library; theirs become the same lines, from warnings up.
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.getLogger(_GRPC).addFilter(_is_no_client_that_left)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))


def _is_no_client_that_left(record: logging.LogRecord) -> bool:
    """Whether it is not what gRPC logs, with a traceback, of each client that leaves while its status is written."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")


def warn_of_unknown_variables() -> None:
    """Log each variable of the environment that looks like ours and that nobody reads."""
    for name, nearest in unknown_variables(os.environ):
        structlog.get_logger().warning("unknown variable", variable=name, nearest=nearest)


def _put_first(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """What every line has comes first, so that lines can be read below each other."""
    return {**{key: event[key] for key in ("time", "level", "service", "event") if key in event}, **event}


def console_renderer(colors: bool) -> Processor:
    """Renders one event, with its time under ``time``, for people: sizes have units, and what is empty is left out."""
    render = structlog.dev.ConsoleRenderer(
        colors=colors,
        timestamp_key="time",
        pad_event_to=0,
        sort_keys=False,  # each event's own order is the one to read it in
        exception_formatter=structlog.dev.plain_traceback,
    )

    def for_people(logger: Any, method: str, event: EventDict) -> str:
        shown = {key: _for_people(key, value) for key, value in event.items() if value is not None and value != ""}
        return str(render(logger, method, shown))

    return for_people


def _for_people(key: str, value: Any) -> Any:
    """Sizes (``bytes``, ``…_bytes``) with their unit, times local; what a terminal would obey, written out."""
    if key == "time":
        with suppress(TypeError, ValueError):  # some other program's line
            return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if key.rpartition("_")[2] == "bytes" and isinstance(value, int):
        return human_bytes(value)
    if isinstance(value, str) and key != "exception" and not value.isprintable():
        return repr(value)[1:-1]
    return value


def human_bytes(count: int) -> str:
    """Such as ``7.3 MiB``."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def report_fatal(message: str) -> None:
    """Say why the process ends: one JSON event ``fatal`` with ``error``, or one plain line for people.

    Without ``configure_logs`` (it ends before it knows its options) the line is plain.
    """
    processors = structlog.get_config()["processors"] if structlog.is_configured() else []
    if any(isinstance(processor, structlog.processors.JSONRenderer) for processor in processors):
        structlog.get_logger().critical("fatal", error=message)
    else:
        print(f"error: {message}", file=sys.stderr, flush=True)


class RateLimitedLog:
    """Writes one kind of event."""

    def __init__(self, log: Any, event: str) -> None:
        """``log``: the logger of whoever tells it."""
        self._log = log
        self._event = event
        self._told_at: float | None = None
        self._untold = 0

    def tell(self, **fields: object) -> None:
        """It has happened: a line at the level info, unless there was one just now."""
        now = time.monotonic()
        if self._told_at is not None and now - self._told_at < QUIET:
            self._untold += 1
            return
        self._log.info(self._event, **fields, not_logged_before=self._untold)
        self._told_at, self._untold = now, 0
