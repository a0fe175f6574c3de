"""Validation of a ``PoolingRequest``, as ``engine_core.validation`` does it for a ``Request``."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from engine_core.config import ModelSpec
from engine_core.errors import InvalidRequestError, written
from engine_core.pooling.facts import PoolingFacts
from engine_core.pooling.params import PoolingInput, PoolingParams, PoolingRequest, PoolingTask
from engine_core.validation import check_ids, check_integer, check_number, check_type, refuse

MAX_INPUTS = 4096
"""Of a request: as many queries as documents, 2048 of each, may be compared."""
MAX_RESULT_BYTES = 32 << 20
"""Of all inputs of a request together."""
_FLOAT_BYTES = 4


def validate_pooling_request(request: PoolingRequest, model: ModelSpec) -> None:
    """Raise ``InvalidRequestError`` for the first field of ``request`` that ``model`` cannot serve."""
    if (facts := model.pooling) is None:
        problem = f"{model.name} generates text: ask it for tokens, or another engine for vectors, scores and labels"
        raise InvalidRequestError("params", problem)
    check_type("request_id", request.request_id, str, "text")
    if not request.request_id or "\0" in request.request_id:
        raise InvalidRequestError("request_id", "is empty or has a NUL; expected a name that no live request has")
    _check_others(request)
    _check_params(request.params, facts)
    check_type("inputs", request.inputs, Mapping, "inputs by choice")
    if not 1 <= len(request.inputs) <= MAX_INPUTS:
        raise InvalidRequestError("inputs", f"has {len(request.inputs)} inputs; expected from 1 to {MAX_INPUTS}")
    for choice, each in request.inputs.items():
        check_integer("inputs", choice)
        if choice < 0:
            refuse("inputs", f"choice {written(choice)}", "numbers from 0 on")
        _check_input(f"inputs[{choice}]", each, model)
    _check_size(request, facts)


def _check_others(request: PoolingRequest) -> None:
    check_integer("priority", request.priority)
    check_type("tenant", request.tenant, str, "text")
    check_type("cache_salt", request.cache_salt, bytes, "bytes")
    if (deadline := request.deadline) is not None:
        check_number("deadline", deadline)
        if not -inf < deadline < inf:
            refuse("deadline", deadline, "seconds on the engine's clock")


def _check_params(params: PoolingParams, facts: PoolingFacts) -> None:
    if type(params) is not PoolingParams:
        refuse("params", f"of type {type(params).__name__}", "PoolingParams of engine_core.pooling.params")
    check_type("task", params.task, PoolingTask, "a PoolingTask")
    if params.task not in facts.tasks:
        refuse("task", params.task.value, f"one of this model's tasks: {', '.join(task.value for task in facts.tasks)}")
    check_type("normalize", params.normalize, bool, "True or False")
    check_type("activation", params.activation, bool, "True or False")
    if params.dimensions is not None:
        check_integer("dimensions", params.dimensions)
        _check_dimensions(params.dimensions, params.task, facts)


def _check_dimensions(dimensions: int, task: PoolingTask, facts: PoolingFacts) -> None:
    if not task.embeds:
        raise InvalidRequestError(
            "dimensions", f"cannot be chosen for {task.value}, whose results have a number a label"
        )
    if dimensions == facts.dimensions:
        return
    if not facts.is_matryoshka:
        accepted = f"{facts.dimensions} or none, as this model's vectors cannot be cut (it is no Matryoshka model)"
        refuse("dimensions", dimensions, accepted)
    if not 1 <= dimensions <= facts.dimensions:
        refuse("dimensions", dimensions, f"from 1 to {facts.dimensions}, the numbers of this model's vectors")
    if facts.matryoshka_dimensions and dimensions not in facts.matryoshka_dimensions:
        trained = ", ".join(map(str, facts.matryoshka_dimensions))
        refuse("dimensions", dimensions, f"one of those that this model was trained for: {trained}")


def _check_input(name: str, given: PoolingInput, model: ModelSpec) -> None:
    check_type(name, given, PoolingInput, "a PoolingInput")
    check_type(name, given.token_ids, (tuple, list), "a tuple of token ids")
    if not given.token_ids:
        raise InvalidRequestError(name, "is empty; expected at least one token")
    if (length := len(given.token_ids)) > model.max_model_len:
        raise InvalidRequestError(
            name, f"has {length} tokens; expected at most {model.max_model_len} (max_model_len), or cut it (truncate)"
        )
    check_ids(name, given.token_ids, model.vocab_size)
    if given.second_text is not None:
        check_integer(name, given.second_text)
        if not 0 <= given.second_text <= length:
            refuse(name, f"second_text {written(given.second_text)}", f"an index from 0 to {length}")


def _check_size(request: PoolingRequest, facts: PoolingFacts) -> None:
    nbytes = result_bytes(request, facts)
    if nbytes > MAX_RESULT_BYTES:
        raise InvalidRequestError(
            "inputs",
            f"have results of {nbytes} bytes; expected at most {MAX_RESULT_BYTES}: send fewer inputs in a request"
            + (", or ask for fewer dimensions" if request.params.task.embeds and facts.is_matryoshka else ""),
        )


def result_bytes(request: PoolingRequest, facts: PoolingFacts) -> int:
    """Bytes of all results of ``request``."""
    params = request.params
    width = (params.dimensions or facts.dimensions) if params.task.embeds else len(facts.labels)
    rows = (
        sum(len(each.token_ids) for each in request.inputs.values()) if params.task.per_token else len(request.inputs)
    )
    return rows * width * _FLOAT_BYTES
