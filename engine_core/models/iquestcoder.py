"""IQuest-Coder: Llama's layers. transformers has no class of its own for it."""

from __future__ import annotations

from engine_core.models.llama import LlamaForCausalLM


class IQuestCoderForCausalLM(LlamaForCausalLM):
    """Biases are optional."""

    model_type = "iquestcoder"
