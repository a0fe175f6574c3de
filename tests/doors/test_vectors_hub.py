"""huggingface_hub's client of inference, at TEI's paths."""

from __future__ import annotations

import pytest

from tests.doors.clients import Shown, run_python
from tests.doors.door import Door
from tests.doors.vectors import Vectors, same

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(vectors_door: Door) -> Shown:
    return run_python("huggingface-hub", "vectors_hub", vectors_door.url)


def test_vectors(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("texts"), vectors.texts)
    assert same(shown("text_at_its_path"), [vectors.query_as_query])


def test_similarities(shown: Shown, vectors: Vectors) -> None:
    assert shown("similarities") == pytest.approx(vectors.similarities, abs=1e-6)


def test_chats_are_not_what_the_model_is_for(shown: Shown) -> None:
    assert "generates no text" in shown("chats")
