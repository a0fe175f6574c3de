"""Most of what the client offers, as a program uses it: read by type checkers in a project of its own, never run."""

import asyncio
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, assert_never, assert_type

import ringline
from ringline.inference.v1 import inference_pb2


def places() -> Iterator[ringline.Client]:
    yield ringline.Client()
    yield ringline.Client("127.0.0.1:50051", timeout=None, patience=0, retries=0, wait_for_ready=True)
    yield ringline.Client(["one:50051", "two:50051"], ca=Path("ca.pem"), cert=b"", key="key.pem", server_name="ring")
    yield ringline.Client("one:50051", tls=True, token=lambda: "rl-…", metadata={"x-ringline-tenant": "blue"})


def answers(client: ringline.Client) -> None:
    answer = client.generate("Once upon a time", max_tokens=32, temperature=0, stop=["."], n=2, logprobs=2)
    assert_type(answer, ringline.Generation)
    assert_type(answer.text, str)
    assert_type(answer.token_ids, tuple[int, ...])
    assert_type(answer.finish_reason, ringline.FinishReason | None)
    assert_type(answer.stop, int | str | None)
    assert_type(answer.logprobs, Sequence[ringline.TokenLogprob] | None)
    assert_type(answer.reasoning, str | None)
    assert_type(answer.usage, ringline.Usage)
    assert_type(answer.usage.accepted_draft_tokens, int)
    assert_type(answer.prompt_logprobs, tuple[ringline.TokenLogprob, ...] | None)
    assert_type([choice.beam_score for choice in answer.choices], list[float | None])
    assert_type(answer.request.adapter, ringline.Adapter | None)
    client.generate("Once upon a time", **answer.request.options)
    beams: ringline.BeamSearch = {"width": 4, "early_stopping": "never"}
    client.generate(token_ids=[1, 2, 3], beam_search=beams, speculation=False, timeout=2.5)
    client.generate(
        "x", no_repeat_ngram={"ngram_size": 30, "window_size": 90}, adapter="blue", priority=-1, timeout=None
    )


def streams(client: ringline.Client) -> None:
    with client.stream("Once upon a time", max_tokens=64) as stream:
        assert_type(stream, ringline.Stream)
        for delta in stream:
            assert_type(delta, ringline.Delta)
            if "." in delta.text:
                break
        assert_type(stream.request, ringline.Admitted | None)
        assert_type(stream.usage, ringline.Usage | None)
    for event in client.stream("Hello", prefill_progress=True).events():
        assert_type(told(event), str)
    assert_type(client.stream("Hello").result(), ringline.Generation)


def told(event: ringline.Event) -> str:
    match event:
        case ringline.Admitted(model=model):
            return model
        case ringline.Prefill() | ringline.PromptLogprobs():
            return ""
        case ringline.Delta(text=text):
            return text
        case ringline.Finished(reason=reason, error=error):
            return str(error) if error is not None else reason.value
        case ringline.Started(identical=identical):
            return "moved" if not identical else ""
        case ringline.Resumed(reason=why):
            return why
        case _:
            assert_never(event)


def forms(client: ringline.Client) -> None:
    schema: dict[str, object] = {"type": "array", "items": {"enum": ["cat", "dog"]}}
    assert_type(client.generate("Pets:", json_schema=schema).parsed, Any)
    client.generate("7 is prime:", choice=["yes", "no"])
    client.generate("It is", regex="[0-2][0-9]:[0-5][0-9]", any_whitespace=True)
    tags: list[ringline.StructuralTag] = [{"begin": "<add>", "end": "</add>", "json_schema": {"type": "object"}}]
    client.generate("Add", structural_tags={"tags": tags, "required": True})
    parse: ringline.Parse = {"reasoning": "think"}
    for part in (part for delta in client.stream("Hm", parse=parse) for part in delta.parts):
        match part:
            case ringline.Content(text=text) | ringline.Reasoning(text=text):
                assert_type(text, str)
            case ringline.ToolCallPiece(index=index):
                assert_type(index, int)
            case _:
                assert_never(part)


def tools(client: ringline.Client) -> None:
    add: Mapping[str, object] = {"name": "add", "parameters": {"type": "object"}}
    messages: list[ringline.Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [Path("page.png"), "What is 3 plus 4?", {"type": "text", "text": "!"}]},
    ]
    answer = client.generate(messages=messages, tools=[add], tool_choice="add", parallel_tool_calls=False)
    messages.append(answer.message())
    for call in answer.tool_calls:
        assert_type(call, ringline.ToolCall)
        try:
            assert_type(call.parsed, dict[str, Any])
        except ringline.ParseError as error:
            print(error)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "7"})
    print(client.tokenize(messages=messages, template_args={"thinking": True}).rendered)


def lookups(client: ringline.Client) -> None:
    assert_type(client.tokenize("Once").token_ids, tuple[int, ...])
    assert_type(client.detokenize([1, 2]), str)
    assert_type(client.token_pieces([1, 2], model="tiny"), tuple[bytes, ...])
    for model in client.models():
        assert_type(model, ringline.Model)
        assert_type(model.pooling, ringline.Pooling | None)
        assert_type(model.default_sampling, Mapping[str, float])
    assert_type(client.adapters(), tuple[ringline.ListedAdapter, ...])
    assert_type(client.load_adapter("blue", "blue", replace=True), ringline.Adapter)
    assert_type(client.unload_adapter("blue"), ringline.Adapter)


def vectors(client: ringline.Client) -> None:
    inputs: list[str | list[int]] = ["A dog runs.", [1, 2, 3]]
    embeddings = client.embed(inputs, dimensions=64, truncate="start")
    assert_type(embeddings, ringline.Embeddings)
    assert_type(embeddings[0], array[float])
    assert_type(embeddings.report, ringline.PoolingReport)
    for ranked in client.rerank("Who barks?", ["Cats meow.", "Dogs bark."], top_n=1, activation=False):
        assert_type(ranked, ringline.Ranked)
        assert_type(ranked.score, float)
    assert_type(list(client.score("a", ["b", "c"])), list[float])
    assert_type(client.classify("I like it.")[0].label, str)


def failures(client: ringline.Client) -> Literal["late", "refused", "elsewhere"]:
    try:
        client.generate("Once")
    except ringline.DeadlineExceeded as error:
        assert_type(error.partial, ringline.Partial | None)
        return "late"
    except ringline.InvalidRequest as error:
        assert_type(error.field, str | None)
        return "refused"
    except (ringline.Overloaded, ringline.Unavailable) as error:
        if isinstance(error, ringline.Overloaded):
            assert_type(error.retry_after, float | None)
        else:
            assert_type(error.unreached, Mapping[str, str] | None)
    except ringline.RingError as error:
        assert_type(error.reason, str | None)
    return "elsewhere"


async def many(prompts: Sequence[str]) -> list[ringline.Generation]:
    async with ringline.AsyncClient(retry_overloaded=True) as client:
        async with client.stream(prompts[0], seed=1) as stream:
            assert_type(stream, ringline.AsyncStream)
            async for delta in stream:
                assert_type(delta, ringline.Delta)
                break
        async with client.session() as session:
            assert_type(session, ringline.Session)
            assert_type(await session.generate(prompts[0]), ringline.Generation)
        assert_type(await client.embed("one"), ringline.Embeddings)
        assert_type((await client.models())[0].capabilities, frozenset[str])
        assert_type(client.with_metadata({"x-ringline-tenant": "blue"}), ringline.AsyncClient)
        return await asyncio.gather(*(client.generate(prompt, max_tokens=16) for prompt in prompts))


def message() -> inference_pb2.GenerateRequest:
    """The stubs beside the library."""
    request = inference_pb2.GenerateRequest(text="Once")
    request.stopping.max_tokens = 4
    return request
