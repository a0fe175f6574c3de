"""Answers that a program can use: their form and the tools as the contract has them, and what comes back as objects."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Annotated

import pydantic
import pytest
import ringline
from ringline.inference.v1 import inference_pb2 as pb
from ringline.request import build_request, build_tokenize
from ringline.types.v1 import output_pb2, part_pb2
from ringline.types.v1.constraint_pb2 import (
    CallableTool,
    ChoiceOfTexts,
    Constraint,
    StructuralTag,
    StructuralTags,
    ToolCalls,
)

from tests.clients.scripted_server import Cut, admitted, call, delta, ended, play

STOP = output_pb2.FINISH_REASON_STOP


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str
    age: int = pydantic.Field(gt=0, multiple_of=1)


PERSON = '{"properties": {"name": {"title": "Name", "type": "string"}'
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
TYPED_ADD = pb.Tool(name="add", description="Adds.", parameters_json='{"type": "object"}', strict=True)
OTHER = {"type": "retrieval"}


def build(messages=None, **options) -> pb.GenerateRequest:
    return build_request(None if messages else "Hi", messages, None, options)


def chat(**options) -> pb.GenerateRequest:
    return build([{"role": "user", "content": "Hi"}], **options)


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"json_schema": {"type": "object"}}, Constraint(json_schema='{"type": "object"}')),
        (
            {"json_schema": '{"enum":[1]}', "any_whitespace": True},
            Constraint(json_schema='{"enum":[1]}', any_whitespace=True),
        ),
        ({"json_schema": True}, Constraint(json_schema="true")),
        ({"json_schema": False}, Constraint(json_schema="false")),
        ({"json_object": True, "after_reasoning": False}, Constraint(json_object=True, after_reasoning=False)),
        ({"regex": "a+", "json_object": False}, Constraint(regex="a+")),
        ({"choice": ["a", "b"]}, Constraint(choice=ChoiceOfTexts(texts=["a", "b"]))),
        ({"choice": []}, Constraint(choice=ChoiceOfTexts())),
        ({"grammar": 'start: "a"'}, Constraint(grammar='start: "a"')),
        (
            {"structural_tags": [{"begin": "<a>", "json_schema": {}, "end": "</a>"}]},
            Constraint(structural_tags=StructuralTags(tags=[StructuralTag(begin="<a>", json_schema="{}", end="</a>")])),
        ),
        (
            {"structural_tags": {"tags": [{"begin": "<a>", "trigger": "<"}], "required": True, "single": True}},
            Constraint(
                structural_tags=StructuralTags(
                    tags=[StructuralTag(begin="<a>", trigger="<")], required=True, single=True
                )
            ),
        ),
    ],
)
def test_a_form_is_a_constraint_without_which_no_server_answers(options, form):
    request = build(**options, requires=["sampling", "constraint"])
    assert (request.constraint, list(request.requires)) == (form, ["sampling", "constraint"])
    assert build(**options).requires == ["constraint"]


def test_without_a_form_there_is_no_constraint():
    for options in ({}, {"json_schema": None}, {"json_object": False}, {"parse": False}):
        assert build(**options) == pb.GenerateRequest(text="Hi")


class Team(pydantic.BaseModel):
    properties: dict[str, Person] = {}
    lead: Person | None = pydantic.Field(None, examples=[{"properties": 1}])
    others: list[Person | tuple[Person, int]]


def test_the_schema_of_a_pydantic_model_has_room_for_its_fields_alone():
    schema = json.loads(build(json_schema=Team).constraint.json_schema)
    open_one = Team.model_json_schema()
    closed = {"additionalProperties": False}
    assert schema == open_one | closed | {"$defs": {"Person": open_one["$defs"]["Person"] | closed}}


def test_a_dict_of_a_pydantic_model_has_room_for_keys_of_its_pattern_alone():
    class Prices(pydantic.BaseModel):
        cents: dict[Annotated[str, pydantic.Field(pattern="^[a-z]{3}$")], int]

    [cents] = json.loads(build(json_schema=Prices).constraint.json_schema)["properties"].values()
    assert cents["patternProperties"] == {"^[a-z]{3}$": {"type": "integer"}}
    assert cents["additionalProperties"] is False


def test_the_schema_of_a_pydantic_model_is_taken():
    assert build(json_schema=Person).constraint.json_schema.startswith('{"description": "Somebody.", ' + PERSON[1:])
    tag = build(structural_tags=[{"begin": "<a>", "json_schema": Person}]).constraint.structural_tags.tags[0]
    assert PERSON[1:] in tag.json_schema
    [tool] = chat(tools=[Person]).chat.tools
    assert (tool.name, tool.description, tool.parameters_json[: len(PERSON)]) == ("Person", "Somebody.", PERSON)


def test_parse_says_which_parts():
    assert build(parse=True) == pb.GenerateRequest(
        text="Hi", output=pb.OutputParams(parse=part_pb2.ParseParams()), requires=["parse"]
    )
    given = {"reasoning": "think", "begins_in_reasoning": False, "tool_names": ["add"], "tool_calls": None}
    parse = part_pb2.ParseParams(reasoning="think", begins_in_reasoning=False, tool_names=["add"])
    assert build(parse=given).output.parse == parse
    off = part_pb2.ParseParams(reasoning="none", tool_calls="none")
    assert chat(parse=False, tools=[ADD]).output.parse == off


@pytest.mark.parametrize(
    "tool",
    [
        ADD,
        {"type": "function", **ADD},
        {"type": "function", "function": ADD},
        {"function": {**ADD, "parameters": '{"type": "object"}'}},
    ],
)
def test_tools_that_are_functions_are_typed(tool):
    request = chat(tools=[tool])
    assert request.chat.tools[:] == [TYPED_ADD]
    assert (request.chat.tools_json, request.requires[:]) == ("", ["parse", "tools"])
    tokenize = build_tokenize(None, [{"role": "user", "content": "Hi"}], {"tools": [tool], "tool_choice": "none"})
    assert tokenize.chat.tools[:] == [TYPED_ADD]
    assert tokenize.chat.tool_choice.mode == pb.ToolChoice.MODE_NONE


@pytest.mark.parametrize("tool", [OTHER, {"function": {**ADD, "return": {"type": "number"}}}])
def test_other_tools_go_to_the_template_as_they_are(tool):
    request = chat(tools=[ADD, tool])
    assert (len(request.chat.tools), request.requires[:]) == (0, [])
    assert request.chat.tools_json.startswith('[{"name": "add"')


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ({"description": "?"}, "tools[1]: has no name"),
        ({"type": "function", "function": {}}, "tools[1].function: has no name"),
        ({"name": "f", "paramaters": {}}, "tools[1]: unknown key 'paramaters'; did you mean 'parameters'?"),
        ({"name": "f", "input_schema": {}}, "tools[1]: unknown key 'input_schema'; did you mean 'parameters'?"),
        (
            {"function": {"name": "f", "Strict": True}},
            "tools[1].function: unknown key 'Strict'; did you mean 'strict'?",
        ),
    ],
)
def test_misspelt_tools_are_refused(tool, problem):
    with pytest.raises(TypeError, match=re.escape(problem)):
        chat(tools=[ADD, tool])


@pytest.mark.parametrize(
    ("choice", "mode", "name"),
    [
        ("auto", pb.ToolChoice.MODE_AUTO, ""),
        ("none", pb.ToolChoice.MODE_NONE, ""),
        ("required", pb.ToolChoice.MODE_REQUIRED, ""),
        ("add", pb.ToolChoice.MODE_NAMED, "add"),
        ({"type": "function", "function": {"name": "add"}}, pb.ToolChoice.MODE_NAMED, "add"),
        ({"type": "function", "name": "add"}, pb.ToolChoice.MODE_NAMED, "add"),
    ],
)
def test_which_tool_must_be_called(choice, mode, name):
    made = chat(tools=[ADD], tool_choice=choice, parallel_tool_calls=False).chat.tool_choice
    assert made == pb.ToolChoice(mode=mode, name=name, single=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"regex": "a", "choice": ["b"]}, "an answer has one form, and regex and choice give 2: leave out all but one"),
        ({"any_whitespace": True}, "option 'any_whitespace' is for answers that have a form: give json_schema, "),
        ({"json_schema": 3}, "json_schema: expected a dict, a JSON text, a bool or a pydantic model class, got int; p"),
        (
            {"json_schema": {"name": "x", "schema": {}}},
            "json_schema: expected the schema itself, as at 'schema' of this dict",
        ),
        ({"schema": {}}, "option 'schema' is not supported: it is called json_schema here"),
        ({"json_schema": {"a": {1}}}, "json_schema: not JSON (Object of type set is not JSON serializable)"),
        ({"json_object": 1}, "json_object: expected True, got int"),
        ({"choice": "yes"}, "choice: expected a list of str, got str: ['yes'] has this text alone"),
        ({"choice": ["a", 1]}, "choice[1]: expected str, got int"),
        ({"regex": re.compile("a")}, "regex: expected str, got Pattern"),
        ({"structural_tags": "<a>"}, "structural_tags: expected a list of tags, or a dict such as"),
        ({"structural_tags": [{"start": "<a>"}]}, "structural_tags.tags[0]: unknown key 'start': expected begin, "),
        ({"tool_calls": []}, "tool_calls: expected a dict such as Admitted.options has it, got list"),
        (
            {"tool_calls": {"tools": [{"type": 1}]}},
            "tool_calls.tools[0]: unknown key 'type': expected name, parameters",
        ),
        ({"structural_tags": [{"begin": 1}]}, "structural_tags.tags[0].begin: expected str, got int"),
        ({"parse": "think"}, "parse: expected True, or a dict such as {'reasoning': 'think'}, got str"),
        ({"parse": {"reasoner": "think"}}, "parse: unknown key 'reasoner': expected tool_calls, reasoning, begins_in"),
        ({"tools": {}}, "tools: expected a list of tools, got dict"),
        ({"tools": [print]}, "tools[0]: expected dicts with name, description, parameters, strict, as such or in Open"),
        ({"tools": [{"name": 1}]}, "tools[0].name: expected str, got int"),
        ({"tools": [{"name": "a", "parameters": [1]}]}, "tools[0].parameters: expected a dict, a JSON text, a bool or"),
        ({"tool_choice": "auto"}, "option 'tool_choice' is for requests with tools: give tools too, or leave it out"),
        (
            {"tools": [ADD, OTHER], "tool_choice": "auto"},
            "tool_choice: needs tools that are functions, and tools[1]",
        ),
        ({"tools": [ADD], "tool_choice": {"type": "any"}}, "tool_choice: expected a dict such as {'type': 'function',"),
        ({"tools": [ADD], "parallel_tool_calls": 1}, "parallel_tool_calls: expected bool, got int"),
    ],
)
def test_what_is_no_form_and_no_tool_is_a_type_error_that_names_the_option(options, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        chat(**options)


def test_a_tool_that_there_is_not_cannot_be_demanded():
    with pytest.raises(ringline.InvalidRequest, match=r"^tool_choice: 'sub' is not a tool of this req.*required, add$"):
        chat(tools=[ADD], tool_choice="sub")
    with pytest.raises(ringline.InvalidRequest, match=r"t0, t1, .*, t7, …$"):
        chat(tools=[{"name": f"t{number}"} for number in range(512)], tool_choice="sub")


def parsed_by(form: Constraint | None = None, *, n: int = 1, **parse: str) -> pb.GenerateResponse:
    """Admitted, of a request that asked for the parts."""
    response = admitted(n, prompt_token_ids=[4, 5, 6], constraint=form)
    response.admitted.output.parse.MergeFrom(part_pb2.ParseParams(**parse))
    return response


def content(text: str) -> part_pb2.Part:
    return part_pb2.Part(content=text)


def reasoning(text: str) -> part_pb2.Part:
    return part_pb2.Part(reasoning=text)


async def test_an_answer_has_parts_and_is_a_message_of_the_conversation_that_goes_on(server, ask):
    server.plays(
        play(
            parsed_by(),
            delta(0, [10], "<think>", parts=[]),
            delta(1, [11, 12], "Hm</think>So", parts=[reasoning("Hm"), part_pb2.Part(), content("So")]),
            delta(3, [13], "…", parts=[call("", "add"), call('{"a":')]),
            ended(STOP, completion=4, reasoning=3, parts=[call(" 1}"), call("{}", "now", 1)]),
        )
    )
    outcome = await ask(parse=True)
    assert outcome.error is None
    deltas = [event for event in outcome.events if isinstance(event, ringline.Delta)]
    assert [(made.position, made.text, len(made.parts)) for made in deltas][2:] == [(3, "…", 2), (4, "", 2)]
    assert deltas[1].parts == (ringline.Reasoning("Hm"), ringline.Content("So"))
    assert deltas[3].parts[0] == ringline.ToolCallPiece(0, "", "", " 1}")
    assert isinstance(outcome.events[-1], ringline.Finished)
    answer = outcome.generation
    assert (answer.text, answer.content, answer.reasoning) == ("<think>Hm</think>So…", "So", "Hm")
    assert answer.usage.reasoning_tokens == 3
    assert [(made.id, made.name, made.parsed) for made in answer.tool_calls] == [
        ("id-add", "add", {"a": 1}),
        ("id-now", "now", {}),
    ]
    [message] = build([answer.message()]).chat.messages
    calls = [pb.ToolCall(id="id-add", name="add", arguments_json='{"a": 1}')]
    calls.append(pb.ToolCall(id="id-now", name="now", arguments_json="{}"))
    assert message == pb.ChatMessage(role="assistant", content="So", reasoning="Hm", tool_calls=calls)


async def test_without_parts_the_content_is_the_text(server, ask):
    answer = (await ask()).generation
    assert (answer.content, answer.reasoning, answer.tool_calls) == ("Hello, world", None, ())
    assert answer.parsed is None, "it was not asked to be JSON"
    assert answer.message() == {"role": "assistant", "content": "Hello, world"}


@pytest.mark.parametrize("parts", [[], [call(" 1}")], [call("{}", "add", 1)], [call("{}")]])
async def test_a_call_that_did_not_begin_breaks_the_protocol(server, ask, parts):
    server.plays(play(parsed_by(), delta(0, [10], "a", parts=parts), ended(completion=1)))
    error = (await ask(parse=True)).error
    assert isinstance(error, ringline.ProtocolError) == bool(parts)


JOHN = '{"name": "John", "age": 5}'


async def test_an_answer_of_json_is_an_object(server, ask):
    server.plays(play(admitted(), delta(0, [1], JOHN), ended(STOP, completion=1)))
    assert (await ask(json_schema={"type": "object"})).generation.parsed == {"name": "John", "age": 5}
    assert (await ask(json_object=True)).generation.parsed == {"name": "John", "age": 5}
    answer = (await ask(json_schema=Person)).generation
    assert answer.parsed == Person(name="John", age=5)
    assert answer.parsed is answer.parsed
    assert pickle.loads(pickle.dumps(copy.copy(answer))).parsed == answer.parsed


@pytest.mark.parametrize(
    ("text", "reason", "problem"),
    [
        (JOHN[:9], output_pb2.FINISH_REASON_LENGTH, "choice 0 was cut off after 1 tokens (length), so its JSON is not"),
        ('{"name": "John", "age": 0}', STOP, "choice 0 cannot be read: 1 validation error for Person\nage"),
    ],
)
async def test_an_answer_that_is_no_object_says_so_when_it_is_read(server, ask, text, reason, problem):
    server.plays(play(admitted(), delta(0, [1], text), ended(reason, completion=1)))
    answer = (await ask(json_schema=Person)).generation
    assert answer.content == text
    with pytest.raises(ringline.ParseError, match=f"^{re.escape(problem)}"):
        _ = answer.parsed


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]"])
def test_arguments_that_are_no_object_say_so(arguments):
    with pytest.raises(ringline.ParseError, match=r"^the arguments of 'add' are no"):
        _ = ringline.ToolCall("c1", "add", arguments).parsed


async def test_a_lost_answer_keeps_its_form_and_its_parts(server, ask, short_delays):
    """What the first server made of tools and tool_choice goes to the next one, which is given no chat."""
    form = Constraint(tool_calls=ToolCalls(tools=[CallableTool(name="add")], required=True), after_reasoning=True)
    first = parsed_by(form, n=2, tool_calls="hermes", reasoning="think")
    server.plays(
        play(
            first,
            delta(0, [10], "a", parts=[reasoning("Hm")]),
            delta(0, [20], "b", choice=1, parts=[reasoning("Oh"), call('{"a"', "add")]),
            ended(STOP, choice=0, reasoning=1, parts=[content("!")]),
            Cut(),
        ),
        play(first, delta(1, [21], "c", choice=1, parts=[call(": 1}")]), ended(STOP, 1, completion=2, reasoning=2)),
    )
    outcome = await ask(None, messages=[{"role": "user", "content": "1+1?"}], tools=[ADD], tool_choice="required", n=2)
    one, two = outcome.generation.choices
    assert (one.content, one.reasoning, two.reasoning, two.tool_calls[0].parsed) == ("!", "Hm", "Oh", {"a": 1})
    assert outcome.generation.usage.reasoning_tokens == 3
    again = server.service.requests[1]
    assert again.WhichOneof("prompt") == "token_ids"
    assert (again.constraint, again.output.parse) == (form, first.admitted.output.parse)
    assert sorted(again.requires) == ["constraint", "parse", "tools"]

    repeated = build(**outcome.generation.request.options)
    assert (repeated.constraint, repeated.output.parse) == (form, first.admitted.output.parse)
    repeated = chat(tools=[ADD], tool_choice="required", **outcome.generation.request.options)
    assert not repeated.HasField("constraint"), "the tools say it"
    assert repeated.output.parse == first.admitted.output.parse


@pytest.mark.parametrize(
    ("reasoning", "stopping", "requires"),
    [
        ("think", {"stop": ["x"], "stop_in_reasoning": False}, ["answer_stops", "parse"]),
        ("think", {"stop_token_ids": [3], "stop_in_reasoning": False}, ["answer_stops", "parse"]),
        ("think", {"stop": ["x"], "stop_in_reasoning": True}, ["parse"]),
        ("think", {"stop_in_reasoning": False}, ["parse"]),
        ("none", {"stop": ["x"], "stop_in_reasoning": False}, ["parse"]),
        ("think", {"stop": ["x"]}, ["parse"]),
    ],
)
async def test_stops_count_after_a_resume_where_they_counted_before(
    server, ask, short_delays, reasoning, stopping, requires
):
    """A server that does not know where stops may count lets them count everywhere, and says nothing of it."""
    first = parsed_by(reasoning=reasoning)
    first.admitted.stopping.MergeFrom(pb.StoppingParams(**stopping))
    server.plays(play(first, delta(0, [10], "a"), Cut()), play(first, delta(1, [11], "s"), ended(STOP, completion=2)))
    await ask(parse=True)
    again = server.service.requests[1]
    assert sorted(again.requires) == requires
    assert again.stopping.stop_in_reasoning is stopping.get("stop_in_reasoning", True)
    assert build(parse={"reasoning": reasoning}, **stopping).requires == requires


async def test_the_last_parts_of_a_choice_that_goes_on_elsewhere_are_not_taken_twice(server, ask, short_delays):
    moved = ended(output_pb2.FINISH_REASON_ERROR, completion=1, parts=[content("<thi")])
    moved[0].choice_finished.error.code = 14  # UNAVAILABLE
    server.plays(
        play(parsed_by(), delta(0, [10], "<thi"), moved),
        play(parsed_by(), delta(1, [11], "s", parts=[content("<this")]), ended(STOP, completion=2)),
    )
    assert (await ask(parse=True)).generation.content == "<this"


async def test_all_choices_ended_before_the_stream_was_lost(server, ask, short_delays):
    server.plays(play(parsed_by(), delta(0, [10], "a"), ended(STOP, reasoning=1, parts=[content("a")]), Cut()))
    answer = (await ask(parse=True)).generation
    assert (answer.content, answer.usage.reasoning_tokens) == ("a", 1)


async def test_a_server_that_drops_the_form_breaks_the_protocol(server, ask, short_delays):
    form = Constraint(regex="a+", after_reasoning=False)
    server.plays(play(parsed_by(form), delta(0, [10], "a"), Cut()), play(parsed_by(), ended(STOP, completion=1)))
    error = (await ask(regex="a+")).error
    assert isinstance(error, ringline.ProtocolError)
    assert "another constraint" in str(error)


@pytest.mark.parametrize(
    "form",
    [
        {"choice": ["a", "b"]},
        {"json_object": True, "any_whitespace": True, "after_reasoning": False},
        {"structural_tags": {"tags": [{"begin": "<a>", "json_schema": "{}"}], "required": True}},
        {
            "tool_calls": {
                "tools": [{"name": "a", "parameters": "{}", "strict": True}],
                "required": True,
                "single": False,
            }
        },
        {
            "tool_calls": {
                "tools": [{"name": "a", "parameters": "{}", "strict": False}],
                "required": False,
                "single": True,
                "form": {"json_schema": "{}", "any_whitespace": True},
            }
        },
    ],
)
async def test_the_form_is_among_the_options_that_repeat_a_request(server, ask, form):
    sent = build(**form).constraint
    server.plays(play(parsed_by(sent), ended(STOP, completion=0)))
    options = (await ask(**form)).generation.request.options
    assert {name: options[name] for name in form} == form
    assert build(**options).constraint == sent


def test_tools_given_again_keep_the_form_beside_them():
    options = {"tool_calls": {"tools": [{"name": "a"}], "form": {"regex": "a+"}}, "after_reasoning": True}
    again = chat(tools=[ADD], **options)
    assert again.constraint == Constraint(regex="a+", after_reasoning=True)
    assert set(again.requires) == {"constraint", "form_beside_tools", "parse", "tools"}
    assert not chat(tools=[ADD], tool_calls={"tools": [{"name": "a"}]}).HasField("constraint")
