"""Finds the drafter of a method, which is imported only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from engine_core.config import EngineConfig
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.language_model import LanguageModel
from engine_core.platforms.base import Platform
from engine_core.speculation import SpeculativeConfig
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.input_batch import BatchLimits


@dataclass(frozen=True, slots=True)
class Target:
    """The model that drafts are for, loaded, and what it runs on."""

    config: EngineConfig
    checkpoint: Checkpoint
    model: LanguageModel
    """The part of the rank that samples: with pipeline stages, the last."""
    limits: BatchLimits
    device: Platform


LoadDrafter = Callable[[SpeculativeConfig, Target, Callable[[int, int], None]], Drafter]
"""Loads the weights, and calls its last argument with (bytes read, all bytes).

Raises ``ConfigError`` naming ``speculative_config`` where the two do not fit; ``CheckpointError``,
``OutOfMemoryError``.
"""


def tapped_layers(config: SpeculativeConfig, target: Target) -> tuple[int, ...]:
    """The layers of ``target`` whose inputs the drafter reads. All ranks take them, as all make the same calls.

    Raises ``ConfigError`` naming ``speculative_config`` where the two do not fit.
    """
    if not config.taps_layers:
        return ()
    layers: tuple[int, ...] = import_module(f"{__package__}.{config.method}").tapped_layers(config, target)
    return layers


def load_drafter(config: SpeculativeConfig, target: Target, on_progress: Callable[[int, int], None]) -> Drafter:
    """The drafter for ``target`` that ``config`` describes, which computes its drafts. Raises as ``LoadDrafter``."""
    module = import_module(f"{__package__}.{config.method}")  # one for each of METHODS that computes drafts
    load: LoadDrafter = module.load_drafter
    return load(config, target, on_progress)
