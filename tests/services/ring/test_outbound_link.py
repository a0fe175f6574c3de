"""One outbound link: frames of any size, fairly shared, never larger than they may be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.engine_messages import response_of
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason, Pooled, Prefill
from services.ring.identity import PeerId
from services.ring.ledger import ChoiceLog, LedgerEntry
from services.ring.outbound_link import OutboundLink, RejectedCommand
from tests.services.ring.token_logprobs import TokenLogprob, packed

PEER = PeerId("p", 1)


def entry(name: str, choices: dict[int, list[int]], logprobs: int | None = None) -> LedgerEntry:
    """A request whose choices were computed from nothing; ``logprobs`` alternatives per token."""
    logs = {choice: ChoiceLog((), logprobs is not None) for choice in choices}
    for choice, ids in choices.items():
        scores = tuple(range(logprobs or 0))
        logs[choice].append(ids, packed(TokenLogprob(-1.5, 2, scores, (-1.0,) * len(scores)) for _ in ids))
    return LedgerEntry(name, name, 1, PEER, PEER.name, b"context", 3, logs)


requests = st.lists(
    st.dictionaries(st.integers(0, 127), st.lists(st.integers(0, 2**32 - 1), max_size=60), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=100)
@given(requests=requests, logprobs=st.none() | st.integers(0, 20), limits=st.lists(st.integers(1, 6000), min_size=1))
def test_everything_comes_once_in_frames_that_fit(
    requests: list[dict[int, list[int]]], logprobs: int | None, limits: list[int]
) -> None:
    link = OutboundLink(PEER)
    entries = [entry(f"1-{i}", choices, logprobs) for i, choices in enumerate(requests)]
    for one in entries:
        for log in one.choices.values():
            log.finish(ChoiceEnd(FinishReason.LENGTH, len(log.ids)))
        link.add(one)
    got: dict[tuple[str, int], list[int]] = {(one.request_id, c): [] for one in entries for c in one.choices}
    ended: list[tuple[str, int]] = []
    taken = 0
    while (frame := link.take(limits[taken % len(limits)])) is not None:
        # What one request has at least: its context, and of each choice one token or its end.
        assert response_of(frame).ByteSize() <= limits[taken % len(limits)] + 200 + 4 * (160 + 220)
        taken += 1
        start = 0
        for index, name in enumerate(frame.request_ids):
            key, count = (name, frame.choices[index]), frame.token_counts[index]
            assert frame.first_positions[index] == len(got[key])
            got[key] += frame.token_ids[start : start + count]
            start += count
        assert [len(scored) for _, scored in frame.logprobs] == ([] if logprobs is None else frame.token_counts), (
            "one per token"
        )
        ended += [(name, choice) for name, _, choice, _ in frame.ends]
    assert got == {(one.request_id, c): list(log.ids) for one in entries for c, log in one.choices.items()}
    assert sorted(ended) == sorted(got)
    assert not link.pending


def test_a_frame_opens_few_choices_and_has_few_tokens() -> None:
    """Because a detokenizer makes a decoder for each choice, and decodes a whole frame before it does anything else."""
    link = OutboundLink(PEER)
    for number in range(50):
        link.add(entry(f"1-{number}", {choice: [5] * 200 for choice in range(128)}))
    while (frame := link.take()) is not None:
        assert sum(len(one.choices) for one in frame.opened) <= 512
        assert len(frame.token_ids) <= 1 << 14


def test_everyone_gets_a_turn_while_one_has_much() -> None:
    link = OutboundLink(PEER)
    large, small = entry("1-1", {0: list(range(100_000))}), entry("1-2", {0: [7]})
    link.add(large)
    link.add(small)
    names: list[str] = []
    while "1-2" not in names:
        frame = link.take(10_000)
        assert frame is not None
        names += frame.request_ids
        large.choices[0].append(range(2000), None)
        link.mark("1-1")
        assert len(names) < 200, "it has waited long enough"


def test_rejections_do_not_outgrow_a_frame() -> None:
    link = OutboundLink(PEER)
    for ordinal in range(1000):
        link.reject(RejectedCommand(f"1-{ordinal}", 1, ordinal, Status(Code.INVALID_ARGUMENT, "x" * 500)))
    ordinals: list[int] = []
    while (frame := link.take(20_000)) is not None:
        assert response_of(frame).ByteSize() <= 21_000
        ordinals += [rejection.in_reply_to for rejection in frame.rejections]
        assert link.num_rejections == 1000 - len(ordinals)
    assert ordinals == list(range(1000))


@pytest.mark.parametrize(("sent_all", "told"), [(False, True), (True, False)])
def test_whoever_was_not_told_every_end_is_told_that_it_is_over(sent_all: bool, told: bool) -> None:
    link = OutboundLink(PEER)
    one = entry("1-1", {0: [1], 1: [2]})
    one.choices[0].finish(ChoiceEnd(FinishReason.STOP, 1))
    if sent_all:
        one.choices[1].finish(ChoiceEnd(FinishReason.STOP, 1))
    link.add(one)
    link.take()
    link.drop("1-1")
    frame = link.take()
    assert (frame is not None and frame.closed == [("1-1", 1)]) == told


@pytest.mark.parametrize(("ends_with", "epoch"), [("drop", 2), ("withdraw", 1)])
def test_a_peer_that_waits_under_an_earlier_epoch_is_told_the_end(ends_with: str, epoch: int) -> None:
    """A rejection ends the later epoch by itself, but not the one that the peer has heard of."""
    link, one = OutboundLink(PEER), entry("1-1", {0: [1]})
    link.add(one)
    link.take()
    one.epoch = 2
    link.add(one)
    getattr(link, ends_with)("1-1")
    frame = link.take()
    assert frame is not None
    assert (frame.closed, frame.opened) == ([("1-1", epoch)], [])
    assert link.take() is None


def test_a_rejection_ends_the_epoch_that_the_peer_has_heard_of() -> None:
    link, one = OutboundLink(PEER), entry("1-1", {0: [1]})
    for epoch in (1, 2):
        one.epoch = epoch
        link.add(one)
        link.take()
    link.withdraw("1-1")
    assert not link.pending


def test_tokens_wait_for_the_prompts_log_probabilities() -> None:
    link, one = OutboundLink(PEER), entry("1-1", {0: [1, 2]})
    one.prompt_logprobs = packed(TokenLogprob(-float(i), 1, (i,), (-1.0,)) for i in range(100))
    link.add(one)
    frames = []
    while (frame := link.take(600)) is not None:
        frames.append(frame)
    assert len(frames) > 3
    assert [bool(frame.token_ids) for frame in frames] == [False] * (len(frames) - 1) + [True]
    offsets = [offset for frame in frames for _, _, offset, _ in frame.prompt_logprobs]
    assert offsets == sorted(set(offsets))


def test_drafts_come_with_the_entries_of_choices_that_had_any() -> None:
    """A stop string ends a choice where its receiver is, so that it must know them before the end."""
    link = OutboundLink(PEER)
    one = entry("1-0", {0: [5], 1: [6]})
    one.choices[1].drafts = 3, 2
    link.add(one)
    frame = link.take()
    assert frame is not None
    assert (frame.choices, frame.drafts) == ([0, 1], [(1, (3, 2))])
    (told,) = response_of(frame).outputs.drafts
    assert (told.entry, told.accepted_draft_tokens, told.rejected_draft_tokens) == (1, 3, 2)
    one.choices[1].stop_at(1)
    assert one.choices[1].end == ChoiceEnd(FinishReason.STOP, 1, drafts=(3, 2))


def test_results_go_out_in_frames_of_which_each_exceeds_its_room_by_one_at_most() -> None:
    link, log = OutboundLink(PEER), entry("1-1", {choice: [] for choice in range(40)})
    for choice, kept in log.choices.items():
        kept.finish(ChoiceEnd(FinishReason.STOP, 0, pooled=Pooled(bytes([choice]) * 1000, 1)))
    link.add(log)
    ended: list[int] = []
    while (frame := link.take(5000)) is not None:
        message = response_of(frame)
        assert message.ByteSize() <= 5000 + 1000 + 200
        for finished in message.outputs.finished:
            assert finished.pooled.values == bytes([finished.choice]) * 1000
            ended.append(finished.choice)
    assert ended == list(range(40))


def test_that_a_request_has_come_does_not_hurry_until_there_is_more_to_tell() -> None:
    link = OutboundLink(PEER)
    link.take()  # the list of peers
    link.add(one := entry("1-1", {0: []}))
    link.add(entry("1-2", {0: []}))
    assert (link.pending, link.hurries) == (True, False)
    one.prefill = Prefill(3, 0, 0)
    link.mark("1-1")
    assert link.hurries
    frame = link.take()
    assert frame is not None
    assert [opened.request_id for opened in frame.opened] == ["1-1", "1-2"]
    assert [name for name, _, _ in frame.prefills] == ["1-1"]
    assert not link.hurries


def test_whoever_waits_for_a_replay_gets_it_at_once() -> None:
    """The peer has seen a part under the epoch before; or the request has begun."""
    link = OutboundLink(PEER)
    link.add(one := entry("1-1", {0: [5]}))
    link.take()
    one.epoch = 2
    link.add(one)
    assert link.hurries
    link = OutboundLink(PEER)
    link.take()
    begun = entry("1-2", {0: []})
    begun.prefill = Prefill(3, 3, 0)
    link.add(begun)
    assert link.hurries


def test_rejections_and_closings_hurry() -> None:
    link = OutboundLink(PEER)
    link.take()
    link.reject(RejectedCommand("1-1", 1, 1, Status(Code.INVALID_ARGUMENT, "no")))
    assert link.hurries
    link.add(entry("1-2", {0: []}))
    link.take()
    assert not link.hurries
    link.drop("1-2")
    assert link.hurries
