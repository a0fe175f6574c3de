"""Small random checkpoints that pool, with the bundled model's tokenizer, for rings that are served."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import BertConfig, Qwen3Config

from tests.engine_core.pooling.checkpoints import lay_out, random_model
from tests.ring import MODEL
from text_core.tokenizer import Tokenizer

MAX_MODEL_LEN = 512
WIDTH = 64
"""Numbers of a vector."""
MATRYOSHKA = (8, 32)
"""Numbers to which the encoder's vectors can be cut."""
_SIZES = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}


def embedder(directory: Path) -> Path:
    """A decoder that pools its last token."""
    random_model(directory, config=_decoder(tie_word_embeddings=True))
    lay_out(directory)
    return _with_tokenizer(directory)


def reranker(directory: Path) -> Path:
    """A decoder that reads pairs, with one label."""
    config = _decoder(pad_token_id=0)
    config.num_labels = 1
    random_model(directory, "Qwen3ForSequenceClassification", config)
    return _with_tokenizer(directory)


def encoder(directory: Path) -> Path:
    """An encoder that pools the mean of all tokens, with prompts."""
    sizes = {"vocab_size": _vocab_size(), "max_position_embeddings": MAX_MODEL_LEN}
    random_model(directory, "BertModel", BertConfig(**_SIZES, **sizes, matryoshka_dimensions=list(MATRYOSHKA)))
    lay_out(directory, {"pooling_mode": "mean"}, prompts={"query": "query: ", "document": ""})
    return _with_tokenizer(directory)


def _decoder(**fields: Any) -> Qwen3Config:
    config = Qwen3Config(**_SIZES, vocab_size=_vocab_size(), num_key_value_heads=2, head_dim=16, **fields)
    config.max_position_embeddings = MAX_MODEL_LEN
    return config


def _vocab_size() -> int:
    return Tokenizer.from_directory(MODEL).vocab_size


def _with_tokenizer(directory: Path) -> Path:
    for file in MODEL.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens")):
            shutil.copy(file, directory)
    return directory
