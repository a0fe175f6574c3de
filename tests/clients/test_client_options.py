"""Options become the contract's fields, and nothing unknown is swallowed."""

import copy
import json
import pickle
import re
from fractions import Fraction
from typing import get_type_hints

import grpc
import pytest
import ringline
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1.inference_pb2 import SamplingParams
from ringline.request import build_request
from ringline.results import admitted_from, pieces_from
from ringline.retry import Deadline, RetryPolicy
from ringline.types.v1.constraint_pb2 import Constraint
from ringline.types.v1.sampling_pb2 import BeamSearch

from tests.clients.either_client import CLIENTS, answer, connected


def build(options, prompt="Hi", messages=None, token_ids=None):
    return build_request(prompt, messages, token_ids, options)


def test_the_options_are_the_fields_of_the_contract():
    messages = (pb.GenerateRequest, Constraint, SamplingParams, pb.StoppingParams, pb.OutputParams, pb.Chat)
    fields = {field.name for message in messages for field in message.DESCRIPTOR.fields}
    structure = {"text", "token_ids", "chat", "messages", "sampling", "stopping", "output", "constraint"}
    renamed = {"timeout_ms": "timeout", "tools_json": "tools", "template_args_json": "template_args"}
    expected = {renamed.get(field, field) for field in fields - structure}
    assert set(get_type_hints(ringline.Options)) == expected - {"resume"} | {"parallel_tool_calls"}


VALUES = {
    "request_id": "mine",
    "model": "tiny",
    "adapter": "fr",
    "priority": -3,
    "cache_salt": "salt",
    "add_special_tokens": False,
    "truncate_prompt_tokens": 5,
    "speculation": False,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 0.5,
    "min_p": 0.25,
    "frequency_penalty": -2.0,
    "presence_penalty": 2.0,
    "repetition_penalty": 1.5,
    "logit_bias": {3: -100.0, 4: 1.5},
    "allowed_token_ids": [1, 2],
    "seed": 2**64 - 1,
    "n": 2,
    "max_tokens": 7,
    "min_tokens": 0,
    "stop": ["a", "b"],
    "include_stop_str_in_output": True,
    "stop_token_ids": [9],
    "ignore_eos": False,
    "bad_words": ["no"],
    "logprobs": 0,
    "prompt_logprobs": 2,
    "skip_special_tokens": False,
    "return_prompt_token_ids": True,
    "prefill_progress": True,
}


@pytest.mark.parametrize("name", VALUES)
def test_each_option_is_set_even_to_zero(name):
    request = build({name: VALUES[name]})
    parts = (request, request.sampling, request.stopping, request.output)
    found = {field.name: value for part in parts for field, value in part.ListFields()}
    value = found[name]
    assert (dict(value) if isinstance(VALUES[name], dict) else value) == VALUES[name]
    needed = {"requires"} if name == "adapter" else set()
    assert set(found) - {name} <= {"text", "sampling", "stopping", "output"} | needed


def test_what_is_none_is_absent():
    assert build(dict.fromkeys(VALUES)) == pb.GenerateRequest(text="Hi")


def test_beams_are_a_dict_and_come_back_as_one():
    for given, sent, again in (
        ({"width": 4}, {"width": 4, "early_stopping": 1}, {"width": 4, "length_penalty": 0.0, "early_stopping": False}),
        (
            {"width": 2, "length_penalty": -0.5, "early_stopping": "never"},
            {"width": 2, "length_penalty": -0.5, "early_stopping": 3},
            {"width": 2, "length_penalty": -0.5, "early_stopping": "never"},
        ),
        (
            {"width": 2, "length_penalty": 0, "early_stopping": True},
            {"width": 2, "length_penalty": 0, "early_stopping": 2},
            {"width": 2, "length_penalty": 0.0, "early_stopping": True},
        ),
    ):
        request = build({"beam_search": given})
        assert request.beam_search == BeamSearch(**sent)
        assert request.requires == ["beam_search"]
        assert admitted_from(pb.Admitted(beam_search=request.beam_search)).options == {"beam_search": again}
    assert not build({"beam_search": None}).HasField("beam_search")


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (4, TypeError, "beam_search: expected a dict such as {'width': 4}, got int"),
        ({"beams": 4}, TypeError, "beam_search: unknown key 'beams': expected width, length_penalty, early_stopping"),
        ({}, ringline.InvalidRequest, "beam_search.width: missing: expected the number of beams"),
        ({"width": "4"}, TypeError, "beam_search.width: expected int, got str"),
        ({"width": -1}, ringline.InvalidRequest, "beam_search.width: -1 is out of range: expected at least 0"),
        (
            {"width": 4, "early_stopping": 2},
            TypeError,
            "beam_search.early_stopping: expected bool or 'never', got int",
        ),
        (
            {"width": 4, "early_stopping": "always"},
            ringline.InvalidRequest,
            "beam_search.early_stopping: 'always': expected True, False or 'never'",
        ),
    ],
)
def test_a_wrong_search_is_refused_by_its_key(given, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        build({"beam_search": given})


def test_one_string_is_one_stop():
    assert list(build({"stop": "END"}).stopping.stop) == ["END"]


@pytest.mark.parametrize("name", ["temprature", "resume", "tools", "text", "sampling"])
def test_an_unknown_option_is_a_type_error(name):
    with pytest.raises(TypeError, match=name):
        build({name: ["x"]})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("temperature", "hot", "temperature: expected float, got str"),
        ("stop", ["a", 1], "stop[1]: expected str, got int"),
        ("stop", 3, "stop: expected a list of str, got int"),
        ("stop_token_ids", "1,2", "stop_token_ids: expected a list of int, got str"),
        ("logit_bias", [(1, 2.0)], "logit_bias: expected a dict of int to float, got list"),
        ("logit_bias", {"a": 1.0}, "logit_bias['a']: expected int, got str"),
    ],
)
def test_a_value_of_a_wrong_type_is_a_type_error_that_names_the_option(name, value, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        build({name: value})


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("Hello", "messages: expected a list of messages, got str"),
        (["Hello"], "messages[0]: expected a dict such as {'role': 'user', 'content': 'Hello'}, got str"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]: expected a dict such as {'type': 'text'"),
        ([{"role": "a", "content": [{"type": "text"}]}], "messages[0].content[0].text: expected str, got NoneType"),
        ([{"role": "a", "content": [{"type": "text", "text": "", "x": 1}]}], "messages[0].content[0]: unknown key 'x'"),
        ([{"role": "a", "tool_calls": ["x"]}], "messages[0].tool_calls[0]: expected a dict such as {'id'"),
        ([{"role": "a", "tool_calls": [{"id": 1}]}], "messages[0].tool_calls[0].id: expected str, got int"),
    ],
)
def test_what_is_no_conversation_is_a_type_error_that_says_where(messages, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        build({}, prompt=None, messages=messages)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("seed", -1, "seed: -1 is out of range: expected at least 0"),
        ("seed", 2**64, "seed: 18446744073709551616 is out of range: expected at most 18446744073709551615"),
        ("stop_token_ids", [5, -1], "stop_token_ids[1]: -1 is out of range: expected at least 0"),
        ("logit_bias", {-1: 0.5}, "logit_bias[-1]: -1 is out of range: expected at least 0"),
        ("stop", "\ud800", "stop[0]: surrogates not allowed (at position 0): expected text that UTF-8 can encode"),
        ("stop", [b"\xff"], "stop[0]: bytes that are not UTF-8: expected text"),
        pytest.param("temperature", 10**5000, "temperature: 1e5000 is out of range: expected at most 3.4", id="float"),
        pytest.param("max_tokens", -(10**5000), "max_tokens: -1e5000 is out of range: expected at least 0", id="int"),
    ],
)
def test_a_value_that_no_field_can_hold_is_an_invalid_request(name, value, text):
    with pytest.raises(ringline.InvalidRequest) as refused:
        build({name: value})
    assert str(refused.value).startswith(text)
    assert refused.value.field == text.partition(": ")[0]


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "assistant", "content": None, "tool_calls": []}])
def test_a_message_that_says_nothing_and_calls_nothing_is_an_invalid_request(message):
    with pytest.raises(ringline.InvalidRequest, match=r"^messages\[1\]\.content: missing") as refused:
        build({}, prompt=None, messages=[{"role": "user", "content": ""}, message])
    assert refused.value.field == "messages[1].content"
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("prompts", [{}, {"prompt": "a", "token_ids": [1]}, {"messages": [], "token_ids": []}])
def test_exactly_one_kind_of_prompt(prompts):
    with pytest.raises(TypeError, match="exactly one"):
        build_request(prompts.get("prompt"), prompts.get("messages"), prompts.get("token_ids"), {})


def test_an_empty_prompt_is_for_the_server_to_refuse():
    assert build({}, prompt="").WhichOneof("prompt") == "text"
    assert build({}, prompt=None, token_ids=[]).WhichOneof("prompt") == "token_ids"
    assert build({}, prompt=None, messages=[]).WhichOneof("prompt") == "chat"


def test_a_conversation_with_tools():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "1 + 1?", "name": "ann", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "tool_calls": [{"id": "c2", "name": "add", "arguments": {"a": 2}}]},
    ]
    tools = [{"type": "retrieval"}]
    options = {"tools": tools, "template_args": {"thinking": False}, "continue_final_message": True}
    chat = build(options, prompt=None, messages=messages).chat
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert (chat.messages[0].name, chat.messages[2].tool_call_id) == ("ann", "c1")
    assert chat.messages[1].tool_calls[0] == pb.ToolCall(id="c1", name="add", arguments_json='{"a": 1}')
    assert json.loads(chat.messages[3].tool_calls[0].arguments_json) == {"a": 2}
    assert json.loads(chat.tools_json) == tools
    assert json.loads(chat.template_args_json) == {"thinking": False}
    assert chat.continue_final_message
    with pytest.raises(TypeError, match="colour"):
        build({}, prompt=None, messages=[{"role": "user", "colour": "red"}])


def test_a_misspelt_option_is_answered_with_the_name_that_is_like_it():
    with pytest.raises(TypeError, match=r"^option 'response_format' is not supported: the form of an answer is json_s"):
        build_request("Hi", None, None, {"response_format": {"type": "json_object"}})
    with pytest.raises(TypeError, match=r"'enable_thinking' is not .*: template_args=\{'enable_thinking': …\}$"):
        build_request("Hi", None, None, {"enable_thinking": False})
    with pytest.raises(TypeError, match=r"^unknown option 'xyzzy'$"):
        build_request("Hi", None, None, {"xyzzy": 1})
    with pytest.raises(TypeError, match=r"^unknown option 'max_token'; did you mean 'max_tokens'\?$"):
        build_request("a", None, None, {"max_token": 1})


def test_parts_of_type_text_are_one_text():
    """As OpenAI's SDK sends them."""
    parts = [{"type": "text", "text": "Hello,"}, {"type": "text", "text": "world"}]
    messages = [{"role": "user", "content": parts}, {"role": "tool", "content": tuple(parts[:1]), "tool_call_id": "c1"}]
    chat = build({}, prompt=None, messages=messages).chat
    assert [message.content for message in chat.messages] == ["Hello,world", "Hello,"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            [{"type": "text", "text": "What is it?"}, {"type": "input_audio", "input_audio": {"data": "x"}}],
            "messages[0].content[1]: a part of type 'input_audio' is not supported: expected parts of type text, image "
            "and image_url",
        ),
        (
            [{"text": "Hello"}],
            "messages[0].content[0]: its type is missing: expected parts of type text, image and image_url",
        ),
        ([], "messages[0].content: an empty list: expected a text, or at least one part of type text"),
    ],
)
def test_other_parts_are_refused_by_name(content, text):
    with pytest.raises(ringline.InvalidRequest) as refused:
        build({}, prompt=None, messages=[{"role": "user", "content": content}])
    assert str(refused.value) == text
    assert refused.value.field == text.partition(": ")[0]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), pytest.param(10**5000, id="long")])
async def test_a_timeout_must_be_a_time(server, seconds):
    with ringline.Client(server.address) as client, pytest.raises(ringline.InvalidRequest) as refused:
        client.stream("Hi", timeout=seconds)
    assert refused.value.field == "timeout"
    assert str(refused.value).endswith(" is out of range: expected more than 0 and at most 4294967 s")
    with ringline.Client(server.address) as client, pytest.raises(TypeError, match="timeout: expected a number"):
        client.stream("Hi", timeout="3")


async def test_the_resolved_options_repeat_the_request(server):
    async with ringline.AsyncClient(server.address) as client:
        first = await client.generate("Hi")
        await client.generate("Hi", **first.request.options)
    assert server.service.requests[1].sampling == SamplingParams(n=1, seed=7, temperature=0.0, top_p=1.0)
    assert server.service.requests[1].stopping == pb.StoppingParams(max_tokens=16, min_tokens=0, ignore_eos=False)


@CLIENTS
async def test_metadata_goes_with_every_call(server, kind):
    async with connected(kind, server.address, metadata={"Authorization": "Bearer x"}) as client:
        await answer(client, lambda: client.generate("Hi"))
    assert [sent["authorization"] for sent in server.service.metadata] == ["Bearer x"]


async def test_other_metadata_takes_the_place_of_the_clients_own(server):
    async with ringline.AsyncClient(server.address, token="own", metadata={"x-a": "1", "x-b": "1"}) as client:
        other = client.with_metadata({"X-B": "2"})
        caller = other.with_metadata({"Authorization": "Bearer theirs"})
        pairs = [sorted(each._metadata()) for each in (client, other, caller)]
    own = ("authorization", "Bearer own")
    assert pairs[0] == [own, ("x-a", "1"), ("x-b", "1")]
    assert pairs[1] == [own, ("x-a", "1"), ("x-b", "2")]
    assert pairs[2] == [("authorization", "Bearer theirs"), ("x-a", "1"), ("x-b", "2")]


@CLIENTS
async def test_the_unary_calls(server, kind):
    chat = [{"role": "user", "content": "Hi"}]
    async with connected(kind, server.address) as client:
        tokens = await answer(client, lambda: client.tokenize("Hi", add_special_tokens=False))
        assert (tokens.token_ids, tokens.max_model_len) == ((72, 105), 64)
        await answer(client, lambda: client.tokenize(messages=chat, add_generation_prompt=False))
        assert await answer(client, lambda: client.detokenize([72, 105])) == "Hi"
        assert await answer(client, lambda: client.token_pieces([72, 105])) == (b"H", b"i")
        assert (await answer(client, client.models))[0].eos_token_ids == (2,)
        with pytest.raises(TypeError, match="temperature"):
            await answer(client, lambda: client.tokenize("Hi", temperature=1))
    assert server.service.tokenized[0] == pb.TokenizeRequest(text="Hi", add_special_tokens=False)
    assert server.service.tokenized[1].chat.messages[0].content == "Hi"


@CLIENTS
async def test_a_stream_tells_its_usage_at_its_end(server, kind):
    async with connected(kind, server.address) as client:
        stream = client.stream("Hi")
        assert stream.usage is None
        generation = await answer(client, stream.result)
        assert stream.usage == generation.usage


def test_a_server_that_does_not_tell_the_bytes_of_tokens_is_no_surprise():
    with pytest.raises(ringline.FailedPrecondition, match="capability pieces"):
        pieces_from(pb.DetokenizeResponse(text="Hi"), 2)


def test_errors_survive_copying():
    """They are copied to each request of a broken session, and pickled between processes."""
    error = ringline.Overloaded("full")
    error.retry_after = 2.5
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(twin), str(twin), twin.retry_after) == (ringline.Overloaded, "full", 2.5)


def test_numbers_of_other_libraries_are_numbers():
    """As numpy's, which register as Real."""
    assert 4 < Deadline(Fraction(5)).remaining() <= 5  # type: ignore[arg-type]
    assert RetryPolicy(Fraction(1, 2), 3, False).patience == 0.5  # type: ignore[arg-type]
