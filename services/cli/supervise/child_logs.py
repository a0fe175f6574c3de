"""Shows the services' logs, which they write as JSON lines.

In JSON format, JSON lines pass through, and any other (from a library or traceback) becomes the event ``output``. In
console format, start-up shows a line per stage of the engine, one when a service serves, and warnings and errors; once
all services are ready, every line is shown.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from services.common.telemetry.logs import console_renderer, human_bytes

_ATTENTION = ("warning", "error", "critical")
_PROGRESS_INTERVAL = 15.0
"""Seconds between two lines about a stage that takes long, where no terminal shows how far it is."""


class ChildLogs:
    """Writes log lines to ``stream`` and, in console format, the progress of start-up to ``out``."""

    def __init__(
        self,
        *,
        as_json: bool,
        quiet: bool = False,
        out: TextIO | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``quiet``: show only warnings and errors, even when all services are ready. ``clock``: in seconds."""
        self._as_json = as_json
        self._out, self._stream = out or sys.stdout, stream or sys.stderr
        self._render = console_renderer(self._stream.isatty())
        self._ready = False
        self._quiet = quiet
        self._transient = False
        self._clock = clock
        self._told_at: dict[str, float] = {}
        """By child: when a line said how far its stage is."""

    def line(self, child: str, line: str) -> None:
        record = parse_record(line)
        if self._as_json:
            if record is None:  # so that every line of the output is JSON
                now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
                event = {"time": now, "level": "info", "service": child, "event": "output", "line": line}
                line = json.dumps(event, ensure_ascii=False)
            self._print(self._stream, line)
        elif record is None:
            self._print(self._stream, f"{child}: {line}")
        elif (self._ready or not self._startup(child, record)) and self._shown(record):
            rendered = self._render(logging.getLogger(), "", {"service": child, **record})
            self._print(self._stream, str(rendered))

    def ready(self, text: str) -> None:
        """All services serve: show ``text``, and from now on every line."""
        self._ready = True
        self.say(text)

    def say(self, text: str) -> None:
        self._print(self._out, text)

    def _shown(self, record: dict[str, Any]) -> bool:
        # The supervisor reports a fatal error, together with its consequence.
        informing = self._ready and not self._quiet
        return record["event"] != "fatal" and (informing or record.get("level") in _ATTENTION)

    def _startup(self, child: str, record: dict[str, Any]) -> bool:
        """Show ``record`` if it is about start-up; returns whether it is."""
        match record:
            case {"event": "stage started", "name": str(name), "detail": str(detail)}:  # it takes long
                self._told_at[child] = self._clock()
                self.say(f"  {child}: {name:<20} {'…':>9} {'':>10}  {detail}")
            case {"event": "stage started", "name": str(name)}:
                self._told_at[child] = self._clock()
                self._status(f"  {child}: {name} …")
            case {"event": "stage advanced", "name": str(name), "done_bytes": int(done), "total_bytes": int(total)}:
                self._advanced(child, name, f"{done * 100 // max(total, 1)} %")
            case {"event": "stage advanced", "name": str(name), "done_files": int(done), "total_files": int(total)}:
                self._advanced(child, name, f"{done} of {total} files")
            case {"event": "no processor serves yet"}:
                pass  # the engine's stages say why
            case {"event": "stage", "name": "serving"}:
                pass  # the event "serving" follows when the service accepts calls
            case {"event": "stage", "name": str(name)}:
                self.say(_stage_line(child, name, record))
            case {"event": "serving", "model_digest": str(digest)}:
                self.say(f"  {child}: serving model_digest {digest}")
            case {"event": "serving"}:
                self.say(f"  {child}: serving")
            case {"event": "adapters known", "adapters": int(count)}:
                self.say(f"  {child}: adapters known: {count}")
            case _:
                return False
        return True

    def _advanced(self, child: str, name: str, how_far: str) -> None:
        """Show it at once on a terminal; elsewhere now and then, on a line of its own."""
        if self._out.isatty():
            self._status(f"  {child}: {name} {how_far}")
        elif (now := self._clock()) - self._told_at.setdefault(child, now) >= _PROGRESS_INTERVAL:
            self._told_at[child] = now
            self.say(f"  {child}: {name:<20} {'…':>9} {'':>10}  {how_far}")

    def _status(self, text: str) -> None:
        """Show a line that the next one replaces; only on a terminal."""
        if self._out.isatty():
            with suppress(OSError):
                self._out.write(f"\r\x1b[K{text}")
                self._out.flush()
            self._transient = True

    def _print(self, stream: TextIO, text: str) -> None:
        with suppress(OSError):  # a closed output must not end serving
            if self._transient:
                self._transient = False
                self._out.write("\r\x1b[K")
                self._out.flush()
            print(text, file=stream, flush=True)


def parse_record(line: str) -> dict[str, Any] | None:
    """The event in a line of JSON logs; None for other lines."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("event"), str) else None


def death_reason(lines: Sequence[str]) -> str:
    """Why a child died, in one line: its last critical event, else its last line if that is no event.

    An event's traceback is left out, because it was shown with the event.
    """
    records = [parse_record(line) for line in lines]
    for record in reversed(records):
        if record is not None and record.get("level") == "critical":
            event, error = str(record["event"]), record.get("error")
            return event if error is None else str(error) if event == "fatal" else f"{event}: {error}"
    return lines[-1].strip() if lines and records[-1] is None else ""


def _stage_line(child: str, name: str, record: dict[str, Any]) -> str:
    seconds, size = record.get("seconds"), record.get("bytes")
    took = f"{seconds:.2f} s" if isinstance(seconds, int | float) else ""
    held = human_bytes(size) if isinstance(size, int) else ""
    return f"  {child}: {name:<20} {took:>9} {held:>10}  {record.get('detail') or ''}".rstrip()
