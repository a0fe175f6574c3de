"""The events of a response: items that are added, grow and are done one after the other, and the whole at the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from ringline import Content, Delta, Event, FinishReason, Part, Reasoning, ToolCallPiece, Usage
from ringline.inference.v1 import inference_pb2
from ringline.results import part_from
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models

from services.common.rpc.part_messages import typed_parts, write_parts
from services.gateway.http.api_error import ApiError
from services.gateway.openai.responses.events import ResponseEvents
from services.gateway.openai.responses.tools import Function
from tests.services.gateway.answers import answers, blocks, deltas, events_in, finished, is_call
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.parsing import parts as text_parts
from text_core.parsing.choice_parser import ChoiceParser
from text_core.parsing.parts import ParseOptions
from text_core.tokenizer import Tokenizer

USAGE = Usage(30, 10, 7, 2)
CALL = '{"name": "f", "arguments": {}}'
KINDS = {"content": "message", "reasoning": "reasoning", "call": "function_call"}


def written(ring_events: Sequence[Event]) -> list[dict[str, Any]]:
    """The events of a response."""
    events = ResponseEvents("r1", {"model": "tiny"})
    return events_in(events.begin() + b"".join(map(events.add, ring_events)) + events.end(USAGE))


def text_of(item: dict[str, Any]) -> str:
    """The text of an item, whatever it is."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


@settings(max_examples=30)
@given(answers())
def test_items_come_one_after_the_other_with_all_of_their_text(parts: list[Part]) -> None:
    events = written([*deltas(*parts), finished()])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, running, *middle, completed = events
    assert [created["type"], running["type"], completed["type"]] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    grown: list[str] = []
    done: list[dict[str, Any]] = []
    for event in middle:
        kind = event["type"].rpartition(".")[2]
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(grown) == len(done)
            assert text_of(event["item"]) == ""
            grown.append("")
            item_id = event["item"]["id"]
        elif event["type"] == "response.output_item.done":
            assert text_of(event["item"]) == grown[-1]
            done.append(event["item"])
        else:
            assert (event["item_id"], event["output_index"]) == (item_id, len(grown) - 1)
            if kind == "delta":
                grown[-1] += event["delta"]
            elif event["type"] == "response.content_part.done":
                assert event["part"]["text"] == grown[-1]
            elif kind == "done":
                assert event["text" if "text" in event else "arguments"] == grown[-1]
    assert [(item["type"], text_of(item)) for item in done] == [(KINDS[kind], text) for kind, text in blocks(parts)]
    assert completed["response"]["output"] == [item for item in done if item["status"] == "completed"]
    whole = [block[0] != "call" or is_call(block) for block in blocks(parts)]
    assert [item["status"] == "completed" for item in done] == whole
    assert len({item["id"] for item in done}) == len(done)


def test_each_item_in_full() -> None:
    call = [ToolCallPiece(0, "call_a", "look", '{"a"'), ToolCallPiece(0, "", "", ":1}")]
    events = written([*deltas(Reasoning("Hm"), Content('Say "hi"'), *call), finished()])
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    response = events[-1]["response"]
    del response["completed_at"]
    assert response == {
        "id": "resp_r1",
        "object": "response",
        "model": "tiny",
        "status": "completed",
        "output": [
            {
                "id": "rs_r1_0",
                "type": "reasoning",
                "status": "completed",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm"}],
            },
            {
                "id": "msg_r1_1",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": 'Say "hi"', "annotations": [], "logprobs": []}],
            },
            {
                "id": "fc_r1_2",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_a",
                "name": "look",
                "arguments": '{"a":1}',
            },
        ],
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": 30,
            "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 37,
        },
    }


def test_a_response_that_is_cut_off() -> None:
    *_, done, last = written([*deltas(Content("a")), finished(FinishReason.LENGTH)])
    assert done["item"]["status"] == "incomplete"
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("status", "code"),
    [(HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_exceeded"), (HTTPStatus.SERVICE_UNAVAILABLE, "server_error")],
)
def test_a_response_that_fails_late(status: HTTPStatus, code: str) -> None:
    events = ResponseEvents("r1", {})
    data = events.begin() + events.add(*deltas(Content("a"))) + events.fail(ApiError(status, "it is over"))
    last = events_in(data)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": code, "message": "it is over"}


TOKENS = ("<think>", "a", "</", "think>", "x", "y <", "tool_call>", CALL, "</tool_call>z", "Ã", "©")
"""Of an answer; the last two are halves of é."""


@pytest.mark.parametrize("sizes", [[1], [2], [3], [4, 1], [7, 2], [99]])
def test_log_probabilities_are_those_of_each_messages_tokens(sizes: list[int]) -> None:
    """However the tokens come in deltas; those of reasoning, calls and markers are of no message."""
    tokenizer = Tokenizer.from_files({"tokenizer.json": _library().to_str().encode()})
    options = ParseOptions("hermes", "think", content_tokens=True)
    decoder = ChoiceDecoder(tokenizer.pieces(), DecodeOptions())
    parser = ChoiceParser(tokenizer, options, 0, DecodeOptions(), skip_special_tokens=True)
    events, at = ResponseEvents("r1", {}), 0
    for size in itertools.cycle(sizes):
        frame, at = range(len(TOKENS))[at : at + size], at + size
        if (delta := decoder.feed(frame)) is not None:
            names = [{"token": TOKENS[token]} for token in delta.token_ids]
            parts = _as_sent(parser.feed(delta))
            events.add(Delta(0, delta.first_position, delta.text, delta.token_ids, None, parts), _raw(names))
        if at >= len(TOKENS):
            break
    last = (*parser.feed(decoder.finish(), last=True), *parser.finish())
    events.add(Delta(0, len(TOKENS), "", (), None, _as_sent(last)))
    events.end(USAGE)
    items = msgspec.json.decode(msgspec.json.encode(events.response(USAGE)))["output"]
    assert [text_of(item) for item in items] == ["a", "xy", "{}", "zé"]
    named = [[one["token"] for one in item["content"][0].get("logprobs", ())] for item in items if "content" in item]
    assert named == [[], ["x", "y <"], ["</tool_call>z", "Ã", "©"]]


def _library() -> HFTokenizer:
    vocabulary = {token.replace(" ", "Ġ"): token_id for token_id, token in enumerate(TOKENS)}
    library = HFTokenizer(models.BPE(vocabulary, []))
    library.decoder = decoders.ByteLevel()
    return library


def _as_sent(parts: Sequence[text_parts.Part]) -> tuple[Part, ...]:
    """Parts as the client library reads them."""
    message = inference_pb2.Delta()
    write_parts(message.parts, [typed_parts(parts, 0)])
    return tuple(part for one in message.parts if (part := part_from(one)) is not None)


def _raw(entries: Sequence[object]) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode(entry)) for entry in entries]


def test_a_call_names_its_namespace_apart() -> None:
    function = Function("feed", "mcp__pets__", {})
    events = ResponseEvents("r1", {}, [function, Function("pat", None, {})])
    written = b"".join(
        map(events.add, deltas(ToolCallPiece(0, "c1", function.ring_name, "{}"), ToolCallPiece(1, "c2", "pat", "{}")))
    )
    items = [event["item"] for event in events_in(written + events.end(USAGE)) if "item" in event]
    assert [(item["name"], item.get("namespace")) for item in items] == [("feed", "mcp__pets__")] * 2 + [
        ("pat", None)
    ] * 2
