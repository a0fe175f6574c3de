"""Coalesced news, against every delta kept one by one."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.detokenizer.detokenizer_messages import outputs_of
from services.ring.events import ChoiceEnd, FinishReason, Prefill, TypedParts
from services.ring.logprobs import PackedLogprobs
from services.ring.outbox import Outbox, Outboxes, RequestUpdate
from tests.services.ring.token_logprobs import TokenLogprob, packed, unpacked
from text_core.parsing.parts import Content

LIMITS = st.sampled_from([0, 1, 50, 200, 1000, 1 << 20])
NAMES = st.sampled_from(["1-1", "1-2", "1-3"])
CHOICES = st.integers(0, 2)


def text_of(ids: list[int]) -> str:
    """Says which ids it belongs to."""
    return "".join(f"{token}é" for token in ids)


def logprobs_of(ids: list[int], first_position: int) -> PackedLogprobs:
    return packed(TokenLogprob(-1.0, token + 1, (token, first_position + i), (0.0, 0.0)) for i, token in enumerate(ids))


def parts_of(ids: list[int]) -> TypedParts | None:
    """Pieces that say which ids they belong to, for some deltas."""
    if not ids or len(ids) % 2:
        return None
    pieces = [Content(text_of([token])) for token in ids]
    return TypedParts(pieces, sum(40 + 4 * len(piece.text) for piece in pieces), len(ids))


def an_outbox() -> Outbox:
    """Of a reader that is never lost."""
    return Outboxes().open("", lambda: None)


@dataclass
class Sent:
    """What one choice has been given to the outbox, or was read from it, under the present epoch."""

    start: int = 0
    ids: list[int] = field(default_factory=list)
    scored: bool = field(default=False, compare=False)
    """Whether tokens have log probabilities from now on: only resumed ones, which come first, have none."""
    end: ChoiceEnd | None = None

    @property
    def count(self) -> int:
        return self.start + len(self.ids)


class OutboxMachine(RuleBasedStateMachine):
    """A writer that never repeats itself but after an epoch, and a reader who takes as much as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.outboxes = Outboxes()
        self.outbox = self.outboxes.open("", lambda: None)
        self.epochs: dict[str, int] = defaultdict(lambda: 1)
        self.written: dict[str, dict[int, Sent]] = defaultdict(lambda: defaultdict(Sent))
        self.read: dict[str, dict[int, Sent]] = defaultdict(lambda: defaultdict(Sent))

    @rule(name=NAMES, choice=CHOICES, ids=st.lists(st.integers(0, 300), max_size=20), scored=st.booleans())
    def delta(self, name: str, choice: int, ids: list[int], scored: bool) -> None:
        sent = self.written[name][choice]
        if sent.end is None:
            sent.scored = sent.scored or scored
            logprobs = logprobs_of(ids, sent.count) if sent.scored else None
            epoch, parts = self.epochs[name], parts_of(ids)
            self.outbox.delta(name, choice, sent.count, ids, text_of(ids), logprobs, parts, epoch=epoch)
            sent.ids += ids

    @rule(name=NAMES, choice=CHOICES)
    def end(self, name: str, choice: int) -> None:
        sent = self.written[name][choice]
        if sent.end is None:
            sent.end = ChoiceEnd(FinishReason.LENGTH, sent.count, parts=parts_of(sent.ids))
            self.outbox.end(name, choice, sent.end, epoch=self.epochs[name])

    @rule(name=NAMES)
    def goes_on_from_what_was_read(self, name: str) -> None:
        """As after a Redirect."""
        self.epochs[name] += 1
        for choice, sent in self.read[name].items():
            self.read[name][choice] = Sent(start=sent.count)
            self.written[name][choice] = Sent(start=sent.count)
        for choice in self.written[name].keys() - self.read[name].keys():
            self.written[name][choice] = Sent()
        self.outbox.delta(name, 0, self.written[name][0].count, [], "", epoch=self.epochs[name])

    @rule(name=NAMES, choice=CHOICES)
    def what_is_late_is_ignored(self, name: str, choice: int) -> None:
        waits = any(sent != self.read[name][choice] for choice, sent in self.written[name].items())
        if self.epochs[name] > 1 and waits:
            epoch = self.epochs[name] - 1
            self.outbox.delta(name, choice, 0, [999], "late", epoch=epoch)
            self.outbox.end(name, choice, ChoiceEnd(FinishReason.STOP, 1), epoch=epoch)
            self.outbox.drop(name, epoch)

    @rule(max_bytes=LIMITS)
    def take(self, max_bytes: int) -> None:
        taken = self.outbox.take(max_bytes)
        assert len({update.request_id for update in taken}) == len(taken)
        # One delta more than fits at most, and what estimates leave out.
        assert outputs_of(taken).ByteSize() <= max_bytes + 1000
        for update in taken:
            self.take_news(update)

    def take_news(self, update: RequestUpdate) -> None:
        assert update.epoch == self.epochs[update.request_id]
        for choice, part in update.choices.items():
            sent = self.read[update.request_id][choice]
            assert sent.end is None, "nothing follows an end"
            assert part.first_position == sent.count
            assert "".join(part.texts) == text_of(part.ids), "ids and their text stay together"
            scores = unpacked(part.logprobs)
            assert [entry.top_ids[1] for entry in scores] == [*range(sent.count, sent.count + len(part.ids))][
                len(part.ids) - len(scores) :
            ], "aligned to the end of the ids"
            for entry in scores:
                token, position = entry.top_ids
                assert part.ids[position - part.first_position] == token
            sent.ids += part.ids
            assert sum(part.counts) == len(part.ids)
            start = 0
            for count, parts in zip(part.counts, part.parts, strict=True):
                assert parts == parts_of(part.ids[start : start + count]), "parts stay with their ids"
                start += count
            sent.end = part.end

    @invariant()
    def everything_is_counted(self) -> None:
        assert self.outboxes.total == self.outbox.size

    def teardown(self) -> None:
        while self.outbox.pending:
            self.take(100)
        self.outbox.take(100)
        assert self.outbox.size == self.outboxes.total == 0
        for name, choices in self.written.items():
            for choice, sent in choices.items():
                assert self.read[name][choice] == sent


OutboxMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOutbox = OutboxMachine.TestCase


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    scored=st.integers(2, 100),
    opening=st.integers(0, 2000),
    limit=st.integers(0, 3000),
)
@settings(deadline=None, max_examples=100)
def test_what_surrounds_the_deltas_keeps_its_place(sizes: list[int], scored: int, opening: int, limit: int) -> None:
    outbox = an_outbox()
    outbox.open("1-1", "opening", opening)
    outbox.prefill("1-1", Prefill(5, 5, 0))
    outbox.notice("1-1", "notice")
    outbox.close("1-1", "closing")
    scores = logprobs_of([*range(scored)], 0)
    outbox.prompt_logprobs("1-1", 5, scores.part(0, scored // 2))
    outbox.prompt_logprobs("1-1", 5 + scored // 2, scores.part(scored // 2, scored))
    for position, size in enumerate(sizes):
        outbox.delta("1-1", position % 3, 0, [], "x" * size)
    outbox.end("1-1", 0, ChoiceEnd(FinishReason.STOP, 0))
    taken: list[RequestUpdate] = []
    while outbox.pending:
        taken += outbox.take(limit or 1)
    first, last = taken[0], taken[-1]
    assert (first.opening, first.notices) == ("opening", ["notice"])
    assert first.prefill is not None
    for other in taken[1:]:
        assert other.opening is other.prefill is None
        assert not other.notices
    read = PackedLogprobs(2)
    for one in taken:
        # An opening is whole, a delta is whole; but for these, everything fits.
        assert outputs_of([one]).ByteSize() <= max(limit - one.opening_bytes, 0) + 1800
        if one.prompt_logprobs is not None:
            assert one.prompt_offset == 5 + len(read), "gapless"
            read.extend(one.prompt_logprobs)
        assert not one.choices or len(read) == scored, "the prompt comes before any delta"
    assert read == scores
    assert [one.closing for one in taken] == [None] * (len(taken) - 1) + ["closing"]
    assert last.choices, "the closing is the last end's, so there is one beside it"
    assert sum(len(text) for one in taken for part in one.choices.values() for text in part.texts) == sum(sizes)


def test_a_request_that_has_more_than_fits_waits_behind_the_others() -> None:
    outbox = an_outbox()
    for _ in range(100):
        outbox.delta("1-1", 0, 0, [], "x" * 100)
    outbox.delta("1-2", 0, 0, [1], "y")
    assert [update.request_id for update in outbox.take(1000)] == ["1-1"]
    assert [update.request_id for update in outbox.take(1000)] == ["1-2", "1-1"]


def test_dropping_forgets_what_is_not_newer() -> None:
    outbox = an_outbox()
    outbox.delta("1-1", 0, 0, [1], "x", epoch=3)
    outbox.drop("1-1", 2)
    assert outbox.pending, "a request that moved here goes on"
    outbox.drop("1-1", 3)
    assert not outbox.pending
    outbox.drop("1-2", 9)


def test_openings_count_for_the_size_of_a_frame() -> None:
    outbox = an_outbox()
    for number in range(10):
        outbox.open(f"1-{number}", "opening", 400)
    assert len(outbox.take(1000)) < 4


def test_scores_that_do_not_follow_replace_what_is_there() -> None:
    """The reader sees that some are missing, and asks for all again."""
    update = RequestUpdate("1-1", 1)
    scores = logprobs_of([1, 2, 3], 0)
    update.add_prompt_logprobs(0, scores.part(0, 1))
    update.add_prompt_logprobs(2, scores.part(2, 3))
    assert (update.prompt_offset, update.prompt_logprobs) == (2, scores.part(2, 3))


@pytest.mark.parametrize(
    ("text", "alternatives", "together"),
    [("a", None, 1), ("word ", 0, 20), ("слово", 20, 1), ("\N{GRINNING FACE}", None, 20), ("x" * 300, 20, 20)],
)
def test_no_less_is_counted_than_is_held(text: str, alternatives: int | None, together: int) -> None:
    """What the interpreter allocates for news of several requests, made as frames bring it."""
    outbox = an_outbox()
    names = [f"1-{number}" for number in range(20)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for position in range(30):
            for name in names:
                fresh = text[:1] + text[1:]  # as decoding makes it: a string of its own
                scores = None
                if alternatives is not None:
                    tops = alternatives * together
                    scores = PackedLogprobs(alternatives, [-1.0] * together, [1] * together, range(tops), [-1.0] * tops)
                ids = [70_000 + position + i for i in range(together)]
                outbox.delta(name, position % 2, position // 2 * together, ids, fresh, scores)
        del fresh, scores, ids
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.2 * outbox.size < held <= outbox.size


def test_a_reader_for_whom_too_much_waits_is_lost_alone() -> None:
    outboxes, lost = Outboxes(max_bytes=10_000), list[str]()
    slow, other = (outboxes.open(name, lambda name=name: lost.append(name)) for name in ("slow", "other"))
    other.delta("1-2", 0, 0, [1], "y")
    for position in range(200):
        slow.delta("1-1", 0, position, [1], "x")
        assert slow.size <= 10_000
    assert lost == ["slow"]
    assert (slow.closed, slow.pending, slow.size) == (True, False, 0)
    assert outboxes.total == other.size
    slow.end("1-1", 0, ChoiceEnd(FinishReason.STOP, 200))
    slow.close("1-1", "closing")
    assert (slow.take(1000), slow.size) == ([], 0), "nothing is kept for it any more"
    assert [update.request_id for update in other.take(1000)] == ["1-2"]


def test_where_all_wait_for_too_much_the_tenant_with_the_most_loses_its_largest() -> None:
    outboxes, lost = Outboxes(max_bytes=10_000), list[str]()

    def reader(tenant: str, name: str) -> Outbox:
        return outboxes.open(tenant, lambda: lost.append(name))

    for name in ("small", "large", "middling"):
        reader("flood", name).delta("1-1", 0, 0, [], "x" * {"small": 200, "large": 1000, "middling": 700}[name])
    other = reader("other", "other")
    other.delta("1-1", 0, 0, [], "x" * 1780)
    assert not lost
    late = reader("late", "late")
    late.delta("1-1", 0, 0, [], "x" * 1000)
    assert lost == ["large"], "neither the one that came last, nor the largest of all"
    assert outboxes.total <= outboxes.max_total
    outboxes.close(other)
    assert not other.pending
    late.delta("1-1", 0, 0, [], "x" * 1000)
    assert lost == ["large"], "there is room again"
