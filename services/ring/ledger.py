"""The engine's ledger: its record of each request from Submit to Done, bounded in entries and in bytes.

Read it from the top: a Submit as the ring sees it (``Submission``), the output log of one choice (``ChoiceLog``), the
entry of one request (``LedgerEntry``), and all entries with their memory and their orphans (``Ledgers``).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from services.ring.errors import UNKNOWN_MS, Code, Reason, Refused, invalid_field
from services.ring.events import NO_DRAFTS, ChoiceEnd, FinishReason, Prefill
from services.ring.identity import PeerId, is_ring_id_of
from services.ring.logprobs import LogprobArrays, PackedLogprobs, memory_bytes
from services.ring.tenant_quota import TenantMemoryQuota

MAX_OUTPUT_CONTEXT_BYTES = 16 << 10
_ID_BYTES = 44
"""Approximate memory of a token id in a Submit: an int, its slot in a tuple, and its place in the sampler's array."""
_CONSTRAINT_COPIES = 4
"""Bytes of memory per byte of a constraint: its text, its grammar, and their copies on the way to the core."""
_COMPUTED_ID_BYTES = 5
"""Approximate memory of a computed token id: its slot in an array, with over-allocation."""
_BEAM_ID_BYTES = 16
"""Approximate memory of a token id of a beam: its slot in the core's list of a beam that grows, and in one that ended.
Unlike those of choices, they are not as few as the KV cache has room for: beams share blocks."""

CoreRequest = TypeVar("CoreRequest")
"""The engine core's form of a request; opaque to the ring."""


@dataclass(frozen=True, slots=True)
class Submission(Generic[CoreRequest]):
    """The fields of a Submit that the ring reads; the rest is ``core_request``."""

    request_id: str
    epoch: int
    deliver_to: str
    """Name of the peer that receives the output; empty: the submitter."""
    output_context: bytes
    choices: Mapping[int, Sequence[int]]
    """Unfinished choices and the ids they already have."""
    max_tokens: int
    """Per choice, resumed ids included."""
    logprobs: int | None
    """Alternatives per output token; None: no log probabilities."""
    prompt_tokens: int
    prompt_logprobs: int | None
    """Alternatives per prompt token; None: no log probabilities."""
    num_ids: int
    """Token ids in the message: prompt, resumed choices, bad words and so on."""
    tenant: str
    core_request: CoreRequest
    traceparent: str = ""
    """W3C trace context; empty if it is not traced."""
    constraint_bytes: int = 0
    """Size of its constraint on the wire."""
    beams: int = 0
    """Outputs that grow at a time, of which the choices are the best; 0: choices are sampled."""
    pooled_bytes: int = 0
    """Bytes of the results of its inputs; 0: tokens are generated."""

    @property
    def id_bytes(self) -> int:
        """Approximate memory of its constraint and its token ids: those in the message and those to be computed."""
        ids = _ID_BYTES * self.num_ids + _COMPUTED_ID_BYTES * self._tokens_to_come
        ids += _BEAM_ID_BYTES * self.beams * self.max_tokens
        return ids + _CONSTRAINT_COPIES * self.constraint_bytes

    @property
    def logprob_bytes(self) -> int:
        """Bytes that its log probabilities may take: the prompt's and those still to be computed."""
        size = 0 if self.prompt_logprobs is None else memory_bytes(self.prompt_tokens, self.prompt_logprobs)
        return size if self.logprobs is None else size + memory_bytes(self._tokens_to_come, self.logprobs)

    @property
    def _tokens_to_come(self) -> int:
        return sum(max(0, self.max_tokens - len(ids)) for ids in self.choices.values())

    def check(self, peer: PeerId) -> None:
        """Raise ``Refused`` for what ``peer`` may not submit."""
        if not is_ring_id_of(self.request_id, peer.incarnation):
            problem = f"{self.request_id[:80]!r} is not an id of this peer: expected '{peer.incarnation}-<counter>'"
            raise invalid_field("request_id", problem)
        if self.epoch < 1:
            raise invalid_field("epoch", "0 is not an epoch: expected at least 1")
        if len(self.output_context) > MAX_OUTPUT_CONTEXT_BYTES:
            problem = f"{len(self.output_context)} bytes: expected at most {MAX_OUTPUT_CONTEXT_BYTES}"
            raise invalid_field("output_context", problem, reason=Reason.TOO_LARGE)


class ChoiceLog:
    """One choice's output so far."""

    __slots__ = ("drafts", "end", "ids", "logprobs", "resumed")

    def __init__(self, resumed_ids: Sequence[int], keeps_logprobs: bool) -> None:
        """``resumed_ids`` begin the log and have no log probabilities."""
        self.ids = array("I", resumed_ids)
        self.resumed = len(self.ids)
        self.logprobs = PackedLogprobs() if keeps_logprobs else None
        """One per id from ``resumed`` on."""
        self.end: ChoiceEnd | None = None
        self.drafts = NO_DRAFTS
        """Accepted and rejected ones so far."""

    def append(self, ids: Sequence[int], logprobs: LogprobArrays | None) -> None:
        """Add computed ids; ignored after an end."""
        if self.end is None:
            self.ids.extend(ids)
            if self.logprobs is not None and logprobs is not None:
                self.logprobs.extend(logprobs)

    def finish(self, end: ChoiceEnd) -> None:
        """End the choice; ignored if it has ended."""
        if self.end is None:
            self.end = end

    def stop_at(self, position: int) -> bool:
        """Cut the log to ``position`` ids, where a stop string ends; it wins over any end at or after that position.

        Returns whether anything changed. A position beyond the log is ignored.
        """
        if not 1 <= position <= len(self.ids) or (self.end is not None and self.end.position < position):
            return False
        del self.ids[position:]
        if self.logprobs is not None:
            self.logprobs.truncate(max(0, position - self.resumed))
        self.end = ChoiceEnd(FinishReason.STOP, position, drafts=self.drafts)
        return True


@dataclass(slots=True, eq=False)
class LedgerEntry:
    """An engine's record of one request."""

    request_id: str
    core_id: str
    """Id of this submission in the engine core; a superseding Submit has another."""
    epoch: int
    submitter: PeerId
    deliver_to: str
    output_context: bytes
    prompt_tokens: int
    choices: dict[int, ChoiceLog]
    delivered: Mapping[int, int] = field(default_factory=dict)
    """Ids per choice that the submitter had at its last Submit or Redirect."""
    in_reply_to: int = 0
    """The Submit's ordinal on its submitter's stream; 0 when that stream is gone."""
    prefill: Prefill | None = None
    prompt_logprobs: PackedLogprobs | None = None
    """The prompt's log probabilities computed so far."""
    logprob_bytes: int = 0
    """``Submission.logprob_bytes``, charged to ``tenant`` until the entry is removed and the core has released it."""
    id_bytes: int = 0
    """``Submission.id_bytes``, charged likewise."""
    pooled_bytes: int = 0
    """``Submission.pooled_bytes``, charged likewise."""
    tenant: str = ""
    traceparent: str = ""

    @property
    def finished(self) -> bool:
        return all(log.end is not None for log in self.choices.values())

    @property
    def charged(self) -> _Charged:
        return _Charged(self.logprob_bytes, self.id_bytes, self.pooled_bytes)


class _Charged(NamedTuple):
    """Bytes of a submission by what they hold."""

    logprobs: int = 0
    ids: int = 0
    pooled: int = 0


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
        max_pooled_bytes: int = sys.maxsize,
        on_released: Callable[[str], None] = lambda core_id: None,
    ) -> None:
        """``orphan_grace``: seconds that a request outlives its submitter's stream.

        ``on_released`` is called with a core id once its entry is removed and the core holds nothing of it.

        ``retry_after_ms``: the delay sent with a refusal for lack of room.
        """
        self._retry_after_ms = retry_after_ms
        self._on_released = on_released
        self._orphan_grace = orphan_grace
        self._max_entries = max_entries
        self._logprobs = TenantMemoryQuota(
            "logprobs",
            "this engine",
            "log probabilities of prompts and outputs",
            max_logprob_bytes,
            lambda _: retry_after_ms(),
        )
        self._ids = TenantMemoryQuota(
            "prompt_token_ids",
            "this engine",
            "prompts, resumed choices and outputs to come (n, or the beams, times max_tokens)",
            max_id_bytes,
            lambda _: retry_after_ms(),
        )
        self._pooled = TenantMemoryQuota(
            "pooling", "this engine", "results of inputs", max_pooled_bytes, lambda _: retry_after_ms()
        )
        self._entries: dict[str, LedgerEntry] = {}
        self._by_core_id: dict[str, LedgerEntry] = {}
        self._unreleased: dict[str, tuple[str, _Charged]] = {}
        """Removed entries that the core still holds: core id → (tenant, bytes), still charged."""
        self._orphans: dict[str, float] = {}
        """The time at which each orphan (a request whose submitter's stream ended) is removed, keyed by request id."""

    def resize(self, *, max_logprob_bytes: int, max_id_bytes: int, max_pooled_bytes: int = sys.maxsize) -> None:
        """Set the bounds, known only after the engine has measured its memory."""
        self._logprobs.most = max_logprob_bytes
        self._ids.most = max_id_bytes
        self._pooled.most = max_pooled_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LedgerEntry]:
        """Iterates over a copy: entries may be removed meanwhile."""
        return iter(list(self._entries.values()))

    def find(self, request_id: str) -> LedgerEntry | None:
        return self._entries.get(request_id)

    def find_submission(self, core_id: str) -> LedgerEntry | None:
        """The entry with this core id; None once it is superseded or removed."""
        return self._by_core_id.get(core_id)

    def find_of(self, submitter: PeerId, request_id: str) -> LedgerEntry | None:
        """The entry of a request; None unless ``submitter`` submitted it."""
        entry = self._entries.get(request_id)
        return entry if entry is not None and entry.submitter == submitter else None

    def check_room(self, submission: Submission[Any], old: LedgerEntry | None) -> None:
        """Raise ``Refused`` unless ``submission`` fits once ``old``, which it supersedes, is removed."""
        if old is None and len(self._entries) + len(self._unreleased) >= self._max_entries:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"limit of {self._max_entries} requests on this engine reached, each until it is Done and no longer "
                "computed; retry later",
                retry_after_ms=self._retry_after_ms(),
                reason=Reason.QUOTA,
            )
        tenant = submission.tenant
        freed = _Charged() if old is None or old.tenant != tenant else old.charged
        if submission.logprob_bytes > self._logprobs.most:
            problem = (
                f"they may take {submission.logprob_bytes} bytes, 10 per token and 10 per alternative: "
                f"expected at most {self._logprobs.most}; lower max_tokens, n, logprobs or prompt_logprobs"
            )
            raise invalid_field("logprobs", problem, reason=Reason.TOO_LARGE)
        if submission.pooled_bytes > self._pooled.most:
            problem = (
                f"results of {submission.pooled_bytes} bytes: this engine has memory for {self._pooled.most}; send "
                "fewer inputs at a time"
            )
            raise invalid_field("pooling.inputs", problem, reason=Reason.TOO_LARGE)
        self._logprobs.check(tenant, submission.logprob_bytes, freed.logprobs)
        self._ids.check(tenant, submission.id_bytes, freed.ids)
        self._pooled.check(tenant, submission.pooled_bytes, freed.pooled)

    def add(self, entry: LedgerEntry) -> None:
        self._logprobs.take(entry.tenant, entry.logprob_bytes)
        self._ids.take(entry.tenant, entry.id_bytes)
        self._pooled.take(entry.tenant, entry.pooled_bytes)
        self._entries[entry.request_id] = self._by_core_id[entry.core_id] = entry

    def remove(self, entry: LedgerEntry, *, in_core: bool) -> None:
        """Remove an entry. ``in_core``: its bytes stay charged until ``release``."""
        del self._entries[entry.request_id], self._by_core_id[entry.core_id]
        self._orphans.pop(entry.request_id, None)
        self._unreleased[entry.core_id] = entry.tenant, entry.charged
        if not in_core:
            self.release(entry.core_id)

    def release(self, core_id: str) -> None:
        """The core holds nothing of a submission: stop charging it."""
        if (removed := self._unreleased.pop(core_id, None)) is not None:
            tenant, charged = removed
            self._logprobs.give_back(tenant, charged.logprobs)
            self._ids.give_back(tenant, charged.ids)
            self._pooled.give_back(tenant, charged.pooled)
            self._on_released(core_id)

    def orphan(self, submitter: PeerId, now: float) -> None:
        """The submitter's stream ended: its requests expire ``orphan_grace`` after the first such end."""
        for entry in self._entries.values():
            if entry.submitter == submitter:
                self._orphans.setdefault(entry.request_id, now + self._orphan_grace)

    def claim(self, request_id: str) -> None:
        """The submitter is attached again: the request is no longer an orphan."""
        self._orphans.pop(request_id, None)

    def expired(self, now: float) -> list[LedgerEntry]:
        """Orphans whose grace period is over."""
        return [self._entries[request_id] for request_id, at in self._orphans.items() if at <= now]
