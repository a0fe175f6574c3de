"""A request that depends on what is not known is refused by name, never answered without it."""

from __future__ import annotations

import pytest

from services.ring.errors import Code, Reason, Refused
from services.ring.identity import ENGINE, MAX_NAME_BYTES, MAX_REQUIRED, check_requires


def test_what_is_known_may_be_required() -> None:
    check_requires([], ENGINE)
    check_requires([*ENGINE, *ENGINE], ENGINE)


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"requires\[1\]: 'constraint.json_schema' is not known here") as caught:
        check_requires([ENGINE[0], "constraint.json_schema"], ENGINE)
    status = caught.value.status
    assert (status.code, status.reason, status.field) == (
        Code.FAILED_PRECONDITION,
        Reason.CAPABILITY_MISSING,
        "requires[1]",
    )


@pytest.mark.parametrize("names", [["x"] * (MAX_REQUIRED + 1), ["x" * (MAX_NAME_BYTES + 1)]])
def test_names_are_few_and_short(names: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        check_requires(names, {"x", names[0]})
    assert caught.value.status.code is Code.INVALID_ARGUMENT
    assert len(caught.value.status.message) < 200
