"""The engine's door, against a model that keeps every request whole; each stream is read by one that believes nothing.

Peers come, go and come back in newer lives; commands are sensible or not; links are taken in frames of any size. Every
reader must be able to rebuild exactly the engine's log from what its stream carried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.engine.frames import response_of
from services.ring.cursor import OutboundLink, OutputFrame
from services.ring.events import Cause, ChoiceEnd, Code, Prefill, Refused, Status, TokenLogprob
from services.ring.identity import PeerId
from services.ring.ledger import LedgerEntry
from services.ring.logprobs import PackedLogprobs
from services.ring.switchboard import MAX_OUTPUT_CONTEXT_BYTES, Submission, Switchboard

GRACE = 2.0
MAX_LEDGERS = 5
NAMES = ("p", "d", "q")
names = st.sampled_from(NAMES)
counters = st.integers(1, 3)
choices = st.integers(0, 2)
LIMITS = st.sampled_from([1, 200, 500, 1 << 20])


def logprob(position: int, token: int) -> TokenLogprob:
    return TokenLogprob(-1.0, token + 1, (position,), (-1.0,))


class Core:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.running: dict[str, set[int]] = {}
        self.names: set[str] = set()

    def add(self, core_id: str, order: object) -> None:
        assert core_id not in self.names, "a submission's name is never used again"
        assert isinstance(order, set)
        self.names.add(core_id)
        self.running[core_id] = set(order)

    def cancel(self, core_id: str, choice: int | None) -> None:
        if choice is None:
            self.running.pop(core_id, None)
        else:
            self.running.get(core_id, set()).discard(choice)


@dataclass
class Known:
    """All there is to know of a request."""

    epoch: int
    submitter: PeerId
    deliver_to: str
    core_id: str
    context: bytes
    logs: dict[int, list[int]]
    resumed: dict[int, int]
    scored: bool
    delivered: dict[int, int]
    prompt: list[TokenLogprob] = field(default_factory=list)
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)
    orphaned_at: float | None = None


@dataclass
class Heard:
    """What one stream said of one request under one epoch."""

    epoch: int
    delivered: dict[int, int]
    ids: dict[int, list[int]]
    prompt: PackedLogprobs | None = None
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)
    closed: bool = False


class Stream:
    """One attached peer, reading."""

    def __init__(self, link: OutboundLink) -> None:
        self.link = link
        self.heard: dict[str, Heard] = {}
        self.rejected: dict[str, int] = {}
        """The highest epoch of each request that the core did not take."""
        self.peers: set[PeerId] = set()

    def take(self, max_bytes: int, known: dict[str, Known]) -> None:
        frame = self.link.take(max_bytes)
        if frame is None:
            assert not self.link.pending
            return
        assert response_of(frame).ByteSize() <= max_bytes + 2000, "one request's least news more at most"
        if frame.peers is not None:
            self.peers = set(frame.peers)
        for one in frame.rejections:
            assert one.epoch > self.rejected.get(one.request_id, 0), "one rejection per epoch"
            self.rejected[one.request_id] = one.epoch
        for entry in frame.opened:
            self.heard[entry.request_id] = Heard(
                entry.epoch, dict(entry.delivered), {choice: [] for choice in entry.choices}
            )
            assert entry.output_context == known[entry.request_id].context
        for request_id, epoch, offset, scores in frame.prompt_logprobs:
            heard = self.heard[request_id]
            assert heard.epoch == epoch
            assert offset == (0 if heard.prompt is None else len(heard.prompt)), "gapless"
            if heard.prompt is None:
                heard.prompt = scores
            else:
                heard.prompt.extend(scores)
        self._tokens(frame, known)
        for request_id, epoch, choice, end in frame.ends:
            heard = self.heard[request_id]
            assert heard.epoch == epoch
            assert choice not in heard.ends, "one end per choice"
            assert end.position <= len(heard.ids[choice]), "the tokens before an end come before it"
            heard.ends[choice] = end
        for request_id, epoch in frame.closed:
            heard = self.heard[request_id]
            assert heard.epoch <= epoch
            assert epoch != self.rejected.get(request_id), "a rejection is the end of its epoch"
            assert len(heard.ends) < len(heard.ids), "only what has unfinished choices is closed"
            heard.closed = True

    def _tokens(self, frame: OutputFrame, known: dict[str, Known]) -> None:
        logprobs = dict(frame.logprobs)
        start = 0
        for index, request_id in enumerate(frame.request_ids):
            heard = self.heard[request_id]
            choice, first, count = frame.choices[index], frame.first_positions[index], frame.token_counts[index]
            assert frame.epochs[index] == heard.epoch
            assert not heard.closed
            assert choice not in heard.ends, "nothing follows an end"
            assert first == len(heard.ids[choice]), "gapless from position 0"
            assert count >= 1
            ids = frame.token_ids[start : start + count]
            heard.ids[choice] += ids
            start += count
            if known[request_id].scored:
                fresh = range(max(first, known[request_id].resumed[choice]), first + count)
                scored = [logprob(position, ids[position - first]) for position in fresh]
                assert list(logprobs.get(index, ())) == scored, "aligned to the end of the ids"
            else:
                assert index not in logprobs
        assert start == len(frame.token_ids)


class SwitchboardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.board = Switchboard(self.core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS)
        self.now = 0.0
        self.streams: dict[str, Stream] = {}
        self.known: dict[str, Known] = {}

    # Peers

    @rule(name=names, life=st.integers(1, 3))
    def attach(self, name: str, life: int) -> None:
        peer, old = PeerId(name, life), self.streams.get(name)
        if old is not None and old.link.peer.incarnation > life:
            self.refused(Code.FAILED_PRECONDITION, lambda: self.board.attach(peer, self.now))
            return
        link, superseded = self.board.attach(peer, self.now)
        assert superseded is (old.link if old is not None else None)
        self.streams[name] = Stream(link)
        for request_id, known in list(self.known.items()):
            if known.submitter.name == name and known.submitter.incarnation < life:
                self.forget(request_id)
            elif known.submitter == peer and known.deliver_to == name:
                known.orphaned_at = None
            elif old is not None and known.submitter == old.link.peer and known.orphaned_at is None:
                known.orphaned_at = self.now

    @rule(name=names)
    def detach(self, name: str) -> None:
        if (stream := self.streams.pop(name, None)) is not None:
            self.board.detach(stream.link, self.now)
            for known in self.known.values():
                if known.submitter == stream.link.peer and known.orphaned_at is None:
                    known.orphaned_at = self.now

    @rule(seconds=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.board.expire(self.now)
        for request_id, known in list(self.known.items()):
            if known.orphaned_at is not None and known.orphaned_at + GRACE <= self.now:
                self.forget(request_id)

    def forget(self, request_id: str) -> None:
        del self.known[request_id]

    # Commands

    @precondition(lambda self: self.streams)
    @rule(
        name=names,
        counter=counters,
        epoch=st.integers(0, 4),
        deliver_to=st.sampled_from(["", *NAMES, "nobody"]),
        logs=st.dictionaries(choices, st.lists(st.integers(0, 9), max_size=3), min_size=1),
        scored=st.booleans(),
        context=st.binary(max_size=20),
    )
    def submit(
        self,
        name: str,
        counter: int,
        epoch: int,
        deliver_to: str,
        logs: dict[int, list[int]],
        scored: bool,
        context: bytes,
    ) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        peer = stream.link.peer
        request_id = f"{peer.incarnation}-{NAMES.index(name)}{counter}"
        prompt_logprobs = 1 if scored else None
        submission = Submission(request_id, epoch, deliver_to, context, logs, scored, 9, prompt_logprobs, set(logs))
        old = self.known.get(request_id)
        receiver = deliver_to or name
        code = None
        if epoch == 0:
            code = Code.INVALID_ARGUMENT
        elif old is not None and epoch <= old.epoch:
            code = Code.ALREADY_EXISTS
        elif receiver not in self.streams:
            code = Code.UNAVAILABLE
        elif old is None and len(self.known) >= MAX_LEDGERS:
            code = Code.RESOURCE_EXHAUSTED
        if code is not None:
            self.refused(code, lambda: self.board.submit(peer, submission))
            return
        before = set(self.core.names)
        self.board.submit(peer, submission)
        (core_id,) = self.core.names - before
        if old is not None:
            assert old.core_id not in self.core.running, "the old one is freed first"
        self.known[request_id] = Known(
            epoch,
            peer,
            receiver,
            core_id,
            context,
            {choice: list(ids) for choice, ids in logs.items()},
            {choice: len(ids) for choice, ids in logs.items()},
            scored,
            {choice: len(ids) for choice, ids in logs.items() if ids},
        )

    @precondition(lambda self: self.known)
    @rule(data=st.data(), name=names, raised=st.integers(-1, 2), deliver_to=st.sampled_from(["", *NAMES, "nobody"]))
    def redirect(self, data: st.DataObject, name: str, raised: int, deliver_to: str) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        request_id, known = data.draw(st.sampled_from(sorted(self.known.items(), key=lambda item: item[0])))
        peer, epoch, receiver = stream.link.peer, known.epoch + raised, deliver_to or name
        delivered = {choice: len(ids) // 2 for choice, ids in known.logs.items()}
        code = None
        if known.submitter != peer:
            code = Code.NOT_FOUND
        elif raised <= 0:
            code = Code.ALREADY_EXISTS
        elif receiver not in self.streams:
            code = Code.UNAVAILABLE
        if code is not None:
            self.refused(code, lambda: self.board.redirect(peer, request_id, epoch, deliver_to, delivered))
            return
        self.board.redirect(peer, request_id, epoch, deliver_to, delivered)
        known.epoch, known.deliver_to, known.delivered, known.orphaned_at = epoch, receiver, delivered, None

    @precondition(lambda self: self.known)
    @rule(data=st.data(), name=names, raised=st.integers(-1, 1), kind=st.sampled_from(["cancel", "done"]))
    def end_it(self, data: st.DataObject, name: str, raised: int, kind: str) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        known, peer = self.known[request_id], stream.link.peer
        getattr(self.board, kind)(peer, request_id, known.epoch + raised)
        if known.submitter != peer or raised < 0:
            return
        if kind == "done":
            self.forget(request_id)
        else:
            for choice, ids in known.logs.items():
                known.ends.setdefault(choice, ChoiceEnd(Cause.CANCELLED, len(ids)))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), name=names, raised=st.integers(-1, 1), choice=choices, position=st.integers(0, 8))
    def stop(self, data: st.DataObject, name: str, raised: int, choice: int, position: int) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[request_id]
        self.board.stop(stream.link.peer, request_id, known.epoch + raised, choice, position)
        log, end = known.logs.get(choice), known.ends.get(choice)
        if known.deliver_to != name or raised != 0 or log is None or not 1 <= position <= len(log):
            return
        if end is None or position <= end.position:
            del log[position:]
            known.ends[choice] = ChoiceEnd(Cause.STOP, position)

    def refused(self, code: Code, command: Callable[[], object]) -> None:
        before = dict(self.core.running)
        with pytest.raises(Refused) as refusal:
            command()
        assert refusal.value.status.code == code
        assert self.core.running == before

    # The core

    @precondition(lambda self: self.known)
    @rule(data=st.data(), choice=choices, count=st.integers(0, 4), ends=st.booleans())
    def compute(self, data: st.DataObject, choice: int, count: int, ends: bool) -> None:
        known = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        if choice not in known.logs:
            return
        log = known.logs[choice]
        ids = [(len(log) + i) % 10 for i in range(count)]
        logprobs = [logprob(len(log) + i, token) for i, token in enumerate(ids)] if known.scored else []
        end = ChoiceEnd(Cause.LENGTH, len(log) + count) if ends else None
        self.board.progress(known.core_id, choice, ids, logprobs, end)
        if choice not in known.ends:
            log += ids
            if end is not None:
                known.ends[choice] = end
                self.core.cancel(known.core_id, choice)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), count=st.integers(1, 8))
    def score_the_prompt(self, data: st.DataObject, count: int) -> None:
        known = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        if known.scored:
            start = len(known.prompt)
            known.prompt += [logprob(start + i, i) for i in range(count)]
            self.board.prompt_scored(known.core_id, known.prompt[start:])

    @rule()
    def late_news_of_what_is_forgotten_is_dropped(self) -> None:
        for core_id in self.core.names - {known.core_id for known in self.known.values()}:
            self.board.progress(core_id, 0, [1], [], None)
            self.board.prefilled(core_id, 1, 0)
            self.board.prompt_scored(core_id, [])

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def the_core_refuses(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[request_id]
        over = len(known.ends) == len(known.logs)
        self.core.running.pop(known.core_id, None)
        entry = self.board.refuse(known.core_id, Status(Code.INVALID_ARGUMENT, "no"))
        assert (entry is None) == over, "what was cancelled before had its end"
        if not over:
            self.forget(request_id)

    @precondition(lambda self: self.streams)
    @rule(name=names, max_bytes=LIMITS)
    def take(self, name: str, max_bytes: int) -> None:
        if (stream := self.streams.get(name)) is not None:
            stream.take(max_bytes, self.known)

    # What must hold

    @invariant()
    def the_ledger_is_what_is_known(self) -> None:
        assert self.board.num_ledgers == len(self.known)
        assert set(self.board.attached()) == {stream.link.peer for stream in self.streams.values()}
        unfinished = {known.core_id for known in self.known.values() if len(known.ends) < len(known.logs)}
        assert self.board.num_unfinished == len(unfinished)
        for core_id, running in self.core.running.items():
            assert core_id in unfinished or not running, "the core computes nothing that nobody waits for"

    def teardown(self) -> None:
        for stream in self.streams.values():
            while stream.link.pending:
                stream.take(300, self.known)
            assert stream.peers == set(self.board.attached())
        for request_id, known in self.known.items():
            if (stream := self.streams.get(known.deliver_to)) is not None:
                heard = stream.heard[request_id]
                assert (heard.epoch, heard.delivered) == (known.epoch, known.delivered)
                assert not heard.closed
                assert (heard.prompt or PackedLogprobs(0)) == PackedLogprobs.of(known.prompt)
                for choice, log in known.logs.items():
                    # A stop may have cut what had been carried; then its end says where.
                    assert heard.ids[choice][: len(log)] == log
                    if choice in known.ends and heard.ids[choice] == log:
                        assert heard.ends[choice].position == len(log)
                    assert (choice in heard.ends) == (choice in known.ends)
        for name, stream in self.streams.items():
            for request_id, heard in stream.heard.items():
                known = self.known.get(request_id)
                if known is None or known.deliver_to != name:
                    told = heard.closed or stream.rejected.get(request_id) == heard.epoch
                    assert told or len(heard.ends) == len(heard.ids), "whoever was cut off was told"


SwitchboardMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSwitchboard = SwitchboardMachine.TestCase


def submission(request_id: str = "1-1", epoch: int = 1, **fields: object) -> Submission:
    values: dict[str, object] = {
        "deliver_to": "",
        "output_context": b"",
        "choices": {0: ()},
        "keeps_logprobs": False,
        "prompt_tokens": 5,
        "prompt_logprobs": None,
        "order": {0},
    }
    return Submission(request_id, epoch, **(values | fields))  # type: ignore[arg-type]


@pytest.fixture
def board() -> Switchboard:
    return Switchboard(Core(), orphan_grace=GRACE, max_ledgers=MAX_LEDGERS)


def code_of(command: Callable[[], object]) -> tuple[Code, str]:
    with pytest.raises(Refused) as refusal:
        command()
    return refusal.value.status.code, refusal.value.status.message


def test_a_draining_engine_takes_nothing_new_but_goes_on_with_what_it_has(board: Switchboard) -> None:
    peer = PeerId("p", 1)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    board.draining = True
    assert code_of(lambda: board.submit(peer, submission("1-2")))[0] is Code.UNAVAILABLE
    board.redirect(peer, "1-1", 2, "", {})
    frame = link.take()
    assert frame is not None
    assert [entry.epoch for entry in frame.opened] == [2]


def test_a_submitter_that_was_superseded_cannot_submit(board: Switchboard) -> None:
    """Its commands may still be read when its newer life has attached; nobody would ever say Done."""
    old, new = PeerId("p", 1), PeerId("p", 2)
    board.attach(old, 0.0)
    board.attach(new, 0.0)
    assert code_of(lambda: board.submit(old, submission()))[0] is Code.ABORTED
    assert board.num_ledgers == 0


def test_an_output_context_has_a_limit(board: Switchboard) -> None:
    peer = PeerId("p", 1)
    board.attach(peer, 0.0)
    board.submit(peer, submission(output_context=b"x" * MAX_OUTPUT_CONTEXT_BYTES))
    too_long = submission("1-2", output_context=b"x" * (MAX_OUTPUT_CONTEXT_BYTES + 1))
    code, message = code_of(lambda: board.submit(peer, too_long))
    assert code is Code.INVALID_ARGUMENT
    assert "output_context" in message


def test_what_a_submitter_that_came_back_does_not_claim_is_forgotten(board: Switchboard) -> None:
    """A Done may have been lost with its old stream."""
    peer = PeerId("p", 1)
    link, _ = board.attach(peer, 0.0)
    board.attach(PeerId("d", 1), 0.0)
    for name in ("1-1", "1-2", "1-3"):
        board.submit(peer, submission(name, deliver_to="d"))
    board.submit(peer, submission("1-4"))
    board.detach(link, 1.0)
    board.attach(peer, 1.5)
    board.submit(peer, submission("1-1", 2, deliver_to="d"))
    board.redirect(peer, "1-2", 2, "d", {})
    board.expire(1.0 + GRACE)
    assert board.num_ledgers == 3, "what it submitted or redirected, and what is delivered to itself"
    assert code_of(lambda: board.redirect(peer, "1-3", 2, "d", {}))[0] is Code.NOT_FOUND


def test_prompt_progress_and_scores_are_replayed(board: Switchboard) -> None:
    core = Core()
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS)
    peer = PeerId("p", 1)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    (core_id,) = core.running
    link.take()
    board.prefilled(core_id, 2, 1)
    first = link.take()
    board.prefilled(core_id, None, None)
    board.prompt_scored(core_id, [logprob(1, 1)])
    second = link.take()
    board.prompt_scored(core_id, [logprob(2, 2)])
    more = link.take()
    assert first is not None
    assert second is not None
    assert first.prefills == [("1-1", 1, Prefill(5, 2, 1))]
    assert second.prefills == [("1-1", 1, Prefill(5, 5, 1))]
    assert second.prompt_logprobs == [("1-1", 1, 0, PackedLogprobs.of([logprob(1, 1)]))]
    assert more is not None
    assert more.prompt_logprobs == [("1-1", 1, 1, PackedLogprobs.of([logprob(2, 2)]))]
    board.redirect(peer, "1-1", 2, "", {})
    third = link.take()
    assert third is not None
    assert third.prefills == [("1-1", 2, Prefill(5, 5, 1))]
    assert third.prompt_logprobs == [("1-1", 2, 0, PackedLogprobs.of([logprob(1, 1), logprob(2, 2)]))]
    board.cancel(peer, "1-1", 2)
    last = link.take()
    assert last is not None
    assert not last.prefills
    assert not last.prompt_logprobs


def test_a_refusal_names_the_command_and_is_the_only_end(board: Switchboard) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission(), in_reply_to=7)
    opened = link.take()
    assert opened is not None
    assert [entry.request_id for entry in opened.opened] == ["1-1"]
    (core_id,) = core.running
    board.refuse(core_id, Status(Code.RESOURCE_EXHAUSTED, "full"))
    frame = link.take()
    assert frame is not None
    assert [(one.request_id, one.epoch, one.in_reply_to) for one in frame.rejections] == [("1-1", 1, 7)]
    assert not frame.closed
    assert board.num_ledgers == 0


def test_a_refusal_closes_the_epoch_that_it_superseded(board: Switchboard) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    link.take()
    board.submit(peer, submission(epoch=2), in_reply_to=2)
    (core_id,) = core.running
    board.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no"))
    frame = link.take()
    assert frame is not None
    assert not frame.opened
    assert frame.closed == [("1-1", 1)]
    assert [one.epoch for one in frame.rejections] == [2]


def test_a_refusal_of_what_came_on_an_earlier_stream_names_no_command(board: Switchboard) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission(), in_reply_to=3)
    board.detach(link, 1.0)
    link, _ = board.attach(peer, 1.5)
    (core_id,) = core.running
    board.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no"))
    frame = link.take()
    assert frame is not None
    assert [one.in_reply_to for one in frame.rejections] == [0]


def test_what_was_cancelled_before_it_is_refused_has_one_end(board: Switchboard) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    (core_id,) = core.running
    board.cancel(peer, "1-1", 1)
    assert board.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no")) is None
    frame = link.take()
    assert frame is not None
    assert [end.cause for *_, end in frame.ends] == [Cause.CANCELLED]
    assert not frame.rejections


def test_log_probabilities_of_prompts_are_held_up_to_a_size() -> None:
    core, peer = Core(), PeerId("p", 1)
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS, max_prompt_logprob_bytes=2000)
    board.attach(peer, 0.0)
    ask = {"prompt_tokens": 10, "prompt_logprobs": 10}  # 880 bytes
    board.submit(peer, submission("1-1", **ask))
    board.submit(peer, submission("1-2", **ask))
    code, message = code_of(lambda: board.submit(peer, submission("1-3", **ask)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert message.startswith("prompt_logprobs: ")
    board.submit(peer, submission("1-3"))
    board.submit(peer, submission("1-2", epoch=2, **ask))  # takes the place of its own
    board.done(peer, "1-1", 1)
    board.submit(peer, submission("1-4", **ask))
    for name, epoch in (("1-2", 2), ("1-3", 1), ("1-4", 1)):
        board.done(peer, name, epoch)
    board.submit(peer, submission("1-5", prompt_tokens=1000, prompt_logprobs=20))  # alone it may be any size


def test_a_redirect_cannot_name_choices_that_there_are_not(board: Switchboard) -> None:
    peer = PeerId("p", 1)
    board.attach(peer, 0.0)
    board.submit(peer, submission())
    code, message = code_of(lambda: board.redirect(peer, "1-1", 2, "", {0: 0, 5: 1}))
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith("delivered: ")
    board.redirect(peer, "1-1", 2, "", {0: 0})


def test_what_is_forgotten_is_told_with_its_end_if_it_has_one() -> None:
    told: dict[str, Cause | None] = {}

    def on_removed(entry: LedgerEntry) -> None:
        assert entry.request_id not in told
        end = entry.choices[0].end
        told[entry.request_id] = end.cause if end is not None else None

    core, peer = Core(), PeerId("p", 1)
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS, on_removed=on_removed)
    link, _ = board.attach(peer, 0.0)
    for name in ("1-1", "1-2", "1-3", "1-4"):
        board.submit(peer, submission(name))
    ended, refused = sorted(name for name in core.names if name.startswith(("1-2", "1-4")))
    board.progress(ended, 0, [7], [], ChoiceEnd(Cause.LENGTH, 1))
    assert told == {}
    board.done(peer, "1-1", 1)
    board.done(peer, "1-2", 1)
    board.refuse(refused, Status(Code.RESOURCE_EXHAUSTED, "full"))
    board.cancel(peer, "1-3", 1)
    board.detach(link, 1.0)
    board.expire(1.0 + GRACE)
    assert told == {"1-1": None, "1-2": Cause.LENGTH, "1-4": None, "1-3": Cause.CANCELLED}
