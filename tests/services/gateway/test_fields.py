"""Fields of requests as they are declared: what is refused, ignored and passed on, and what errors call it."""

from typing import Annotated, Any

import msgspec
import pytest

from services.gateway.anthropic.request import CountRequest, MessageRequest
from services.gateway.fields import (
    Body,
    Support,
    checked,
    declared,
    ignored,
    names_given,
    naming,
    options_of,
    passed,
    refused,
    same,
)
from services.gateway.fields import supported as worked_with
from services.gateway.http.api_error import ApiError
from services.gateway.openai.chat import ChatRequest
from services.gateway.openai.completions import CompletionRequest
from services.gateway.openai.responses.request import ResponseRequest


class Request(Body):
    top_k: Annotated[int | None, passed("All: 0.")] = None
    limit: Annotated[int | None, passed(option="max_tokens")] = None
    stream: Annotated[bool | None, worked_with()] = None
    user: Annotated[Any, ignored("Nobody asks.")] = None
    beams: Annotated[Any, refused("n gives several", 1, False)] = None
    target: Annotated[Any, refused("top_k does", below=0)] = None
    old_limit: Annotated[int | None, same("limit", note="The older name.", below=0)] = None


def read(body: str) -> Request:
    return checked(msgspec.json.decode(body, type=Request))


@pytest.mark.parametrize("value", ["2", "[]", '"one"', "1.5"])
def test_what_would_change_the_result_is_refused_by_name_with_what_there_is_instead(value: str) -> None:
    with pytest.raises(ApiError) as refusal:
        read(f'{{"beams": {value}}}')
    assert refusal.value.message == "beams: not supported: n gives several"
    assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, "beams", "unsupported_parameter")


@pytest.mark.parametrize("value", ["1", "false", "null"])
def test_a_value_that_changes_nothing_is_accepted(value: str) -> None:
    read(f'{{"beams": {value}}}')


def test_numbers_below_a_bound_may_change_nothing() -> None:
    read('{"target": -0.01}')
    for value in ("0", "0.5", '"-1"'):
        with pytest.raises(ApiError, match="target: not supported: top_k does"):
            read(f'{{"target": {value}}}')


def test_another_name_of_a_field_sets_it() -> None:
    request = read('{"old_limit": 3}')
    assert (options_of(request), names_given(request)) == ({"max_tokens": 3}, {"max_tokens": "old_limit"})
    assert options_of(read('{"old_limit": 3, "limit": 3}')) == {"max_tokens": 3}
    unset = read('{"old_limit": -1}')
    assert (options_of(unset), names_given(unset)) == ({}, {})
    with pytest.raises(ApiError, match="old_limit: 3, but limit is 4, and both set the same: give one"):
        read('{"old_limit": 3, "limit": 4}')


def test_options_are_the_fields_that_are_passed_and_given() -> None:
    assert options_of(read('{"limit": 3, "top_k": null, "stream": true, "user": "me", "misspelt": 1}')) == {
        "max_tokens": 3
    }
    assert options_of(read('{"top_k": 0}')) == {"top_k": 0}


FORMS = {
    "response_format": {"type": "json_object"},
    "structured_outputs": {"json_object": True},
    "text": {"format": {"type": "json_object"}},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "output_format": {"type": "json_schema", "schema": {"type": "object"}},
    "nvext": {"guided_json": {"type": "object"}},
    "guided_json": {"type": "object"},
    "guided_json_object": True,
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": 'start: "a"',
    "json_schema": {"type": "object"},
    "regex": "a",
    "ebnf": 'root ::= "a"',
    "grammar": 'root ::= "a"',
    "format": "json",
}
"""Where requests to one endpoint or another, or to other servers, have the form of an answer."""
BODIES = (ChatRequest, CompletionRequest, ResponseRequest, MessageRequest, CountRequest)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", FORMS)
def test_no_endpoint_drops_a_form(body: type[msgspec.Struct], name: str) -> None:
    field = declared(body)[name]
    assert field.support is not Support.IGNORED
    given = msgspec.convert({name: FORMS[name]}, body)
    if field.support is Support.REFUSED:
        with pytest.raises(ApiError, match=f"{name}: not supported: the form of an answer is "):
            checked(given)


@pytest.mark.parametrize("body", BODIES)
def test_what_proxies_send_beside_a_form_is_none(body: type[msgspec.Struct]) -> None:
    """Those that turn one API into another forward what they do not know."""
    given = {"output_config": {"effort": "high"}, "text": {"verbosity": "low", "format": {"type": "text"}}}
    checked(msgspec.convert(given, body))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("sampling.top_k", "top_k"),
        ("stopping.max_tokens", "limit"),
        ("chat.messages[2].role", "messages[2].role"),
        ("token_ids[3]", "prompt[3]"),
        ("constraint.regex", "regex"),
    ],
)
def test_errors_name_fields_as_the_api_does(field: str, name: str) -> None:
    assert naming([Request], {"token_ids": "prompt"})(field) == name
