"""Convert a checkpoint's tokenizer of an older kind into a ``tokenizer.json``: a program of its own.

Usage: ``python -m engine_core.model_loader.convert_tokenizer CHECKPOINT TARGET``. It prints what went wrong,
and exits 1 then.

What it loads is not for an engine's process: sentencepiece brings an OpenMP runtime beside torch's, and what the
conversion takes of memory would be missing from the engine's budget.
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
