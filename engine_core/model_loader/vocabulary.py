"""Whether two checkpoints have the same vocabulary: the same token at every id."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.files import is_gguf
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.model_loader.location import tokenizer_source

_MOST_BYTES = 256 << 20
"""Limit for a ``tokenizer.json``; that of 262,144 tokens with their merges takes 33 MiB."""
_ORDINARY = (1, 6)
"""GGUF's types of tokens that texts are made of: normal ones, and single bytes."""
_OTHER_FILES = ("tekken.json", "tokenizer.model", "spiece.model", "vocab.json")
"""Files whose equality says that vocabularies are equal."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that a checkpoint's tokenizer lists."""

    tokens: dict[int, str]
    """By id."""
    added: frozenset[int]
    """Ids of markers and fillers, which are named differently from model to model, and from format to format."""

    @staticmethod
    def of(tokens: Iterable[tuple[int, str]], added: Iterable[int]) -> Vocabulary:
        return Vocabulary(dict(tokens), frozenset(added))

    def difference(self, other: Vocabulary) -> str | None:
        """An id whose token differs in ``other``, for a person; None if texts have the same ids with both."""
        for token_id in sorted(self.tokens.keys() | other.tokens.keys()):
            own, its = self.tokens.get(token_id), other.tokens.get(token_id)
            if own == its or token_id in (self.added if its is None else other.added if own is None else ()):
                continue
            if own is None or its is None or token_id not in self.added | other.added:
                return f"token {token_id} is {_shown(own)} in one and {_shown(its)} in the other"
        return None


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)


def vocabulary_difference(models: tuple[ModelConfig, ModelConfig], sizes: tuple[int, int]) -> str | None:
    """How the vocabularies of two models differ, for a person; None if they do not.

    ``sizes``: with padding, which may differ. They alone decide where a tokenizer does not list its tokens. Raises
    ``CheckpointError``, also for files that cannot be read.
    """
    sources = tokenizer_source(models[0]), tokenizer_source(models[1])
    if sources[0] == sources[1] or any(_are_equal(sources, name) for name in ("tokenizer.json", *_OTHER_FILES)):
        return None
    first, second = map(read_vocabulary, sources)
    if first is not None and second is not None:
        return first.difference(second)
    return None if sizes[0] == sizes[1] else f"one has {sizes[0]:,} tokens and the other {sizes[1]:,}"


def _are_equal(sources: tuple[Path, Path], name: str) -> bool:
    """Whether both directories have a file ``name`` with the same content."""
    files = [source / name for source in sources]
    if not all(file.is_file() for file in files) or len({file.stat().st_size for file in files}) > 1:
        return False
    first, second = (file.read_bytes() for file in files)
    return first == second


def read_vocabulary(source: Path) -> Vocabulary | None:
    """The vocabulary of a directory's ``tokenizer.json``, or of a GGUF file; None without any.

    Raises ``CheckpointError``.
    """
    if is_gguf(source):
        return _of_gguf(source)
    file = source / "tokenizer.json"
    if not file.is_file():
        return None
    if file.stat().st_size > _MOST_BYTES:
        raise CheckpointError(f"{file} has {file.stat().st_size} bytes: expected at most {_MOST_BYTES}")
    try:
        return _of_json(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def _of_json(content: Any) -> Vocabulary:
    """The vocabulary is an object of ids by token, or (Unigram) a list of tokens with scores."""
    listed = content["model"]["vocab"]
    if isinstance(listed, dict):
        tokens = {int(token_id): str(token) for token, token_id in listed.items()}
    else:
        tokens = {token_id: str(token) for token_id, (token, _) in enumerate(listed)}
    added = {int(token["id"]): str(token["content"]) for token in content.get("added_tokens") or ()}
    return Vocabulary.of((tokens | added).items(), added)


def _of_gguf(path: Path) -> Vocabulary | None:
    """None for a file without a tokenizer."""
    metadata = read_gguf(path).metadata
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if tokens is None:
        return None
    if isinstance(tokens, str | int | float) or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.tokens is not a list of texts")
    kinds = [] if types is None or isinstance(types, str | int | float) else list(types)
    return Vocabulary.of(
        enumerate(map(str, tokens)), (token_id for token_id, kind in enumerate(kinds) if kind not in _ORDINARY)
    )
