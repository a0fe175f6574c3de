"""The attach registry of an engine: which peers are attached, what their commands do, and where outputs go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Generic, Protocol, TypeVar

from services.ring.errors import Code, Reason, Refused, Status, invalid_field
from services.ring.events import NO_DRAFTS, ChoiceEnd, FinishReason, Prefill
from services.ring.identity import PeerId
from services.ring.ledger import ChoiceLog, CoreRequest, LedgerEntry, Ledgers, Submission
from services.ring.logprobs import LogprobArrays, PackedLogprobs
from services.ring.outbound_link import OutboundLink, RejectedCommand

MAX_PEERS = 256
"""Peers attached at the same time. Bounded because every change of the list is sent to every peer."""

CoreRequest_contra = TypeVar("CoreRequest_contra", contravariant=True)


class CorePort(Protocol[CoreRequest_contra]):
    """The registry's interface to the engine core; ``AsyncEngine`` implements it.

    Neither call blocks; both are idempotent per ``core_id``.
    """

    def add(self, core_id: str, core_request: CoreRequest_contra) -> None:
        """Queue a request; a refusal comes back through ``AttachRegistry.refuse``."""

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Stop computing a choice (None: all of them).

        Returns False if the core holds nothing of the request. After True, ``AttachRegistry.released`` is called once
        the core has stopped.
        """


class AttachRegistry(Generic[CoreRequest]):
    """The peers attached to an engine by ``EngineService.Attach``, and the requests they submitted."""

    def __init__(
        self,
        core_port: CorePort[CoreRequest],
        ledgers: Ledgers,
        *,
        on_removed: Callable[[LedgerEntry], None] = lambda entry: None,
        on_left_core: Callable[[str], None] = lambda core_id: None,
    ) -> None:
        """``on_removed`` is called with a ledger entry just before its removal.

        ``on_left_core`` is called with a core id once the core holds nothing of it.
        """
        self._core_port = core_port
        self._ledgers = ledgers
        self._on_removed = on_removed
        self._on_left_core = on_left_core
        self._links: dict[str, OutboundLink] = {}
        self._submissions = count(1)
        self._in_core: dict[str, set[int]] = {}
        """The choices that the core computes or has queued, keyed by core id."""
        self.draining = False

    # Peers

    def attach(self, peer: PeerId, now: float) -> tuple[OutboundLink, OutboundLink | None]:
        """Attach a peer; returns its link and the link it supersedes, whose stream must end.

        A peer that attaches again with the same incarnation keeps its requests that are delivered to itself. Its other
        requests are removed unless it Redirects or Submits them again within ``orphan_grace``: a Done may have been
        lost with the old stream. Raises ``Refused`` if a newer incarnation or too many peers are attached.
        """
        old = self._links.get(peer.name)
        if old is not None and old.peer.incarnation > peer.incarnation:
            raise Refused(
                Code.FAILED_PRECONDITION,
                f"hello.incarnation: {peer.name} is attached with the newer incarnation {old.peer.incarnation}",
                reason=Reason.SUPERSEDED,
            )
        if old is None and len(self._links) >= MAX_PEERS:
            message = f"hello: limit of {MAX_PEERS} attached peers reached; detach one or use another engine"
            raise Refused(Code.RESOURCE_EXHAUSTED, message, reason=Reason.QUOTA)
        if old is not None:
            self._ledgers.orphan(old.peer, now)
            old.clear()
            del self._links[peer.name]
        for other in self._links.values():
            if old is not None:
                other.peers.remove(old.peer)
            other.peers.add(peer)
        link = OutboundLink(peer, [*self.attached(), peer])
        self._links[peer.name] = link
        for entry in self._ledgers:
            if entry.submitter.name == peer.name and entry.submitter.incarnation < peer.incarnation:
                self._remove(entry)
            elif entry.deliver_to == peer.name:
                link.add(entry)
                if entry.submitter == peer:
                    self._ledgers.claim(entry.request_id)
            if entry.submitter == peer:
                entry.in_reply_to = 0
        return link, old

    def detach(self, link: OutboundLink, now: float) -> None:
        """A peer's stream ended. Its requests live on for ``orphan_grace``; undelivered outputs stay in the ledger."""
        if self._links.get(link.peer.name) is not link:
            return
        del self._links[link.peer.name]
        link.clear()
        self._ledgers.orphan(link.peer, now)
        for other in self._links.values():
            other.peers.remove(link.peer)

    def expire(self, now: float) -> None:
        """Cancel and remove requests that were orphans for ``orphan_grace``. Call at least every second."""
        for entry in self._ledgers.expired(now):
            self._remove(entry)

    def attached(self) -> list[PeerId]:
        return [link.peer for link in self._links.values()]

    # Commands of an attached peer; each raises ``Refused``

    def submit(self, peer: PeerId, submission: Submission[CoreRequest], in_reply_to: int = 0) -> None:
        """Begin a request. One with the same id and a lower epoch is superseded, and freed first.

        ``in_reply_to``: the command's ordinal on the peer's stream, from 1; a later refusal by the core names it.
        """
        self._check_submission(peer, submission)
        old = self._ledgers.find(submission.request_id)
        if old is not None:
            self._remove(old)
        receiver = self._receiver(submission.deliver_to or peer.name)
        scored = submission.logprobs is not None
        entry = LedgerEntry(
            request_id=submission.request_id,
            core_id=f"{submission.request_id}@{submission.epoch}#{next(self._submissions)}",
            epoch=submission.epoch,
            submitter=peer,
            deliver_to=receiver.peer.name,
            output_context=submission.output_context,
            prompt_tokens=submission.prompt_tokens,
            choices={choice: ChoiceLog(ids, scored) for choice, ids in submission.choices.items()},
            delivered={choice: len(ids) for choice, ids in submission.choices.items() if ids},
            in_reply_to=in_reply_to,
            logprob_bytes=submission.logprob_bytes,
            id_bytes=submission.id_bytes,
            pooled_bytes=submission.pooled_bytes,
            tenant=submission.tenant,
            traceparent=submission.traceparent,
        )
        self._ledgers.add(entry)
        receiver.add(entry)
        self._in_core[entry.core_id] = set(entry.choices)
        self._core_port.add(entry.core_id, submission.core_request)

    def cancel(self, peer: PeerId, request_id: str, epoch: int) -> None:
        """End a request: every unfinished choice gets CANCELLED. Unknown ids and lower epochs are ignored."""
        entry = self._ledgers.find_of(peer, request_id)
        if entry is None or epoch < entry.epoch:
            return
        self._cancel(entry.core_id)
        for log in entry.choices.values():
            log.finish(ChoiceEnd(FinishReason.CANCELLED, len(log.ids)))
        self._mark(entry)

    def stop(self, peer: PeerId, request_id: str, epoch: int, choice: int, position: int) -> None:
        """End one choice at ``position``: its receiver found a stop string there."""
        entry = self._ledgers.find(request_id)
        if entry is None or entry.deliver_to != peer.name or epoch != entry.epoch or choice not in entry.choices:
            return
        if entry.choices[choice].stop_at(position):
            self._core_port.cancel(entry.core_id, choice)
            self._mark(entry)

    def redirect(
        self, peer: PeerId, request_id: str, epoch: int, deliver_to: str, delivered: Mapping[int, int]
    ) -> None:
        """Replay a request's log to another peer (or the same one) from position 0, and go on there."""
        entry = self._ledgers.find_of(peer, request_id)
        if entry is None:
            raise Refused(Code.NOT_FOUND, f"request_id: {request_id} is not known here")
        if epoch <= entry.epoch:
            raise Refused(Code.ALREADY_EXISTS, f"epoch: {epoch} is not higher than {entry.epoch}")
        if foreign := delivered.keys() - entry.choices.keys():
            problem = f"{min(foreign)} is not a choice of this request: expected choices from {list(entry.choices)}"
            raise invalid_field("delivered", problem)
        receiver = self._receiver(deliver_to or peer.name)
        if entry.deliver_to in self._links and entry.deliver_to != receiver.peer.name:
            self._links[entry.deliver_to].drop(request_id)
        entry.epoch, entry.deliver_to, entry.delivered = epoch, receiver.peer.name, dict(delivered)
        self._ledgers.claim(request_id)
        receiver.add(entry)

    def done(self, peer: PeerId, request_id: str, epoch: int) -> None:
        """The submitter needs nothing more: forget the request, and stop it if it still runs."""
        entry = self._ledgers.find_of(peer, request_id)
        if entry is not None and epoch >= entry.epoch:
            self._remove(entry)

    # Reports of the core

    def progress(
        self,
        core_id: str,
        choice: int,
        ids: Sequence[int],
        logprobs: LogprobArrays | None,
        end: ChoiceEnd | None,
        drafts: tuple[int, int] = NO_DRAFTS,
    ) -> None:
        """The core computed tokens of a choice, or ended it. Tokens after an end or a Done are dropped.

        ``drafts``: those of the choice that were accepted and rejected so far.
        """
        if end is not None:
            self.released(core_id, choice)
        entry = self._ledgers.find_submission(core_id)
        if entry is None:
            return
        log = entry.choices[choice]
        log.append(ids, logprobs)
        log.drafts = drafts
        if end is not None:
            log.finish(end)
        self._mark(entry)

    def released(self, core_id: str, choice: int | None) -> None:
        """The core no longer computes a choice (None: any of them), because it ended or was cancelled."""
        if (choices := self._in_core.get(core_id)) is None:
            return
        if choice is not None:
            choices.discard(choice)
        if choice is None or not choices:
            self._left_core(core_id)
            self._ledgers.release(core_id)

    def traceparent(self, core_id: str) -> str:
        """The trace context of a submission; empty if it is not traced."""
        entry = self._ledgers.find_submission(core_id)
        return entry.traceparent if entry is not None else ""

    def started(self, core_id: str) -> None:
        """The first step that computes a request begins."""
        if (entry := self._ledgers.find_submission(core_id)) and entry.prefill is None:
            entry.prefill = Prefill(entry.prompt_tokens, 0, 0)
            self._mark(entry)

    def prefilled(self, core_id: str, computed_tokens: int | None, cached_tokens: int | None) -> None:
        """Prompt progress. ``computed_tokens`` None: the whole prompt; ``cached_tokens`` None: as reported before."""
        if entry := self._ledgers.find_submission(core_id):
            before = entry.prefill.cached_tokens if entry.prefill is not None else 0
            entry.prefill = Prefill(
                entry.prompt_tokens,
                entry.prompt_tokens if computed_tokens is None else computed_tokens,
                before if cached_tokens is None else cached_tokens,
            )
            self._mark(entry)

    def input_begun(self, core_id: str, cached_tokens: int) -> None:
        """An input of a request that is pooled is computed; ``cached_tokens`` of its own were found."""
        if entry := self._ledgers.find_submission(core_id):
            before = entry.prefill.cached_tokens if entry.prefill is not None else 0
            entry.prefill = Prefill(entry.prompt_tokens, entry.prompt_tokens, before + cached_tokens)
            self._mark(entry)

    def prompt_logprobs(self, core_id: str, logprobs: LogprobArrays) -> None:
        """Append log probabilities of a prompt; the first entry belongs to its second token."""
        if entry := self._ledgers.find_submission(core_id):
            if entry.prompt_logprobs is None:
                entry.prompt_logprobs = PackedLogprobs()
            entry.prompt_logprobs.extend(logprobs)
            self._mark(entry)

    def refuse(self, core_id: str, status: Status) -> LedgerEntry | None:
        """The core refused a submission: remove it, and reject it to its submitter; returns the removed entry."""
        self.released(core_id, None)
        entry = self._ledgers.find_submission(core_id)
        if entry is None or entry.finished:
            return None  # it was cancelled earlier, and its submitter has been sent that end
        link = self._links.get(entry.submitter.name)
        if link is not None and link.peer == entry.submitter:
            if entry.deliver_to == entry.submitter.name:
                link.withdraw(entry.request_id)
            link.reject(RejectedCommand(entry.request_id, entry.epoch, entry.in_reply_to, status))
        self._remove(entry)
        return entry

    # Counts

    @property
    def num_ledgers(self) -> int:
        """Requests whose submitter has not sent Done."""
        return len(self._ledgers)

    @property
    def num_unfinished(self) -> int:
        """Requests with a choice that has not ended."""
        return sum(not entry.finished for entry in self._ledgers)

    def _check_submission(self, peer: PeerId, submission: Submission[CoreRequest]) -> None:
        if self.draining:
            message = "this engine is draining: submit elsewhere"
            raise Refused(Code.UNAVAILABLE, message, retry_after_ms=0, reason=Reason.DRAINING)
        link = self._links.get(peer.name)
        if link is None or link.peer != peer:
            message = f"{peer.name} is no longer attached with incarnation {peer.incarnation}; attach again"
            raise Refused(Code.ABORTED, message)
        submission.check(peer)
        old = self._ledgers.find(submission.request_id)
        if old is not None and submission.epoch <= old.epoch:
            raise Refused(Code.ALREADY_EXISTS, f"epoch: {submission.epoch} is not higher than {old.epoch}")
        self._receiver(submission.deliver_to or peer.name)
        self._ledgers.check_room(submission, old)

    def _receiver(self, name: str) -> OutboundLink:
        link = self._links.get(name)
        if link is None:
            message = f"deliver_to: {name} is not attached here"
            raise Refused(Code.UNAVAILABLE, message, retry_after_ms=0, reason=Reason.UNKNOWN_PEER, field="deliver_to")
        return link

    def _mark(self, entry: LedgerEntry) -> None:
        if link := self._links.get(entry.deliver_to):
            link.mark(entry.request_id)

    def _remove(self, entry: LedgerEntry) -> None:
        self._on_removed(entry)
        self._cancel(entry.core_id)
        self._ledgers.remove(entry, in_core=entry.core_id in self._in_core)
        if link := self._links.get(entry.deliver_to):
            link.drop(entry.request_id)

    def _cancel(self, core_id: str) -> None:
        if core_id in self._in_core and not self._core_port.cancel(core_id, None):
            self._left_core(core_id)

    def _left_core(self, core_id: str) -> None:
        del self._in_core[core_id]
        self._on_left_core(core_id)
