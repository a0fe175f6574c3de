"""The base class of Ringline's own decoders: embedding, layers, norm, head.

Symbols in shapes: T rows of a step, R wanted rows, H hidden size with the backend's padding, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from engine_core.layers.part_factory import PartFactory
from engine_core.models.layered_model import LayeredModel
from engine_core.models.model_config import ArchitectureConfig, ModelShape
from engine_core.ops.base import Greatest
from engine_core.pooling.pooler import Head


class CausalLM(LayeredModel):
    """An embedding, a family's layers, a norm and a head; or one of its pipeline stages.

    The first stage has the embedding, and the head if the two are tied; the last one has norm and head.
    """

    gives_taps = True
    embedding_name: ClassVar[str] = "embed_tokens"
    """Below the prefix, like ``norm_name``."""
    norm_name: ClassVar[str] = "norm"

    def __init__(self, config: ArchitectureConfig, parts: PartFactory, max_model_len: int) -> None:
        """Make the parts, in loading order."""
        super().__init__(config, parts, max_model_len)
        tied, embedding = config.tie_word_embeddings, f"{self.prefix}.{self.embedding_name}"
        if self.has_head or (self.is_first_stage and tied):
            name = embedding if tied else "lm_head"
            self.lm_head = parts.parallel_lm_head(name, config.vocab_size, self.embedding_size)
        if self.is_first_stage:
            self.embed_tokens = parts.vocab_parallel_embedding(
                embedding,
                config.vocab_size,
                self.embedding_size,
                self.lm_head if tied else None,
                config.embedding_scale,
            )
        self.add_layers(parts)

    @classmethod
    def head_tensor(cls, config: ModelShape) -> str:
        is_tied = isinstance(config, ArchitectureConfig) and config.tie_word_embeddings
        return f"{cls.prefix}.{cls.embedding_name}.weight" if is_tied else "lm_head.weight"

    def make_classifier(self, parts: PartFactory, architecture: str, num_labels: int, *, per_token: bool) -> Head:
        """Transformers' ``score``; of reward models, two layers with ReLU between them."""
        hidden = self.embedding_size
        if architecture.endswith("RewardModel"):
            inner = parts.float32_linear("score.0", hidden, hidden, bias=True)
            outer = parts.float32_linear("score.2", hidden, num_labels, bias=True)
            return lambda pooled: outer(inner(pooled).relu_())
        return parts.float32_linear("score", hidden, num_labels, bias=per_token)

    def make_norm(self, parts: PartFactory) -> Callable[[torch.Tensor], torch.Tensor]:
        """The norm between the last layer and the head."""
        config = self.config
        return parts.rms_norm(
            f"{self.prefix}.{self.norm_name}", config.hidden_size, config.norm_eps, config.norm_offset
        )

    def embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.embed_tokens(input_ids)

    def is_redundant(self, name: str) -> bool:
        """True for rotary frequencies, saved by older releases, and for a tied output projection."""
        return name.endswith(".rotary_emb.inv_freq") or self.repeats(name) is not None

    def repeats(self, name: str) -> str | None:
        tied = self.config.tie_word_embeddings and name == "lm_head.weight"
        return f"{self.prefix}.{self.embedding_name}.weight" if tied else None

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits, config = self.lm_head.logits(hidden), self.config
        if config.logit_scale != 1.0:
            logits.mul_(config.logit_scale)
        if (cap := config.logit_softcap) is not None:
            logits.div_(cap).tanh_().mul_(cap)
        return self.lm_head.gathered(logits)

    @property
    def masks_argmax(self) -> bool:
        return self.has_head and self._is_head_plain and self.lm_head.masks_argmax

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        if self._is_head_plain:
            return self.lm_head.greatest(hidden, allowed)
        return super().greatest(hidden, allowed)  # scaling and capping may round different logits to equal ones

    @property
    def _is_head_plain(self) -> bool:
        return self.config.logit_scale == 1.0 and self.config.logit_softcap is None
