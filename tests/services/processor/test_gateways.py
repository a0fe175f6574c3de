"""Which gateways are known: those that have calls here, by a name that is one, and not more than a page can show."""

import pytest

from services.processor.gateways import MAX_GATEWAYS, Gateways
from services.ring.identity import GATEWAY_HEADER


def names(gateways: Gateways) -> list[str]:
    return [gateway.name for gateway in gateways.all()]


def test_a_gateway_is_known_while_it_has_calls() -> None:
    gateways = Gateways()
    assert gateways.enter([("x-other", "a")]) is None
    end_watch = gateways.watched([(GATEWAY_HEADER, "b")])
    call = gateways.enter([("x-other", "a"), (GATEWAY_HEADER, "b")])
    other = gateways.enter([(GATEWAY_HEADER, "a")])
    assert names(gateways) == ["a", "b"]
    end_watch()
    assert names(gateways) == ["a", "b"], "it has a call"
    gateways.leave(call)
    assert names(gateways) == ["a"]
    gateways.leave(other)
    gateways.leave(None)
    assert names(gateways) == []


@pytest.mark.parametrize("name", ["", "a b", "<b>", "a" * 129, b"bytes"])
def test_what_is_no_name_is_no_gateway(name: str | bytes) -> None:
    gateways = Gateways()
    assert gateways.enter([(GATEWAY_HEADER, name)]) is None
    gateways.watched([(GATEWAY_HEADER, name)])()
    assert names(gateways) == []


def test_one_too_many_is_served_and_not_known_until_another_leaves() -> None:
    gateways = Gateways()
    calls = [gateways.enter([(GATEWAY_HEADER, f"g-{number}")]) for number in range(MAX_GATEWAYS)]
    assert gateways.enter([(GATEWAY_HEADER, "late")]) is None
    gateways.leave(calls[0])
    assert gateways.enter([(GATEWAY_HEADER, "late")]) is not None
    assert len(names(gateways)) == MAX_GATEWAYS
