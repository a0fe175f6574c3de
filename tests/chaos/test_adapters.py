"""The checker of requests that name adapters finds what is wrong, and their pool has every name and tenant."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ringline import Adapter, Delta, Finished, FinishReason, Usage

from tests.chaos.adapters.judge import LAG, Judge
from tests.chaos.adapters.names import CONTENTS, NAMES, NOBODY, ONE, TWO
from tests.chaos.adapters.requests import AdapterSpec, pool
from tests.chaos.adapters.sightings import Sighting, Sightings
from tests.chaos.outcome import Defect, Outcome
from tests.chaos.workload import RequestSpec

DIGESTS = {contents: f"{number:064x}" for number, contents in enumerate(CONTENTS)}
SPEC = AdapterSpec("greedy-called-one", "x", kind="greedy", adapter="called", tenant=ONE)
OTHERS = AdapterSpec("x", "x", kind="greedy", adapter="called-of-two", tenant=ONE, is_permitted=False)
PLAIN = RequestSpec("plain", "x")
NOW, BEFORE, STALE = "called.1", "called.0", "called.2"


Known = Mapping[tuple[str, str], bool] | None
REPLACED: Known = {("called", DIGESTS[NOW]): True, ("called", DIGESTS[BEFORE]): False}
EARLIER: Known = {("called", DIGESTS[BEFORE]): True}
ANEW: Known = {("called", DIGESTS[NOW]): True}
NONE: Known = {}
HANGS: Known = None


def seen(*engines: Known) -> Sightings:
    """Engines that have told the same for long, and will."""
    fakes: list[Any] = [SimpleNamespace(name=f"engine-{number}") for number in range(len(engines))]
    sightings, now = Sightings(fakes), time.monotonic()
    for fake, known in zip(fakes, engines, strict=True):
        for at in range(-2 * int(LAG), 20):
            sightings._seen[fake.name].append(Sighting(now + at, now + at + 0.1, known))
    return sightings


def answer(token: int, contents: str | None, name: str = "called") -> Outcome:
    outcome = Outcome(usage=Usage(1, 0, 1))
    if contents is not None:
        outcome.adapter = Adapter(name, DIGESTS[contents])
    outcome.add(Delta(0, 0, "a", (token,), None))
    outcome.add(Finished(0, FinishReason.LENGTH, None, None))
    return outcome


def failed(reason: str, error: str = "NotFound: none", contents: str | None = None) -> Outcome:
    outcome = Outcome(error=error, reason=reason)
    if contents is not None:
        outcome.adapter = Adapter("called", DIGESTS[contents])
    return outcome


async def judged(
    spec: RequestSpec, outcome: Outcome, sightings: Sightings | None = None
) -> tuple[dict[Defect, str], Mapping[str, int]]:
    answers = {("greedy", digest): answer(5 + int(digest, 16), None) for digest in DIGESTS.values()}
    judge = Judge({"plain": answer(1, None)}, answers, DIGESTS, sightings or seen(REPLACED, REPLACED))
    return await judge(spec, outcome, cancelled=False), judge.counts


def right(contents: str) -> int:
    return 5 + int(DIGESTS[contents], 16)


async def test_a_request_gets_what_its_adapter_computes() -> None:
    assert await judged(SPEC, answer(right(NOW), NOW)) == ({}, {"with adapters": 1, "moved": 0})
    assert (await judged(PLAIN, answer(1, None)))[0] == {}
    assert (await judged(SPEC, answer(right(BEFORE), BEFORE), seen(REPLACED, EARLIER)))[0] == {}, "engines differ"


@pytest.mark.parametrize(
    ("spec", "outcome", "words"),
    [
        (SPEC, answer(1, None), "the base answered"),
        (SPEC, answer(right("turning.0"), "turning.0", "turning"), "of turning.0"),
        (SPEC, answer(right("turning.0"), "turning.0"), "of turning.0"),
        (SPEC, answer(right(STALE), STALE), "called.2, which its name did not stand for"),
        (SPEC, answer(right(STALE), NOW), "differs from token 0"),
        (OTHERS, answer(right("called-of-two.0"), "called-of-two.0", "called-of-two"), "tenant 'one' got"),
        (OTHERS, failed("ADAPTER_NOT_FOUND", "there is no 'x': expected one such as 'called-of-two'"), None),
        (SPEC, failed("ADAPTER_NOT_FOUND", "expected one such as 'called-of-two'"), "was told of ['called-of-two']"),
        (PLAIN, answer(1, NOW), "it got Adapter"),
    ],
    ids=["base", "another", "under its name", "stale", "other tokens", "forbidden", "asked", "told", "unasked"],
)
async def test_what_it_must_not_get_is_found(spec: RequestSpec, outcome: Outcome, words: str | None) -> None:
    found, counts = await judged(spec, outcome)
    if words is None:
        assert (found, counts["not permitted"]) == ({}, 1)
    else:
        assert words in found[Defect.ALTERED]


async def test_a_refusal_needs_a_reason() -> None:
    refused = failed("ADAPTER_NOT_FOUND")
    assert Defect.LOST in (await judged(SPEC, refused, seen(ANEW, NONE)))[0], "an engine has it"
    for sightings in seen(NONE, NONE), seen(NONE, HANGS):
        found, counts = await judged(SPEC, refused, sightings)
        assert (found, counts["not there"]) == ({}, 1)
    assert Defect.LOST in (await judged(SPEC, failed("NO_ROUTE", "no engine"), seen(NONE)))[0]


@pytest.mark.parametrize(("then", "is_known"), [(REPLACED, True), (ANEW, False)], ids=["known", "gone"])
async def test_an_adapter_is_gone_only_if_no_engine_has_it(then: Known, is_known: bool) -> None:
    """It was replaced a second ago; then the engine either knew it, or had been started anew."""
    sightings = seen(then, ANEW)
    for number, one in enumerate(earlier := sightings._seen["engine-0"]):
        if one.asked < time.monotonic() - 1:
            earlier[number] = replace(one, known=EARLIER)
    found, counts = await judged(SPEC, failed("ADAPTER_GONE", "Unavailable: gone", BEFORE), sightings)
    assert (set(found), counts["gone"]) == (({Defect.LOST}, 0) if is_known else (set(), 1))


def test_every_name_is_asked_for_by_who_may_and_by_who_may_not() -> None:
    specs = pool(3)
    assert len({spec.name for spec in specs}) == len(specs)
    asked = {(spec.adapter, spec.tenant): spec.is_permitted for spec in specs}
    expected = {(name.name, tenant): tenant in name.tenants for name in NAMES.values() for tenant in (ONE, TWO, NOBODY)}
    assert asked == {key: may for key, may in expected.items() if key != ("missing", TWO)}
