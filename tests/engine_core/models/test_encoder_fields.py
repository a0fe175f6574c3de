"""One field of an encoder's configuration changed: the same hidden states as transformers' from the same config.json,
or a refusal that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from engine_core.errors import EngineError
from engine_core.ops.torch import TorchBackend
from tests.engine_core.models.driver import load
from tests.engine_core.models.encoders import CASES, expected, hidden_states, inputs_of, save

ABSENT = object()
_IDENTITY = ("architectures", "dtype", "initializer_range", "model_type", "transformers_version")
"""Fields that name a configuration, or say how random its weights are."""
_SIZES = ("vocab_size", "max_position_embeddings")
"""Inputs have ids and lengths that need these."""
_WORDS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh", "quick_gelu", "mean", "absolute", "what")
_ADDED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (True,),
    "global_attn_every_n_layers": (2,),
    "global_rope_theta": (500.0,),
    "is_decoder": (True,),
    "local_rope_theta": (500.0,),
    "position_embedding_type": ("relative_key", "absolute"),
    "rope_local_base_freq": (500.0,),
    "rope_scaling": ({"rope_type": "linear", "factor": 4.0},),
    "rope_theta": (500.0,),
    "sliding_window_pattern": (2,),
    "use_cache": (True,),
}
"""Values of fields that a configuration may not have."""
LENGTHS = (70, 1, 33)


def changes(raw: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for field in sorted({*raw, *_ADDED} - {*_IDENTITY}):
        old = raw.get(field, ABSENT)
        values = [ABSENT, None, *_ADDED.get(field, ()), *_others(old)]
        if field in _SIZES:
            values = [value for value in values if isinstance(value, int) and value > 199]
        yield from ((field, value) for value in values if value is not old and value != old)


def _others(old: Any) -> Iterator[Any]:
    match old:
        case bool():
            yield not old
        case int():
            yield from (0, 1, 2, 2 * old, -1)
        case float():
            yield from (0.0, 0.5, 2.0)
        case str():
            yield from _WORDS
        case ["full_attention" | "sliding_attention", *_]:
            yield from (["full_attention"] * len(old), ["sliding_attention"] * len(old), old[::-1], old[1:])
        case {"rope_theta": _}:
            yield old | {"rope_theta": 77.0}
            yield old | {"rope_type": "linear", "factor": 4.0}
            yield old | {"partial_rotary_factor": 0.5}
        case {"full_attention": dict() as full}:
            yield old | {"full_attention": full | {"rope_theta": 77.0}}
            yield {"sliding_attention": full}


def names_of(field: str, old: Any, new: Any) -> set[str]:
    """What a refusal may name: the field, or what is new in it."""
    return {field, *(new.keys() - old.keys())} if isinstance(old, dict) and isinstance(new, dict) else {field}


def outcome(directory: Path, architecture: str, raw: dict[str, Any], names: set[str]) -> str | None:
    """What is wrong, empty if nothing is; None if transformers refuses the configuration."""
    (directory / "config.json").write_text(json.dumps(raw))
    try:
        config = AutoConfig.from_pretrained(directory)
        kind = getattr(__import__("transformers"), architecture)
        reference = save(kind, config, directory)
        inputs = inputs_of(LENGTHS)
        theirs = [expected(reference, [each])[0] for each in inputs]
    except Exception:
        return None
    (directory / "config.json").write_text(json.dumps(raw))
    try:
        model = load(directory, layers=TorchBackend())  # how fields are read does not depend on it
    except EngineError as error:
        return "" if any(name in str(error) for name in names) else f"is refused by {str(error)[:200]!r}"
    except Exception as error:
        return f"raises {error!r}"
    for one, other in zip(hidden_states(model, inputs), theirs, strict=True):
        if not torch.allclose(one, other, atol=1e-3, rtol=1e-3):
            return f"gives other numbers, by {float((one - other).abs().max()):.3g}"
    return ""


LEAST_COMPARED = 10
"""Configurations that transformers builds: else the sweep would show nothing."""


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert", "gemma3-encoder", "modernbert", "nomic-bert", "xlm-roberta"])
def test_fields(name: str, tmp_path: Path) -> None:
    architecture, config = CASES[name]
    raw = config.to_dict() | {"architectures": [architecture]}
    wrong, compared = list[str](), 0
    for number, (field, value) in enumerate(changes(raw)):
        changed = {key: each for key, each in raw.items() if key != field}
        changed |= {} if value is ABSENT else {field: value}
        directory = tmp_path / str(number)
        directory.mkdir()
        problem = outcome(directory, architecture, changed, names_of(field, raw.get(field), value))
        compared += problem is not None
        if problem:
            wrong.append(f"{field}={'absent' if value is ABSENT else value}: {problem}")
    assert not wrong, "\n".join(wrong)
    assert compared > LEAST_COMPARED
