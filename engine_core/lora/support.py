"""What adapters an engine can have."""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.lora.targets import LoRALimits, LoRATargets


@dataclass(frozen=True, slots=True)
class LoRASupport:
    """Of a started engine."""

    targets: LoRATargets
    """Of the whole model."""
    limits: LoRALimits
    max_loras: int
    """Most adapters of requests that are under way."""
    max_loaded: int
    """Most adapters that stay loaded."""
    max_bytes: int
    """Most bytes of all of them, as ``AdapterFile.nbytes`` counts."""
