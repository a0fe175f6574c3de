"""Tiny random encoders made with transformers, and how they and ours compute hidden states of several inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    BertConfig,
    CamembertConfig,
    DistilBertConfig,
    ElectraConfig,
    ErnieConfig,
    EuroBertConfig,
    Gemma3TextConfig,
    ModernBertConfig,
    NomicBertConfig,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
)

from engine_core.attention.base import AttentionMetadata
from engine_core.forward_context import ForwardContext
from engine_core.models.language_model import LanguageModel
from tests.engine_core.models.driver import BLOCK_SIZE, CPU
from tests.engine_core.models.stages import Pipeline

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
DISTIL = {
    "vocab_size": 199,
    "dim": 64,
    "hidden_dim": 112,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
PADDED = SIZES | {"hidden_size": 72, "intermediate_size": 101}

CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "bert": ("BertModel", BertConfig(**SIZES)),
    "bert-padded-tanh-one-type": (
        "BertModel",
        BertConfig(**PADDED, hidden_act="gelu_new", type_vocab_size=1, layer_norm_eps=1e-6),
    ),
    "bert-masked-lm": ("BertForMaskedLM", BertConfig(**SIZES)),
    "camembert": ("CamembertModel", CamembertConfig(**SIZES, pad_token_id=1, type_vocab_size=1)),
    "distilbert": ("DistilBertModel", DistilBertConfig(**DISTIL)),
    "electra-narrow": ("ElectraModel", ElectraConfig(**PADDED, embedding_size=40)),
    "ernie": ("ErnieModel", ErnieConfig(**SIZES)),
    "eurobert": (
        "EuroBertModel",
        EuroBertConfig(**SIZES, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    ),
    "gemma3-encoder": (
        "Gemma3TextModel",
        Gemma3TextConfig(
            **SIZES,
            num_key_value_heads=1,
            head_dim=24,
            query_pre_attn_scalar=24,
            use_bidirectional_attention=True,
            sliding_window=40,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "modernbert": ("ModernBertModel", ModernBertConfig(**SIZES, **SPECIAL, local_attention=40)),
    "modernbert-biases-masked-lm": (
        "ModernBertForMaskedLM",
        ModernBertConfig(
            **PADDED, **SPECIAL, local_attention=7, norm_bias=True, attention_bias=True, mlp_bias=True, norm_eps=1e-6
        ),
    ),
    "nomic-bert": ("NomicBertModel", NomicBertConfig(**SIZES)),
    "roberta-masked-lm": ("RobertaForMaskedLM", RobertaConfig(**SIZES, pad_token_id=0, type_vocab_size=2)),
    "xlm-roberta": ("XLMRobertaModel", XLMRobertaConfig(**PADDED, pad_token_id=1, type_vocab_size=1)),
}
"""By name: the class that transformers saves, and its configuration."""
FALLBACK = ("distilbert", "electra-narrow", "ernie", "eurobert")
"""Those that run through transformers' modules."""


def make(name: str, directory: Path, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """The case's model in float32, saved in ``directory``. Biases and norms are random, too, so that leaving one out
    shows.
    """
    architecture, config = CASES[name]
    return save(getattr(transformers, architecture), config.__class__(**(config.to_dict() | fields)), directory, seed)


def save(kind: type[PreTrainedModel], config: PretrainedConfig, directory: Path, seed: int = 0) -> PreTrainedModel:
    """A random model of that class in float32, saved in ``directory``."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model: PreTrainedModel = kind(config).float().eval()  # type: ignore[operator]
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                offset = 1.0 if parameter_name.lower().endswith("norm.weight") else 0.0
                parameter.copy_(offset + 0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


def inputs_of(lengths: Sequence[int], vocab_size: int = 199, seed: int = 1) -> list[torch.Tensor]:
    """Random inputs of these lengths; ids from 5 on are none of the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, vocab_size, (length,), generator=generator) for length in lengths]


@torch.no_grad()
def expected(
    model: PreTrainedModel, inputs: Sequence[torch.Tensor], types: Sequence[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """Hidden states of each input by transformers, all in one batch, padded."""
    base = getattr(model, model.base_model_prefix, model)
    padding = model.config.pad_token_id or 0
    ids = torch.nn.utils.rnn.pad_sequence(list(inputs), batch_first=True, padding_value=padding)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in inputs], batch_first=True)
    options = {}
    if types is not None:
        options["token_type_ids"] = torch.nn.utils.rnn.pad_sequence(list(types), batch_first=True)
    hidden = base(input_ids=ids, attention_mask=mask, **options).last_hidden_state
    return [rows[: len(each)] for rows, each in zip(hidden, inputs, strict=True)]


@torch.inference_mode()
def hidden_states(
    model: LanguageModel | Pipeline,
    inputs: Sequence[torch.Tensor],
    types: Sequence[torch.Tensor] | None = None,
    rows: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Hidden states of each input by ours, all in one step, on a cache of scattered blocks poisoned with NaN; those of
    ``rows`` of the step, each by itself, if given.
    """
    lengths = [len(each) for each in inputs]
    blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    groups = 1 if isinstance(model, Pipeline) else len(model.kv_cache_groups)
    order = torch.randperm(groups * sum(blocks) + 3, generator=torch.Generator().manual_seed(0)).int()
    allocate = model.allocate if isinstance(model, Pipeline) else model._factory.attention_backend.allocate
    caches = allocate(model.kv_cache_spec(BLOCK_SIZE), len(order), CPU)  # type: ignore[arg-type]
    for kv_cache in caches:
        kv_cache.fill_(torch.nan)
    metadata = []
    for group, places in enumerate(order[: groups * sum(blocks)].split(sum(blocks))):
        tables = torch.full((len(inputs), max(blocks)), 2**30, dtype=torch.int32)
        for table, own in zip(tables, places.split(blocks), strict=True):
            table[: len(own)] = own
        metadata.append(AttentionMetadata.of_sequences(lengths, lengths, tables, BLOCK_SIZE, group))
    context = ForwardContext(caches, metadata, rows, token_types=None if types is None else torch.cat(list(types)))
    positions = torch.cat([torch.arange(length) for length in lengths])
    hidden = model.forward(torch.cat(list(inputs)), positions, context).clone()
    hidden = hidden[:, : model.config.hidden_size]
    return list(hidden.split(lengths if rows is None else 1))
