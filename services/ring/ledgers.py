"""All that an engine remembers of requests: found by request or submission, held within a size, orphaned, forgotten.

Memory is counted from Submit to removal, whether what it is for has been computed or not, and after that until the core
has let go of it, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from services.ring.events import Code, Reason, Refused, invalid_field
from services.ring.identity import PeerId
from services.ring.ledger import LedgerEntry
from services.ring.quota import Quota
from services.ring.retry import UNKNOWN_MS
from services.ring.submission import Submission


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
