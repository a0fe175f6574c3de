"""The architectures of llama.cpp that are read, by ``general.architecture``. A new one is a description in one of these
modules, and a module is a line here.
"""

from __future__ import annotations

from engine_core.model_loader.gguf.architectures import (
    deepseek,
    gemma,
    glm,
    hybrids,
    layer_norms,
    llama,
    llama4,
    mixtures,
    others,
    qwen,
)
from engine_core.model_loader.gguf.architectures.base import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    **llama.ARCHITECTURES,
    **llama4.ARCHITECTURES,
    **qwen.ARCHITECTURES,
    **gemma.ARCHITECTURES,
    **glm.ARCHITECTURES,
    **deepseek.ARCHITECTURES,
    **mixtures.ARCHITECTURES,
    **layer_norms.ARCHITECTURES,
    **others.ARCHITECTURES,
    **hybrids.ARCHITECTURES,
}
