"""InternLM 3: Llama's layers. transformers has no class of its own for it."""

from __future__ import annotations

from engine_core.models.llama import LlamaForCausalLM


class InternLM3ForCausalLM(LlamaForCausalLM):
    """Biases are optional."""

    model_type = "internlm3"
