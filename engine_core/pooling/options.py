"""The option ``--pooler-config``: how hidden states are pooled, over what the checkpoint says. The names are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_core.errors import ConfigError
from engine_core.pooling.params import PoolingTask

OPTION = "pooler_config"
POOLING_TYPES = ("LAST", "CLS", "MEAN", "ALL")
_TASKS = tuple(task.value for task in PoolingTask)
_OTHERS = {
    "STEP": "results at steps of an answer are not served: take them from those of all tokens (ALL)",
    "seq_pooling_type": "pooling_type has LAST, CLS and MEAN for whole inputs",
    "tok_pooling_type": "pooling_type ALL is for tokens",
    "step_tag_id": "results at steps of an answer are not served: take them from those of all tokens (ALL)",
    "returned_token_ids": "all labels are returned",
    "enable_chunked_processing": "an input longer than the model's context is refused, or cut if a request says so",
    "max_embed_len": "--max-model-len is the limit",
    "logit_bias": "scores are not moved",
    "logit_mean": "scores are not moved",
    "logit_sigma": "scores are not scaled",
    "softmax": "use_activation is called so here",
    "activation": "use_activation is called so here",
}
"""Names and values of vLLM's that are refused: what there is instead."""
_MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class PoolerOptions:
    """What the option says; None: what the checkpoint says."""

    pooling_type: str | None = None
    """One of ``POOLING_TYPES``."""
    normalize: bool | None = None
    dimensions: int | None = None
    """Of vectors, unless a request names others."""
    use_activation: bool | None = None
    task: PoolingTask | None = None
    """The only one that is served."""
    classifier_from_token: tuple[str | int, ...] = ()
    """Tokens, or their ids: labels whose numbers are those that the language model's head has for them."""
    is_matryoshka: bool | None = None
    matryoshka_dimensions: tuple[int, ...] = ()


def read_pooler_options(text: str | None) -> PoolerOptions | None:
    """The option's JSON object; None without it. Raises ``ConfigError``."""
    if text is None:
        return None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(OPTION, text, f"a JSON object; this is none: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(OPTION, text, 'a JSON object such as {"pooling_type": "MEAN"}')
    return _options(given, text)


def _options(given: Mapping[str, Any], text: str) -> PoolerOptions:
    readers = {
        "pooling_type": _pooling_type,
        "normalize": _flag,
        "dimensions": _dimension,
        "use_activation": _flag,
        "task": _task,
        "classifier_from_token": _tokens,
        "is_matryoshka": _flag,
        "matryoshka_dimensions": _dimensions,
    }
    read = dict[str, Any]()
    for name, value in given.items():
        if name not in readers:
            instead = f", as {_OTHERS[name]}" if name in _OTHERS else f"; its fields are {', '.join(readers)}"
            raise ConfigError(OPTION, text, f"no {name!r}{instead}")
        if value is None:
            continue
        try:
            read[name] = readers[name](value)
        except ValueError as error:
            raise ConfigError(OPTION, text, f"as {name} {error}") from None
    return PoolerOptions(**read)


def _pooling_type(value: object) -> str:
    if value in POOLING_TYPES:
        return str(value)
    also = f"; {_OTHERS['STEP']}" if value == "STEP" else ""
    raise ValueError(f"one of {', '.join(POOLING_TYPES)}{also}")


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError("true or false")
    return value


def _dimension(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("a number of at least 1")
    return value


def _dimensions(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of numbers of at least 1")
    return tuple(sorted({_dimension(each) for each in value}))


def _task(value: object) -> PoolingTask:
    if value not in _TASKS:
        raise ValueError(f"one of {', '.join(_TASKS)}")
    return PoolingTask(value)


def _tokens(value: object) -> tuple[str | int, ...]:
    given = value if isinstance(value, list) else []
    if not 1 <= len(given) <= _MOST_TOKENS or not all(type(each) in (str, int) for each in given):
        raise ValueError('a list of tokens of the vocabulary, such as ["no", "yes"], or of their ids')
    return tuple(given)
