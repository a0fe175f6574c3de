"""The best of several choices at the door: of more than are returned, and by beams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from ringline import Client, TokenLogprob
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2, part_pb2
from ringline.types.v1.sampling_pb2 import BeamSearch

from tests.clients.scripted_server import admitted, delta, ended, started
from tests.services.gateway.conftest import Post
from tests.services.gateway.http_harness import CHAT, Running

MODEL, PROMPTS = "tiny", ["Once upon a time", "The fox"]
COMPLETION = {"model": "tiny", "prompt": "Hi", "max_tokens": 4}
BEAMS = {"use_beam_search": True, "n": 2, "best_of": 4}


def mean(logprobs: Any) -> float:
    values: list[TokenLogprob] = list(logprobs)
    return sum(one.logprob for one in values) / len(values)


def best_texts(native: Client, prompt: str, best_of: int, n: int, **options: Any) -> list[str]:
    whole = native.generate(prompt, n=best_of, logprobs=0, **options)
    ranked = sorted(whole.choices, key=lambda choice: mean(choice.logprobs), reverse=True)
    return [choice.text for choice in ranked[:n]]


def test_best_of_returns_the_likeliest_of_more_choices(door: openai.OpenAI, native: Client) -> None:
    options: Any = {"seed": 7, "max_tokens": 6, "temperature": 1.5}
    asked = {"model": MODEL, "prompt": PROMPTS, "n": 2, **options}
    expected = [text for prompt in PROMPTS for text in best_texts(native, prompt, 5, 2, **options)]
    plain = door.completions.create(**asked, best_of=2)
    assert [choice.text for choice in plain.choices] != expected
    for logprobs in (None, 1):
        found = door.completions.create(**asked, best_of=5, logprobs=logprobs)
        assert [choice.text for choice in found.choices] == expected
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
        assert [choice.logprobs is not None for choice in found.choices] == [logprobs is not None] * 4
        assert found.usage is not None
        assert found.usage.completion_tokens > 5 * 2  # of all that were computed
    for of_answer, of_chat in (({}, None), ({"logprobs": True, "top_logprobs": 1}, 1)):
        chat = door.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            seed=3,
            temperature=1.5,
            max_completion_tokens=6,
            extra_body={"best_of": 4, **of_answer},
        )
        whole = native.generate(
            messages=[{"role": "user", "content": "Hi"}], n=4, seed=3, temperature=1.5, max_tokens=6, logprobs=0
        )
        best = max(whole.choices, key=lambda choice: mean(choice.logprobs))
        (choice,) = chat.choices
        assert (choice.index, choice.message.content) == (0, best.text)
        assert (choice.logprobs is None) is (of_chat is None)


def test_beams_are_the_same_by_every_door(door: openai.OpenAI, native: Client) -> None:
    search: Any = {"width": 4, "length_penalty": 0.5, "early_stopping": True}
    expected = native.generate(PROMPTS[0], n=3, max_tokens=8, beam_search=search).choices
    scores = [choice.beam_score for choice in expected]
    assert scores == sorted(scores, key=lambda score: -(score or 0))
    assert len({choice.text for choice in expected}) == 3
    fields = {"use_beam_search": True, "best_of": 4, "length_penalty": 0.5, "early_stopping": True}
    asked: Any = {"model": MODEL, "prompt": PROMPTS[0], "n": 3, "max_tokens": 8}
    whole = door.completions.create(**asked, extra_body=fields)
    assert [choice.text for choice in whole.choices] == [choice.text for choice in expected]
    assert [choice.to_dict()["beam_score"] for choice in whole.choices] == scores
    texts = ["", "", ""]
    for chunk in door.completions.create(**asked, extra_body=fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in expected]
    greedy = native.generate(PROMPTS[0], max_tokens=8, temperature=0).token_ids
    assert native.generate(PROMPTS[0], max_tokens=8, beam_search={"width": 1}).token_ids == greedy


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"n": 3, "best_of": 2}, "best_of", "2 is less than n, 3"),
        ({"best_of": 2, "stream": True}, "best_of", "not available in a stream: expected n, 1, or no stream"),
        ({"best_of": 129}, "best_of", "129 is out of range"),
        ({"n": 0, "best_of": 2}, "n", "0 is out of range"),
        ({"length_penalty": 2}, "length_penalty", "set without beams: give use_beam_search: true, too, or"),
        ({"early_stopping": True}, "early_stopping", "set without beams"),
        ({"num_beams": 2, "n": 3}, "num_beams", "2 is less than n, 3"),
        ({"num_beams": 2, "best_of": 3}, "best_of", "3, but num_beams is 2, and both set the same: give one"),
        ({"num_beams": 2, "early_stopping": "always"}, "early_stopping", "'always': expected true, false or never"),
        ({"num_beams": 65}, "num_beams", "65 is out of range"),
        ({"num_beams": 0}, "num_beams", "0 is out of range: expected at least 1"),
        ({"num_beams": -1, "use_beam_search": True}, "num_beams", "-1 is out of range: expected at least 1"),
        ({"use_beam_search": True, "best_of": 65}, "best_of", "65 is out of range"),
        ({"use_beam_search": True, "n": 65}, "n", "65 is out of range"),
        ({"num_beams": 2, "seed": 7}, "seed", "set beside beam_search, which draws nothing"),
        ({"num_beams": 2, "temperature": 1}, "temperature", "set beside beam_search, which draws nothing: expected 0"),
        ({"num_beams": 2, "stop": "x"}, "stop", "set beside beam_search, whose beams end with tokens"),
        ({"num_beams": 2, "frequency_penalty": 1}, "frequency_penalty", "set beside beam_search, which has repetition"),
        ({"num_beams": 2, "prompt_logprobs": 1}, "prompt_logprobs", "set beside beam_search, which reports the score"),
        (
            {"num_beams": 2, "response_format": {"type": "json_object"}},
            "response_format",
            "set beside beam_search, whose beams have no form",
        ),
        ({"speculation": "maybe"}, "speculation", "'maybe': expected on, off, true or false"),
    ],
)
def test_contradictions_are_refused_by_the_names_given(
    post: Post, fields: dict[str, Any], param: str, problem: str
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    for path, body in (("/v1/completions", {"prompt": "Hi"}), ("/v1/chat/completions", chat)):
        refused = post(path, {**body, "max_tokens": 4, **fields})
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert error["param"] == param
        assert error["message"].startswith(f"{param}: {problem}")


async def search(request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
    """Two choices, whole, with their scores; some of their tokens had been guessed."""
    for response in (admitted(n=2, beam_search=request.beam_search), started()):
        yield response
    for choice, (text, score) in enumerate((("good", -0.5), ("bad", -0.75))):
        yield delta(0, [10, 11], text, choice, parts=[part_pb2.Part(content=text)])
        for response in ended(output_pb2.FINISH_REASON_STOP, choice, beam_score=score):
            yield response
    usage = pb.Usage(prompt_tokens=3, completion_tokens=4, accepted_draft_tokens=2, rejected_draft_tokens=1)
    yield pb.GenerateResponse(request_finished=pb.RequestFinished(usage=usage))


@pytest.mark.parametrize("stream", [False, True])
async def test_beams_come_best_first_with_their_scores(gateway: Running, stream: bool) -> None:
    gateway.processor.plays(search, search)
    more = {"length_penalty": 0.5, "early_stopping": "never", "stream": stream, "logprobs": None}
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        reply = await gateway.ask("POST", path, body | BEAMS | more | {"stream_options": {"include_usage": True}})
        assert reply.status == 200
        request = gateway.processor.service.requests[-1]
        assert request.beam_search == BeamSearch(width=4, length_penalty=0.5, early_stopping="EARLY_STOPPING_NEVER")
        assert (request.sampling.n, list(request.requires).count("beam_search")) == (2, 1)
        assert not request.output.HasField("logprobs")
        texts, scores, usage = ["", ""], [0.0, 0.0], None
        lines = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n\n") if line] if stream else [reply.body]
        for found in (json.loads(line) for line in lines if line != b"[DONE]"):
            usage = found["usage"]
            for choice in found["choices"]:
                piece = choice.get("message") or choice.get("delta") or choice
                texts[choice["index"]] += piece.get("content") or piece.get("text") or ""
                scores[choice["index"]] += choice.get("beam_score", 0)
        assert (texts, scores) == (["good", "bad"], [-0.5, -0.75])
        assert usage is not None
        assert usage["completion_tokens_details"] == {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 2,
            "rejected_prediction_tokens": 1,
        }


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({"use_beam_search": True}, 1),
        ({"use_beam_search": True, "n": 3}, 3),
        ({"num_beams": 4}, 4),
        ({"use_beam_search": True, "num_beams": 4, "best_of": 4, "n": 2}, 4),
        ({"use_beam_search": False, "num_beams": 1, "length_penalty": 1.0, "early_stopping": False}, None),
        ({"best_of": 1}, None),
    ],
)
async def test_the_number_of_beams(gateway: Running, fields: dict[str, Any], width: int | None) -> None:
    await gateway.ask("POST", "/v1/completions", COMPLETION | fields)
    request = gateway.processor.service.requests[-1]
    assert request.HasField("beam_search") is (width is not None)
    assert request.beam_search.width == (width or 0)
    assert request.sampling.n == fields.get("n", 0)


async def test_every_endpoint_takes_speculation(gateway: Running) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    for path, body in (
        ("/v1/completions", COMPLETION),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": hello, "max_tokens": 4}),
    ):
        for given, told in (("off", False), (False, False), ("on", True), (True, True), (None, None)):
            reply = await gateway.ask("POST", path, body | {"speculation": given})
            assert reply.status == 200, (path, reply.body)
            request = gateway.processor.service.requests[-1]
            assert (request.speculation if request.HasField("speculation") else None) is told
