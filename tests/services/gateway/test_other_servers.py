"""Fields of llama.cpp, SGLang, TGI and Ollama: taken under their names, or refused unless they are off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from services.gateway.anthropic.messages import MESSAGES
from services.gateway.fields import Support, checked, declared
from services.gateway.generation import GenerationEndpoint
from services.gateway.http.api_error import ApiError
from services.gateway.openai.chat import CHAT
from services.gateway.openai.completions import COMPLETIONS
from services.gateway.openai.responses.endpoint import RESPONSES
from services.gateway.other_servers import OtherServers

HELLO = [{"role": "user", "content": "Hello"}]
PROMPTS: Sequence[tuple[GenerationEndpoint[Any], dict[str, Any]]] = (
    (CHAT, {"messages": HELLO}),
    (COMPLETIONS, {"prompt": "Hello"}),
    (RESPONSES, {"input": "Hello"}),
    (MESSAGES, {"messages": HELLO, "max_tokens": 9}),
)
EVERYWHERE = pytest.mark.parametrize(("endpoint", "prompt"), PROMPTS, ids=["chat", "completion", "response", "message"])
SWITCHED_OFF = {
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n"],
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_n_sigma": -1,
    "tfs_z": 1,
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "min_keep": 0,
    "n_keep": 0,
    "n_indent": 0,
    "n_probs": 0,
    "n_predict": -1,
    "t_max_predict_ms": 0,
    "repeat_last_n": -1,
    "post_sampling_probs": False,
    "response_fields": [],
    "lora": [],
    "reasoning_format": "auto",
    "thinking_budget_tokens": -1,
    "cache_prompt": True,
    "id_slot": -1,
    "num_ctx": 4096,
    "separate_reasoning": True,
    "no_stop_trim": False,
    "samplers": None,
}
"""As clients of llama.cpp send them with each request."""
SWITCHED_ON = {
    "samplers": ["temperature"],
    "dry_multiplier": 0.8,
    "xtc_probability": 0.5,
    "mirostat": 2,
    "dynatemp_range": 0.5,
    "top_n_sigma": 1,
    "tfs_z": 0.5,
    "adaptive_target": 0,
    "min_keep": 2,
    "n_indent": 4,
    "t_max_predict_ms": 1,
    "post_sampling_probs": True,
    "response_fields": ["content"],
    "lora": [{"id": 0, "scale": 0.5}],
    "stop_regex": "a",
    "no_stop_trim": True,
    "custom_logit_processor": "x",
    "options": {"num_predict": 3},
    "parameters": {"max_new_tokens": 3},
}


def options(endpoint: GenerationEndpoint[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The ring's options that a body sets."""
    (ask,) = endpoint.asks(request_of(endpoint, given))
    return {name: value for name, value in ask.options.items() if value is not None}


def name_of(endpoint: GenerationEndpoint[Any], given: dict[str, Any], field: str) -> str:
    """What errors call a field of the ring."""
    return endpoint.names(request_of(endpoint, given))(field)


def request_of(endpoint: GenerationEndpoint[Any], given: dict[str, Any]) -> Any:
    return checked(msgspec.json.decode(msgspec.json.encode(given), type=endpoint.body))


@EVERYWHERE
def test_what_is_switched_off_changes_nothing(endpoint: GenerationEndpoint[Any], prompt: dict[str, Any]) -> None:
    given = options(endpoint, prompt)
    if endpoint is COMPLETIONS:  # of llama.cpp's clients, this one wants all that the context has room for
        assert given.pop("max_tokens") == 16
    assert options(endpoint, prompt | SWITCHED_OFF) == given


@EVERYWHERE
@pytest.mark.parametrize("name", SWITCHED_ON)
def test_what_is_switched_on_is_refused_by_name(
    endpoint: GenerationEndpoint[Any], prompt: dict[str, Any], name: str
) -> None:
    with pytest.raises(ApiError, match=f"{name}: not supported: ") as refusal:
        options(endpoint, {**prompt, name: SWITCHED_ON[name]})
    assert (refusal.value.param, refusal.value.code) == (name, "unsupported_parameter")


@EVERYWHERE
@pytest.mark.parametrize("name", ["n_predict", "num_predict", "max_new_tokens"])
def test_a_token_limit_has_the_names_of_other_servers(
    endpoint: GenerationEndpoint[Any], prompt: dict[str, Any], name: str
) -> None:
    assert options(endpoint, {**prompt, "max_tokens": None, name: 3})["max_tokens"] == 3
    with pytest.raises(ApiError, match=f"{name}: 3, but max_tokens is 4, and both set the same"):
        options(endpoint, {**prompt, "max_tokens": 4, name: 3})


def test_a_completion_has_the_limit_of_chats_and_a_response_that_of_both() -> None:
    assert options(COMPLETIONS, {"prompt": "Hello", "max_completion_tokens": 3})["max_tokens"] == 3
    for name in ("max_tokens", "max_completion_tokens"):
        assert options(RESPONSES, {"input": "Hello", name: 3})["max_tokens"] == 3


@EVERYWHERE
def test_a_penalty_has_the_name_of_llama_cpp(endpoint: GenerationEndpoint[Any], prompt: dict[str, Any]) -> None:
    assert options(endpoint, prompt | {"repeat_penalty": 1.3})["repetition_penalty"] == 1.3
    assert options(endpoint, prompt | {"repeat_penalty": 1.3, "repetition_penalty": 1.3})["repetition_penalty"] == 1.3


@pytest.mark.parametrize("penalty", [{"repeat_penalty": 1.3}, {"frequency_penalty": 1}, {"presence_penalty": 1}])
def test_penalties_count_all_tokens(penalty: dict[str, Any]) -> None:
    chat = {"messages": HELLO, **penalty}
    assert options(CHAT, chat | {"repeat_last_n": -1}) == options(CHAT, chat)
    for count in (0, 64):  # 0 would turn the penalty off
        with pytest.raises(ApiError, match=r"repeat_last_n: not supported: penalties count all tokens"):
            options(CHAT, chat | {"repeat_last_n": count})
    assert options(CHAT, {"messages": HELLO, "repeat_last_n": 64}) == options(CHAT, {"messages": HELLO})


def test_a_completion_has_the_log_probabilities_of_llama_cpp() -> None:
    assert options(COMPLETIONS, {"prompt": "Hello", "n_probs": 3})["logprobs"] == 3
    for endpoint, prompt in (PROMPTS[0], PROMPTS[2]):
        with pytest.raises(ApiError, match=r"n_probs: not supported: .*logprobs"):
            options(endpoint, prompt | {"n_probs": 3})


BUDGETS = ("thinking_token_budget", "reasoning_budget", "thinking_budget", "reasoning_budget_tokens")


@EVERYWHERE
def test_a_budget_of_reasoning_has_many_names(endpoint: GenerationEndpoint[Any], prompt: dict[str, Any]) -> None:
    for name in BUDGETS:
        for budget in (0, 2048):
            assert options(endpoint, {**prompt, name: budget})["max_reasoning_tokens"] == budget
        assert name_of(endpoint, {**prompt, name: 9}, "stopping.max_reasoning_tokens") == name
    for name in BUDGETS[1:]:  # less than 0 is no limit in llama.cpp
        assert "max_reasoning_tokens" not in options(endpoint, {**prompt, name: -1})


@pytest.mark.parametrize(("endpoint", "prompt"), [PROMPTS[0], *PROMPTS[2:]], ids=["chat", "response", "message"])
def test_a_budget_of_reasoning_comes_with_its_switch(endpoint: GenerationEndpoint[Any], prompt: dict[str, Any]) -> None:
    given = {**prompt, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    assert options(endpoint, given)["max_reasoning_tokens"] == 2048
    assert name_of(endpoint, given, "stopping.max_reasoning_tokens") == "thinking.budget_tokens"
    assert options(endpoint, given | {"thinking_token_budget": 2048})["max_reasoning_tokens"] == 2048
    off = given | {"thinking": {"type": "disabled", "budget_tokens": 2048}}
    assert "max_reasoning_tokens" not in options(endpoint, off)
    with pytest.raises(ApiError, match="budget_tokens: 2048, but thinking_token_budget is 9, and both set the same"):
        options(endpoint, given | {"thinking_token_budget": 9})


@EVERYWHERE
def test_errors_have_the_name_that_was_given(endpoint: GenerationEndpoint[Any], prompt: dict[str, Any]) -> None:
    limit = {**prompt, "max_tokens": None, "n_predict": 9}
    assert name_of(endpoint, limit, "stopping.max_tokens") == "n_predict"
    assert name_of(endpoint, {**prompt, "repeat_penalty": 1.3}, "sampling.repetition_penalty") == "repeat_penalty"


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "auto", "clear_thinking": False}}, {"clear_thinking": False}),
        ({"think": False}, {"enable_thinking": False, "thinking": False}),
        ({"think": "low"}, {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}),
        ({"enable_thinking": True, "think": False}, {"enable_thinking": True, "thinking": True}),
        (
            {"think": True, "chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False, "thinking": True},
        ),
    ],
)
def test_reasoning_is_switched_as_other_servers_do(given: dict[str, Any], variables: dict[str, Any]) -> None:
    for endpoint, prompt in (PROMPTS[0], PROMPTS[2]):
        assert options(endpoint, prompt | given)["template_args"] == variables
    if "chat_template_kwargs" not in given:
        assert "template_args" not in options(COMPLETIONS, {"prompt": "Hello", **given})


def test_reasoning_is_no_part_of_the_content() -> None:
    for name, value in {"reasoning_format": "none", "separate_reasoning": False}.items():
        with pytest.raises(ApiError, match=f"{name}: not supported: reasoning is a part of its own"):
            options(CHAT, {"messages": HELLO, name: value})
        options(COMPLETIONS, {"prompt": "Hello", name: value})  # whose answers have no parts


def test_what_is_ignored_belongs_to_what_is_refused() -> None:
    fields = declared(OtherServers)
    parts = [re.fullmatch("Part of `(.+)`, which is off.", field.note) for field in fields.values()]
    wholes = {part[1] for part in parts if part is not None}
    assert len(wholes) == 5
    assert all(fields[name].support is Support.REFUSED for name in wholes)
