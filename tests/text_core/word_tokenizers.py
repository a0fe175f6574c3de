"""Tokenizers in which one word is one token."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = [f"w{number}" for number in range(40)]


def library(types: bool) -> Library:
    """``types``: BERT's form of pairs, else that of RoBERTa, with two separators."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<query>", "<document>", "<system>", "<answer>"]
    vocabulary = {token: index for index, token in enumerate([*specials, *WORDS])}
    made = Library(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.WordPiece()
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1" if types else "[CLS] $A [SEP] [SEP] $B [SEP]"
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def save(directory: Path, *, types: bool = True) -> PreTrainedTokenizerFast:
    """Transformers' tokenizer, saved."""
    made = PreTrainedTokenizerFast(tokenizer_object=library(types), pad_token="[PAD]")
    made.save_pretrained(directory)
    return made
