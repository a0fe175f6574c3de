"""The engine's ledger: what it remembers of each request from Submit until its submitter says Done, within a size."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from services.ring.dynamic_threshold import Quota
from services.ring.errors import UNKNOWN_MS, Code, Reason, Refused, invalid_field
from services.ring.events import ChoiceEnd, FinishReason, Prefill
from services.ring.identity import PeerId, is_ring_id_of
from services.ring.logprobs import LogprobArrays, PackedLogprobs, memory_bytes

MAX_OUTPUT_CONTEXT_BYTES = 16 << 10
_ID_BYTES = 40
"""About what a token id takes in memory that a request brings: a number, and its place in a tuple."""
_COMPUTED_ID_BYTES = 5
"""And one that is computed: its place in an array, with what arrays keep ahead."""

Order = TypeVar("Order")
"""What an engine core takes; opaque to the ring."""


@dataclass(frozen=True, slots=True)
class Submission(Generic[Order]):
    """What a peer asks for."""

    request_id: str
    epoch: int
    deliver_to: str
    """Empty: the submitter."""
    output_context: bytes
    choices: Mapping[int, Sequence[int]]
    """Unfinished choices and the ids they already have."""
    max_tokens: int
    """Ids that a choice has at most, those it already has among them."""
    logprobs: int | None
    """Alternatives per output token, if their log probabilities are asked for."""
    prompt_tokens: int
    prompt_logprobs: int | None
    """Alternatives per prompt token, if their log probabilities are asked for."""
    num_ids: int
    """Token ids that it brings, of the prompt and whatever else."""
    tenant: str
    order: Order
    """What the engine core makes of it."""
    traceparent: str = ""
    """Its place in a trace, if it is traced."""

    @property
    def id_bytes(self) -> int:
        """About what its token ids may take in memory, of all that it brings and all that is still to be computed."""
        return _ID_BYTES * self.num_ids + _COMPUTED_ID_BYTES * self._tokens_to_come

    @property
    def logprob_bytes(self) -> int:
        """What its log probabilities may take, of the prompt and of all that is still to be computed."""
        size = 0 if self.prompt_logprobs is None else memory_bytes(self.prompt_tokens, self.prompt_logprobs)
        return size if self.logprobs is None else size + memory_bytes(self._tokens_to_come, self.logprobs)

    @property
    def _tokens_to_come(self) -> int:
        return sum(max(0, self.max_tokens - len(ids)) for ids in self.choices.values())

    def check(self, peer: PeerId) -> None:
        """Raise ``Refused`` for what ``peer`` may not submit."""
        if not is_ring_id_of(self.request_id, peer.incarnation):
            problem = f"{self.request_id[:80]!r} is not '<incarnation>-<counter>' of this peer's incarnation"
            raise invalid_field("request_id", f"{problem} {peer.incarnation}")
        if self.epoch < 1:
            raise invalid_field("epoch", "0 is not an epoch: expected at least 1")
        if len(self.output_context) > MAX_OUTPUT_CONTEXT_BYTES:
            problem = f"{len(self.output_context)} bytes: expected at most {MAX_OUTPUT_CONTEXT_BYTES}"
            raise invalid_field("output_context", problem, reason=Reason.TOO_LARGE)


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
        self.end = ChoiceEnd(FinishReason.STOP, position)
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


class Ledgers:
    """The ledger entries of an engine."""

    def __init__(
        self,
        *,
        orphan_grace: float,
        max_entries: int,
        retry_after_ms: Callable[[], int] = lambda: UNKNOWN_MS,
        max_logprob_bytes: int = sys.maxsize,
        max_id_bytes: int = sys.maxsize,
    ) -> None:
        """``orphan_grace`` in seconds: how long a request outlives its submitter's stream.

        ``retry_after_ms`` says when those who find no room should come again.
        """
        self._retry_after_ms = retry_after_ms
        self._orphan_grace = orphan_grace
        self._max_entries = max_entries
        self._logprobs = Quota(
            "logprobs",
            "this engine",
            "log probabilities of prompts and outputs",
            max_logprob_bytes,
            lambda _: retry_after_ms(),
        )
        self._ids = Quota(
            "prompt_token_ids",
            "this engine",
            "prompts, resumed choices and outputs to come (n times max_tokens)",
            max_id_bytes,
            lambda _: retry_after_ms(),
        )
        self._entries: dict[str, LedgerEntry] = {}
        self._by_core_id: dict[str, LedgerEntry] = {}
        self._leaving: dict[str, tuple[str, int, int]] = {}
        """What was removed while the core had it, by its name there: the tenant, and its bytes of both kinds."""
        self._orphans: dict[str, float] = {}
        """Requests whose submitter's stream ended, by id, and when each will be forgotten."""

    def resize(self, *, max_logprob_bytes: int, max_id_bytes: int) -> None:
        """What requests may hold, once it is known."""
        self._logprobs.resize(max_logprob_bytes)
        self._ids.resize(max_id_bytes)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LedgerEntry]:
        """Over those there are now: they may be removed meanwhile."""
        return iter(list(self._entries.values()))

    def find(self, request_id: str) -> LedgerEntry | None:
        """A request by its id."""
        return self._entries.get(request_id)

    def find_submission(self, core_id: str) -> LedgerEntry | None:
        """A request by the name of its last submission inside the engine."""
        return self._by_core_id.get(core_id)

    def find_of(self, submitter: PeerId, request_id: str) -> LedgerEntry | None:
        """A request by its id, if it is of this submitter."""
        entry = self._entries.get(request_id)
        return entry if entry is not None and entry.submitter == submitter else None

    def check_room(self, submission: Submission[Any], old: LedgerEntry | None) -> None:
        """Raise ``Refused`` unless there is room for it, once the one that it supersedes is gone."""
        if old is None and len(self._entries) + len(self._leaving) >= self._max_entries:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"this engine holds {self._max_entries} requests whose submitters have not said Done, or just have",
                retry_after_ms=self._retry_after_ms(),
                reason=Reason.QUOTA,
            )
        tenant = submission.tenant
        logprobs, ids = (0, 0) if old is None or old.tenant != tenant else (old.logprob_bytes, old.id_bytes)
        if submission.logprob_bytes > self._logprobs.most:
            problem = (
                f"those of this request may take {submission.logprob_bytes} bytes, 10 a token and 10 an alternative: "
                f"expected at most {self._logprobs.most}; lower max_tokens, n, logprobs or prompt_logprobs"
            )
            raise invalid_field("logprobs", problem, reason=Reason.TOO_LARGE)
        self._logprobs.check(tenant, submission.logprob_bytes, logprobs)
        self._ids.check(tenant, submission.id_bytes, ids)

    def add(self, entry: LedgerEntry) -> None:
        """Remember a request."""
        self._logprobs.take(entry.tenant, entry.logprob_bytes)
        self._ids.take(entry.tenant, entry.id_bytes)
        self._entries[entry.request_id] = self._by_core_id[entry.core_id] = entry

    def remove(self, entry: LedgerEntry, *, in_core: bool) -> None:
        """Forget it; ``in_core``: what it is charged for stays so until the core has let go of it."""
        del self._entries[entry.request_id], self._by_core_id[entry.core_id]
        self._orphans.pop(entry.request_id, None)
        self._leaving[entry.core_id] = entry.tenant, entry.logprob_bytes, entry.id_bytes
        if not in_core:
            self.let_go(entry.core_id)

    def let_go(self, core_id: str) -> None:
        """The core has nothing of a submission any more."""
        if (charged := self._leaving.pop(core_id, None)) is not None:
            tenant, logprob_bytes, id_bytes = charged
            self._logprobs.give_back(tenant, logprob_bytes)
            self._ids.give_back(tenant, id_bytes)

    def orphan(self, submitter: PeerId, now: float) -> None:
        """The submitter's stream ended: its requests live on for ``orphan_grace``, from the first such end."""
        for entry in self._entries.values():
            if entry.submitter == submitter:
                self._orphans.setdefault(entry.request_id, now + self._orphan_grace)

    def claim(self, request_id: str) -> None:
        """The submitter is back and wants it."""
        self._orphans.pop(request_id, None)

    def expired(self, now: float) -> list[LedgerEntry]:
        """Those that have been orphans for too long."""
        return [self._entries[request_id] for request_id, at in self._orphans.items() if at <= now]
