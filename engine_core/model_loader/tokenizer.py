"""Finds a model's tokenizer files, and makes a ``tokenizer.json`` if there is none."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.formats import is_lfs_pointer, lfs_problem
from engine_core.model_loader.location import tokenizer_source
from engine_core.model_loader.tekken import TEKKEN_FILE

_OTHER_KINDS = (
    (TEKKEN_FILE,),
    ("tokenizer.model",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)
"""Sets of files, any of which can be converted to a ``tokenizer.json``."""
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s")
"""A token in base64, and its rank."""
_OTHERWISE = "--tokenizer names another directory or model"


@contextmanager
def tokenizer_directory(config: ModelConfig) -> Iterator[Path]:
    """The directory of the tokenizer's files, including a ``tokenizer.json``.

    If there is none, as in a GGUF file, another process converts the tokenizer into a temporary directory. Raises
    ``CheckpointError``.
    """
    source = tokenizer_source(config)
    if (source / "tokenizer.json").is_file():
        _require_no_pointer(source / "tokenizer.json")
        yield source
        return
    with tempfile.TemporaryDirectory() as converted:
        if source.is_dir():
            _require_convertible(source)
        _convert(source, Path(converted))
        yield Path(converted)


def _require_no_pointer(file: Path) -> None:
    if is_lfs_pointer(file):
        raise CheckpointError(lfs_problem(file))


def _require_convertible(directory: Path) -> None:
    """Raise ``CheckpointError`` if a ``tokenizer.json`` cannot be made from a directory's files."""
    kinds = [kind for kind in _OTHER_KINDS if all((directory / name).is_file() for name in kind)]
    for name in chain.from_iterable(kinds):
        _require_no_pointer(directory / name)
    if (ranks := _tiktoken_file(directory)) and all(kind == (ranks.name,) for kind in kinds):
        raise CheckpointError(
            f"{directory} has its tokenizer in {ranks.name}, in tiktoken's format, which is not supported: it does not "
            f"say how a text is split; {_OTHERWISE}"
        )
    if not kinds:
        # transformers would make an empty tokenizer from config.json.
        others = ", ".join(" with ".join(kind) for kind in _OTHER_KINDS)
        raise CheckpointError(
            f"{directory} has no tokenizer: expected tokenizer.json, or one of {others}; {_OTHERWISE}"
        )


def _convert(source: Path, target: Path) -> None:
    command = [sys.executable, "-P", "-m", "engine_core.model_loader.convert_tokenizer", str(source), str(target)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        problem = " ".join((finished.stdout or finished.stderr).split())
        has = f"{source} has no tokenizer.json, and its tokenizer cannot be converted: " if source.is_dir() else ""
        raise CheckpointError(f"{has}{problem}; {_OTHERWISE}")
    if not (target / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{source} has no tokenizer.json, and transformers cannot make one of its tokenizer; {_OTHERWISE}"
        )


def _tiktoken_file(directory: Path) -> Path | None:
    """A file in tiktoken's format, which may have SentencePiece's usual name."""
    for path in (*sorted(directory.glob("*.tiktoken")), directory / "tiktoken.model", directory / "tokenizer.model"):
        if path.is_file():
            with path.open("rb") as file:
                if _TIKTOKEN_LINE.match(file.read(1024)):
                    return path
    return None
