"""The attach registry of an engine: who is attached, what each of their commands does, and where outputs go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Generic, Protocol, TypeVar

from services.ring.cursor import OutboundLink, RejectedCommand
from services.ring.errors import Code, Reason, Refused, Status, invalid_field
from services.ring.events import ChoiceEnd, FinishReason, Prefill
from services.ring.identity import PeerId
from services.ring.ledger import ChoiceLog, LedgerEntry, Ledgers, Order, Submission
from services.ring.logprobs import LogprobArrays, PackedLogprobs

MAX_PEERS = 256
"""Attached at a time: each change of who is there is told to all of them."""

Order_contra = TypeVar("Order_contra", contravariant=True)


class CorePort(Protocol[Order_contra]):
    """What the switchboard asks of the engine core. Neither call blocks; both are idempotent per ``core_id``."""

    def add(self, core_id: str, order: Order_contra) -> None:
        """Begin to compute; a refusal comes back through ``AttachRegistry.refuse``."""

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Stop computing a choice, or all of them.

        Whether that is yet to be done: then ``AttachRegistry.let_go`` is told when it is. False if the core has
        nothing of the request.
        """


class AttachRegistry(Generic[Order]):
    """The state behind ``EngineService.Attach``."""

    def __init__(
        self,
        core: CorePort[Order],
        ledgers: Ledgers,
        *,
        on_removed: Callable[[LedgerEntry], None] = lambda entry: None,
    ) -> None:
        """``on_removed`` is told of each request that is forgotten, with all that is known of it."""
        self._core = core
        self._ledgers = ledgers
        self._on_removed = on_removed
        self._links: dict[str, OutboundLink] = {}
        self._submissions = count(1)
        self._in_core: dict[str, set[int]] = {}
        """Choices that the core computes or will, by the name of the submission there."""
        self.draining = False

    # Peers

    def attach(self, peer: PeerId, now: float) -> tuple[OutboundLink, OutboundLink | None]:
        """A peer arrived; returns its link and the one it supersedes, whose stream must end.

        The same life that comes back goes on with the requests that are delivered to itself. What is delivered to
        others it must Redirect or Submit anew within ``orphan_grace``: a Done may have been lost with the old stream,
        and what nobody claims has to go. Raises ``Refused`` for an incarnation older than the attached one, and where
        too many are attached.
        """
        old = self._links.get(peer.name)
        if old is not None and old.peer.incarnation > peer.incarnation:
            raise Refused(
                Code.FAILED_PRECONDITION,
                f"hello.incarnation: {peer.name} is attached with the newer incarnation {old.peer.incarnation}",
                reason=Reason.SUPERSEDED,
            )
        if old is None and len(self._links) >= MAX_PEERS:
            message = f"hello: {MAX_PEERS} peers are attached, and no more are taken"
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
                link.carry(entry)
                if entry.submitter == peer:
                    self._ledgers.claim(entry.request_id)
            if entry.submitter == peer:
                entry.in_reply_to = 0
        return link, old

    def detach(self, link: OutboundLink, now: float) -> None:
        """A peer's stream ended. Its requests live on for ``orphan_grace``; what it was to receive stays here."""
        if self._links.get(link.peer.name) is not link:
            return
        del self._links[link.peer.name]
        link.clear()
        self._ledgers.orphan(link.peer, now)
        for other in self._links.values():
            other.peers.remove(link.peer)

    def expire(self, now: float) -> None:
        """Cancel and forget what has been an orphan for too long. Call at least every second."""
        for entry in self._ledgers.expired(now):
            self._remove(entry)

    def attached(self) -> list[PeerId]:
        """Who is attached now."""
        return [link.peer for link in self._links.values()]

    # Commands of an attached peer; each raises ``Refused``

    def submit(self, peer: PeerId, submission: Submission[Order], in_reply_to: int = 0) -> None:
        """Begin a request, or supersede it: the old one is freed first.

        ``in_reply_to``: which command of the peer's stream it is, from 1; named if the core refuses it later.
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
            tenant=submission.tenant,
            traceparent=submission.traceparent,
        )
        self._ledgers.add(entry)
        receiver.carry(entry)
        self._in_core[entry.core_id] = set(entry.choices)
        self._core.add(entry.core_id, submission.order)

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
            self._core.cancel(entry.core_id, choice)
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
            problem = f"{min(foreign)} is no choice of this request: expected some of {list(entry.choices)}"
            raise invalid_field("delivered", problem)
        receiver = self._receiver(deliver_to or peer.name)
        if entry.deliver_to in self._links and entry.deliver_to != receiver.peer.name:
            self._links[entry.deliver_to].drop(request_id)
        entry.epoch, entry.deliver_to, entry.delivered = epoch, receiver.peer.name, dict(delivered)
        self._ledgers.claim(request_id)
        receiver.carry(entry)

    def done(self, peer: PeerId, request_id: str, epoch: int) -> None:
        """The submitter has all it wants: forget the request, and stop it if it still runs."""
        entry = self._ledgers.find_of(peer, request_id)
        if entry is not None and epoch >= entry.epoch:
            self._remove(entry)

    # News from the core

    def progress(
        self,
        core_id: str,
        choice: int,
        ids: Sequence[int],
        logprobs: LogprobArrays | None,
        end: ChoiceEnd | None,
    ) -> None:
        """The core computed tokens of a choice, or ended it. What comes behind an end or a Done is dropped."""
        if end is not None:
            self.let_go(core_id, choice)
        entry = self._ledgers.find_submission(core_id)
        if entry is None:
            return
        log = entry.choices[choice]
        log.append(ids, logprobs)
        if end is not None:
            log.finish(end)
        self._mark(entry)

    def let_go(self, core_id: str, choice: int | None) -> None:
        """The core computes a choice, or all of them, no longer: it has ended it, or was told to."""
        if (choices := self._in_core.get(core_id)) is None:
            return
        if choice is not None:
            choices.discard(choice)
        if choice is None or not choices:
            del self._in_core[core_id]
            self._ledgers.let_go(core_id)

    def traceparent(self, core_id: str) -> str:
        """The place of a submission in a trace; empty where it is not traced."""
        entry = self._ledgers.find_submission(core_id)
        return entry.traceparent if entry is not None else ""

    def started(self, core_id: str) -> None:
        """The core begins to compute a request."""
        if (entry := self._ledgers.find_submission(core_id)) and entry.prefill is None:
            entry.prefill = Prefill(entry.prompt_tokens, 0, 0)
            self._mark(entry)

    def prefilled(self, core_id: str, computed_tokens: int | None, cached_tokens: int | None) -> None:
        """A prompt got further (None: to its end), or was found to be cached so far (None: as said before)."""
        if entry := self._ledgers.find_submission(core_id):
            before = entry.prefill.cached_tokens if entry.prefill is not None else 0
            entry.prefill = Prefill(
                entry.prompt_tokens,
                entry.prompt_tokens if computed_tokens is None else computed_tokens,
                before if cached_tokens is None else cached_tokens,
            )
            self._mark(entry)

    def prompt_scored(self, core_id: str, logprobs: LogprobArrays) -> None:
        """Further log probabilities of a prompt are computed; the first are of its second token."""
        if entry := self._ledgers.find_submission(core_id):
            if entry.prompt_logprobs is None:
                entry.prompt_logprobs = PackedLogprobs()
            entry.prompt_logprobs.extend(logprobs)
            self._mark(entry)

    def refuse(self, core_id: str, status: Status) -> LedgerEntry | None:
        """The core did not take a submission: forget it and tell its submitter; returns the entry, if it was there."""
        self.let_go(core_id, None)
        entry = self._ledgers.find_submission(core_id)
        if entry is None or entry.finished:
            return None  # it was cancelled before, and that is its end
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
        """Requests whose submitter has not said Done."""
        return len(self._ledgers)

    @property
    def num_unfinished(self) -> int:
        """Of these, with a choice that has not ended."""
        return sum(not entry.finished for entry in self._ledgers)

    def _check_submission(self, peer: PeerId, submission: Submission[Order]) -> None:
        if self.draining:
            message = "this engine is draining: submit elsewhere"
            raise Refused(Code.UNAVAILABLE, message, retry_after_ms=0, reason=Reason.DRAINING)
        link = self._links.get(peer.name)
        if link is None or link.peer != peer:
            raise Refused(Code.ABORTED, f"{peer.name} is attached no longer with incarnation {peer.incarnation}")
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
        """Stop computing what the core has of a submission."""
        if core_id in self._in_core and not self._core.cancel(core_id, None):
            del self._in_core[core_id]
