"""Names, incarnations, ring ids, versions and capabilities."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ring.errors import Code, Reason, Refused
from services.ring.identity import (
    ENGINE_CAPABILITIES,
    FORMAT_CAPABILITIES,
    MAX_CAPABILITY_BYTES,
    MAX_REQUEST_ID_LENGTH,
    MAX_REQUIRED_CAPABILITIES,
    MAX_VERSION,
    MIN_VERSION,
    check_requires,
    is_ring_id_of,
    negotiate,
    ring_id,
)
from text_core.parsing import formats

lives = st.integers(1, 2**64 - 1)
counters = st.integers(0, 2**64)


@given(life=lives, other=lives, counter=counters)
def test_a_ring_id_belongs_to_one_life(life: int, other: int, counter: int) -> None:
    name = ring_id(life, counter)
    assert is_ring_id_of(name, life)
    assert is_ring_id_of(name, other) == (life == other)


@given(life=st.integers(1, 99), text=st.text("0123456789-+ _a٣", max_size=8))
def test_only_decimal_numbers_with_one_dash_are_ring_ids(life: int, text: str) -> None:
    assert is_ring_id_of(text, life) == bool(re.fullmatch(f"{life}-[0-9]+", text))


def test_a_ring_id_has_a_longest_length() -> None:
    longest = "7-" + "1" * (MAX_REQUEST_ID_LENGTH - 2)
    assert is_ring_id_of(longest, 7)
    assert not is_ring_id_of(longest + "1", 7)


@pytest.mark.parametrize(("lowest", "highest"), [(1, 1), (1, 7), (0, 1)])
def test_the_highest_common_version_is_spoken(lowest: int, highest: int) -> None:
    assert negotiate("processor-0.a_B", 1, lowest, highest) == MAX_VERSION


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        (("", 1), "hello.name"),
        (("a b", 1), "hello.name"),
        (("a\n", 1), "hello.name"),
        (("é", 1), "hello.name"),
        (("x" * 129, 1), "hello.name"),
        (("ok", 0), "hello.incarnation"),
    ],
)
def test_a_bad_hello_is_named_by_field(hello: tuple[str, int], field: str) -> None:
    with pytest.raises(Refused, match=field) as caught:
        negotiate(*hello, MIN_VERSION, MAX_VERSION)
    assert caught.value.status.field == field


@pytest.mark.parametrize(
    ("lowest", "highest", "spoken"),
    [(2, 2, "speaks versions 2 to 2 "), (2, 9, "speaks versions 2 to 9 "), (1, 0, "names no"), (0, 0, "names no")],
)
def test_a_peer_without_a_common_version_is_refused_by_name(lowest: int, highest: int, spoken: str) -> None:
    with pytest.raises(Refused, match=f"engine-0 {spoken}.*expected one of {MIN_VERSION} to {MAX_VERSION}") as caught:
        negotiate("engine-0", 1, lowest, highest)
    assert caught.value.status.reason is Reason.VERSION_MISMATCH


def test_the_problem_fits_into_a_status_however_long_the_name_is() -> None:
    with pytest.raises(Refused) as caught:
        negotiate("x" * 10_000_000, 1, 1, 1)
    assert len(caught.value.status.message) < 1000


def test_what_is_known_may_be_required() -> None:
    check_requires([], ENGINE_CAPABILITIES)
    check_requires([*ENGINE_CAPABILITIES, ENGINE_CAPABILITIES[0]], ENGINE_CAPABILITIES)


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"requires\[1\]: 'constraint.json_schema' is not known here") as caught:
        check_requires([ENGINE_CAPABILITIES[0], "constraint.json_schema"], ENGINE_CAPABILITIES)
    status = caught.value.status
    assert (status.code, status.reason, status.field) == (
        Code.FAILED_PRECONDITION,
        Reason.CAPABILITY_MISSING,
        "requires[1]",
    )


@pytest.mark.parametrize("names", [["x"] * (MAX_REQUIRED_CAPABILITIES + 1), ["x" * (MAX_CAPABILITY_BYTES + 1)]])
def test_names_are_few_and_short(names: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        check_requires(names, {"x", names[0]})
    assert caught.value.status.code is Code.INVALID_ARGUMENT
    assert len(caught.value.status.message) < 200


def test_every_format_that_the_first_release_lacks_is_a_capability() -> None:
    assert FORMAT_CAPABILITIES == formats.FORMAT_CAPABILITIES
