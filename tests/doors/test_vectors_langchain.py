"""langchain-openai: vectors."""

from __future__ import annotations

import pytest

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door
from tests.doors.vectors import Vectors, same

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(vectors_door: Door) -> Shown:
    return run_python("langchain", "vectors_langchain", vectors_door.api)


def test_vectors(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("documents"), vectors.texts)
    assert same(shown("documents_async"), vectors.texts)
    assert same(shown("query"), vectors.query)


def test_a_store_of_vectors(shown: Shown, vectors: Vectors) -> None:
    nearest = sorted(range(len(vectors.texts)), key=lambda index: -vectors.similarities[index])
    assert shown("store") == [ASKED["texts"][index] for index in nearest[:2]]
