"""Small random checkpoints that make vectors, scores and labels, as stock clients ask for them."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

_LENGTH = 128
_PROMPTS = {"query": "query: ", "passage": "passage: "}
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_embedder(folder: Path) -> Path:
    """A BERT in sentence-transformers' layout: the mean of all tokens, scaled to a length of 1, with two prompts."""
    from transformers import BertModel

    _write(folder, BertModel, {})
    modules = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
    _dump(folder / "modules.json", listed)
    _dump(folder / "sentence_bert_config.json", {"max_seq_length": _LENGTH, "do_lower_case": False})
    _dump(folder / "config_sentence_transformers.json", {"prompts": _PROMPTS, "similarity_fn_name": "cosine"})
    (folder / "1_Pooling").mkdir()
    _dump(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True})
    return folder


def write_classifier(folder: Path, *labels: str) -> Path:
    """A BERT with a head of these labels; with one, it scores pairs."""
    from transformers import BertForSequenceClassification

    named = dict(enumerate(labels))
    _write(folder, BertForSequenceClassification, {"num_labels": len(labels), "id2label": named})
    return folder


def _write(folder: Path, kind: Any, fields: dict[str, Any]) -> None:
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, PreTrainedTokenizerFast

    characters = string.ascii_lowercase + string.digits + string.punctuation
    words = [*_SPECIAL, *characters, *(f"##{one}" for one in characters)]
    ids = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=_LENGTH,
        initializer_range=0.3,
        pad_token_id=0,
        **fields,
    )
    kind(config).save_pretrained(folder)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=_LENGTH, **names).save_pretrained(folder)


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
