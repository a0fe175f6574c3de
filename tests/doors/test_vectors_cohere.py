"""Cohere's package: vectors of one server, rankings of another."""

from __future__ import annotations

import base64
from array import array

import pytest

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door
from tests.doors.vectors import Vectors, same

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(vectors_door: Door, ranks_door: Door) -> Shown:
    return run_python("cohere", "vectors_cohere", vectors_door.url, ranks_door.url)


def test_vectors(shown: Shown, vectors: Vectors) -> None:
    found, expected = shown("vectors_by_v2"), vectors.texts_as_queries
    assert same(found["float"], expected)
    assert [base64.b64decode(one) for one in found["base64"]] == [array("f", one).tobytes() for one in expected]
    bits = ["".join(f"{byte:08b}" for byte in one) for one in found["ubinary"]]
    assert bits == ["".join("01"[number > 0] for number in one) for one in expected]
    assert found["texts"] == ASKED["texts"]


def test_vectors_of_the_first_version(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("vectors_by_v1"), vectors.texts_as_passages)


def test_rankings(shown: Shown, ranking: list[list[float]]) -> None:
    assert same(shown("ranks_by_v2"), ranking[:3])
    found = shown("ranks_by_v1")
    assert same([one[:2] for one in found], ranking)
    assert [one[2] for one in found] == [ASKED["documents"][int(index)] for index, _ in ranking]


def test_errors(shown: Shown) -> None:
    assert shown("errors") == "NotFoundError"
