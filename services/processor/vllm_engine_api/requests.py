"""Converts vLLM's requests to ours. In vLLM's, zero means unset for most fields."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2

from services.processor.admission.validation import refuse
from services.processor.vllm_engine_api.structural_tags import read_structural_tags
from services.ring.errors import Status

_NO_MEDIA = "is not supported: this server takes text and token ids"
_NO_TRANSFER = "is not supported: prompt and answer are computed by one engine"
_UNSUPPORTED = {
    "mm_inputs": _NO_MEDIA,
    "extra_mm_inputs": _NO_MEDIA,
    "media_refs": _NO_MEDIA,
    "kv_transfer_params": _NO_TRANSFER,
    "kv_transfer_params_json": _NO_TRANSFER,
}
"""Unsupported fields that would change the result."""
_SEED_BITS = (1 << 64) - 1
_FIELDS = {
    "token_ids": "tokenized.input_ids",
    r"inputs\[0\]\.token_ids\.ids": "tokenized.input_ids",
    r"inputs\[0\](\.token_ids)?": "tokenized.input_ids",
    "constraint.structural_tags": "sampling_params.structural_tag",
    "constraint.choice.texts": "sampling_params.choice.choices",
    **dict.fromkeys(("sampling", "stopping", "output", "constraint"), "sampling_params"),
    "truncate_prompt_tokens": "sampling_params.truncate_prompt_tokens",
}
"""vLLM's field names, keyed by patterns of the beginnings of ours."""


def read_request(message: Any, max_model_len: int | None) -> inference_pb2.GenerateRequest:
    """Convert a ``vllm.grpc.engine.GenerateRequest``; ``max_model_len``: the model's, if known.

    Not read, because they do not change the result: ``stream`` (the answer's form), ``data_parallel_rank``,
    ``spaces_between_special_tokens`` and ``grammar_from_first_token`` (true of every constraint). Raises ``Refused``.
    """
    for field, _ in message.ListFields():
        if (problem := _UNSUPPORTED.get(field.name)) is not None:
            raise refuse(field.name, problem)
    request = inference_pb2.GenerateRequest(request_id=message.request_id)
    match message.WhichOneof("input"):
        case "tokenized":
            request.token_ids.ids.extend(message.tokenized.input_ids)
        case "text":
            request.text = message.text
        case _:
            raise refuse("input", "none is set: expected tokenized or text")
    params = message.sampling_params
    if params.HasField("truncate_prompt_tokens"):
        _read_truncation(request, params.truncate_prompt_tokens, max_model_len)
    _read_sampling(request.sampling, params)
    _read_stopping(request.stopping, params)
    _read_output(request.output, params)
    if params.WhichOneof("constraint") is not None:
        _read_constraint(request.constraint, params)
        request.requires.append("constraint")
    return request


def read_embed_request(message: Any) -> inference_pb2.EmbedRequest:
    """Convert a ``vllm.grpc.engine.EmbedRequest``. Raises ``Refused``."""
    if not message.HasField("tokenized"):
        raise refuse("tokenized", "not set: expected input_ids")
    request = inference_pb2.EmbedRequest(request_id=message.request_id)
    request.inputs.add().token_ids.ids.extend(message.tokenized.input_ids)
    return request


def as_named_here(status: Status) -> Status:
    """The error, with vLLM's name of the field."""
    if (field := status.field) is None:
        return status
    for ours, theirs in _FIELDS.items():
        if found := re.match(rf"{ours}(?!\w)", field):
            named = theirs + field[found.end() :]
            message = f"{named}: {status.message.removeprefix(f'{field}: ')}"
            return replace(status, field=named, message=message)
    return status


def _read_truncation(request: inference_pb2.GenerateRequest, tokens: int, max_model_len: int | None) -> None:
    if tokens < -1:
        raise refuse("sampling_params.truncate_prompt_tokens", f"{tokens} is out of range: expected at least -1")
    if tokens >= 0:
        request.truncate_prompt_tokens = tokens
    elif max_model_len is not None:
        request.truncate_prompt_tokens = max_model_len - 1


def _read_sampling(sampling: inference_pb2.SamplingParams, params: Any) -> None:
    # Set every value, so that the model's defaults do not apply: gateways get them from GetModelInfo.
    sampling.temperature = params.temperature if params.HasField("temperature") else 1.0
    sampling.top_p = params.top_p or 1.0
    sampling.top_k = params.top_k
    sampling.min_p = params.min_p
    sampling.frequency_penalty = params.frequency_penalty
    sampling.presence_penalty = params.presence_penalty
    sampling.repetition_penalty = params.repetition_penalty or 1.0
    sampling.n = params.n or 1
    if params.HasField("seed"):
        sampling.seed = params.seed & _SEED_BITS
    for token, bias in params.logit_bias.items():
        if token < 0:
            raise refuse("sampling_params.logit_bias", f"{token} is not in the vocabulary")
        sampling.logit_bias[token] = bias


def _read_stopping(stopping: inference_pb2.StoppingParams, params: Any) -> None:
    if params.HasField("max_tokens"):
        stopping.max_tokens = params.max_tokens
    stopping.min_tokens = params.min_tokens
    stopping.stop.extend(params.stop)
    stopping.stop_token_ids.extend(params.stop_token_ids)
    stopping.ignore_eos = params.ignore_eos
    stopping.include_stop_str_in_output = params.include_stop_str_in_output


def _read_output(output: inference_pb2.OutputParams, params: Any) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        if params.HasField(name):
            if (count := getattr(params, name)) < 0:
                raise refuse(f"sampling_params.{name}", f"{count} is out of range: expected at least 0")
            setattr(output, name, count)
    output.return_prompt_token_ids = params.HasField("prompt_logprobs")
    output.skip_special_tokens = params.skip_special_tokens
    output.prefill_progress = True  # reports how many prompt tokens were cached


def _read_constraint(constraint: constraint_pb2.Constraint, params: Any) -> None:
    constraint.after_reasoning = False
    match params.WhichOneof("constraint"):
        case "structural_tag":
            constraint.structural_tags.CopyFrom(read_structural_tags(params.structural_tag))
        case "choice":
            constraint.choice.texts.extend(params.choice.choices)
            constraint.choice.SetInParent()
        case kind:
            setattr(constraint, kind, getattr(params, kind))
