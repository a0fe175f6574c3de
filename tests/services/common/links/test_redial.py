"""What is said of a link that does not stand, and what is left unsaid while peers start."""

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.common.links.channels import Endpoint
from services.common.links.discovery import PeerDedup
from services.common.links.redial import Backoff, LinkRefused, maintain_link, parse_welcome
from services.common.rpc.shared_messages import welcome_message
from services.ring.identity import MAX_VERSION, PeerId


async def told(monkeypatch, attempts, *, silence=1000.0):
    """What is logged of links that end like ``attempts``: an exception, or one after the link stood ("up", …)."""
    monkeypatch.setattr("services.common.links.redial.MIN_BACKOFF", 0.001)
    monkeypatch.setattr("services.common.links.redial.MAX_BACKOFF", 0.001)
    monkeypatch.setattr("services.common.links.redial.UNREACHABLE_LOG_DELAY", silence)
    left = list(attempts)
    done = asyncio.Event()

    async def carry(channel, backoff):
        if not left:
            done.set()
            await asyncio.Event().wait()
        outcome = left.pop(0)
        if isinstance(outcome, tuple):
            backoff.reset()
            outcome = outcome[1]
        if outcome is not None:
            raise outcome

    with capture_logs() as logs:
        task = asyncio.create_task(maintain_link(Endpoint("unix:/nowhere"), carry))
        await asyncio.wait_for(done.wait(), 60)
        task.cancel()
        await asyncio.wait({task})
    return [(entry["event"], entry.get("reason")) for entry in logs]


def ended(code, details):
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def unavailable(details):
    return ended(grpc.StatusCode.UNAVAILABLE, details)


NOBODY = (
    "failed to connect to all addresses; last error: UNKNOWN: unix:/nowhere: connect failed: No such file or directory"
)


async def test_peers_that_are_still_starting_are_not_worth_a_word(monkeypatch):
    assert await told(monkeypatch, [unavailable(NOBODY), unavailable("the engine is loading"), TimeoutError()]) == []


async def test_one_that_stays_away_is_told_once_per_reason(monkeypatch):
    attempts = [unavailable(NOBODY), unavailable(NOBODY), unavailable("the engine is loading")]
    assert await told(monkeypatch, attempts, silence=0.0) == [
        ("not linked", "No such file or directory"),
        ("not linked", "the engine is loading"),
    ]


@pytest.mark.parametrize(
    "refusal",
    [
        LinkRefused("it serves something else"),
        ended(grpc.StatusCode.FAILED_PRECONDITION, "it serves something else"),
        ended(grpc.StatusCode.PERMISSION_DENIED, "it serves something else"),
    ],
)
async def test_one_that_refuses_is_told_at_once(monkeypatch, refusal):
    assert await told(monkeypatch, [refusal] * 3) == [("not linked", "it serves something else")]


@pytest.mark.parametrize(
    ("version", "problem"), [(0, "names no version"), (MAX_VERSION + 1, f"chose version {MAX_VERSION + 1}")]
)
def test_a_version_that_was_not_offered_is_refused_by_name(version, problem):
    me = PeerId("engine-0", 7)
    assert parse_welcome(welcome_message(me, MAX_VERSION, 1 << 20)) == me
    with pytest.raises(LinkRefused, match=f"engine-0 {problem}"):
        parse_welcome(welcome_message(me, version, 1 << 20))


@pytest.mark.parametrize(
    ("end", "reason"), [(None, "the peer ended the link"), (unavailable("Socket closed"), "Socket closed")]
)
async def test_a_link_that_ended_is_told_each_time_with_the_reason(monkeypatch, end, reason):
    assert await told(monkeypatch, [("up", end), unavailable(NOBODY), ("up", end)]) == [("link ended", reason)] * 2


async def test_an_unexpected_error_ends_its_link_alone(monkeypatch):
    assert await told(monkeypatch, [("up", KeyError("x")), ("up", None)]) == [
        ("link failed", None),
        ("link ended", "an unexpected error"),
        ("link ended", "the peer ended the link"),
    ]


def test_a_second_address_of_a_linked_peer_is_known_as_a_duplicate():
    """Else ``ringline status`` would look for a peer there that is attached already."""
    dedup, peer = PeerDedup(), PeerId("engine-0", 1)
    with dedup.claim(peer, "127.0.0.1:50061"):
        assert dedup.duplicates == frozenset()
        with pytest.raises(LinkRefused), dedup.claim(peer, "[::1]:50061"):
            raise AssertionError
        assert dedup.duplicates == {"[::1]:50061"}
    assert dedup.duplicates == frozenset()


def upper(low, high):
    return high


def test_waits_double_up_to_the_longest_and_begin_anew_after_a_success():
    backoff = Backoff(0.1, 1.0, uniform=upper)
    assert [backoff.next() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1)


@given(st.floats(0.01, 10), st.floats(1, 100), st.floats(1, 4), st.integers(1, 30))
def test_no_wait_is_near_zero_or_above_the_longest(first, times, factor, attempts):
    backoff = Backoff(first, first * times, factor)
    ceiling = first
    for _ in range(attempts):
        wait = backoff.next()
        assert ceiling / 2 <= wait <= ceiling
        ceiling = min(ceiling * factor, first * times)


def test_peers_that_lost_the_same_server_do_not_return_together():
    assert len({Backoff(1.0, 1.0).next() for _ in range(20)}) > 10


@pytest.mark.parametrize("arguments", [(0, 1), (2, 1), (1, 2, 0.5)])
def test_schedules_that_are_none(arguments):
    with pytest.raises(ValueError, match="no backoff"):
        Backoff(*arguments)
