"""A request with an adapter goes where that adapter is, with those contents, also when it moves."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2

from services.common.rpc.shared_messages import status_to_proto
from services.engine.adapters.registry import Generation as AdapterGeneration
from services.processor.admission.model_choice import Chosen
from services.processor.admission.request_resolution import resolve_request
from services.processor.request import Asked, Request
from services.ring.adapters import Adapter
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.identity import ADAPTERS
from tests.services.processor.ring_requests import Ring, ask, expected, route_of
from tests.services.ring.ring_simulation import MODEL_MESSAGE

FRENCH, LATER = Adapter("fr", "1" * 64), Adapter("fr", "2" * 64)


def found(name: str, digest: str, *, is_new: bool) -> AdapterGeneration:
    """An engine has each adapter."""
    file: Any = SimpleNamespace(digest=digest)
    return AdapterGeneration(name, file, "")


class AdapterRing:
    """A ring whose engines serve adapters."""

    def __init__(self, ring: Ring, *older: str) -> None:
        """``older``: names of engines of a release that knows no adapters."""
        self.ring = ring
        for name in list(ring.engines):
            if name not in older:
                self.restart(name)

    def restart(self, name: str) -> None:
        message = self.ring.described[name] = engine_pb2.GetModelResponse()
        message.CopyFrom(MODEL_MESSAGE)
        message.capabilities.append(ADAPTERS)
        self.ring.kill_engine(name)
        engine = self.ring.engines[name]
        engine.capabilities, engine.find_adapter = (*engine.capabilities, ADAPTERS), found
        self.ring.heal()
        self.ring.flow()

    def tell(self, name: str, *known: Adapter, gone: tuple[Adapter, ...] = (), loaded: bool = False) -> None:
        changes = engine_pb2.AdapterChanges(complete=True)
        for each in known:
            state = changes.states.add(current=each is known[-1], loaded=loaded)
            state.adapter.name, state.adapter.digest = each.name, each.digest
        for each in gone:
            changes.gone.add(name=each.name, digest=each.digest)
        self.ring.engine_says(name, adapters=changes)

    def ask(self, name: str = "r", *, max_tokens: int = 20, adapter: str = "fr") -> Request:
        message = ask(max_tokens, name=name)
        message.adapter = adapter
        return self.start(message)

    def start(self, message: inference_pb2.GenerateRequest, chosen: Chosen | Refused | None = None) -> Request:
        ring, resume = self.ring, message.resume
        asked = Asked(message.model, message.adapter, resume.model_digest, resume.adapter_digest)
        chosen = chosen or ring.choices.choose(asked, "")
        assert isinstance(chosen, Chosen), chosen
        resolved = resolve_request(message, chosen.model, "", ring.me, adapter=chosen.adapter)
        request = ring.receive(message)
        ring.in_flight.start(request, resolved)
        return request

    def submits(self, name: str) -> list[engine_pb2.Submit]:
        """What an engine was sent and has not read."""
        frames = map(engine_pb2.AttachRequest.FromString, self.ring.stream(name).commands)
        return [command.submit for frame in frames for command in frame.commands if command.HasField("submit")]

    def refuse(self, call: Request) -> None:
        """The call's engine says that it does not know the adapter."""
        status = Status(Code.FAILED_PRECONDITION, "it has no such adapter", given_reason=Reason.ADAPTER_GONE)
        rejection = link_pb2.Rejection(
            request_id=call.request_id, epoch=call.delivery.epoch, status=status_to_proto(status)
        )
        self.ring.engine_says(route_of(call).engine.name, rejections=[rejection])

    def error(self) -> Status:
        ends = [response.choice_finished for response in self.ring.events("choice_finished")]
        (error,) = [end.error for end in ends if end.HasField("error")]
        return Status(Code(error.code), error.message)


@pytest.fixture
def two(wide: Ring) -> AdapterRing:
    return AdapterRing(wide)


def test_it_goes_to_the_engine_that_knows_the_adapter(two: AdapterRing) -> None:
    two.tell("engine-1", FRENCH)
    calls = [two.ask(f"r{number}") for number in range(6)]
    assert {route_of(call).engine.name for call in calls} == {"engine-1"}
    submits = two.submits("engine-1")
    assert len(submits) == 6
    for submit in submits:
        assert (submit.adapter.name, submit.adapter.digest) == ("fr", "1" * 64)
        assert ADAPTERS in submit.requires
    two.ring.settle()
    admitted = two.ring.events("admitted")[0].admitted
    assert (admitted.adapter.name, admitted.adapter.digest) == ("fr", "1" * 64)
    assert two.ring.quiet


def test_an_engine_of_an_earlier_release_never_gets_it(wide: Ring) -> None:
    ring = AdapterRing(wide, "engine-0")
    ring.tell("engine-0", FRENCH)  # whatever it says
    ring.tell("engine-1", FRENCH)
    assert {route_of(ring.ask(f"r{number}")).engine.name for number in range(6)} == {"engine-1"}
    assert {route_of(wide.ask(ask(name=f"p{number}"))).engine.name for number in range(20)} == {"engine-0", "engine-1"}


def test_the_engine_that_holds_the_weights_comes_first_until_it_is_busy(two: AdapterRing) -> None:
    two.tell("engine-0", FRENCH)
    two.tell("engine-1", FRENCH, loaded=True)
    names = [route_of(two.ask(f"r{number}")).engine.name for number in range(12)]
    assert names[:8] == ["engine-1"] * 8
    assert "engine-0" in names


@pytest.mark.parametrize("new_name", [False, True])
def test_it_moves_with_its_digest_though_the_name_stands_for_another_by_now(two: AdapterRing, new_name: bool) -> None:
    two.tell("engine-0", FRENCH)
    two.tell("engine-1", FRENCH)
    call = two.ask(max_tokens=60)
    two.ring.flow(tokens=3)
    first = route_of(call).engine.name
    (other,) = {"engine-0", "engine-1"} - {first}
    if new_name:
        two.tell(other, FRENCH, LATER)
    two.ring.kill_engine(first)
    assert route_of(call).engine.name == other
    assert [submit.adapter.digest for submit in two.submits(other)] == [FRENCH.digest]
    two.restart(first)
    two.tell(first, LATER)
    two.ring.settle()
    assert two.ring.ids() == expected(60)
    later = two.ask("new")
    assert later.resolved.submit.adapter.digest == LATER.digest
    two.ring.settle()
    assert two.ring.quiet


def test_it_waits_for_an_engine_that_has_its_digest(two: AdapterRing) -> None:
    two.tell("engine-1", FRENCH)
    call = two.ask(max_tokens=60)
    two.ring.flow(tokens=3)
    two.restart("engine-1")
    two.tell("engine-1", LATER)
    two.ring.settle(3)
    assert call.route is None
    two.tell("engine-0", FRENCH)
    two.ring.settle()
    assert two.ring.ids() == expected(60)
    assert two.ring.quiet


def test_where_none_has_it_any_more_the_request_ends_as_gone(two: AdapterRing, clock: SimpleNamespace) -> None:
    two.tell("engine-0", FRENCH)
    two.ring.dispatcher.route_timeout = 5.0
    two.ask(max_tokens=60)
    two.ring.flow(tokens=3)
    two.restart("engine-0")
    two.tell("engine-0", LATER)
    clock.now = time.monotonic() + 6
    two.ring.trust()
    error = two.error()
    assert error.code is Code.UNAVAILABLE
    assert error.message == "no engine has had adapter 'fr' with digest 111111111111… for 5 s; send the request anew"


def test_an_engine_that_refuses_it_is_passed_over(two: AdapterRing) -> None:
    two.tell("engine-0", FRENCH)
    two.tell("engine-1", FRENCH)
    call = two.ask(max_tokens=60)
    first = route_of(call).engine.name
    two.ring.stream(first).commands.clear()
    two.refuse(call)
    two.ring.tick()
    assert route_of(call).engine.name != first
    two.ring.settle()
    assert two.ring.ids() == expected(60)
    assert route_of(two.ask("next")).engine.name != first, "until the engine tells that it has it again"
    two.ring.settle()
    assert two.ring.quiet


def test_a_new_request_whose_adapter_was_replaced_on_the_way_ends_at_once(two: AdapterRing) -> None:
    two.tell("engine-0", FRENCH)
    call = two.ask()
    two.ring.stream("engine-0").commands.clear()
    two.tell("engine-0", LATER, gone=(FRENCH,))
    two.refuse(call)
    error = two.error()
    assert error.code is Code.UNAVAILABLE
    assert "was replaced or unloaded before an engine began with it; send the request again" in error.message


def test_a_new_request_that_waits_ends_once_its_adapter_is_replaced(two: AdapterRing) -> None:
    two.tell("engine-0", FRENCH)
    two.tell("engine-1", FRENCH)
    message = ask()
    message.adapter = "fr"
    chosen = two.ring.choices.choose(Asked(adapter="fr"), "")
    assert isinstance(chosen, Chosen)
    for name in ("detokenizer-0", "detokenizer-1"):
        two.ring.kill_detokenizer(name)
    call = two.start(message, chosen)
    assert call.route is None
    two.tell("engine-0", LATER, gone=(FRENCH,))
    two.tell("engine-1", FRENCH, LATER)
    two.ring.tick()
    assert two.ring.client.num_live == 1, "one engine still knows it"
    two.tell("engine-1", LATER, gone=(FRENCH,))
    two.ring.tick()
    assert "was replaced or unloaded" in two.error().message


def test_prompts_with_different_adapters_share_no_prefixes(two: AdapterRing) -> None:
    german = Adapter("de", "3" * 64)
    two.tell("engine-0", FRENCH)
    two.tell("engine-0", german)
    two.tell("engine-1", FRENCH)
    long = [inference_pb2.GenerateRequest(request_id=f"l{number}", text="ab" * 10) for number in range(3)]
    long[1].adapter, long[2].adapter = "fr", "de"
    calls = [two.start(message) for message in long]
    plain, french, other = (set(call.resolved.prefixes.hashes) for call in calls)
    assert all((plain, french, other))
    assert plain.isdisjoint(french | other)
    assert french.isdisjoint(other)
    two.ring.settle()


def test_an_adapter_that_this_release_cannot_name_is_skipped(two: AdapterRing) -> None:
    two.tell("engine-0", FRENCH)
    changes = engine_pb2.AdapterChanges(complete=True)
    changes.states.add(current=True).adapter.name = "not a name!"
    two.ring.engine_says("engine-0", adapters=changes)
    assert route_of(two.ask()).engine.name == "engine-0"
