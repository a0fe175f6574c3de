"""Tokenizers with a token for each byte, so that answers are cut at every byte."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from text_core.tokenizer import Tokenizer


def byte_tokenizer(special: Iterable[str] = ()) -> Tokenizer:
    """``special``: texts that are special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = HFTokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True) for text in special])
    return Tokenizer.from_files({"tokenizer.json": library.to_str().encode()})
