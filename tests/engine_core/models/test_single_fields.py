"""One field of a configuration changed: the same logits as transformers' from the same config.json, or a refusal that
names the field.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from engine_core.errors import EngineError
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.loader import model_outline
from tests.engine_core.models.driver import build_model, logits_of, open_at
from tests.engine_core.models.families import OWN
from tests.engine_core.models.single_fields import ABSENT, Change, changes_of, raw_config
from tests.engine_core.models.tiny_models import make_model, save_model

LENGTH = 150
"""Longer than a tile of keys, and than the windows and original lengths of the configurations."""
MOST_NUMBERS = 1_000_000
"""Of a model that is computed; of a larger one, which an absent size makes, only the numbers are counted."""
SAME, EQUAL, AS_LARGE, REFUSED, REFUSED_BY_BOTH = "same", "equal", "as large", "refused", "refused by transformers"
ACCEPTED = (SAME, EQUAL, AS_LARGE, REFUSED, REFUSED_BY_BOTH)


class _TransformersRefuses(Exception):
    """No logits to compare with."""


class Sweep:
    """A directory that takes one changed configuration after the other."""

    def __init__(self, directory: Path, raw: dict[str, Any]) -> None:
        self._directory = directory
        self._raw = raw
        self._write(raw)
        self._config = _reference_config(directory)
        self._read = self._open().config

    def outcome(self, change: Change) -> str:
        """One of ``ACCEPTED``, or what is wrong."""
        self._write(change.applied(self._raw))
        try:
            checkpoint = self._open()
        except EngineError as error:
            return self._of_refusal(change, str(error))
        except Exception as error:
            return f"reading raises {error!r}"
        try:
            config = _reference_config(self._directory)
            if vars(config) == vars(self._config) and checkpoint.config == self._read:
                return SAME
            if change.value in (ABSENT, None) and (count := _count_of(checkpoint)) > MOST_NUMBERS:
                expected = _reference_count(config)
                return AS_LARGE if count == expected else f"{count} numbers instead of {expected}"
            return self._compared(config, checkpoint)
        except _TransformersRefuses:
            return REFUSED_BY_BOTH

    def _of_refusal(self, change: Change, message: str) -> str:
        """A refusal names the field, or shows another that the change contradicts; or names one that is not usable
        without the field.
        """
        aliases = (name for pair in self._config.attribute_map.items() if change.field in pair for name in pair)
        shown = (f"{name}={value!r}" in message for name, value in self._raw.items())
        others = self._raw if change.value in (ABSENT, None) else ()
        if any(name in message for name in (change.field, *aliases, *change.inside, *others)) or any(shown):
            return REFUSED
        try:
            _reference_model(_reference_config(self._directory))
        except _TransformersRefuses:
            return REFUSED_BY_BOTH
        return f"refused without the field's name: {message}"

    def _compared(self, config: PretrainedConfig, checkpoint: Checkpoint) -> str:
        length = min(LENGTH, checkpoint.spec.max_model_len)
        checkpoint = replace(checkpoint, spec=replace(checkpoint.spec, max_model_len=length))
        reference = _reference_model(config)
        ids = torch.randint(0, min(199, config.vocab_size), (length,), generator=torch.Generator().manual_seed(1))
        expected = _reference_logits(reference, ids)
        described = (self._directory / "config.json").read_text()
        save_model(reference, self._directory)
        (self._directory / "config.json").write_text(described)
        (self._directory / "generation_config.json").unlink(missing_ok=True)  # its ids of eos outlive a change
        try:
            actual = logits_of(build_model(checkpoint), ids)
        except Exception as error:
            return f"building or running raises {error!r}"
        if torch.allclose(actual, expected, atol=2e-4, rtol=1e-4):
            return EQUAL
        error = (actual - expected).abs().max().item()
        if error <= 20 * _noise(reference, ids, expected):
            return EQUAL
        return f"differs by {error:.2g}, where logits are up to {expected.abs().max():.2g}"

    def _open(self) -> Checkpoint:
        return open_at(self._directory, dtype="float32")

    def _write(self, raw: dict[str, Any]) -> None:
        (self._directory / "config.json").write_text(json.dumps(raw))


@contextmanager
def _of_transformers() -> Iterator[None]:
    """Whatever is raised is its refusal."""
    try:
        yield
    except Exception as error:
        raise _TransformersRefuses from error


@_of_transformers()
def _reference_config(directory: Path) -> PretrainedConfig:
    return AutoConfig.from_pretrained(directory)


@_of_transformers()
def _reference_model(config: PretrainedConfig) -> PreTrainedModel:
    return make_model(config)


@_of_transformers()
@torch.no_grad()
def _reference_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(ids[None])[0][0].float()
    if not logits.isfinite().all():
        raise _TransformersRefuses
    return logits


@torch.no_grad()
def _noise(model: PreTrainedModel, ids: torch.Tensor, logits: torch.Tensor) -> float:
    """How far the reference's own logits move where its weights move by a rounding: far, where a change makes it
    chaotic.
    """
    for parameter in model.parameters():
        parameter *= 1 + 6e-8 * torch.randn_like(parameter).sign()
    return (_reference_logits(model, ids) - logits).abs().max().item()


def _count_of(checkpoint: Checkpoint) -> int:
    return sum(torch.Size(shape).numel() for shape in model_outline(checkpoint).tensors().values())


@_of_transformers()
def _reference_count(config: PretrainedConfig) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    saved = {id(tensor): tensor.numel() for tensor in model.state_dict(keep_vars=True).values()}  # once if tied
    return sum(saved.values())


@pytest.mark.models
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in OWN])
def test_single_fields(name: str, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, raw_config(name))
    outcomes = {str(change): sweep.outcome(change) for change in changes_of(name)}
    wrong = [f"{change}: {outcome}" for change, outcome in outcomes.items() if outcome not in ACCEPTED]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(outcomes)} changes of {name}", *wrong])
    counts = Counter(outcomes.values())
    assert counts[EQUAL] > len(outcomes) // 4, counts
