"""Constraints, tools and parsing of requests: what is refused where, and that a resume resolves to the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2

from services.processor.admission import constraint_resolution
from services.processor.admission.request_resolution import resolve_request
from services.processor.admission.tool_resolution import resolve_tools
from services.processor.request import ResolvedRequest
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.identity import ENGINE_CAPABILITIES, GRAMMAR_CAPABILITIES, PeerId
from services.ring.routing_logic import Needs
from tests.services.processor.model_specs import served_model, tokenizer
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.parsing import formats

ME = PeerId("processor-0", 77)
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}[assistant]{{ opening }}{% endif %}{# <think></think> #}"
)
ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters_json": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
}
SUB = {"name": "sub"}
MODES = inference_pb2.ToolChoice.Mode


def model(template: str = TEMPLATE, *, can_constrain: bool = True) -> ServedModel:
    """A model with room for tools, whose template writes calls as Hermes and reasoning."""
    served = served_model()
    lacking = () if can_constrain else GRAMMAR_CAPABILITIES
    served.model.capabilities.extend(name for name in ENGINE_CAPABILITIES if name not in lacking)
    limits = replace(served.limits, max_model_len=4096)
    return replace(served, chat=ChatTemplates({"default": TemplateSource(template)}), limits=limits)


MODEL = model()


def chat(*tools: dict[str, Any], choice: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice} | fields


def take(served: ServedModel = MODEL, **fields: Any) -> ResolvedRequest:
    if not fields.keys() & {"chat", "token_ids"}:
        fields["text"] = "abc"
    return resolve_request(inference_pb2.GenerateRequest(**fields), served, "", ME)


def refusal(served: ServedModel = MODEL, **fields: Any) -> Status:
    with pytest.raises(Refused) as refused:
        take(served, **fields)
    return refused.value.status


def context_of(resolved: ResolvedRequest) -> detokenizer_pb2.OutputContext:
    return detokenizer_pb2.OutputContext.FromString(resolved.output_context)


def resumed(first: ResolvedRequest, served: ServedModel = MODEL) -> ResolvedRequest:
    """The same request as a client sends it again: prompt ids and what ``Admitted`` said."""
    admitted = first.admitted
    request = inference_pb2.GenerateRequest(
        token_ids={"ids": first.submit.prompt_token_ids},
        sampling=admitted.sampling,
        stopping=admitted.stopping,
        output=admitted.output,
        constraint=admitted.constraint if admitted.HasField("constraint") else None,
        resume={"choices": [{"choice": 0, "token_ids": [1]}], "model_digest": "model"},
    )
    return resolve_request(request, served, "", ME)


def assert_resumes(first: ResolvedRequest, served: ServedModel = MODEL) -> None:
    again = resumed(first, served)
    assert (again.submit.constraint, again.submit.parse) == (first.submit.constraint, first.submit.parse)
    assert again.needs == first.needs
    assert again.admitted.constraint == first.admitted.constraint
    context, before = context_of(again), context_of(first)
    assert (context.parse, context.call_id_seed) == (before.parse, before.call_id_seed)


# Constraints


@pytest.mark.parametrize(
    "constraint",
    [
        {"json_schema": '{"type": "object"}'},
        {"json_object": True, "any_whitespace": True},
        {"regex": "[ab]+"},
        {"choice": {"texts": ["yes", "no"]}},
        {"grammar": 'start: "a" b\nb: /[0-9]+/'},
        {"grammar": 'root ::= "a" [0-9]+'},
        {"structural_tags": {"tags": [{"begin": "<f>", "end": "</f>"}], "required": True}},
    ],
    ids=lambda constraint: next(iter(constraint)),
)
def test_a_constraint_goes_to_the_engine_and_a_resume_repeats_it(constraint: dict[str, Any]) -> None:
    resolved = take(constraint=constraint)
    assert resolved.submit.constraint == resolved.admitted.constraint
    assert resolved.submit.requires == ["constraint"]
    assert resolved.needs == Needs(frozenset({"constraint"}))
    assert resolved.admitted.constraint.HasField("after_reasoning")
    assert_resumes(resolved)
    after = take(constraint=constraint, output={"parse": {"reasoning": "think"}})
    assert after.admitted.constraint.after_reasoning
    assert after.submit.constraint != resolved.submit.constraint
    assert_resumes(after)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({}, "constraint: none is set"),
        ({"json_object": False}, "constraint.json_object: false"),
        ({"json_schema": "["}, "constraint.json_schema: "),
        ({"regex": "(?=a)b"}, "constraint.regex: "),
        ({"choice": {}}, "constraint.choice.texts: "),
        ({"grammar": "start: nowhere"}, "constraint.grammar: "),
        ({"regex": "a", "after_reasoning": True}, "constraint.after_reasoning: set, but output.parse.reasoning"),
    ],
)
def test_a_refused_constraint_names_the_place(constraint: dict[str, Any], message: str) -> None:
    status = refusal(constraint=constraint)
    assert status.code is Code.INVALID_ARGUMENT
    assert status.message.startswith(message)
    assert status.field == message.partition(":")[0]


def test_it_is_never_ignored() -> None:
    status = refusal(model(can_constrain=False), constraint={"regex": "a"})
    assert (status.code, status.reason) == (Code.FAILED_PRECONDITION, Reason.CAPABILITY_MISSING)
    assert status.field == "constraint"
    both = refusal(constraint={"regex": "a"}, sampling={"allowed_token_ids": [5]})
    assert both.field == "sampling.allowed_token_ids"


def test_a_constraint_too_large_for_engines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_resolution, "MAX_BYTES", 100)
    tools = refusal(chat=chat(ADD, SUB, choice={"mode": "MODE_REQUIRED"}))
    assert tools.message.startswith("chat.tools: has ")
    assert tools.message.endswith(" bytes with the parameters of all tools: expected at most 100")
    assert refusal(constraint={"regex": "a" * 100}).message.startswith("constraint: has 1")


def test_a_grammar_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    check = MODEL.grammars.checker.check
    monkeypatch.setattr(MODEL.grammars.checker, "check", lambda grammar: (tried.append(grammar), check(grammar)))
    for _ in range(3):
        take(constraint={"regex": "once"})
        assert refusal(constraint={"grammar": "start: never"}).field == "constraint.grammar"
    assert len(tried) == 2


# Tools


def test_many_tools_and_long_names() -> None:
    many = [{"name": f"{number:0128}"} for number in range(600)]
    assert len(resolve_tools(inference_pb2.Chat(**chat(*many[:512]))).names) == 512
    told = take(chat=chat({"name": "a" * 128}))
    assert told.admitted.output.parse.tool_calls == "hermes"
    none = take(chat=chat(*many, choice={"mode": MODES.MODE_NONE}))  # the model is not told of them
    assert list(none.submit.prompt_token_ids) == list(take(chat=chat()).submit.prompt_token_ids)


def test_tools_are_rendered_as_templates_expect_them() -> None:
    resolved = take(chat=chat(ADD, SUB))
    rendered = tokenizer().decode(list(resolved.submit.prompt_token_ids))
    [tools] = [json.loads(part) for part in [rendered[rendered.index("[{") : rendered.index("[assistant]")]]]
    assert tools[0] == {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": json.loads(ADD["parameters_json"])},
    }
    assert tools[1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert context_of(resolved).parse.tool_calls == "hermes"
    assert not context_of(resolved).parse.tool_names  # its marker says what is a call
    unmarked = take(chat=chat(ADD, SUB), output={"parse": {"tool_calls": "llama3_json"}})
    assert list(context_of(unmarked).parse.tool_names) == ["add", "sub"]
    assert not resolved.submit.HasField("constraint")
    assert resolved.needs == Needs(detokenizer=frozenset({"parse"}))
    assert_resumes(resolved)


def test_a_model_is_not_told_of_tools_that_it_must_not_call() -> None:
    none = take(chat=chat(ADD, choice={"mode": MODES.MODE_NONE}))
    assert none.submit.prompt_token_ids == take(chat=chat()).submit.prompt_token_ids
    assert not none.admitted.output.HasField("parse")
    parsed = take(chat=chat(ADD, choice={"mode": MODES.MODE_NONE}), output={"parse": {}})
    assert context_of(parsed).parse.tool_calls == "none"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (chat({"name": ""}), "chat.tools[0].name"),
        (chat({"name": "a b"}), "chat.tools[0].name"),
        (chat(ADD, ADD), "chat.tools[1].name"),
        (chat({"name": "f", "parameters_json": "{"}), "chat.tools[0].parameters_json"),
        (chat({"name": "f", "parameters_json": "[]"}), "chat.tools[0].parameters_json"),
        (chat({"name": "f", "parameters_json": '{"type": "array"}'}), "chat.tools[0].parameters_json"),
        (chat(*({"name": f"f{i}"} for i in range(513))), "chat.tools"),
        (chat({"name": "a" * 129}), "chat.tools[0].name"),
        (chat(ADD, tools_json="[]"), "chat.tools"),
        (chat(choice={"mode": MODES.MODE_REQUIRED}, tools_json="[]"), "chat.tool_choice"),
        (chat(choice={"mode": MODES.MODE_REQUIRED}), "chat.tool_choice"),
        (chat(ADD, choice={"name": "sub"}), "chat.tool_choice.name"),
        (chat(ADD, choice={"mode": MODES.MODE_NAMED}), "chat.tool_choice.name"),
        (chat(ADD, choice={"name": "add", "mode": MODES.MODE_AUTO}), "chat.tool_choice.name"),
    ],
)
def test_tools_that_cannot_be_used_are_refused_by_name(fields: dict[str, Any], field: str) -> None:
    status = refusal(chat=fields)
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, field)


def test_calls_cannot_be_demanded_of_a_template_without_a_format() -> None:
    plain = model("{{ messages[0].content }}{{ tools }}")
    assert context_of(take(plain, chat=chat(ADD))).parse.tool_calls == "none"
    status = refusal(plain, chat=chat(ADD, choice={"name": "add"}))
    assert status.field == "chat.tool_choice"
    assert "hermes" in status.message
    assert refusal(plain, chat=chat(ADD | {"strict": True})).field == "chat.tools"


STRICT = ADD | {"strict": True}


HELD: list[tuple[list[dict[str, Any]], dict[str, Any] | None, bool, bool, list[str]]] = [
    ([ADD, SUB], {"mode": MODES.MODE_REQUIRED}, True, False, ["add", "sub"]),
    ([ADD, SUB], {"mode": MODES.MODE_REQUIRED, "single": True}, True, True, ["add", "sub"]),
    ([SUB, ADD], {"name": "add"}, True, True, ["add"]),
    ([STRICT, SUB], None, False, False, ["add", "sub"]),
    ([ADD, SUB], {"single": True}, False, True, ["add", "sub"]),
]
"""Tools, the choice among them; whether calls are required, and single; the tools that can be called."""


@pytest.mark.parametrize(("number", "form"), list(enumerate(sorted(formats.TOOL_FORMATS))))
def test_calls_are_held_to_their_form_and_a_resume_repeats_it(number: int, form: str) -> None:
    tools, choice, required, single, names = HELD[number % len(HELD)]
    parse = {"tool_calls": form, "reasoning": "harmony" if form == "harmony" else "think"}
    resolved = take(chat=chat(*tools, choice=choice), output={"parse": parse})
    constraint = resolved.admitted.constraint
    calls = constraint.tool_calls
    assert (calls.required, calls.single, [tool.name for tool in calls.tools]) == (required, single, names)
    assert constraint.after_reasoning
    assert resolved.submit.constraint == constraint
    assert resolved.submit.parse == resolved.admitted.output.parse
    assert_resumes(resolved)


@pytest.mark.parametrize("choice", [None, {"name": "add"}, {"single": True}])
@pytest.mark.parametrize("strict", [False, True])
def test_a_form_beside_tools_leaves_calls_possible(choice: dict[str, Any] | None, strict: bool) -> None:
    """A resume repeats it; an engine must know of it."""
    form = {"json_object": True}
    resolved = take(chat=chat(ADD | {"strict": strict}, choice=choice), constraint=form, output={"parse": {}})
    constraint = resolved.admitted.constraint
    assert constraint.tool_calls.form == constraint_pb2.Constraint(json_object=True)
    assert constraint.tool_calls.required == (choice == {"name": "add"})
    assert [tool.strict for tool in constraint.tool_calls.tools] == [strict]
    assert constraint.after_reasoning
    assert resolved.needs.engine == {"constraint", "form_beside_tools"} == set(resolved.submit.requires)
    assert_resumes(resolved)


def test_a_form_stands_alone_where_nothing_can_be_called() -> None:
    form = constraint_pb2.Constraint(json_object=True, after_reasoning=False)
    for given in (
        {"chat": chat(ADD, choice={"mode": MODES.MODE_NONE})},
        {"chat": chat(ADD), "output": {"parse": {"tool_calls": "none"}}},
        {"chat": chat(ADD), "served": model("{{ tools | tojson }}")},
    ):
        assert take(**given, constraint=form).submit.constraint == form


def test_a_form_beside_tools_needs_an_engine_that_knows_it() -> None:
    older = model()
    older.model.capabilities.remove("form_beside_tools")
    status = refusal(older, chat=chat(ADD), constraint={"json_object": True})
    assert (status.code, status.reason) == (Code.FAILED_PRECONDITION, Reason.CAPABILITY_MISSING)
    assert "form_beside_tools" in status.message


UNSUPPORTED = {"name": "f", "parameters_json": '{"properties": {"a": {"type": "array", "uniqueItems": true}}}'}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"chat": chat(SUB, UNSUPPORTED, choice={"name": "f"})}, "chat.tools[1].parameters_json"),
        ({"chat": chat(SUB, UNSUPPORTED | {"strict": True})}, "chat.tools[1].parameters_json"),
        ({"chat": chat(ADD), "constraint": {"regex": "(?=a)"}}, "constraint.regex"),
        ({"chat": chat(ADD), "constraint": {}}, "constraint"),
        ({"constraint": {"tool_calls": {"tools": [SUB]}}}, "constraint.tool_calls"),
        ({"constraint": {"tool_calls": {}}}, "constraint.tool_calls.tools"),
        ({"constraint": {"tool_calls": {"tools": [SUB, SUB]}}}, "constraint.tool_calls.tools[1].name"),
        (
            {"constraint": {"tool_calls": {"tools": [UNSUPPORTED], "required": True}}, "output": {"parse": {}}},
            "constraint.tool_calls.tools[0].parameters_json",
        ),
    ],
)
def test_calls_that_cannot_be_demanded_are_refused_by_name(fields: dict[str, Any], field: str) -> None:
    status = refusal(**fields)
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, field)
    if field.endswith("parameters_json"):
        assert "uniqueItems" in status.message
        assert take(chat=chat(SUB, UNSUPPORTED)), "a schema that is only shown to the model need not be supported"


# Parsing


@pytest.mark.parametrize(("prompt", "after"), [("<think>", True), ("<think>.</think>", False), ("", True)])
def test_a_form_does_not_follow_reasoning_that_the_prompt_has_ended(prompt: str, after: bool) -> None:
    asked = chat(template_args_json=json.dumps({"opening": prompt}))
    first = take(chat=asked, output={"parse": {}}, constraint={"choice": {"texts": ["yes"]}})
    assert first.admitted.constraint.after_reasoning is after
    assert_resumes(first)
    asked = chat(ADD, choice={"mode": "MODE_REQUIRED"}, template_args_json=json.dumps({"opening": prompt}))
    assert take(chat=asked, output={"parse": {}}).admitted.constraint.after_reasoning is after
    given = {"choice": {"texts": ["yes"]}, "after_reasoning": True}
    assert take(chat=asked | {"tool_choice": None}, output={"parse": {}}, constraint=given)


def test_every_field_of_parse_is_resolved_and_reasoning_may_begin_in_the_prompt() -> None:
    parse = take(chat=chat(template_args_json='{"opening": "<think>"}'), output={"parse": {}}).admitted.output.parse
    assert (parse.tool_calls, parse.reasoning, parse.begins_in_reasoning) == ("hermes", "think", True)
    closed = take(chat=chat(template_args_json='{"opening": "<think>.</think>"}'), output={"parse": {}})
    assert not closed.admitted.output.parse.begins_in_reasoning
    assert closed.admitted.output.parse.HasField("begins_in_reasoning")
    assert_resumes(closed)
    named = take(chat=chat(), output={"parse": {"content_tokens": True}})
    assert context_of(named).parse.content_tokens
    assert (named.needs.detokenizer, closed.needs.detokenizer) == ({"parse", "content_tokens"}, {"parse"})
    assert_resumes(named)


@pytest.mark.parametrize("in_reasoning", [None, False, True])
def test_stops_count_behind_the_reasoning_unless_the_request_says_otherwise(in_reasoning: bool | None) -> None:
    stopping: dict[str, Any] = {"stop": ["x"], "stop_token_ids": [3], "stop_in_reasoning": in_reasoning}
    resolved = take(chat=chat(), output={"parse": {"reasoning": "think"}}, stopping=stopping)
    behind = not in_reasoning
    assert context_of(resolved).stops_in_answer_only == behind
    assert list(context_of(resolved).stop_token_ids) == ([3] if behind else [])
    assert list(resolved.submit.stop_token_ids) == ([] if behind else [3])
    assert list(resolved.admitted.stopping.stop_token_ids) == [3]
    assert resolved.needs.detokenizer == {"parse", *(["answer_stops"] if behind else [])}
    assert_resumes(resolved)
    for plain in (take(chat=chat(), stopping=stopping), take(chat=chat(), output={"parse": {"reasoning": "think"}})):
        assert not context_of(plain).stops_in_answer_only


def test_untyped_tools_are_parsed_if_asked() -> None:
    fields = chat(tools_json='[{"type": "function", "function": {"name": "f"}}]')
    assert not take(chat=fields).admitted.output.HasField("parse")
    assert take(chat=fields, output={"parse": {"tool_names": ["f"]}}).admitted.output.parse.tool_calls == "hermes"


@pytest.mark.parametrize(
    ("parse", "field"),
    [
        ({"tool_calls": "x"}, "output.parse.tool_calls"),
        ({"reasoning": "x"}, "output.parse.reasoning"),
        ({"tool_names": ["a b"]}, "output.parse.tool_names[0]"),
        ({"tool_names": ["a"] * 513}, "output.parse.tool_names"),
        ({"tool_names": ["a" * 64] * 100}, "output.parse.tool_names"),
    ],
)
def test_parsing_that_is_not_known_is_refused(parse: dict[str, Any], field: str) -> None:
    assert refusal(output={"parse": parse}).field == field


def test_ids_of_calls_depend_on_prompt_and_seed() -> None:
    def seed(**fields: Any) -> bytes:
        return context_of(take(output={"parse": {}}, **fields)).call_id_seed

    one = seed(sampling={"seed": 1})
    assert one == seed(sampling={"seed": 1})
    assert len(one) == 16
    assert one not in (seed(sampling={"seed": 2}), seed(sampling={"seed": 1}, token_ids={"ids": [5]}))


def test_reasoning_of_earlier_messages_reaches_the_template() -> None:
    message = {"role": "assistant", "content": "c", "reasoning": "r"}
    prompt = take(chat={"messages": [message]}).submit.prompt_token_ids
    assert tokenizer().decode(list(prompt)).startswith("[assistant]rc")
