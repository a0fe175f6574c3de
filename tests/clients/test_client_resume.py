"""What the library does when a server is lost that had admitted a request: it goes on elsewhere, and shows no seam.

The servers are scripted: what they are asked is compared field by field. ``test_survival.py`` kills real ones.
"""

import asyncio

import grpc
import pytest
import ringline
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2
from ringline.types.v1.sampling_pb2 import BeamSearch

from tests.clients.either_client import CLIENTS, answer, connected, first
from tests.clients.scripted_server import (
    Abort,
    Cut,
    ScriptedInference,
    admitted,
    delta,
    ended,
    play,
    refusal,
    scores,
    serving,
    status,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
LOST = Abort(UNAVAILABLE, "the processor died")
PROMPT = [4, 5, 6]


pytestmark = pytest.mark.usefixtures("short_delays")


def taken(n: int = 1, **output) -> pb.GenerateResponse:
    """Admitted, as a server says it that was asked for the prompt's ids."""
    response = admitted(n, prompt_token_ids=PROMPT)
    for name, value in output.items():
        setattr(response.admitted.output, name, value)
    return response


def seen(outcome) -> list[str]:
    return [type(event).__name__ for event in outcome.events]


ENDS = [
    LOST,
    Abort(grpc.StatusCode.CANCELLED),
    Abort(grpc.StatusCode.INTERNAL),
    Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the client read nothing for 10 s, the limit"),
    Cut(),
]


async def test_what_was_admitted_keeps_to_its_model_though_nothing_of_it_was_delivered(server, ask):
    """Its prompt's ids are those of one tokenizer, and say something else to another model."""
    first = taken()
    first.admitted.model_digest = "model"
    server.plays(play(first, LOST), play(first, delta(0, [10], "Hel"), ended(completion=1)))
    outcome = await ask("Hi")
    assert outcome.error is None
    _, again = server.service.requests
    assert again.resume.model_digest == "model"


async def test_a_lost_search_is_asked_for_again_and_keeps_the_scores_that_came(server, ask):
    """Its choices come whole, one after the other: the next server searches again, and tells the rest."""
    first = taken(n=2)
    first.admitted.sampling.ClearField("seed")
    beams = {"width": 3, "length_penalty": 2.0, "early_stopping": "never"}
    server.plays(
        play(first, delta(0, [10], "a"), ended(beam_score=-0.5), LOST),
        play(first, delta(0, [11], "b", choice=1), ended(choice=1, completion=1, beam_score=-0.75)),
    )
    outcome = await ask("Hi", n=2, beam_search=beams, speculation=False)
    assert outcome.error is None
    assert [(choice.text, choice.beam_score) for choice in outcome.generation.choices] == [("a", -0.5), ("b", -0.75)]
    asked, again = server.service.requests
    assert [one.choice for one in again.resume.choices] == [1]
    for request in (asked, again):
        assert request.beam_search == BeamSearch(width=3, length_penalty=2, early_stopping="EARLY_STOPPING_NEVER")
        assert "beam_search" in request.requires
        assert request.HasField("speculation")
        assert not request.speculation
        assert not request.sampling.HasField("seed")


@pytest.mark.parametrize("end", ENDS)
async def test_a_lost_request_goes_on_from_what_was_delivered(server, ask, end):
    server.plays(
        play(taken(), delta(0, [10], "Hel"), delta(1, [11], "lo"), end),
        play(taken(), delta(2, [12], ", world"), ended(completion=3)),
    )
    outcome = await ask("Hi", priority=-3, cache_salt="pepper", timeout=50.0)
    assert outcome.error is None
    assert seen(outcome) == ["Admitted", "Delta", "Delta", "Resumed", "Delta", "Finished"]
    generation = outcome.generation
    assert (generation.text, generation.token_ids, generation.resumed) == ("Hello, world", (10, 11, 12), 1)
    assert generation.usage.completion_tokens == 3
    first, again = server.service.requests
    assert first.output.return_prompt_token_ids
    assert first.text == "Hi"
    assert list(again.token_ids.ids) == PROMPT
    assert [(one.choice, list(one.token_ids)) for one in again.resume.choices] == [(0, [10, 11])]
    assert again.sampling == taken().admitted.sampling
    assert again.stopping == taken().admitted.stopping
    assert (again.model, again.priority, again.cache_salt) == ("tiny", -3, "pepper")
    assert 0 < again.timeout_ms <= first.timeout_ms
    assert not again.output.return_prompt_token_ids


async def test_a_request_goes_on_at_a_server_of_another_release(server, ask):
    """One resolves a field that the other does not know, and leaves out one that the other told."""
    any_available = taken()
    any_available.admitted.sampling.MergeFromString(b"\xa0\x06\x01")  # field 100
    any_available.admitted.stopping.ClearField("min_tokens")
    server.plays(
        play(taken(), delta(0, [10], "a"), LOST),
        play(any_available, delta(1, [11], "b"), LOST),
        play(taken(), delta(2, [12], "c"), ended(completion=3)),
    )
    assert (await ask("Hi")).generation.text == "abc"


async def test_a_resume_that_is_refused_for_good_says_why(server, ask):
    gone = refusal(
        UNAVAILABLE, "no engine serves it", error_details_pb2.ErrorInfo(reason="MODEL_GONE", domain="ringline")
    )
    server.plays(play(taken(), delta(0, [10], "a"), LOST), play(gone))
    error = (await ask("Hi")).error
    assert isinstance(error, ringline.Unavailable)
    assert error.reason == "MODEL_GONE"
    assert error.partial.choices[0].text == "a"


async def test_the_prompts_ids_are_shown_to_those_who_asked_for_them(server, ask):
    first = taken(return_prompt_token_ids=True)
    server.plays(play(first, delta(0, [10], "a"), ended(completion=1)))
    asked = (await ask(return_prompt_token_ids=True)).generation.request
    assert asked.prompt_token_ids == tuple(PROMPT)
    assert asked.options["return_prompt_token_ids"] is True
    unasked = (await ask()).generation.request
    assert unasked.prompt_token_ids is None
    assert unasked.options["return_prompt_token_ids"] is False


async def test_a_prompt_of_ids_is_not_asked_for_again(server, ask):
    server.plays(
        play(admitted(), delta(0, [10], "a"), LOST),
        play(admitted(), delta(1, [11], "b"), ended(completion=2)),
    )
    outcome = await ask(None, token_ids=[1, 2, *PROMPT], truncate_prompt_tokens=3)
    assert outcome.generation.text == "ab"
    first, again = server.service.requests
    assert not first.output.return_prompt_token_ids
    assert list(again.token_ids.ids) == PROMPT, "as it was truncated"
    assert not again.HasField("truncate_prompt_tokens")


async def test_choices_that_ended_are_not_asked_for_again_and_count(server, ask):
    server.plays(
        play(taken(n=3), delta(0, [10], "a"), delta(0, [20], "b", choice=1), ended(choice=0), LOST),
        play(taken(n=3), delta(0, [30], "c", choice=2), ended(choice=2), LOST),
        play(taken(n=3), delta(1, [21, 22], "d", choice=1), ended(choice=1, completion=3)),
    )
    outcome = await ask(n=3)
    assert [choice.text for choice in outcome.generation.choices] == ["a", "bd", "c"]
    assert outcome.generation.usage.completion_tokens == 5
    assert outcome.generation.resumed == 2
    asked = [
        [(one.choice, list(one.token_ids)) for one in request.resume.choices] for request in server.service.requests
    ]
    assert asked == [[], [(1, [20]), (2, [])], [(1, [20])]]


@pytest.mark.parametrize("end", ENDS)
async def test_an_answer_of_which_only_the_usage_was_lost_is_whole(server, ask, end):
    server.plays(
        play(taken(n=2), delta(0, [10], "a"), ended(choice=0), delta(0, [20], "b", choice=1), ended(choice=1), end)
    )
    outcome = await ask(n=2)
    assert outcome.error is None
    assert [choice.text for choice in outcome.generation.choices] == ["a", "b"]
    assert outcome.generation.usage == ringline.Usage(prompt_tokens=3, cached_tokens=0, completion_tokens=2)
    assert len(server.service.requests) == 1, "nothing is left to ask for"


async def test_log_probabilities_of_the_prompt_come_once(server, ask):
    """It has three tokens, so two of them: once cut after one, once after both."""
    asks = taken(prompt_logprobs=0)
    server.plays(
        play(asks, scores(0, 1), LOST),
        play(asks, scores(0, 1, 2), delta(0, [10], "a"), LOST),
        play(taken(), delta(1, [11], "b"), ended(completion=2)),
    )
    outcome = await ask(prompt_logprobs=0)
    assert [score.rank for score in outcome.generation.prompt_logprobs] == [1, 2]
    parts = [(event.offset, len(event.logprobs)) for event in outcome.events if hasattr(event, "offset")]
    assert parts == [(0, 1), (1, 1)]
    assert [request.output.HasField("prompt_logprobs") for request in server.service.requests] == [True, True, False]


async def test_an_end_as_unavailable_goes_on_elsewhere(server, ask):
    error = status(UNAVAILABLE, "no engine")
    unavailable = output_pb2.FINISH_REASON_ERROR
    server.plays(
        play(
            taken(n=2),
            delta(0, [10], "a"),
            ended(choice=1),
            ended(unavailable, completion=1, error=error),
        ),
        play(taken(n=2), delta(1, [11], "b"), ended(completion=2)),
    )
    outcome = await ask(n=2)
    assert [choice.text for choice in outcome.generation.choices] == ["ab", ""]
    assert seen(outcome) == ["Admitted", "Delta", "Finished", "Resumed", "Delta", "Finished"]

    server.plays(play(taken(), delta(0, [10], "a"), ended(unavailable, completion=1, error=error)))
    outcome = await ask(client_options={"patience": 0})
    assert type(outcome.error) is ringline.Unavailable
    assert outcome.error.partial.usage.completion_tokens == 1


async def test_another_refusal_than_for_lack_of_servers_stands(server, ask):
    cut = play(taken(), delta(0, [10], "a"), LOST)
    for code, kind in (
        (grpc.StatusCode.INVALID_ARGUMENT, ringline.InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, ringline.NotFound),
        (grpc.StatusCode.INTERNAL, ringline.ServerError),
    ):
        server.service.requests.clear()
        server.plays(cut, play(refusal(code, "no")))
        outcome = await ask()
        assert type(outcome.error) is kind
        assert outcome.error.partial.choices[0].text == "a"
        assert len(server.service.requests) == 2


@pytest.mark.parametrize("detail", [[], [error_details_pb2.RetryInfo(retry_delay=Duration(nanos=10_000_000))]])
async def test_overload_does_not_end_what_was_admitted(server, ask, detail):
    full = play(refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", *detail))
    server.plays(
        play(taken(), delta(0, [10], "a"), LOST), full, full, play(taken(), delta(1, [11], "b"), ended(completion=2))
    )
    assert (await ask()).generation.text == "ab"


BREACHES = {
    "a repeat": [taken(), delta(0, [10], "a")],
    "a gap": [taken(), delta(2, [12], "c")],
    "a delta before admitted": [delta(1, [11], "b")],
    "any_available prompt": [admitted(prompt_tokens=4)],
    "any_available seed": [taken()],
    "a choice that had ended": [taken(), delta(0, [11], "b", choice=1)],
    "usage that counts what had ended": [taken(), delta(1, [11], "b"), *ended(completion=3)],
}
BREACHES["any_available seed"][0] = pb.GenerateResponse.FromString(taken().SerializeToString())
BREACHES["any_available seed"][0].admitted.sampling.seed = 8


@pytest.mark.parametrize("then", BREACHES.values(), ids=BREACHES.keys())
async def test_what_goes_on_otherwise_is_a_breach_and_not_tried_again(server, ask, then):
    for response in then:
        if response.HasField("admitted"):
            response.admitted.sampling.n = 2
    server.plays(
        play(taken(n=2), delta(0, [10], "a"), delta(0, [20], "x", choice=1), ended(choice=1), LOST),
        play(*then, Cut()),
    )
    outcome = await ask(n=2)
    assert type(outcome.error) is ringline.ProtocolError
    assert outcome.error.partial.choices[0].text.startswith("a")
    assert len(server.service.requests) == 2


async def test_a_request_that_ends_its_servers_is_given_to_few(server, ask):
    """Losses with nothing delivered in between are counted; others are not."""
    for retries in (2, 0):
        server.service.requests.clear()
        server.plays(play(taken(), LOST))
        outcome = await ask(client_options={"retries": retries})
        assert type(outcome.error) is ringline.Truncated
        assert len(server.service.requests) == 1 + retries

    steps = [play(taken(), delta(position, [position], "x"), LOST) for position in range(6)]
    server.plays(*steps, play(taken(), ended(completion=6)))
    assert (await ask(client_options={"retries": 1})).generation.text == "x" * 6


@pytest.mark.parametrize("seconds", [None, 500.0])
async def test_patience_and_the_timeout_bound_the_search_for_another(server, ask, clock, seconds):
    starting = play(refusal(UNAVAILABLE, "starting"))
    server.plays(play(taken(), delta(0, [10], "a"), LOST), starting, clock.passes(1000.0, starting))
    outcome = await ask(timeout=seconds, client_options={"patience": 1e6 if seconds else 500.0})
    if seconds:
        assert isinstance(outcome.error, ringline.Truncated | ringline.DeadlineExceeded)
    else:
        assert type(outcome.error) is ringline.Truncated
        assert "the processor died" in str(outcome.error)
        assert "starting" in str(outcome.error)
    assert outcome.error.partial.choices[0].text == "a"
    assert len(server.service.requests) == 3


async def test_nothing_goes_on_without_patience(server, ask):
    server.plays(play(taken(), delta(0, [10], "a"), LOST))
    outcome = await ask(client_options={"patience": 0})
    assert type(outcome.error) is ringline.Truncated
    (request,) = server.service.requests
    assert not request.output.return_prompt_token_ids, "nor is asked for what it would need"


@CLIENTS
@pytest.mark.parametrize("form", [list, ", ".join])
async def test_a_request_goes_on_at_another_address(kind, form):
    """Whichever was asked first is lost for good; later requests find the other without a failure."""
    async with serving(ScriptedInference()) as one, serving(ScriptedInference()) as other:

        async def script(request):
            yield taken()
            if not request.HasField("resume"):
                yield delta(0, [10], "a")
                await asyncio.Event().wait()  # for its server's end
            yield delta(1, [11], "b")
            for end in ended(completion=2):
                yield end

        for served in (one, other):
            served.plays(script)
        async with connected(kind, form([one.address, other.address]), timeout=60) as client:
            stream = client.stream("Hi")
            await first(stream)
            (asked,) = [served for served in (one, other) if served.service.requests]  # the other is asked meanwhile
            await asked.server.stop(None)
            generation = await answer(client, stream.result)
        assert (generation.text, generation.resumed) == ("ab", 1)
        assert sorted(len(served.service.requests) for served in (one, other)) == [1, 1]


@CLIENTS
async def test_a_server_without_an_engine_for_one_request_goes_on_with_others(kind):
    """The request goes elsewhere, but the server that admitted and ended it is not ejected."""
    async with serving(ScriptedInference()) as one, serving(ScriptedInference()) as other:
        error = ended(output_pb2.FINISH_REASON_ERROR, completion=0, error=status(UNAVAILABLE, "no engine"))

        async def script(request):
            yield taken()
            for end in ended(completion=0) if request.HasField("resume") else error:
                yield end

        for served in (one, other):
            served.plays(script)
        async with connected(kind, [one.address, other.address]) as client:
            assert (await answer(client, lambda: client.generate("Hi"))).resumed == 1
            pool = client._pool if kind is ringline.Client else client._pool()
            ejected = [server.ejected for server in pool._pool]
        assert [len(served.service.requests) for served in (one, other)] == [1, 1]
        assert ejected == [False, False]


NO_ADDRESSES = ["", "a:1,,b:2", [], ["a:1", ""], "localhost", "localhost:99999", "a:b", "http://a:1", "[::1]", "::1:5"]


@pytest.mark.parametrize(
    "address", ["a.b-c:1", "[::1]:65535", "[fe80::1%eth0]:5", "dns:///a", "unix:a", "ipv4:1.2.3.4:5,6.7.8.9:1"]
)
def test_addresses_of_every_kind_are_taken(address):
    ringline.Client(address).close()


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(ValueError, match="address"):
        ringline.Client(address)
