"""Defaults of sampling: those of a checkpoint's generation_config.json, and those of options."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError, InvalidRequestError, written
from engine_core.model_loader.location import packaged_model
from engine_core.request import SamplingParams
from engine_core.validation import check_numbers

SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_OPTION = "override_generation_config"
_ACCEPTED = f"a JSON object with numbers for any of {', '.join(SAMPLING_DEFAULTS)}"


def default_sampling(file: Path, generation: Mapping[str, Any], config: ModelConfig) -> dict[str, float]:
    """The sampling parameters in ``generation``, which ``file`` has, and those of the options, which win.

    A model in a Python package has what its model card advises where its file has none.
    Raises ``CheckpointError`` for those of the file that no request could have.
    """
    given = overrides(config)
    defaults: dict[str, float] = {}
    if config.generation_config == "auto":
        found = {name: value for name in SAMPLING_DEFAULTS if (value := generation.get(name)) is not None}
        if not found and (packaged := packaged_model(config.model)) is not None:
            found = dict(packaged.sampling)
        defaults = {name: value for name, value in found.items() if name not in given}
    for name, value in defaults.items():
        if not _is_number(value):
            raise _unusable(file, f"{name}={value!r} is not a number")
    try:
        return _checked(defaults) | given
    except InvalidRequestError as error:
        raise _unusable(file, str(error)) from None


def _unusable(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: default of sampling: {problem}; --override-generation-config gives another value, "
        "--generation-config none passes over the file's"
    )


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
    try:
        return _checked(given)
    except InvalidRequestError as error:
        raise ConfigError(_OPTION, text, f"values that a request could have: {error}") from None


def _checked(defaults: Mapping[str, float]) -> dict[str, float]:
    """``defaults`` with a ``top_k`` of 0 for all tokens.

    Raises ``InvalidRequestError`` for what no request could have.
    """
    found: dict[str, Any] = dict(defaults)
    if "top_k" in found:
        if (top_k := found["top_k"]) != int(top_k) or not -1 <= top_k < 2**31:
            accepted = "an integer below 2^31, 0 or -1 for all tokens"
            raise InvalidRequestError("top_k", f"is {written(top_k)}; expected {accepted}")
        found["top_k"] = max(0, int(top_k))
    check_numbers(SamplingParams(**found | {"top_k": None}))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
