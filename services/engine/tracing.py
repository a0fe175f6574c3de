"""The engine's spans of traced requests: queue, prefill and decode.

Times are recorded once per step, on the event loop; the spans are exported when the ledger entry is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine_core.step import SequenceOutput
from services.common.telemetry.tracing import Tracing
from services.ring.ledger import LedgerEntry


@dataclass(slots=True)
class _Times:
    """Times of one submission, monotonic seconds."""

    traceparent: str
    submitted: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    last_result: float | None = None
    """Of an input that is pooled."""


class EngineTraces:
    """The times of traced submissions, kept as long as their ledger entries."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._times: dict[str, _Times] = {}
        """Keyed by core id."""

    def submitted(self, core_id: str, traceparent: str, now: float) -> None:
        if traceparent:
            self._times[core_id] = _Times(traceparent, now)

    def starting(self, core_ids: Iterable[str], now: float) -> None:
        """The first step that computes these requests begins."""
        for core_id in core_ids:
            if (times := self._times.get(core_id)) is not None and times.started is None:
                times.started = now

    def outputs(self, outputs: Iterable[SequenceOutput], now: float) -> None:
        if not self._times:
            return
        for output in outputs:
            if output.token_ids and (times := self._times.get(output.request_id)) is not None:
                times.last_token = now
                if times.first_token is None:
                    times.first_token = now
            elif output.pooled is not None and (times := self._times.get(output.request_id)) is not None:
                times.last_result = now

    def removed(self, entry: LedgerEntry, now: float) -> None:
        """A ledger entry is removed: export the spans of the phases that its request reached."""
        if (times := self._times.pop(entry.core_id, None)) is None:
            return
        about: dict[str, str | int] = {"ringline.request_id": entry.request_id, "ringline.epoch": entry.epoch}
        marks = [("queue", times.submitted), ("prefill", times.started), ("decode", times.first_token)]
        reached = [(name, at) for name, at in marks if at is not None]
        ends = [*(at for _, at in reached[1:]), times.last_token or times.last_result or now]
        cached = entry.prefill.cached_tokens if entry.prefill is not None else 0
        more: dict[str, dict[str, str | int]] = {
            "prefill": {"gen_ai.usage.input_tokens": entry.prompt_tokens, "ringline.cached_tokens": cached},
            "decode": {"gen_ai.usage.output_tokens": sum(len(log.ids) for log in entry.choices.values())},
        }
        for (name, start), end in zip(reached, ends, strict=True):
            self._tracing.span(name, times.traceparent, start, end, {**about, **more.get(name, {})})
