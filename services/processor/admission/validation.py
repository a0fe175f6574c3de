"""Validation of requests. Each error names the field, its value, and the values that it accepts."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Sequence

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import sampling_pb2

from services.processor.served_models import ModelLimits, unknown_model
from services.ring.errors import Refused, invalid_field
from services.ring.limits import (
    MAX_ALLOWED_BY_NGRAM,
    MAX_CHOICES,
    MAX_NGRAM_SIZE,
    MAX_NGRAM_WINDOW,
    MAX_STOP_TOKEN_IDS,
)
from text_core.stop_strings import MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS, MAX_STOP_STRINGS_TOTAL_BYTES

MAX_LOGIT_BIAS, MAX_LOGIT_BIAS_TOKENS = 100, 1024
MAX_BAD_WORDS, MAX_BAD_WORD_BYTES, MAX_BAD_WORD_TOKENS_TOGETHER = 128, 256, 1024
MAX_REQUEST_ID_BYTES = 128
MAX_CACHE_SALT_BYTES = 256
MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000
MAX_TEMPERATURE = float(1 << 31)
MIN_REPETITION_PENALTY = 1 / MAX_TEMPERATURE
MAX_PROBLEM_LENGTH = 1000


def refuse(field: str, problem: str) -> Refused:
    """INVALID_ARGUMENT, naming the field; ``problem`` is cut to a status message's length."""
    return invalid_field(field, problem[:MAX_PROBLEM_LENGTH])


def check_request(request: inference_pb2.GenerateRequest, limits: ModelLimits) -> None:
    """Every check that needs no tokenization; raises ``Refused``."""
    _check_prompt(request, limits)
    check_sampling(request.sampling, limits)
    _check_stopping(request.stopping, limits)
    _check_output(request.output, limits)
    if len(request.cache_salt.encode()) > MAX_CACHE_SALT_BYTES:
        raise refuse("cache_salt", f"{len(request.cache_salt.encode())} bytes: expected at most {MAX_CACHE_SALT_BYTES}")
    if request.HasField("timeout_ms"):
        _check_range("timeout_ms", request.timeout_ms, 1, MAX_TIMEOUT_MS)
    _check_resume(request, limits)


def check_request_id(request_id: str) -> None:
    """The client's id is limited in length, because every response repeats it."""
    size = len(request_id.encode())
    if size > MAX_REQUEST_ID_BYTES:
        raise refuse("request_id", f"{size} bytes: expected at most {MAX_REQUEST_ID_BYTES}")


def check_model(name: str, limits: ModelLimits) -> None:
    """Raise NOT_FOUND for a model that is not served."""
    if name and not limits.answers_to(name):
        raise unknown_model(name, (limits.name, *limits.aliases))


def check_chat(chat: inference_pb2.Chat) -> None:
    """A conversation must have messages, and each message a role."""
    if not chat.messages:
        raise refuse("chat.messages", "empty: expected at least one message")
    for index, message in enumerate(chat.messages):
        if not message.role:
            raise refuse(f"chat.messages[{index}].role", "empty: expected a role such as user or assistant")
        _check_parts(message, f"chat.messages[{index}]")
    if chat.continue_final_message and chat.HasField("add_generation_prompt") and chat.add_generation_prompt:
        raise refuse("chat.continue_final_message", "contradicts add_generation_prompt: expected one of the two")


def _check_parts(message: inference_pb2.ChatMessage, path: str) -> None:
    if message.content and message.content_parts:
        raise refuse(f"{path}.content_parts", "content is set, too: expected one of the two")
    for number, part in enumerate(message.content_parts):
        if part.WhichOneof("part") is None:
            raise refuse(f"{path}.content_parts[{number}]", "none is set: expected text or media")


def check_token_ids(field: str, ids: Collection[int], limits: ModelLimits) -> None:
    """Every id must be in the vocabulary."""
    if ids and max(ids) >= limits.vocab_size:
        position, token = next((i, token) for i, token in enumerate(ids) if token >= limits.vocab_size)
        problem = f"{token} is not in the vocabulary: expected 0 to {limits.vocab_size - 1}"
        raise refuse(f"{field}[{position}]", problem)


def check_text_size(field: str, text: str, limits: ModelLimits) -> None:
    """Limit a text to what the context could hold: tokenizing takes many times its size in memory."""
    size = len(text.encode())
    if size > limits.max_text_bytes:
        raise text_too_large(field, str(size), limits)


def text_too_large(field: str, size: str, limits: ModelLimits) -> Refused:
    """The error of a text that no context could hold; ``size``: its bytes, or words for them."""
    return refuse(field, f"{size} bytes: expected at most {limits.max_text_bytes}, {limits.context}")


def check_prompt_length(length: int, limits: ModelLimits) -> None:
    """A prompt must leave room for one token."""
    if length == 0:
        raise refuse("prompt", "empty: expected at least one token")
    if length >= limits.max_model_len:
        raise refuse(
            "prompt",
            f"{length} tokens are too long: expected at most {limits.max_model_len - 1} "
            f"(truncate_prompt_tokens keeps the last ones)",
        )


def check_sampling(sampling: inference_pb2.SamplingParams, limits: ModelLimits) -> None:
    """Check the ranges of the sampling parameters."""
    _check_float(sampling, "temperature", 0.0, MAX_TEMPERATURE, high_open=True)
    _check_float(sampling, "top_p", 0.0, 1.0, low_open=True)
    _check_float(sampling, "min_p", 0.0, 1.0)
    _check_float(sampling, "frequency_penalty", -2.0, 2.0)
    _check_float(sampling, "presence_penalty", -2.0, 2.0)
    _check_float(sampling, "repetition_penalty", MIN_REPETITION_PENALTY, MAX_TEMPERATURE, high_open=True)
    if sampling.HasField("n"):
        _check_range("sampling.n", sampling.n, 1, MAX_CHOICES)
    if (count := len(sampling.logit_bias)) > MAX_LOGIT_BIAS_TOKENS:
        raise refuse("sampling.logit_bias", f"{count} entries: expected at most {MAX_LOGIT_BIAS_TOKENS}")
    for token, bias in sampling.logit_bias.items():
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            problem = f"{_number(bias)} is out of range: expected {-MAX_LOGIT_BIAS} to {MAX_LOGIT_BIAS}"
            raise refuse(f"sampling.logit_bias[{token}]", problem)
    check_token_ids("sampling.logit_bias", sampling.logit_bias, limits)
    if len(sampling.allowed_token_ids) > limits.vocab_size:
        problem = (
            f"{len(sampling.allowed_token_ids)} ids: expected at most {limits.vocab_size}, the size of the vocabulary"
        )
        raise refuse("sampling.allowed_token_ids", problem)
    check_token_ids("sampling.allowed_token_ids", sampling.allowed_token_ids, limits)
    if sampling.HasField("no_repeat_ngram"):
        _check_no_repeat_ngram(sampling.no_repeat_ngram, limits)


def _check_no_repeat_ngram(rule: sampling_pb2.NoRepeatNgram, limits: ModelLimits) -> None:
    field = "sampling.no_repeat_ngram"
    _check_range(f"{field}.ngram_size", rule.ngram_size, 1, MAX_NGRAM_SIZE)
    _check_range(f"{field}.window_size", rule.window_size, 1, MAX_NGRAM_WINDOW)
    if (count := len(rule.allowed_token_ids)) > MAX_ALLOWED_BY_NGRAM:
        raise refuse(f"{field}.allowed_token_ids", f"{count} ids: expected at most {MAX_ALLOWED_BY_NGRAM}")
    check_token_ids(f"{field}.allowed_token_ids", rule.allowed_token_ids, limits)


def check_candidates(
    sampling: inference_pb2.SamplingParams,
    stopping: inference_pb2.StoppingParams,
    bad_words: Sequence[Sequence[int]],
    eos_token_ids: Iterable[int],
    limits: ModelLimits,
) -> None:
    """At least one token must remain to sample first. Call it once bans are resolved and tokenized."""
    together = sum(map(len, bad_words))
    if together > MAX_BAD_WORD_TOKENS_TOGETHER:
        raise refuse(
            "stopping.bad_words", f"{together} tokens together: expected at most {MAX_BAD_WORD_TOKENS_TOGETHER}"
        )
    allowed = sampling.allowed_token_ids or range(limits.vocab_size)
    banned = {word[0] for word in bad_words if len(word) == 1}
    if banned.issuperset(allowed):
        raise refuse("stopping.bad_words", "every allowed token is banned: expected at least one that is not")
    if stopping.min_tokens == 0:
        return
    banned.update(stopping.stop_token_ids)
    if not stopping.ignore_eos:
        banned.update(eos_token_ids)
    if banned.issuperset(allowed):
        raise refuse(
            "stopping.min_tokens",
            "every allowed token is banned or ends the output: expected 0, or an allowed token that does neither",
        )


def _check_prompt(request: inference_pb2.GenerateRequest, limits: ModelLimits) -> None:
    match request.WhichOneof("prompt"):
        case "text":
            if not request.text:
                raise refuse("text", "empty: expected a prompt")
            check_text_size("text", request.text, limits)
        case "token_ids":
            if not request.token_ids.ids:
                raise refuse("token_ids", "empty: expected at least one id")
        case "chat":
            check_chat(request.chat)
        case _:
            raise refuse("prompt", "none is set: expected one of text, token_ids and chat")
    truncated = request.HasField("truncate_prompt_tokens")
    if truncated:
        _check_range("truncate_prompt_tokens", request.truncate_prompt_tokens, 1, limits.max_model_len - 1)
    if request.WhichOneof("prompt") == "token_ids":
        if not truncated:
            check_prompt_length(len(request.token_ids.ids), limits)
        check_token_ids("token_ids", request.token_ids.ids, limits)


def _check_stopping(stopping: inference_pb2.StoppingParams, limits: ModelLimits) -> None:
    if stopping.HasField("max_tokens") and stopping.max_tokens == 0:
        raise refuse("stopping.max_tokens", "0 is out of range: expected at least 1")
    if stopping.HasField("max_tokens") and stopping.min_tokens > stopping.max_tokens:
        raise refuse(
            "stopping.min_tokens",
            f"{stopping.min_tokens} is out of range: expected at most max_tokens, {stopping.max_tokens}",
        )
    if stopping.min_tokens >= limits.max_model_len:
        raise refuse(
            "stopping.min_tokens",
            f"{stopping.min_tokens} is out of range: expected less than {limits.max_model_len}, the model's context",
        )
    _check_strings("stopping.stop", stopping.stop, MAX_STOP_STRINGS, MAX_STOP_STRING_BYTES)
    together = sum(len(stop.encode()) for stop in stopping.stop)
    if together > MAX_STOP_STRINGS_TOTAL_BYTES:
        raise refuse("stopping.stop", f"{together} bytes together: expected at most {MAX_STOP_STRINGS_TOTAL_BYTES}")
    if len(stopping.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise refuse(
            "stopping.stop_token_ids", f"{len(stopping.stop_token_ids)} ids: expected at most {MAX_STOP_TOKEN_IDS}"
        )
    check_token_ids("stopping.stop_token_ids", stopping.stop_token_ids, limits)
    _check_strings("stopping.bad_words", stopping.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_BYTES)


def _check_output(output: inference_pb2.OutputParams, limits: ModelLimits) -> None:
    if output.HasField("logprobs"):
        _check_range("output.logprobs", output.logprobs, 0, limits.max_logprobs)
    if output.HasField("prompt_logprobs"):
        _check_range("output.prompt_logprobs", output.prompt_logprobs, 0, limits.max_logprobs)


def _check_resume(request: inference_pb2.GenerateRequest, limits: ModelLimits) -> None:
    if not request.HasField("resume"):
        return
    if not request.resume.choices:
        raise refuse("resume.choices", "empty: expected the choices that are not finished")
    if not (request.sampling.HasField("seed") or request.HasField("beam_search")):
        raise refuse("sampling.seed", "absent: a resume needs the seed that Admitted returned")
    n = request.sampling.n if request.sampling.HasField("n") else 1
    seen: set[int] = set()
    for index, resumed in enumerate(request.resume.choices):
        field = f"resume.choices[{index}]"
        if resumed.choice >= n:
            raise refuse(f"{field}.choice", f"{resumed.choice} is out of range: expected 0 to {n - 1}")
        if resumed.choice in seen:
            raise refuse(f"{field}.choice", f"{resumed.choice} is listed twice")
        seen.add(resumed.choice)
        if len(resumed.token_ids) > limits.max_model_len:
            problem = f"{len(resumed.token_ids)} ids: expected at most {limits.max_model_len}, the model's context"
            raise refuse(f"{field}.token_ids", problem)
        check_token_ids(f"{field}.token_ids", resumed.token_ids, limits)
        if request.stopping.HasField("max_tokens") and len(resumed.token_ids) > request.stopping.max_tokens:
            raise refuse(
                f"{field}.token_ids",
                f"{len(resumed.token_ids)} ids: expected at most max_tokens, {request.stopping.max_tokens}",
            )
    if not request.resume.model_digest and any(resumed.token_ids for resumed in request.resume.choices):
        problem = "absent: a resume needs the model_digest that Admitted or the last Started returned"
        raise refuse("resume.model_digest", problem)


def _check_strings(field: str, strings: Sequence[str], most: int, most_bytes: int) -> None:
    if len(strings) > most:
        raise refuse(field, f"{len(strings)} strings: expected at most {most}")
    for index, string in enumerate(strings):
        if not 1 <= len(string.encode()) <= most_bytes:
            size = len(string.encode())
            raise refuse(f"{field}[{index}]", f"{size} bytes: expected 1 to {most_bytes}")


def _check_range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise refuse(field, f"{value} is out of range: expected {low} to {high}")


def _check_float(
    sampling: inference_pb2.SamplingParams,
    name: str,
    low: float,
    high: float,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    if not sampling.HasField(name):  # type: ignore[arg-type]
        return
    value = getattr(sampling, name)
    too_low = value < low or (low_open and value == low)
    too_high = value > high or (high_open and value == high)
    if math.isnan(value) or too_low or too_high:
        lower = f"more than {_number(low)}" if low_open else f"at least {_number(low)}"
        upper = f"less than {_number(high)}" if high_open else f"at most {_number(high)}"
        accepted = f"{lower} and {upper}" if low_open or high_open else f"{_number(low)} to {_number(high)}"
        if high_open and not too_high:  # the upper bound is only the largest float32
            accepted = lower
        raise refuse(f"sampling.{name}", f"{_number(value)} is out of range: expected {accepted}")


def _number(value: float) -> str:
    """A float32 in the fewest digits that identify it: probably as the client wrote it."""
    if math.isfinite(value) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    texts = (f"{value:.{digits}g}" for digits in range(1, 9))
    return next((text for text in texts if _float32(float(text)) == value), f"{value:.9g}")


def _float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
