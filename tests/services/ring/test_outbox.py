"""Coalesced news, against every delta kept one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from services.detokenizer.frames import outputs_of
from services.ring.events import Cause, ChoiceEnd, Prefill
from services.ring.logprobs import PackedLogprobs
from services.ring.outbox import Outbox, RequestNews
from tests.services.ring.scores import Score, packed, scores_of

LIMITS = st.sampled_from([0, 1, 50, 200, 1000, 1 << 20])
NAMES = st.sampled_from(["1-1", "1-2", "1-3"])
CHOICES = st.integers(0, 2)


def text_of(ids: list[int]) -> str:
    """Says which ids it belongs to."""
    return "".join(f"{token}é" for token in ids)


def logprobs_of(ids: list[int], first_position: int) -> PackedLogprobs:
    return packed(Score(-1.0, token + 1, (token, first_position + i), (0.0, 0.0)) for i, token in enumerate(ids))


@dataclass
class Sent:
    """What one choice has been given to the outbox, or was read from it, under the present epoch."""

    start: int = 0
    ids: list[int] = field(default_factory=list)
    end: ChoiceEnd | None = None

    @property
    def count(self) -> int:
        return self.start + len(self.ids)


class OutboxMachine(RuleBasedStateMachine):
    """A writer that never repeats itself but after an epoch, and a reader who takes as much as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox()
        self.epochs: dict[str, int] = defaultdict(lambda: 1)
        self.written: dict[str, dict[int, Sent]] = defaultdict(lambda: defaultdict(Sent))
        self.read: dict[str, dict[int, Sent]] = defaultdict(lambda: defaultdict(Sent))

    @rule(name=NAMES, choice=CHOICES, ids=st.lists(st.integers(0, 300), max_size=20), scored=st.booleans())
    def delta(self, name: str, choice: int, ids: list[int], scored: bool) -> None:
        sent = self.written[name][choice]
        if sent.end is None:
            logprobs = logprobs_of(ids, sent.count) if scored else None
            self.outbox.delta(name, self.epochs[name], choice, sent.count, ids, text_of(ids), logprobs)
            sent.ids += ids

    @rule(name=NAMES, choice=CHOICES)
    def end(self, name: str, choice: int) -> None:
        sent = self.written[name][choice]
        if sent.end is None:
            sent.end = ChoiceEnd(Cause.LENGTH, sent.count)
            self.outbox.end(name, self.epochs[name], choice, sent.end)

    @rule(name=NAMES)
    def goes_on_from_what_was_read(self, name: str) -> None:
        """As after a Redirect."""
        self.epochs[name] += 1
        for choice, sent in self.read[name].items():
            self.read[name][choice] = Sent(start=sent.count)
            self.written[name][choice] = Sent(start=sent.count)
        for choice in self.written[name].keys() - self.read[name].keys():
            self.written[name][choice] = Sent()
        self.outbox.delta(name, self.epochs[name], 0, self.written[name][0].count, [], "")

    @rule(name=NAMES, choice=CHOICES)
    def what_is_late_is_ignored(self, name: str, choice: int) -> None:
        if self.epochs[name] > 1 and self.outbox.of(name, self.epochs[name]) is not None:
            epoch = self.epochs[name] - 1
            self.outbox.delta(name, epoch, choice, 0, [999], "late")
            self.outbox.end(name, epoch, choice, ChoiceEnd(Cause.STOP, 1))
            self.outbox.drop(name, epoch)

    @rule(max_bytes=LIMITS)
    def take(self, max_bytes: int) -> None:
        taken = self.outbox.take(max_bytes)
        assert len({news.request_id for news in taken}) == len(taken)
        # One delta more than fits at most, and what estimates leave out.
        assert outputs_of(taken).ByteSize() <= max_bytes + 1000
        for news in taken:
            self.take_news(news)

    def take_news(self, news: RequestNews) -> None:
        assert news.epoch == self.epochs[news.request_id]
        for choice, part in news.choices.items():
            sent = self.read[news.request_id][choice]
            assert sent.end is None, "nothing follows an end"
            assert part.first_position == sent.count
            assert "".join(part.texts) == text_of(part.ids), "ids and their text stay together"
            for entry in scores_of(part.logprobs):
                token, position = entry.top_ids
                assert part.ids[position - part.first_position] == token
            sent.ids += part.ids
            sent.end = part.end

    def teardown(self) -> None:
        while self.outbox.pending:
            self.take(100)
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
    outbox = Outbox()
    news = outbox.of("1-1", 0)
    assert news is not None
    news.opening, news.prefill, news.closing = "opening", Prefill(5, 5, 0), "closing"
    news.opening_bytes = opening
    news.notices.append("notice")
    scores = logprobs_of([*range(scored)], 0)
    news.add_prompt_logprobs(5, scores.part(0, scored // 2))
    news.add_prompt_logprobs(5 + scored // 2, scores.part(scored // 2, scored))
    for position, size in enumerate(sizes):
        outbox.delta("1-1", 0, position % 3, 0, [], "x" * size)
    outbox.end("1-1", 0, 0, ChoiceEnd(Cause.STOP, 0))
    taken: list[RequestNews] = []
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
    outbox = Outbox()
    for _ in range(100):
        outbox.delta("1-1", 1, 0, 0, [], "x" * 100)
    outbox.delta("1-2", 1, 0, 0, [1], "y")
    assert [news.request_id for news in outbox.take(1000)] == ["1-1"]
    assert [news.request_id for news in outbox.take(1000)] == ["1-2", "1-1"]


def test_an_end_may_come_alone() -> None:
    outbox = Outbox()
    end = ChoiceEnd(Cause.STOP, 7)
    outbox.end("1-1", 1, 2, end)
    (news,) = outbox.take(1)
    assert news.choices[2].end == end
    assert news.choices[2].ids == []
    assert not outbox.pending


def test_dropping_forgets_what_is_not_newer() -> None:
    outbox = Outbox()
    outbox.delta("1-1", 3, 0, 0, [1], "x")
    outbox.drop("1-1", 2)
    assert outbox.pending, "a request that moved here goes on"
    outbox.drop("1-1", 3)
    assert not outbox.pending
    outbox.drop("1-2", 9)


def test_openings_count_for_the_size_of_a_frame() -> None:
    outbox = Outbox()
    for number in range(10):
        news = outbox.of(f"1-{number}", 0)
        assert news is not None
        news.opening, news.opening_bytes = "opening", 400
    assert len(outbox.take(1000)) < 4


def test_scores_that_do_not_follow_replace_what_is_there() -> None:
    """The reader sees that some are missing, and asks for all again."""
    news = RequestNews("1-1", 1)
    scores = logprobs_of([1, 2, 3], 0)
    news.add_prompt_logprobs(0, scores.part(0, 1))
    news.add_prompt_logprobs(2, scores.part(2, 3))
    assert (news.prompt_offset, news.prompt_logprobs) == (2, scores.part(2, 3))
