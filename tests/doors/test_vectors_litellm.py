"""litellm, as a library: vectors of one server, rankings of another."""

from __future__ import annotations

import pytest

from tests.doors.clients import Shown, run_python
from tests.doors.door import Door
from tests.doors.vectors import Vectors, same

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(vectors_door: Door, ranks_door: Door) -> Shown:
    return run_python("litellm", "vectors_litellm", vectors_door.url, ranks_door.url)


@pytest.mark.parametrize("provider", ["vllm", "openai"])
def test_vectors(shown: Shown, vectors: Vectors, provider: str) -> None:
    assert same(shown(f"vectors_as_{provider}"), vectors.texts)


@pytest.mark.parametrize(("provider", "top_n"), [("vllm", None), ("jina", 2), ("cohere", 2)])
def test_rankings(shown: Shown, ranking: list[list[float]], provider: str, top_n: int | None) -> None:
    assert same(shown(f"ranks_as_{provider}"), ranking[:top_n])


def test_errors(shown: Shown) -> None:
    assert shown("errors") == "NotFoundError"
