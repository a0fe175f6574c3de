"""instructor: what it reads of a call, of a form and of responses is an instance of the class."""

from __future__ import annotations

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_python("instructor", "instructor_python", door.api)


FORMS = ("call", "schema", "responses")


def test_chat(shown: Shown, answer: Generation) -> None:
    assert shown("chat") == answer.content


@pytest.mark.parametrize("subject", ["structured", "partial"])
def test_instances(shown: Shown, native: Client, subject: str) -> None:
    """The class refuses what it does not have; the schema alone is not in the prompt, so the answer is the ring's."""
    instances = shown(subject)
    assert {form: tuple(sorted(fruit)) for form, fruit in instances.items()} == dict.fromkeys(FORMS, ("count", "unit"))
    formed = native.generate(
        messages=ASKED["messages"], temperature=0.0, max_tokens=ASKED["max_tokens"], json_schema=ASKED["schema"]
    )
    assert instances["schema"] == formed.parsed


def test_asked_again(shown: Shown) -> None:
    assert shown("asked_again") == dict.fromkeys(FORMS, 2)
