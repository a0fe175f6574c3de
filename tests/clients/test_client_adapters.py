"""Adapters by the library: how a request names one, keeps it through losses, and what else can be done with them."""

import grpc
import pytest
import ringline
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import adapter_pb2, output_pb2

from tests.clients.either_client import CLIENTS, answer, connected
from tests.clients.pooling_server import PoolingInference
from tests.clients.scripted_server import Abort, admitted, delta, ended, play, refusal, serving, status

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
LOST = Abort(UNAVAILABLE, "the processor died")
PROMPT = [4, 5, 6]
FIRST, LATER = "1" * 64, "2" * 64

pytestmark = pytest.mark.usefixtures("short_delays")


def taken(digest: str = FIRST) -> pb.GenerateResponse:
    adapter = adapter_pb2.Adapter(name="fr", digest=digest)
    return admitted(prompt_token_ids=PROMPT, adapter=adapter, model_digest="model")


def gone(message: str = "no engine has it") -> pb.GenerateResponse:
    return refusal(UNAVAILABLE, message, error_details_pb2.ErrorInfo(reason="ADAPTER_GONE", domain="ringline"))


def failed(delivered: int = 0) -> list[pb.GenerateResponse]:
    """As a processor ends an admitted request whose adapter no engine has."""
    info = error_details_pb2.ErrorInfo(reason="ADAPTER_GONE", domain="ringline")
    return ended(
        output_pb2.FINISH_REASON_ERROR, completion=delivered, error=status(UNAVAILABLE, "no engine has it", info)
    )


async def test_a_request_with_an_adapter_asks_for_the_capability_and_says_which_it_got(server, ask):
    server.plays(play(taken(), delta(0, [10], "a"), ended(completion=1)))
    outcome = await ask("Hi", adapter="fr")
    (request,) = server.service.requests
    assert (request.adapter, list(request.requires)) == ("fr", ["adapters"])
    assert outcome.generation.request.adapter == ringline.Adapter("fr", FIRST)


@pytest.mark.parametrize("options", [{"adapter": "fr"}, {"model": "tiny:fr"}, {"model": "fr"}])
async def test_a_lost_request_goes_on_with_the_digest_it_began_with(server, ask, options):
    server.plays(play(taken(), delta(0, [10], "a"), LOST), play(taken(), delta(1, [11], "b"), ended(completion=2)))
    outcome = await ask("Hi", **options)
    assert outcome.generation.text == "ab"
    _, again = server.service.requests
    assert (again.model, again.adapter, again.resume.adapter_digest) == ("tiny", "fr", FIRST)
    assert "adapters" in again.requires


@pytest.mark.parametrize("end", ["refused", "failed"])
async def test_before_any_output_a_request_takes_the_adapter_that_replaced_its_own(server, ask, end):
    lost = play(gone()) if end == "refused" else play(taken(), failed())
    begun = play(taken(LATER), delta(0, [10], "a"), LOST)
    server.plays(play(taken(), LOST), lost, begun, play(taken(LATER), failed(delivered=1)))
    outcome = await ask("Hi", adapter="fr")
    assert isinstance(outcome.error, ringline.Unavailable)
    assert outcome.error.reason == "ADAPTER_GONE"
    digests = [request.resume.adapter_digest for request in server.service.requests]
    assert digests == ["", FIRST, "", LATER], "what has begun keeps its adapter, and ends if that is gone"
    assert outcome.error.partial.request.adapter.digest == LATER


async def test_a_server_that_goes_on_with_another_adapter_is_not_believed(server, ask):
    server.plays(play(taken(), delta(0, [10], "a"), LOST), play(taken(LATER), delta(1, [11], "b"), ended(completion=2)))
    outcome = await ask("Hi", adapter="fr")
    assert isinstance(outcome.error, ringline.ProtocolError)
    assert "the resumed request has another adapter than before" in str(outcome.error)


@CLIENTS
async def test_adapters_are_listed_loaded_and_unloaded(server, kind):
    service = server.service
    service.model.adapters.add(name="fr", digest=FIRST)
    for name in "abcde":
        service.adapters.append(pb.ListedAdapter(adapter=adapter_pb2.Adapter(name=name, digest=FIRST), engines=2))
    async with connected(kind, server.address) as connection:
        (model,) = await answer(connection, connection.models)
        assert model.adapters == (ringline.Adapter("fr", FIRST),)
        listed = await answer(connection, connection.adapters)
        assert [each.adapter.name for each in listed] == list("abcde")
        assert listed[0] == ringline.ListedAdapter(ringline.Adapter("a", FIRST), 2, 0)
        assert (await answer(connection, lambda: connection.load_adapter("fr", "folder", replace=True))).digest == FIRST
        assert (await answer(connection, lambda: connection.unload_adapter("fr", model="tiny"))).name == "fr"
        assert service.controlled == [
            pb.LoadAdapterRequest(name="fr", path="folder", replace=True),
            pb.UnloadAdapterRequest(name="fr", model="tiny"),
        ]
        service.unary_failures = [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS]
        for error in (ringline.PermissionDenied, ringline.FailedPrecondition):
            with pytest.raises(error):
                await answer(connection, lambda: connection.load_adapter("fr", "folder"))


@CLIENTS
@pytest.mark.parametrize("digests", [[FIRST, FIRST, FIRST], [FIRST, LATER, FIRST]])
async def test_vectors_say_whose_they_are(kind, digests):
    service = PoolingInference()
    service.adapters_used = iter(adapter_pb2.Adapter(name="fr", digest=digest) for digest in digests)
    async with serving(service) as served, connected(kind, served.address) as connection:
        found = await answer(connection, lambda: connection.embed(["a"] * 1100, adapter="fr"))
        asked = service.pooled[0]
        assert (asked.options.adapter, list(asked.options.requires)) == ("fr", ["adapters"])
        assert found.report.adapter == ringline.Adapter("fr", FIRST if digests[1] == FIRST else "")
