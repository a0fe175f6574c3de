"""Convert a checkpoint's tokenizer of an older kind into a ``tokenizer.json``: a program of its own.

Usage: ``python -m engine_core.model_loader.convert_tokenizer CHECKPOINT TARGET``. On failure it prints
the reason and exits with 1.

It does not run in an engine's process because sentencepiece brings an OpenMP runtime beside torch's, and the memory
that the conversion takes would be missing from the engine's budget.
"""

from __future__ import annotations

import sys


def main(checkpoint: str, target: str) -> int:
    """Write the converted tokenizer's files into the directory ``target``; returns the exit code."""
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False).save_pretrained(target)
    except Exception as error:  # transformers raises whatever a broken file makes its parsers raise
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
