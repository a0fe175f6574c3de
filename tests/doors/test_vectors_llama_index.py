"""llama-index's classes for OpenAI's API and for TEI."""

from __future__ import annotations

import pytest

from tests.doors.clients import Shown, run_python
from tests.doors.door import Door
from tests.doors.vectors import Vectors, same

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(vectors_door: Door) -> Shown:
    return run_python("llama-index", "vectors_llama_index", vectors_door.url)


@pytest.mark.parametrize("api", ["openai", "tei"])
def test_vectors(shown: Shown, vectors: Vectors, api: str) -> None:
    assert same(shown(f"texts_by_{api}"), vectors.texts)
    assert same(shown(f"query_by_{api}"), vectors.query)


def test_vectors_async(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("texts_by_openai_async"), vectors.texts)
