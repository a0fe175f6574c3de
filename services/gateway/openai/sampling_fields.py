"""Fields that chats and completions share, and their options for the ring."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Protocol

import msgspec
from ringline import Finished

from services.gateway.fields import Body, ignored, names_given, options_of, passed, refused, supported
from services.gateway.http.api_error import invalid, shown
from services.gateway.http.call import REQUEST_ID, Call
from services.gateway.openai.answer_form import Form, StructuredOutputs, form_options, structured_options
from services.gateway.openai.best_choices import BestFields, score_members
from services.gateway.openai.response_format import response_format_form
from services.gateway.other_forms import NO_FORM, Within
from services.gateway.other_servers import Limit, RepeatPenalty

_SEEDS = 2**64
_LEAST_SEED = -(2**63)
MM_PROCESSOR_KWARGS = "the server's option of this name says how all pictures are prepared"
_FORM = "the form of an answer is response_format in chats and completions"


class StreamOptions(Body):
    """``stream_options``."""

    include_usage: Annotated[
        bool | None, supported("The last chunk has the usage and no choices; `usage` is null in the others.")
    ] = None
    continuous_usage_stats: Annotated[bool | None, supported("vLLM's: every chunk has the usage so far.")] = None
    include_obfuscation: Annotated[Any, ignored("Chunks are not padded.")] = None


class RepeatRule(msgspec.Struct, forbid_unknown_fields=True):
    """``no_repeat_ngram``."""

    ngram_size: int
    window_size: int
    allowed_token_ids: list[int] | None = None


class SamplingFields(BestFields):
    """Fields of chats and completions."""

    model: Annotated[str | None, passed("Default: the model that is served.")] = None
    stream: Annotated[bool | None, supported()] = None
    stream_options: Annotated[StreamOptions | None, supported("No effect without `stream`.")] = None
    seed: Annotated[
        int | None,
        supported(
            "Equal requests with equal seeds have equal tokens, on every engine of equal numerics, in any batch."
        ),
    ] = None
    temperature: Annotated[float | None, passed("0 is greedy. Default: the model's own, else 1.")] = None
    top_p: Annotated[
        float | None, passed("Default: the model's own, else 1. 0 leaves the most likely token alone.")
    ] = None
    frequency_penalty: Annotated[float | None, passed()] = None
    presence_penalty: Annotated[float | None, passed()] = None
    logit_bias: Annotated[dict[int, float] | None, passed("At most 1024 entries; keys are token ids.")] = None
    stop: Annotated[
        str | list[str] | None, passed("At most 64 strings. An empty string instead of a list is none.")
    ] = None

    top_k: Annotated[int | None, supported("-1 and 0 keep all.")] = None
    min_p: Annotated[float | None, passed()] = None
    repetition_penalty: Annotated[float | None, passed()] = None
    stop_token_ids: Annotated[list[int] | None, passed()] = None
    include_stop_str_in_output: Annotated[bool | None, passed()] = None
    stop_in_reasoning: Annotated[
        bool | None, passed("Default: false, `stop` and `stop_token_ids` count behind the reasoning.")
    ] = None
    thinking_token_budget: Annotated[
        int | None,
        passed(
            "Tokens of reasoning after which its end is forced; 0: none. Default: no limit. Completions, whose answers "
            "are not divided, refuse it.",
            option="max_reasoning_tokens",
        ),
    ] = None
    ignore_eos: Annotated[bool | None, passed()] = None
    min_tokens: Annotated[int | None, passed()] = None
    bad_words: Annotated[list[str] | None, passed()] = None
    allowed_token_ids: Annotated[list[int] | None, passed()] = None
    no_repeat_ngram: Annotated[
        RepeatRule | None,
        supported(
            "No token completes a run of `ngram_size` tokens (1 to 1024) that the last `window_size` tokens (1 to "
            "65536) of the output have already; `allowed_token_ids` may be drawn all the same."
        ),
    ] = None
    vllm_xargs: Annotated[
        dict[str, Any] | None,
        supported(
            "`ngram_size`, `window_size` (default: 100) and `whitelist_token_ids`, as vLLM's "
            "`NGramPerReqLogitsProcessor` has them, are `no_repeat_ngram`; others are refused."
        ),
    ] = None
    no_repeat_ngram_size: Annotated[
        Any, refused("no_repeat_ngram has an ngram_size, and a window_size of the output", 0)
    ] = None
    skip_special_tokens: Annotated[bool | None, passed("Default: true.")] = None
    truncate_prompt_tokens: Annotated[int | None, passed("Keeps the last tokens, at least 1.")] = None
    prompt_logprobs: Annotated[int | None, passed("0 to 20; not with `stream`.")] = None
    add_special_tokens: Annotated[bool | None, passed()] = None
    priority: Annotated[int | None, passed("Lower runs first.")] = None
    cache_salt: Annotated[str | None, passed("At most 256 bytes.")] = None
    request_id: Annotated[str | None, supported("Part of the answer's `id`. Default: the header `x-request-id`.")] = (
        None
    )
    n_predict: Limit = None
    num_predict: Limit = None
    max_new_tokens: Limit = None
    repeat_penalty: RepeatPenalty = None
    repeat_last_n: Annotated[
        int | None, supported("Without a penalty, all values; with one, -1, as penalties count all tokens.")
    ] = None
    return_token_ids: Annotated[bool | None, supported("Adds `prompt_token_ids` and the choices' `token_ids`.")] = None
    return_tokens_as_token_ids: Annotated[bool | None, supported("Log probabilities name tokens `token_id:…`.")] = None

    response_format: Annotated[
        dict[str, Any] | None,
        supported(
            "`text`, `json_object`, `json_schema` (held to the schema, `strict` or not; with `strict: false` a `oneOf` "
            "means `anyOf`, so that it may overlap) and vLLM's "
            "`structural_tag` with `structures` and `triggers`. Also a schema without what is around it, one beside "
            "`json_object` or as `schema` or `value`, and types `json`, `regex` and `grammar`, as other servers take "
            "them."
        ),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        supported("One of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`."),
    ] = None
    guided_json: Annotated[
        str | dict[str, Any] | bool | None, supported("Older form of `structured_outputs.json`.")
    ] = None
    guided_regex: Annotated[str | None, supported("Older form of `structured_outputs.regex`.")] = None
    guided_choice: Annotated[list[str] | None, supported("Older form of `structured_outputs.choice`.")] = None
    guided_grammar: Annotated[str | None, supported("Older form of `structured_outputs.grammar`.")] = None
    guided_json_object: Annotated[bool | None, supported("Older form of `structured_outputs.json_object`.")] = None
    json_schema: Annotated[
        str | dict[str, Any] | bool | None, supported("llama.cpp's and SGLang's `structured_outputs.json`.")
    ] = None
    regex: Annotated[str | None, supported("SGLang's `structured_outputs.regex`.")] = None
    ebnf: Annotated[str | None, supported("SGLang's `structured_outputs.grammar`.")] = None
    grammar: Annotated[
        str | dict[str, Any] | None,
        supported("llama.cpp's `structured_outputs.grammar`; or an object with `type` and `value`, as TGI takes it."),
    ] = None
    format: Annotated[
        str | dict[str, Any] | None, supported("Ollama's: `json`, or a JSON Schema. An empty string is none.")
    ] = None
    text: Annotated[Within | None, refused(_FORM, *NO_FORM)] = None
    output_config: Annotated[Within | None, refused(_FORM, *NO_FORM)] = None
    output_format: Annotated[Any, refused(_FORM)] = None
    nvext: Annotated[Any, refused(_FORM, {})] = None
    grammar_lazy: Annotated[Any, refused("a form holds from the answer's beginning; see structural tags", False)] = None
    grammar_triggers: Annotated[Any, refused("structural tags have triggers", [])] = None
    guided_decoding_backend: Annotated[Any, ignored("There is one.")] = None
    guided_whitespace_pattern: Annotated[
        Any, refused("structured_outputs.disable_any_whitespace says whether the model may put white space")
    ] = None

    user: Annotated[Any, ignored("Identity is the bearer token's.")] = None
    session_id: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    stream_interval: Annotated[Any, ignored("Tokens come as soon as they are there.")] = None
    mm_processor_kwargs: Annotated[Any, refused(MM_PROCESSOR_KWARGS, {})] = None
    media_io_kwargs: Annotated[Any, ignored("Files of pictures are decoded in one way.")] = None
    mm_payload: Annotated[Any, refused("pictures are parts of messages", {})] = None
    return_mm_kwargs: Annotated[Any, refused("pictures are prepared within the ring", False)] = None
    return_token_offsets: Annotated[Any, ignored("vLLM ignores it at this endpoint, too.")] = None
    routed_experts_prompt_start: Annotated[Any, ignored("Routing of experts is not reported.")] = None

    truncation_side: Annotated[Any, refused("truncate_prompt_tokens keeps the last tokens", "left")] = None
    spaces_between_special_tokens: Annotated[Any, refused("the text is what the tokenizer decodes", True)] = None
    logprob_token_ids: Annotated[Any, refused("log probabilities are those of the most likely tokens", [])] = None
    logits_processors: Annotated[Any, refused("logit_bias, bad_words and allowed_token_ids change logits", [])] = None
    watermarking: Annotated[Any, refused("tokens are drawn without a watermark", False)] = None
    repetition_detection: Annotated[Any, refused("repetition_penalty makes repetitions less likely")] = None
    kv_transfer_params: Annotated[Any, refused("engines compute the prompts of their requests", {})] = None
    ec_transfer_params: Annotated[Any, refused("engines encode the pictures of their requests", {})] = None
    lora_request: Annotated[Any, refused("name an adapter as the model")] = None
    typical_p: Annotated[Any, refused("top_p and min_p leave out unlikely tokens", 1)] = None
    return_tokens: Annotated[Any, refused("return_token_ids adds the tokens", False)] = None


def sampling_options(request: SamplingFields) -> dict[str, Any]:
    """The shared fields' options for the ring."""
    options = options_of(request)
    if request.top_k is not None:
        options["top_k"] = 0 if request.top_k == -1 else request.top_k
    if request.seed is not None:
        if not _LEAST_SEED <= request.seed < _SEEDS:
            raise invalid("seed", f"{request.seed} is out of range: expected 64 bits, signed or not")
        options["seed"] = request.seed % _SEEDS
    if request.repeat_last_n not in (None, -1) and _has_penalty(request):
        problem = "not supported: penalties count all tokens; leave it out"
        raise invalid("repeat_last_n", problem, code="unsupported_parameter")
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs", "not available in a stream: leave out stream")
    if (rule := repeat_rule(request)) is not None:
        options["no_repeat_ngram"] = rule
    if request.return_token_ids or request.prompt_logprobs is not None:
        options["return_prompt_token_ids"] = True
    return options | form_options(_forms(request))


def repeat_rule(request: SamplingFields) -> dict[str, Any] | None:
    """The rule against repetitions, by either of its names. Raises ``ApiError``."""
    own = None if request.no_repeat_ngram is None else msgspec.structs.asdict(request.no_repeat_ngram)
    given = request.vllm_xargs or {}
    if unknown := sorted(given.keys() - _RULE_OF_VLLM.keys()):
        problem = f"not supported: there are no such arguments, but {', '.join(_RULE_OF_VLLM)}"
        raise invalid(f"vllm_xargs.{unknown[0][:80]}", problem, code="unsupported_parameter")
    rule = {_RULE_OF_VLLM[name]: value for name, value in given.items() if value is not None}
    if "ngram_size" not in rule:  # vLLM's processor does nothing then
        return own
    if own is not None:
        raise invalid("vllm_xargs.ngram_size", "no_repeat_ngram sets the same: give one")
    return {"window_size": _WINDOW_OF_VLLM, **rule}


_RULE_OF_VLLM = {
    "ngram_size": "ngram_size",
    "window_size": "window_size",
    "whitelist_token_ids": "allowed_token_ids",
}
_WINDOW_OF_VLLM = 100


def _has_penalty(request: SamplingFields) -> bool:
    return bool(request.frequency_penalty or request.presence_penalty) or request.repetition_penalty not in (None, 1)


_PLAIN_FORMS = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Fields that equal an option of the ring."""


def _forms(request: SamplingFields) -> list[Form]:
    """A request's forms. Raises ``ApiError``."""
    found = [response_format_form(request.response_format)]
    if structured := structured_options(request.structured_outputs):
        found.append(Form("structured_outputs", structured))
    for name, kind in _PLAIN_FORMS.items():
        if (value := getattr(request, name)) not in (None, "") and not (kind == "json_object" and not value):
            found.append(Form(name, {kind: value}))
    found += _ollama_form(request.format), _llama_cpp_form(request.grammar)
    return [form for form in found if form is not None]


def _ollama_form(given: str | dict[str, Any] | None) -> Form | None:
    if not given and not isinstance(given, dict):
        return None
    if isinstance(given, str) and given != "json":
        raise invalid("format", f"{shown(given)}: expected json, or a JSON Schema")
    return Form("format", {"json_object": True} if isinstance(given, str) else {"json_schema": given})


def _llama_cpp_form(given: str | dict[str, Any] | None) -> Form | None:
    if not isinstance(given, dict):
        return Form("grammar", {"grammar": given}) if given else None
    kinds = {"json": "json_schema", "json_schema": "json_schema", "regex": "regex"}
    kind, value = given.get("type"), given.get("value")
    if not isinstance(kind, str) or kind not in kinds or value is None:
        raise invalid("grammar", "expected a text, or an object with type (json, json_schema or regex) and value")
    return Form("grammar.value", {kinds[kind]: value})


class HasId(Protocol):
    """A body that may have the request's id."""

    request_id: str | None


def call_of(call: Call, request: HasId) -> Call:
    """The call, with the body's id if it has one. Raises ``ApiError`` for ids that no header could hold."""
    if not request.request_id:
        return call
    if not REQUEST_ID.fullmatch(request.request_id):  # every chunk repeats it
        raise invalid("request_id", "expected at most 128 printable ASCII characters without spaces")
    return replace(call, request_id=request.request_id)


def stop_reason(stop: int | str | None, request: SamplingFields) -> int | str | None:
    """What ended a choice, if the request named it, as in vLLM."""
    return stop if isinstance(stop, str) or stop in (request.stop_token_ids or ()) else None


def last_members(event: Finished, request: SamplingFields) -> bytes:
    """The further members of a choice's last chunk, each preceded by a comma."""
    members = {"stop_reason": stop_reason(event.stop, request)} | score_members(event.beam_score)
    return b"," + msgspec.json.encode(members)[1:-1]


def form_names(request: SamplingFields) -> dict[str, str]:
    """The request's names for the ring's form fields, and those of other servers that it gives."""
    given = names_given(request) | ({"no_repeat_ngram": "vllm_xargs"} if request.vllm_xargs else {})
    (form,) = _forms(request) or [Form("response_format.json_schema.schema", {"json_schema": None})]
    if form.field != "structured_outputs":
        return given | dict.fromkeys(form.options, form.field) | {"constraint": form.field}
    names = {kind: f"structured_outputs.{kind}" for kind in ("regex", "choice", "grammar", "json_object")}
    names |= {"json_schema": "structured_outputs.json", "structural_tags": "structured_outputs.structural_tag"}
    return given | names | {"constraint": "structured_outputs"}


class UsageMode(msgspec.Struct, frozen=True):
    """Where a stream reports its usage."""

    last: bool = False
    """In a separate last chunk."""
    always: bool = False
    """In every chunk."""


def usage_mode(request: SamplingFields) -> UsageMode:
    """Where ``stream_options`` asks for usage."""
    options = request.stream_options or StreamOptions()
    return UsageMode(bool(options.include_usage), bool(options.continuous_usage_stats and options.include_usage))
