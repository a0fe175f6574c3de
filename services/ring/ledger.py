"""The engine's ledger: what it remembers of a request from Submit until its submitter says Done.

Per choice the log of output ids from position 0 (resumed ones first), their log probabilities and the end. From
it any peer can be brought up to date at any time; nothing else of a delivery is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.ring.events import Cause, ChoiceEnd, Prefill
from services.ring.identity import PeerId
from services.ring.logprobs import LogprobArrays, PackedLogprobs


class ChoiceLog:
    """One choice's output so far."""

    __slots__ = ("end", "ids", "logprobs", "resumed")

    def __init__(self, resumed_ids: Sequence[int], keeps_logprobs: bool) -> None:
        """``resumed_ids`` come first in the log and have no log probabilities."""
        self.ids = array("I", resumed_ids)
        self.resumed = len(self.ids)
        self.logprobs = PackedLogprobs() if keeps_logprobs else None
        """One per id from ``resumed`` on."""
        self.end: ChoiceEnd | None = None

    def append(self, ids: Sequence[int], logprobs: LogprobArrays | None) -> None:
        """Add computed ids; nothing is added behind an end."""
        if self.end is None:
            self.ids.extend(ids)
            if self.logprobs is not None and logprobs is not None:
                self.logprobs.extend(logprobs)

    def finish(self, end: ChoiceEnd) -> None:
        """End the choice, unless it has ended."""
        if self.end is None:
            self.end = end

    def stop_at(self, position: int) -> bool:
        """A stop string ends with token ``position`` − 1: it wins over any end at or behind it, and cuts the log.

        Returns whether it changed anything; a position beyond the log is not believed.
        """
        if not 1 <= position <= len(self.ids) or (self.end is not None and self.end.position < position):
            return False
        del self.ids[position:]
        if self.logprobs is not None:
            self.logprobs.truncate(max(0, position - self.resumed))
        self.end = ChoiceEnd(Cause.STOP, position)
        return True


@dataclass(slots=True, eq=False)
class LedgerEntry:
    """One request."""

    request_id: str
    core_id: str
    """Name of this submission inside the engine: a superseding Submit is another one there."""
    epoch: int
    submitter: PeerId
    deliver_to: str
    output_context: bytes
    prompt_tokens: int
    choices: dict[int, ChoiceLog]
    delivered: Mapping[int, int] = field(default_factory=dict)
    """Per choice, what the submitter had when it last said where to deliver."""
    in_reply_to: int = 0
    """Which command of its submitter's stream it came with; 0 when that stream is not the present one."""
    prefill: Prefill | None = None
    prompt_logprobs: PackedLogprobs | None = None
    """As far as they are computed."""
    logprob_bytes: int = 0
    """What its log probabilities may take, of prompt and output, when all are computed."""
    id_bytes: int = 0
    """What its token ids may take: those it came with, and those that are computed."""
    tenant: str = ""
    """Whose memory that is."""
    traceparent: str = ""
    """Its place in a trace, if it is traced."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(log.end is not None for log in self.choices.values())
