"""A tokenizer and a grammar to follow."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np

from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.structured_output.matcher import Bits
from tests.engine_core.models.tiny_models import CASES, make_model, save_model
from tests.text_core.trained_tokenizers import byte_level, tokenizer_json

VOCAB = 500
"""More than the tokenizer has."""
EOS = 4
PERSON = r'start: "{\"name\": \"" /[a-z]{1,8}/ "\", \"age\": " /[0-9]{1,3}/ "}"'
"""Two texts that are free, and what is forced around them."""
ANSWER = '{"name": "bob", "age": 12}'


@cache
def compiler() -> GrammarCompiler:
    """Shared: tests that count what is compiled make their own."""
    return new_compiler()


def new_compiler() -> GrammarCompiler:
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory))
        return GrammarCompiler.from_directory(Path(directory), VOCAB, [EOS])


def write_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text(tokenizer_json(byte_level()))


def ids_of(text: str) -> list[int]:
    return byte_level().encode(text)


def tokens_in(bits: Bits) -> set[int]:
    """The tokens whose bits are set."""
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little", count=VOCAB)).tolist())


def text_of(token_ids: Sequence[int]) -> str:
    """Without special tokens."""
    return byte_level().decode(token_ids)


def save_model_with_tokenizer(directory: Path) -> Path:
    """A tiny Llama whose answers are texts."""
    config = deepcopy(CASES["llama-gqa"])
    config.update({"vocab_size": VOCAB, "eos_token_id": EOS})
    write_tokenizer(directory)
    return save_model(make_model(config), directory)
