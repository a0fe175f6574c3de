"""What each field of vLLM's contract becomes, and what is refused by which name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ringline.inference.v1 import inference_pb2
from smg_grpc_proto import vllm_engine_pb2

from services.processor.admission.validation import check_request
from services.processor.vllm_engine_api.requests import as_named_here, read_request
from services.ring.errors import Code, Refused, Status
from tests.services.processor.model_specs import MAX_MODEL_LEN, served_model


def ask(**params: Any) -> Any:
    """A request with these sampling parameters."""
    return vllm_engine_pb2.GenerateRequest(
        request_id="r", tokenized={"input_ids": [5, 6]}, sampling_params=vllm_engine_pb2.SamplingParams(**params)
    )


def read(message: Any) -> inference_pb2.GenerateRequest:
    return read_request(message, MAX_MODEL_LEN)


def test_zeros_are_the_contracts_defaults() -> None:
    request = read(vllm_engine_pb2.GenerateRequest(request_id="r", tokenized={"input_ids": [5, 6]}))
    check_request(request, served_model().limits)
    assert request == inference_pb2.GenerateRequest(
        request_id="r",
        token_ids={"ids": [5, 6]},
        sampling={
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "n": 1,
        },
        stopping={"min_tokens": 0, "ignore_eos": False, "include_stop_str_in_output": False},
        output={"skip_special_tokens": False, "return_prompt_token_ids": False, "prefill_progress": True},
    )


@pytest.mark.parametrize(
    ("given", "place", "value"),
    [
        ({"temperature": 0.0}, "sampling.temperature", 0.0),
        ({"top_p": 0.5}, "sampling.top_p", 0.5),
        ({"top_k": 7}, "sampling.top_k", 7),
        ({"min_p": 0.25}, "sampling.min_p", 0.25),
        ({"frequency_penalty": -1.5}, "sampling.frequency_penalty", -1.5),
        ({"presence_penalty": 1.5}, "sampling.presence_penalty", 1.5),
        ({"repetition_penalty": 1.25}, "sampling.repetition_penalty", 1.25),
        ({"n": 3}, "sampling.n", 3),
        ({"seed": 7}, "sampling.seed", 7),
        ({"seed": -1}, "sampling.seed", (1 << 64) - 1),
        ({"logit_bias": {9: -3.0}}, "sampling.logit_bias", {9: -3.0}),
        ({"max_tokens": 9}, "stopping.max_tokens", 9),
        ({"min_tokens": 2}, "stopping.min_tokens", 2),
        ({"stop": ["a", "b"]}, "stopping.stop", ["a", "b"]),
        ({"stop_token_ids": [4]}, "stopping.stop_token_ids", [4]),
        ({"ignore_eos": True}, "stopping.ignore_eos", True),
        ({"include_stop_str_in_output": True}, "stopping.include_stop_str_in_output", True),
        ({"logprobs": 0}, "output.logprobs", 0),
        ({"logprobs": 4}, "output.logprobs", 4),
        ({"prompt_logprobs": 2}, "output.prompt_logprobs", 2),
        ({"prompt_logprobs": 2}, "output.return_prompt_token_ids", True),
        ({"skip_special_tokens": True}, "output.skip_special_tokens", True),
        ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens", 1),
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens", MAX_MODEL_LEN - 1),
        ({"json_schema": '{"type": "object"}'}, "constraint.json_schema", '{"type": "object"}'),
        ({"regex": "a+"}, "constraint.regex", "a+"),
        ({"grammar": 'root ::= "a"'}, "constraint.grammar", 'root ::= "a"'),
        ({"json_object": True}, "constraint.json_object", True),
        ({"choice": {"choices": ["a", "b"]}}, "constraint.choice.texts", ["a", "b"]),
        ({"regex": "a+", "grammar_from_first_token": True}, "constraint.after_reasoning", False),
        ({"regex": "a+"}, "requires", ["constraint"]),
    ],
)
def test_field(given: dict[str, Any], place: str, value: object) -> None:
    request: Any = read(ask(**given))
    check_request(request, served_model().limits)
    *outer, name = place.split(".")
    for each in outer:
        assert request.HasField(each)
        request = getattr(request, each)
    assert getattr(request, name) == value


def test_text_and_what_does_not_change_the_result() -> None:
    message = ask(spaces_between_special_tokens=True)
    message.text, message.stream, message.data_parallel_rank = "Once", True, 3
    assert read(message).text == "Once"


BEGIN, END = "<call>", "</call>"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"begin": BEGIN, "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": END}


@pytest.mark.parametrize(
    ("document", "required", "single"),
    [
        ({"structures": [{"begin": BEGIN, "schema": SCHEMA, "end": END}], "triggers": ["<c"]}, False, False),
        ({"format": {"type": "triggered_tags", "triggers": ["<c"], "tags": [TAG]}}, False, False),
        (
            {
                "type": "structural_tag",
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<c"],
                    "tags": [TAG],
                    "at_least_one": True,
                    "stop_after_first": True,
                },
            },
            True,
            True,
        ),
    ],
)
def test_structural_tags(document: object, required: bool, single: bool) -> None:
    tags = read(ask(structural_tag=json.dumps(document))).constraint.structural_tags
    (tag,) = tags.tags
    assert (tag.begin, json.loads(tag.json_schema), tag.end, tag.trigger) == (BEGIN, SCHEMA, END, "<c")
    assert (tags.required, tags.single) == (required, single)


def test_a_single_tag_is_the_whole_answer() -> None:
    tags = read(ask(structural_tag=json.dumps({"format": {"type": "tag", **TAG}}))).constraint.structural_tags
    assert (tags.tags[0].begin, tags.required, tags.single) == (BEGIN, True, True)


def _with(change: Callable[[Any], object]) -> Any:
    message = ask()
    change(message)
    return message


def _tagged(document: object) -> Any:
    return ask(structural_tag=json.dumps(document))


@pytest.mark.parametrize(
    ("message", "field", "problem"),
    [
        (_with(lambda m: m.ClearField("tokenized")), "input", "none is set: expected tokenized or text"),
        (_with(lambda m: m.mm_inputs.SetInParent()), "mm_inputs", "not supported"),
        (_with(lambda m: m.extra_mm_inputs.add()), "extra_mm_inputs", "not supported"),
        (_with(lambda m: m.media_refs.items.add(url="http://a")), "media_refs", "not supported"),
        (_with(lambda m: m.kv_transfer_params.SetInParent()), "kv_transfer_params", "not supported"),
        (_with(lambda m: setattr(m, "kv_transfer_params_json", "{}")), "kv_transfer_params_json", "not supported"),
        (ask(truncate_prompt_tokens=-2), "sampling_params.truncate_prompt_tokens", "-2 is out of range"),
        (ask(logprobs=-1), "sampling_params.logprobs", "-1 is out of range"),
        (ask(prompt_logprobs=-1), "sampling_params.prompt_logprobs", "-1 is out of range"),
        (ask(logprobs=21), "sampling_params.logprobs", "21 is out of range: expected 0 to 20"),
        (ask(logit_bias={-1: 1.0}), "sampling_params.logit_bias", "-1 is not in the vocabulary"),
        (ask(temperature=-1.0), "sampling_params.temperature", "-1 is out of range"),
        (ask(max_tokens=0), "sampling_params.max_tokens", "0 is out of range: expected at least 1"),
        (ask(n=129), "sampling_params.n", "129 is out of range"),
        (ask(stop=[""]), "sampling_params.stop[0]", "0 bytes: expected 1 to 1024"),
        (_with(lambda m: m.tokenized.input_ids.append(1 << 20)), "tokenized.input_ids[2]", "is not in the vocabulary"),
        (ask(structural_tag="{"), "sampling_params.structural_tag", "not JSON"),
        (ask(structural_tag="[" * 100_000), "sampling_params.structural_tag", "not JSON"),
        (_tagged([]), "sampling_params.structural_tag", "a JSON list: expected an object"),
        (_tagged({}), "sampling_params.structural_tag", "format is a JSON NoneType"),
        (_tagged({"format": {"type": "sequence"}}), "sampling_params.structural_tag", "'sequence' is not supported"),
        (
            _tagged({"format": {"type": "tag", "begin": "a", "content": {"type": "any_text"}}}),
            "sampling_params.structural_tag",
            "'any_text' is not supported: expected json_schema",
        ),
        (_tagged({"structures": [{"begin": 1}]}), "sampling_params.structural_tag", "must be texts"),
        (_tagged({"structures": [{"begin": "\ud800"}]}), "sampling_params.structural_tag", "must be texts"),
        (_tagged({"structures": [{"begin": "a", "end": "\ud800"}]}), "sampling_params.structural_tag", "must be texts"),
        (_tagged({"structures": [{}] * 257}), "sampling_params.structural_tag", "257 tags"),
        (_tagged({"structures": [], "triggers": ["a"] * 257}), "sampling_params.structural_tag", "257 triggers"),
        (
            _tagged({"structures": [{"begin": "a", "end": ""}], "triggers": ["b"]}),
            "sampling_params.structural_tag",
            "no trigger begins 'a'",
        ),
    ],
)
def test_refusal(message: Any, field: str, problem: str) -> None:
    with pytest.raises(Refused, match=problem.replace("[", r"\[")) as caught:
        check_request(read(message), served_model().limits)
    status = as_named_here(caught.value.status)
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, field)
    assert status.message.startswith(f"{field}: ")


def test_errors_without_a_field_stay() -> None:
    status = Status(Code.UNAVAILABLE, "draining")
    assert as_named_here(status) is status
    prompt = Status(Code.INVALID_ARGUMENT, "prompt: empty", field="prompt")
    assert as_named_here(prompt) is prompt


def test_texts_to_choose_are_named_as_this_contract_has_them() -> None:
    problem = Status(Code.INVALID_ARGUMENT, "constraint.choice.texts[1]: empty", field="constraint.choice.texts[1]")
    named = as_named_here(problem)
    assert (named.field, named.message) == (
        "sampling_params.choice.choices[1]",
        "sampling_params.choice.choices[1]: empty",
    )
