"""The openai package of Python: vectors."""

from __future__ import annotations

import pytest

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door
from tests.doors.vectors import Vectors, same

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(vectors_door: Door) -> Shown:
    return run_python("openai", "vectors_openai", vectors_door.api)


def test_models(shown: Shown) -> None:
    model = shown("models")
    assert (model["id"], model["tasks"]) == ("embedder", ["embed", "token_embed"])
    assert model["pooling"]["dimensions"] == 64


def test_vectors(shown: Shown, vectors: Vectors) -> None:
    found = shown("vectors")
    assert same(found["vectors"], vectors.texts)
    assert found["model"] == "embedder"
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > sum(map(len, ASKED["texts"])) // 2


def test_vectors_as_numbers(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("as_numbers"), vectors.texts)


def test_vectors_of_one_text_and_of_ids(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("of_one_text"), vectors.texts[0])
    assert same(shown("of_ids"), vectors.of_ids)


def test_fields_of_vllm(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("with_fields_of_vllm"), vectors.cut)


def test_many_at_once(shown: Shown, vectors: Vectors) -> None:
    assert same(shown("many"), [vectors.texts[at % 3] for at in range(60)])


def test_errors(shown: Shown) -> None:
    assert shown("errors") == {
        "model": ["NotFoundError", 404, "model", "model_not_found"],
        "input": ["BadRequestError", 400, "input", "invalid_field"],
        "an empty text": ["BadRequestError", 400, "input[1]", "invalid_field"],
        "a long text": ["BadRequestError", 400, "input[1]", "context_length_exceeded"],
        "dimensions": ["BadRequestError", 400, "dimensions", "invalid_field"],
        "a chat": ["BadRequestError", 400, "model", "unsupported"],
    }
