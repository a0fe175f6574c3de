"""A request becomes prompt ids with every default resolved, or is refused naming the field."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.inference.v1 import inference_pb2

from services.processor.admission.prompt_resolution import prompt_ids, render_chat
from services.processor.admission.request_resolution import _bad_words, cache_salt, resolve_request
from services.processor.admission.validation import MAX_PROBLEM_LENGTH, ModelLimits
from services.processor.request import ResolvedRequest
from services.processor.service import detokenize
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import CHAT_CAPABILITIES, ENGINE_CAPABILITIES, PROCESSOR_CAPABILITIES, PeerId
from services.ring.limits import MAX_CHOICES
from tests.services.processor.model_specs import EOS_TEXT, MAX_MODEL_LEN, served_model, tokenizer
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.tokenizer import Tokenizer
from text_core.tokenizer_files import NO_TOKENIZER

ME = PeerId("processor-0", 77)
TOKENIZER = tokenizer()
BOS, EOS = TOKENIZER.token_id("<s>"), TOKENIZER.token_id(EOS_TEXT)


def ask(text: str = "abc", **fields: Any) -> inference_pb2.GenerateRequest:
    """``fields``: as protobuf takes them, messages as dicts; a ``chat`` replaces the text."""
    return inference_pb2.GenerateRequest(**({} if "chat" in fields else {"text": text}), **fields)


def take(request: inference_pb2.GenerateRequest, tenant: str = "", **defaults: float) -> ResolvedRequest:
    return resolve_request(request, served_model(**defaults), tenant, ME)


def choices_of(resolved: ResolvedRequest) -> dict[int, list[int]]:
    return {choice: list(ids) for choice, ids in resolved.choices.items()}


def context_of(resolved: ResolvedRequest) -> detokenizer_pb2.OutputContext:
    return detokenizer_pb2.OutputContext.FromString(resolved.output_context)


def refusal(request: inference_pb2.GenerateRequest) -> str:
    with pytest.raises(Refused) as refused:
        take(request)
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    return refused.value.status.message


# Numbers in refusals


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("temperature", 2.0**31, "2147483648 is out of range: expected at least 0 and less than 2147483648"),
        ("repetition_penalty", 3e30, "3e+30 is out of range: expected at least 4.656613e-10 and less than 2147483648"),
        ("frequency_penalty", 2.0000002, "2.0000002 is out of range: expected -2 to 2"),
        ("top_p", -1e-7, "-1e-07 is out of range: expected more than 0 and at most 1"),
    ],
)
def test_errors_quote_numbers_as_they_were_written(field: str, value: float, text: str) -> None:
    assert refusal(ask(sampling={field: value})) == f"sampling.{field}: {text}"


def test_a_model_without_a_tokenizer_takes_token_ids_alone() -> None:
    alone = replace(served_model(), tokenizer=Tokenizer.from_files(NO_TOKENIZER))
    ids = {"ids": [5, 6]}
    taken = resolve_request(inference_pb2.GenerateRequest(token_ids=ids), alone, "", ME)
    assert taken.admitted.prompt_tokens == 2
    for field, request in {
        "text": {"text": "abc"},
        "chat": {"chat": {"messages": [{"role": "user", "content": "a"}]}},
        "stopping.stop": {"token_ids": ids, "stopping": {"stop": ["x"]}},
        "stopping.bad_words": {"token_ids": ids, "stopping": {"bad_words": ["x"]}},
        "output.parse": {"token_ids": ids, "output": {"parse": {}}},
    }.items():
        with pytest.raises(Refused) as refused:
            resolve_request(inference_pb2.GenerateRequest(**request), alone, "", ME)
        assert refused.value.status.message.startswith(f"{field}: needs a tokenizer"), field
    asked = inference_pb2.DetokenizeRequest(token_ids=[5, 6])
    with pytest.raises(Refused, match="token_ids: needs a tokenizer"):
        detokenize(asked, alone)
    asked.pieces = True
    assert len(detokenize(asked, alone).pieces) == 2


# Defaults


def test_every_scalar_is_resolved() -> None:
    admission = take(ask())
    for message in (admission.admitted.sampling, admission.admitted.stopping, admission.admitted.output):
        for field in message.DESCRIPTOR.fields:
            if field.has_presence and field.name not in (
                "logprobs",
                "prompt_logprobs",
                "parse",
                "max_reasoning_tokens",
                "no_repeat_ngram",
            ):
                assert message.HasField(field.name), field.name
    sampling, stopping, output = admission.admitted.sampling, admission.admitted.stopping, admission.admitted.output
    neutral = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.n)
    assert neutral == (1.0, 0, 1.0, 0.0, 1)
    penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
    assert penalties == (0.0, 0.0, 1.0)
    assert stopping.max_tokens == MAX_MODEL_LEN - admission.admitted.prompt_tokens
    assert (stopping.min_tokens, stopping.ignore_eos, stopping.include_stop_str_in_output) == (0, False, False)
    assert output.skip_special_tokens
    assert not output.return_prompt_token_ids
    assert not output.HasField("logprobs")


def test_model_defaults_apply_unless_overridden() -> None:
    defaults = {"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5}
    resolved = take(ask(), **defaults).admitted.sampling
    assert {name: getattr(resolved, name) for name in defaults} == defaults
    resolved = take(ask(sampling=dict.fromkeys(defaults, 1)), **defaults).admitted.sampling
    assert {getattr(resolved, name) for name in defaults} == {1}


def test_zero_is_not_absence() -> None:
    request = ask(sampling={"temperature": 0.0, "top_k": 0, "min_p": 0.0})
    resolved = take(request, temperature=0.5, top_k=7, min_p=0.5).admitted.sampling
    assert (resolved.temperature, resolved.top_k, resolved.min_p) == (0.0, 0, 0.0)


def test_seeds_are_random_unless_given() -> None:
    drawn = {take(ask()).admitted.sampling.seed for _ in range(20)}
    assert len(drawn) == 20
    assert max(drawn) > 2**32, "all 64 bits"
    assert take(ask(sampling={"seed": 0})).admitted.sampling.seed == 0


def test_engine_and_client_get_the_same_parameters() -> None:
    request = ask(
        sampling={"n": 2, "temperature": 0.5, "logit_bias": {3: 4.0}},
        stopping={"max_tokens": 9, "min_tokens": 2, "stop_token_ids": [4, 5], "ignore_eos": True},
        output={"logprobs": 0, "prompt_logprobs": 3},
        priority=-5,
    )
    admission = take(request, tenant="t")
    submit, admitted = admission.submit, admission.admitted
    assert submit.sampling.SerializeToString() == admitted.sampling.SerializeToString(), "field by field"
    assert (submit.max_tokens, submit.min_tokens, submit.ignore_eos) == (9, 2, True)
    assert list(submit.stop_token_ids) == [4, 5]
    assert (submit.HasField("logprobs"), submit.logprobs, submit.prompt_logprobs) == (True, 0, 3)
    assert (submit.priority, submit.tenant) == (-5, "t")
    assert submit.model_digest == admitted.model_digest == served_model().model.model_digest
    assert choices_of(admission) == {0: [], 1: []}
    assert not take(ask()).submit.HasField("logprobs")


def test_the_output_context_has_the_text_options() -> None:
    stopping = {"stop": ["x", "yz"], "include_stop_str_in_output": True, "min_tokens": 3}
    request = ask("ab" * 12, stopping=stopping, output={"skip_special_tokens": False})
    context = context_of(take(request))
    assert (context.reply_to, context.reply_incarnation) == (ME.name, ME.incarnation)
    assert list(context.stop_strings) == ["x", "yz"]
    assert (context.include_stop_str_in_output, context.skip_special_tokens, context.min_tokens) == (True, False, 3)
    assert context.tokenizer_digest == TOKENIZER.fingerprint()
    prompt = TOKENIZER.encode(request.text)
    assert 0 < len(context.prompt_tail) < len(prompt)
    assert list(context.prompt_tail) == prompt[-len(context.prompt_tail) :]


# Prompts


def test_text_gets_special_tokens_by_default() -> None:
    request = ask("abc")
    assert list(prompt_ids(request, served_model())) == [BOS, *TOKENIZER.encode("abc", add_special_tokens=False)]
    request.add_special_tokens = False
    assert list(prompt_ids(request, served_model())) == TOKENIZER.encode("abc", add_special_tokens=False)


def test_chats_get_no_special_tokens_by_default() -> None:
    request = ask(chat={"messages": [{"role": "user", "content": "ab"}]})
    bare = TOKENIZER.encode("[user]ab\n[assistant]", add_special_tokens=False)
    assert prompt_ids(request, served_model()) == bare
    request.add_special_tokens = True
    assert prompt_ids(request, served_model()) == [BOS, *bare]


@pytest.mark.parametrize(
    "prompt",
    [
        {"text": "abcdefgh"},
        {"token_ids": {"ids": range(20, 40)}},
        {"chat": {"messages": [{"role": "user", "content": "abcdefgh"}]}},
    ],
)
def test_truncation_keeps_the_last_tokens(prompt: dict[str, Any]) -> None:
    whole = inference_pb2.GenerateRequest(**prompt, add_special_tokens=False)
    request = inference_pb2.GenerateRequest(**prompt, add_special_tokens=False, truncate_prompt_tokens=4)
    assert prompt_ids(request, served_model()) == prompt_ids(whole, served_model())[-4:]
    assert take(request).admitted.prompt_tokens == 4


def test_a_prompt_that_is_too_long_is_admitted_when_truncated() -> None:
    request = ask("x" * 200)
    assert "truncate_prompt_tokens" in refusal(request)
    request.truncate_prompt_tokens = MAX_MODEL_LEN - 1
    admission = take(request)
    assert admission.admitted.prompt_tokens == MAX_MODEL_LEN - 1
    assert admission.submit.prompt_token_ids[0] == BOS, "what is added around the text stays"
    assert admission.admitted.stopping.max_tokens == 1


def test_more_tokens_than_the_context_has_room_for_are_not_promised() -> None:
    request = ask(stopping={"max_tokens": 1 << 30})
    admission = take(request)
    room = MAX_MODEL_LEN - admission.admitted.prompt_tokens
    assert admission.admitted.stopping.max_tokens == admission.submit.max_tokens == room
    request.stopping.min_tokens = room + 1  # in [0, max_tokens], as the contract has it
    assert refusal(request).startswith("stopping.min_tokens: ")
    request.stopping.min_tokens = room
    again = ask()
    again.stopping.CopyFrom(take(request).admitted.stopping)
    assert take(again).admitted.stopping == again.stopping


def test_a_resume_goes_on_with_what_an_earlier_release_admitted() -> None:
    request = ask(stopping={"max_tokens": 1 << 30}, sampling={"seed": 1}, resume={"choices": [{}]})
    assert take(request).admitted.stopping.max_tokens == 1 << 30, "else its client would see a breach of the protocol"


def test_chats_are_rendered_with_tools_arguments_and_calls() -> None:
    chat = inference_pb2.Chat(tools_json='[{"type": "function"}]', template_args_json='{"mood": "calm"}')
    message = chat.messages.add(role="assistant", content="x")
    message.tool_calls.add(id="1", name="f", arguments_json='{"a": 1}')
    message.tool_calls.add(id="2", name="g")
    rendered = render_chat(chat, served_model())
    calls, rest = rendered.removeprefix("[assistant]x").split("\n")
    assert json.loads(calls) == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}},
    ]
    assert rest == '<[{"type": "function"}]>calm[assistant]'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"pet": "ca', '"{\\"pet\\": \\"ca"'),
        ("[]", '"[]"'),
        ("cat", '"cat"'),
        pytest.param("[" * 10_000, '"' + "[" * 10_000 + '"', id="deep"),
        ('{"a": 1}{"a": 1}', '"{\\"a\\": 1}{\\"a\\": 1}"'),
        ('{"pet": "a\nb"}', '{"pet": "a\\nb"}'),
        (r'{"pet": "\ud83d"}', r'"{\"pet\": \"\\ud83d\"}"'),
        (r'{"pet": "\ud83d\ude00"}', '{"pet": "\U0001f600"}'),
        ("null", "{}"),
        (" ", "{}"),
    ],
)
def test_whatever_a_model_wrote_as_arguments_stays_in_the_conversation(text: str, shown: str) -> None:
    template = "{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}"
    model = replace(served_model(), chat=ChatTemplates({"default": TemplateSource(template)}))
    chat = inference_pb2.Chat()
    chat.messages.add(role="assistant").tool_calls.add(name="f", arguments_json=text)
    assert render_chat(chat, model) == shown


def test_what_a_client_did_not_send_is_absent_from_templates() -> None:
    shown = "<{{ m['tool_calls'][0] | string }}>"
    template = (
        "{% for m in messages %}{{ m.keys() | join(',') }}"
        "{% if m['content'] is none %}" + shown + "{% endif %};{% endfor %}"
    )
    model = replace(served_model(), chat=ChatTemplates({"default": TemplateSource(template)}))
    chat = inference_pb2.Chat()
    chat.messages.add(role="user", content="x")
    chat.messages.add(role="assistant").tool_calls.add(name="f", arguments_json='{"a": 1}')
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert render_chat(chat, model) == f"role,content;role,content,tool_calls<{call}>;"


@pytest.mark.parametrize(
    ("fields", "rendered"),
    [
        ({}, "[user]ab\n[assistant]"),
        ({"add_generation_prompt": False}, "[user]ab\n"),
        ({"continue_final_message": True}, "[user]ab"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "[user]ab"),
    ],
)
def test_a_chat_ends_with_the_generation_prompt_or_the_last_message(fields: dict[str, bool], rendered: str) -> None:
    chat = inference_pb2.Chat(**fields)
    chat.messages.add(role="user", content="ab")
    assert render_chat(chat, served_model()) == rendered


def test_a_chat_that_no_context_could_hold_is_refused_as_a_text_is() -> None:
    model = served_model()
    chat = inference_pb2.Chat()
    chat.messages.add(role="user", content="a" * model.limits.max_text_bytes)
    for refused in (lambda: render_chat(chat, model), lambda: take(inference_pb2.GenerateRequest(chat=chat))):
        with pytest.raises(Refused, match=r"chat: .*bytes: expected at most \d+, for a context of 48 tokens"):
            refused()


# Bad words


def test_bad_words_are_banned_with_and_without_a_leading_space() -> None:
    request = ask(stopping={"bad_words": ["a", " b", "cd"]})
    banned = [list(word.ids) for word in take(request).submit.bad_words]

    def ids(text: str) -> list[int]:
        return TOKENIZER.encode(text, add_special_tokens=False)

    # " a" is one token, so it is spelt differently; " b" would ban the space, and so would " cd".
    assert banned == [ids("a"), ids(" a"), ids("b"), ids("cd")]
    assert [len(word) for word in banned] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("bare", "spaced", "banned"),
    [
        ([86, 341], [440], [[86, 341], [440]]),
        ([5], [6, 7], [[5], [6, 7]]),
        ([5], [3, 5], [[5]]),
        ([5], [5], [[5]]),
        ([], [6], [[6]]),
    ],
)
def test_the_form_after_a_space_may_have_another_number_of_tokens(
    bare: list[int], spaced: list[int], banned: list[list[int]]
) -> None:
    forms = {"there": bare, " there": spaced}
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: forms[text])
    assert _bad_words([" there"], SimpleNamespace(tokenizer=tokenizer)) == banned  # type: ignore[arg-type]


# Salts


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), unique=True, max_size=8))
def test_salts_differ_by_tenant_and_client_salt(pairs: list[tuple[str, str]]) -> None:
    assert len({cache_salt(*pair) for pair in pairs}) == len(pairs)


def test_a_salt_is_absent_without_parts() -> None:
    assert cache_salt("", "") == b""
    assert take(ask(cache_salt="s"), "t").submit.cache_salt == cache_salt("t", "s")


# Refusals beyond those of ``test_bad_input``: what only shows when everything is resolved


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "min_tokens that the context has no room for": (
        "stopping.min_tokens",
        {"stopping": {"min_tokens": MAX_MODEL_LEN - 2}},
    ),
    "bad words of too many tokens": ("stopping.bad_words", {"stopping": {"bad_words": ["x" * 256] * 5}}),
    "bad words that leave nothing": (
        "stopping.bad_words",
        {"sampling": {"allowed_token_ids": [5]}, "stopping": {"bad_words": ["&"]}},
    ),
    "min_tokens where only an eos is allowed": (
        "stopping.min_tokens",
        {"sampling": {"allowed_token_ids": [EOS]}, "stopping": {"min_tokens": 1}},
    ),
    "min_tokens where only stop tokens are allowed": (
        "stopping.min_tokens",
        {"sampling": {"allowed_token_ids": [5]}, "stopping": {"stop_token_ids": [5], "min_tokens": 1}},
    ),
    "a resume that the context has no room for": (
        "resume",
        {
            "sampling": {"seed": 1},
            "resume": {"model_digest": "model", "choices": [{"token_ids": [5] * MAX_MODEL_LEN}]},
        },
    ),
    "a resume of more than max_tokens": (
        "resume.choices[0].token_ids",
        {"sampling": {"seed": 1}, "stopping": {"max_tokens": 2}, "resume": {"choices": [{"token_ids": [5] * 3}]}},
    ),
    "a resume longer than the context": (
        "resume.choices[0].token_ids",
        {"sampling": {"seed": 1}, "resume": {"choices": [{"token_ids": [5] * (MAX_MODEL_LEN + 1)}]}},
    ),
    "many stop tokens": ("stopping.stop_token_ids", {"stopping": {"stop_token_ids": [5] * 65}}),
    "stop strings that are long together": ("stopping.stop", {"stopping": {"stop": ["x" * 1024] * 9}}),
    "a template that raises": ("chat", {"chat": {"messages": [{"role": "user"}, {"role": "owner"}]}}),
    "JSON that nests too deeply": (
        "chat.tools_json",
        {"chat": {"messages": [{"role": "user"}], "tools_json": "[" * 100_000}},
    ),
    "half a surrogate pair": (
        "chat",
        {"chat": {"messages": [{"role": "u"}], "template_args_json": '{"mood": "\\ud800"}'}},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_found_after_tokenization_name_the_field_too(name: str) -> None:
    field, fields = REFUSED[name]
    assert refusal(ask(**fields)).startswith(f"{field}: ")


def test_values_at_the_limits_are_accepted() -> None:
    request = ask(sampling={"allowed_token_ids": [EOS]})
    assert choices_of(take(request)) == {0: []}
    request.stopping.min_tokens, request.stopping.ignore_eos = 1, True
    assert choices_of(take(request)) == {0: []}
    request = ask()
    request.stopping.min_tokens = MAX_MODEL_LEN - len(TOKENIZER.encode(request.text))
    assert take(request).admitted.stopping.max_tokens == request.stopping.min_tokens


def test_unknown_capabilities_of_a_later_engine_are_not_offered() -> None:
    """This processor would pass over the field that asks for it, and the engine would answer without."""
    known = served_model()
    known.model.capabilities.extend([*ENGINE_CAPABILITIES, "constraint.regex"])
    assert known.capabilities == {*ENGINE_CAPABILITIES, *PROCESSOR_CAPABILITIES, *CHAT_CAPABILITIES}
    request = ask()
    request.requires.extend(ENGINE_CAPABILITIES)
    assert resolve_request(request, known, "", ME).submit.requires == list(ENGINE_CAPABILITIES)
    request.requires.append("constraint.regex")
    with pytest.raises(Refused, match=r"'constraint\.regex' is not known here") as refused:
        resolve_request(request, known, "", ME)
    assert refused.value.status.reason is Reason.CAPABILITY_MISSING


def test_a_chat_without_a_template_is_told_so_and_not_which_capabilities_are_missing() -> None:
    model = replace(served_model(), chat=ChatTemplates({}))
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="ab")])
    request = inference_pb2.GenerateRequest(chat=chat, requires=["tools"])
    with pytest.raises(Refused, match=r"^chat: the model has no chat template .*--chat-template FILE"):
        resolve_request(request, model, "", ME)


def test_a_message_has_room_for_every_choice_that_goes_on() -> None:
    """From the end of a context, with the largest ids."""
    limits = ModelLimits("m", vocab_size=1 << 18, max_model_len=1 << 15, max_logprobs=20)
    ids = [limits.vocab_size - 1] * limits.max_model_len
    request = inference_pb2.GenerateRequest()
    request.token_ids.ids.extend(ids)
    for choice in range(MAX_CHOICES):
        request.resume.choices.add(choice=choice, token_ids=ids)
    assert request.ByteSize() <= limits.request.max_bytes


def test_a_token_that_the_model_lacks_is_refused() -> None:
    """A tokenizer may have more tokens than the model has embeddings."""
    known = served_model()
    smaller = replace(known, limits=replace(known.limits, vocab_size=BOS))
    with pytest.raises(Refused, match=r"^prompt\[0\]: "):
        resolve_request(ask(), smaller, "", ME)


def test_a_refusal_fits_into_a_status_whatever_it_quotes() -> None:
    chat = {"messages": [{"role": "user", "content": "ab"}], "template_name": "x" * 1_000_000}
    assert len(refusal(ask(chat=chat))) < MAX_PROBLEM_LENGTH + 100
