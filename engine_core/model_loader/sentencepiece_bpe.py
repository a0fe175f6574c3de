"""SentencePiece's BPE as a ``tokenizer.json`` with SentencePiece's ids.

transformers converts a ``tokenizer.model``, but some of its classes omit the space before a text, and merge in the
order of ids rather than scores, which differ for runs of spaces. So everything that decides the ids (normalizer,
pre-tokenizer, merges and decoder) is made here from the model itself. The result is compared with SentencePiece, and
refused if it differs.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from engine_core.errors import CheckpointError
from engine_core.model_loader.tokenizer_json import SPACE, merges_by_score, sentencepiece_parts

_MESSAGES: Any = sentencepiece_model_pb2  # made at run time, so untyped
_BPE = _MESSAGES.TrainerSpec.BPE
_NORMAL = _MESSAGES.ModelProto.SentencePiece.NORMAL
_PROBES = (
    "The quick brown fox, don't! 12345 6.7e8",
    "def f(x):\n    if x:\n\t\treturn  {'a': [x]}   # so\n\n\n",
    *(f"a{' ' * count}b" for count in (2, 3, 5, 7, 16, 17, 23, 64)),
    " one space before",
    "   three before, two behind  ",
    "naïve e\u0301 中文字符，测试 日本語 한국어 สวัสดี नमस्ते 😀👩‍👩‍👧 ½ ﬁ …",
    "▁ itself \u00a0\u3000\u200b\u0000 and \ufffd",
)
_RANDOM_PROBES = 400
_LONGEST_PROBE = 12
"""Most pieces of a random probe."""


def correct_conversion(model: bytes, directory: Path, legacy: bool) -> None:
    """Correct the ``tokenizer.json`` in ``directory``, converted from ``model``, to give SentencePiece's ids.

    Changes only a BPE whose model leaves texts as they are, such as Llama's and Mistral's. ``legacy``, as in
    ``tokenizer_config.json``: a space is put before the text and after special tokens, as SentencePiece does, which
    gets these parts one by one; otherwise only before a text, and only if it does not begin with a space. Raises
    ``CheckpointError`` if ids differ nevertheless.
    """
    proto = _MESSAGES.ModelProto.FromString(model)
    changes_text = proto.normalizer_spec.precompiled_charsmap or proto.normalizer_spec.remove_extra_whitespaces
    if proto.trainer_spec.model_type != _BPE or changes_text:
        return
    file = directory / "tokenizer.json"
    tokenizer = json.loads(file.read_bytes())
    tokenizer |= sentencepiece_parts(proto.normalizer_spec.add_dummy_prefix, legacy)
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
    tokenizer["model"] |= {"merges": merges_by_score(scores), "byte_fallback": proto.trainer_spec.byte_fallback}
    tokenizer["model"] |= {"fuse_unk": True, "unk_token": proto.trainer_spec.unk_piece}
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    _compare(SentencePieceProcessor(model_proto=model), directory, legacy)


def _compare(reference: SentencePieceProcessor, directory: Path, legacy: bool) -> None:
    from transformers import PreTrainedTokenizerFast

    converted = PreTrainedTokenizerFast.from_pretrained(directory)
    chance, count = random.Random(0), reference.vocab_size()
    pieces = [
        [chance.randrange(count) for _ in range(chance.randint(1, _LONGEST_PROBE))] for _ in range(_RANDOM_PROBES)
    ]
    special = list(converted.get_added_vocab())
    for text in (*_PROBES, *(reference.decode(ids) for ids in pieces)):
        if any(content in text for content in special) or (text.startswith((" ", SPACE)) and not legacy):
            continue
        ids, expected = converted(text, add_special_tokens=False)["input_ids"], reference.encode(text)
        if ids != expected:
            raise CheckpointError(f"{text!r} would become {ids}; SentencePiece makes {expected} of it")
