"""Fields of any endpoint: those of llama.cpp, SGLang, TGI and Ollama that clients send everywhere, and `speculation`.

What would change the result is refused by name. Clients of llama.cpp send all of its fields with each request, so the
values that switch one off are accepted.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec

from services.gateway.fields import Body, ignored, passed, refused, same, supported
from services.gateway.http.api_error import invalid, shown

_TOKENS = "temperature, min_p, top_k and top_p choose among tokens, in this order"
_REPETITIONS = "repetition_penalty, frequency_penalty and presence_penalty make repetitions less likely"
_DIVIDED = "reasoning is a part of its own; include_reasoning false leaves it out of chats"
_WITHIN = "give its members in the request itself"
_OFF = "Part of `{}`, which is off."

Limit = Annotated[
    int | None,
    same(
        "max_completion_tokens",
        "max_tokens",
        "max_output_tokens",
        note="llama.cpp's, Ollama's and TGI's token limit; less than 0 is none but the context.",
        below=0,
    ),
]
"""llama.cpp's n_predict, Ollama's num_predict, TGI's max_new_tokens."""
Budget = Annotated[int | None, same("thinking_token_budget", note="`thinking_token_budget`.", below=0)]
"""llama.cpp's and Qwen's names; less than 0 is no limit."""
AdapterPath = Annotated[
    str | list[str | None] | None,
    same("adapter", note="SGLang's `adapter`: its name, or a list of it for each prompt.", neutral=("", [])),
]
AdapterId = Annotated[str | None, same("adapter", note="TGI's and LoRAX's `adapter`: its name.", neutral=("",))]
RepeatPenalty = Annotated[float | None, same("repetition_penalty", note="llama.cpp's `repetition_penalty`.")]


class OtherServers(Body):
    """Fields of other servers."""

    samplers: Annotated[Any, refused(_TOKENS)] = None
    dry_multiplier: Annotated[Any, refused(_REPETITIONS, 0)] = None
    xtc_probability: Annotated[Any, refused(_TOKENS, 0, below=0)] = None
    mirostat: Annotated[Any, refused(_TOKENS, 0)] = None
    mirostat_mode: Annotated[Any, refused(_TOKENS, 0)] = None
    dynatemp_range: Annotated[Any, refused(_TOKENS, 0, below=0)] = None
    top_n_sigma: Annotated[Any, refused(_TOKENS, 0, below=0)] = None
    nsigma: Annotated[Any, refused(_TOKENS, 0, below=0)] = None
    adaptive_target: Annotated[Any, refused(_TOKENS, below=0)] = None
    tfs_z: Annotated[Any, refused(_TOKENS, 1)] = None
    tfs: Annotated[Any, refused(_TOKENS, 1)] = None
    top_a: Annotated[Any, refused(_TOKENS, 0)] = None
    epsilon_cutoff: Annotated[Any, refused(_TOKENS, 0)] = None
    eta_cutoff: Annotated[Any, refused(_TOKENS, 0)] = None
    smoothing_factor: Annotated[Any, refused(_TOKENS, 0)] = None
    min_keep: Annotated[Any, refused(_TOKENS, 0, 1)] = None
    repeat_last_n: Annotated[Any, refused("penalties count all tokens; leave it out, or the penalty", -1)] = None
    dry_base: Annotated[Any, ignored(_OFF.format("dry_multiplier"))] = None
    dry_allowed_length: Annotated[Any, ignored(_OFF.format("dry_multiplier"))] = None
    dry_penalty_last_n: Annotated[Any, ignored(_OFF.format("dry_multiplier"))] = None
    dry_sequence_breakers: Annotated[Any, ignored(_OFF.format("dry_multiplier"))] = None
    xtc_threshold: Annotated[Any, ignored(_OFF.format("xtc_probability"))] = None
    mirostat_tau: Annotated[Any, ignored(_OFF.format("mirostat"))] = None
    mirostat_eta: Annotated[Any, ignored(_OFF.format("mirostat"))] = None
    dynatemp_exponent: Annotated[Any, ignored(_OFF.format("dynatemp_range"))] = None
    adaptive_decay: Annotated[Any, ignored(_OFF.format("adaptive_target"))] = None

    n_keep: Annotated[Any, ignored("An answer ends where the context does.")] = None
    n_discard: Annotated[Any, ignored("An answer ends where the context does.")] = None
    cache_prompt: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    id_slot: Annotated[Any, ignored("There are no slots.")] = None
    num_ctx: Annotated[Any, ignored("The context is that of the server, `--max-model-len`.")] = None
    keep_alive: Annotated[Any, ignored("The model stays loaded.")] = None
    n_indent: Annotated[Any, refused("a form, such as structured_outputs.regex, binds white space", 0)] = None
    t_max_predict_ms: Annotated[Any, refused("max_tokens limits an answer", 0, below=0)] = None
    response_fields: Annotated[Any, refused("an answer has all of its fields", [])] = None
    post_sampling_probs: Annotated[Any, refused("log probabilities are of the raw logits", False)] = None
    lora: Annotated[Any, refused("name an adapter as the model; it has its own scale", [])] = None
    adapter: Annotated[str | None, passed("Ringline's: an adapter of the model; or name it as the `model`.")] = None
    lora_path: AdapterPath = None
    adapter_id: AdapterId = None
    thinking_budget_tokens: Budget = None
    thinking_budget: Budget = None
    reasoning_budget: Budget = None
    reasoning_budget_tokens: Budget = None
    reasoning_format: Annotated[Any, refused(_DIVIDED, "auto", "deepseek", "parsed")] = None
    separate_reasoning: Annotated[Any, refused(_DIVIDED, True)] = None
    stop_regex: Annotated[Any, refused("stop has texts; structured_outputs.regex binds a whole answer", "", [])] = None
    no_stop_trim: Annotated[Any, refused("include_stop_str_in_output keeps the text that ends an answer", False)] = None
    custom_logit_processor: Annotated[Any, refused("logit_bias changes logits", "")] = None
    speculation: Annotated[
        bool | str | None,
        passed("`off`, or false: the engine guesses no tokens ahead. The tokens are the same. Default: `on`."),
    ] = None
    options: Annotated[Any, refused(_WITHIN, {})] = None
    parameters: Annotated[Any, refused(_WITHIN, {})] = None


class Thinking(msgspec.Struct):
    """``thinking`` of DeepSeek's and GLM's chats."""

    type: str
    clear_thinking: bool | None = None
    budget_tokens: int | None = None


class HasBudget(Protocol):
    """``thinking`` of any API."""

    type: str
    budget_tokens: int | None


def limit_reasoning(options: dict[str, Any], thinking: HasBudget | None) -> None:
    """Set the budget of ``thinking``, if it has one. Raises ``ApiError`` if another field sets another."""
    if thinking is None or (budget := thinking.budget_tokens) is None or thinking.type == "disabled":
        return
    if (given := options.setdefault("max_reasoning_tokens", budget)) != budget:
        problem = f"{budget}, but thinking_token_budget is {given}, and both set the same: give one"
        raise invalid(_BUDGET, problem)


def budget_names(thinking: HasBudget | None) -> dict[str, str]:
    """The name of the ring's option in a request with this ``thinking``."""
    return {} if thinking is None or thinking.budget_tokens is None else {"max_reasoning_tokens": _BUDGET}


_BUDGET = "thinking.budget_tokens"
EnableThinking = Annotated[bool | None, supported("For the model's template, as in `chat_template_kwargs`.")]
ThinkingSwitch = Annotated[
    Thinking | None,
    supported(
        "DeepSeek's and GLM's: `type` `disabled`, `enabled`, `adaptive` or `auto` is `enable_thinking` and `thinking` "
        "for the model's template; so is `clear_thinking`. `budget_tokens` is `thinking_token_budget`."
    ),
]
Think = Annotated[bool | str | None, supported("Ollama's: false, true, or a `reasoning_effort`.")]
_SWITCHES = {"disabled": False, "enabled": True, "adaptive": True, "auto": None}


def thinking_arguments(enable: bool | None, thinking: Thinking | None, think: bool | str | None) -> dict[str, Any]:
    """Variables for the model's template from the three fields; the first that is given counts. Raises ``ApiError``."""
    arguments: dict[str, Any] = {}
    if thinking is not None and thinking.type not in _SWITCHES:
        raise invalid("thinking.type", f"{shown(thinking.type)}: expected {', '.join(_SWITCHES)}")
    if enable is None and thinking is not None:
        enable = _SWITCHES[thinking.type]
        if thinking.clear_thinking is not None:
            arguments["clear_thinking"] = thinking.clear_thinking
    if isinstance(think, str):
        arguments["reasoning_effort"] = think
        think = think != "none"
    if (enabled := think if enable is None else enable) is not None:
        arguments["enable_thinking"] = arguments["thinking"] = enabled
    return arguments
