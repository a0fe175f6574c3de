"""RoBERTa (https://arxiv.org/abs/1907.11692), its multilingual XLM-RoBERTa, and CamemBERT: BERT's layers, with
positions that begin behind the id of padding.

BGE-M3, multilingual E5 and BGE's rerankers have this format.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.layers.part_factory import PartFactory
from engine_core.models.bert import BertConfig, BertModel
from engine_core.models.classifiers import DenseClassifier
from engine_core.models.model_config import whole_number
from engine_core.pooling.pooler import Head


class RobertaModel(BertModel):
    """A token of padding within an input counts for no position, as in transformers."""

    model_type = "roberta"
    prefix = "roberta"
    unused = ("roberta.pooler.", "lm_head.")

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> BertConfig:
        read, padding_id = super().read_config(config), whole_number(config, "pad_token_id")
        if (positions := read.max_position_embeddings - padding_id - 1) < 1:
            raise CheckpointError(
                f"max_position_embeddings={read.max_position_embeddings} is not usable: expected more than "
                f"pad_token_id + 1 = {padding_id + 1}, where positions begin"
            )
        return replace(read, max_position_embeddings=positions, padding_id=padding_id)

    def make_classifier(self, parts: PartFactory, architecture: str, num_labels: int, *, per_token: bool) -> Head:
        """Transformers' ``classifier``."""
        if per_token:
            return super().make_classifier(parts, architecture, num_labels, per_token=True)
        hidden = self.config.hidden_size
        dense = parts.float32_linear("classifier.dense", hidden, hidden, bias=True)
        output = parts.float32_linear("classifier.out_proj", hidden, num_labels, bias=True)
        return DenseClassifier(parts, dense, "Tanh", output)

    def table_rows(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        padding_id = self.config.padding_id
        assert padding_id is not None
        counts = (input_ids != padding_id).long()
        so_far = counts.cumsum(0)
        # The first row of each row's input, all of which is here; positions of a made-up step may begin later.
        firsts = (torch.arange(len(positions), device=positions.device) - positions).clamp_(0)
        within = so_far - so_far[firsts] + counts[firsts]
        return within * counts + padding_id


class XLMRobertaModel(RobertaModel):
    """As RoBERTa."""

    model_type = "xlm-roberta"


class CamembertModel(RobertaModel):
    """As RoBERTa."""

    model_type = "camembert"
