"""Defaults of sampling: those of a checkpoint's generation_config.json, and those of options."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError, InvalidRequestError
from engine_core.request import SamplingParams
from engine_core.validation import check_numbers

SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_OPTION = "override_generation_config"
_ACCEPTED = f"a JSON object with numbers for any of {', '.join(SAMPLING_DEFAULTS)}"


def default_sampling(path: Path, generation: Mapping[str, Any], config: ModelConfig) -> dict[str, float]:
    """The sampling parameters in ``generation``, the checkpoint's generation_config.json, and those of the options."""
    defaults: dict[str, float] = {}
    if config.generation_config == "auto":
        defaults = {name: generation[name] for name in SAMPLING_DEFAULTS if generation.get(name) is not None}
    for name, value in defaults.items():
        if not _is_number(value):
            raise CheckpointError(f"{path / 'generation_config.json'}: {name}={value!r} is not a number")
    return defaults | overrides(config)


def overrides(config: ModelConfig) -> dict[str, float]:
    """The defaults of --override-generation-config. Raises ``ConfigError`` for those that no request could have."""
    text = config.override_generation_config
    if text is None:
        return {}
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(_OPTION, text, _ACCEPTED) from None
    if not isinstance(given, dict) or not given.keys() <= set(SAMPLING_DEFAULTS):
        raise ConfigError(_OPTION, text, _ACCEPTED)
    if not all(map(_is_number, given.values())):
        raise ConfigError(_OPTION, text, _ACCEPTED)
    if "top_k" in given and not (type(given["top_k"]) is int and 0 <= given["top_k"] < 2**31):
        raise ConfigError(_OPTION, text, "top_k to be an integer, 0 for all tokens")
    params = {name: value for name, value in given.items() if name != "top_k"}
    try:
        check_numbers(SamplingParams(**params))
    except InvalidRequestError as error:
        raise ConfigError(_OPTION, text, f"values that a request could have: {error}") from None
    return dict(given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
