"""Convert a checkpoint's tokenizer of another kind into a ``tokenizer.json``, as a separate program.

Usage: ``python -m engine_core.model_loader.convert_tokenizer CHECKPOINT TARGET``, where CHECKPOINT is a directory or a
GGUF file. On failure it prints the reason and exits with 1.

It does not run in an engine's process because sentencepiece brings a second OpenMP runtime beside torch's, and the
conversion's memory would count against the engine's budget.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from engine_core.model_loader.gguf.files import is_gguf
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.model_loader.gguf.tokenizer import tokenizer_files
from engine_core.model_loader.tekken import TEKKEN_FILE, read_tekken


def main(checkpoint: str, target: str) -> int:
    """Write the converted tokenizer's files into the directory ``target``; return the exit code."""
    try:
        if is_gguf(Path(checkpoint)):
            for name, content in tokenizer_files(read_gguf(Path(checkpoint))).items():
                _write(Path(target) / name, content)
        elif (Path(checkpoint) / TEKKEN_FILE).is_file():
            _convert_tekken(Path(checkpoint), Path(target))
        else:
            _convert_by_transformers(Path(checkpoint), Path(target))
    except Exception as error:  # on broken files, transformers' parsers may raise anything
        print(error)
        return 1
    return 0


def _convert_tekken(checkpoint: Path, target: Path) -> None:
    tokenizer, config = read_tekken(checkpoint / TEKKEN_FILE)
    _write(target / "tokenizer.json", tokenizer)
    _write(target / "tokenizer_config.json", config | _own_config(checkpoint))
    for template in (*checkpoint.glob("chat_template.jinja"), *checkpoint.glob("additional_chat_templates/*.jinja")):
        copy = target / template.relative_to(checkpoint)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(template, copy)


def _convert_by_transformers(checkpoint: Path, target: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False).save_pretrained(target)
    model = checkpoint / "tokenizer.model"
    if model.is_file() and (target / "tokenizer.json").is_file():
        from engine_core.model_loader.sentencepiece_bpe import correct_conversion

        legacy = _own_config(checkpoint).get("legacy")
        correct_conversion(model.read_bytes(), target, legacy=legacy is None or bool(legacy))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")


def _own_config(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's tokenizer_config.json, if it has one."""
    path = checkpoint / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return config


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
