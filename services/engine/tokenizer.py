"""The tokenizer's files for the CPU tiers: read from the checkpoint, converted where they are of an older kind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ringline.engine.v1 import engine_pb2

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.loading.checkpoint import find_directory
from services.text.files import read_tokenizer_files
from services.text.tokenizer import Tokenizer

CHUNK_BYTES = 1 << 20
_OLDER_KINDS = (
    ("tokenizer.model",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)
"""Files of the days before ``tokenizer.json`` from which transformers makes one: any of these sets will do."""


def read_tokenizer(config: ModelConfig) -> dict[str, bytes]:
    """The allow-listed files of the tokenizer, by name, with a ``tokenizer.json`` among them.

    Where there is none, the tokenizer is converted, in another process. Raises ``CheckpointError``.
    """
    directory = find_directory(config.tokenizer or config.model, config.revision, config.download_dir, weights=False)
    if not (directory / "tokenizer.json").is_file():
        return _convert(directory)
    return read_tokenizer_files(directory)


def fingerprint_of(files: dict[str, bytes]) -> str:
    """What the CPU tiers compare; raises ``CheckpointError`` if the files are damaged."""
    try:
        return Tokenizer.from_files(files).fingerprint()
    except ValueError as error:
        raise CheckpointError(f"the tokenizer cannot be read: {error}") from error


def chunks(files: dict[str, bytes]) -> Iterator[engine_pb2.GetTokenizerResponse]:
    """The files one after the other, in pieces of at most 1 MiB; an empty file is one empty piece."""
    for name, data in files.items():
        for start in range(0, max(1, len(data)), CHUNK_BYTES):
            yield engine_pb2.GetTokenizerResponse(
                name=name, total_bytes=len(data), data=data[start : start + CHUNK_BYTES]
            )


def _convert(directory: Path) -> dict[str, bytes]:
    if not any(all((directory / name).is_file() for name in kind) for kind in _OLDER_KINDS):
        # transformers would make an empty tokenizer of what config.json says.
        older = ", ".join(" with ".join(kind) for kind in _OLDER_KINDS)
        raise CheckpointError(
            f"{directory} has no tokenizer: expected tokenizer.json, or one of {older}; "
            "--tokenizer names another directory or model"
        )
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-P", "-m", "services.engine.convert_tokenizer", str(directory), scratch]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            problem = " ".join((finished.stdout or finished.stderr).split())
            raise CheckpointError(
                f"{directory} has no tokenizer.json, and its tokenizer cannot be converted: {problem}"
            )
        files = read_tokenizer_files(scratch)
    if "tokenizer.json" not in files:
        raise CheckpointError(f"{directory} has no tokenizer.json, and its tokenizer has no fast form to convert to")
    return files
