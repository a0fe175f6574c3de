"""A GGUF file's tokenizer and chat template, converted to the files that the CPU tiers read.

Three kinds are supported: byte-level BPE (``gpt2``), SentencePiece's BPE (``llama``, Gemma's among them), and a variant
of the latter with listed merges (``gemma4``). Texts get the same ids as in llama.cpp. These are the ids of the model's
published ``tokenizer.json``, as far as the file describes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.pre_tokenizers import PRE_TOKENIZERS
from engine_core.model_loader.gguf.projector import require_language_model
from engine_core.model_loader.gguf.reader import GgufFile, shown
from engine_core.model_loader.tokenizer_json import (
    BYTE_LEVEL,
    added_token,
    around_text,
    merges_by_score,
    sentencepiece_parts,
    tokenizer_json,
    words,
)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPECIAL = (_UNKNOWN, _CONTROL)
_MOST_TOKENS = 2**21
"""Eight times those of the largest vocabulary that is published."""
_EMBEDDING = "token_embd.weight"
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # as the format spells it
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_SENTENCEPIECE_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
"""Defaults for files without them."""
_NO_ID = 2**32 - 1
"""−1 as uint32: some converters write it for a token that the model lacks."""
_ENDING_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDING = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_turn>", "<turn|>", "<|tool_response>", "<eos>", "</s>", "<EOT>", "<｜end▁of▁sentence｜>",
    "<end_of_utterance>", "<|flush|>", "<|calls|>",
)  # fmt: skip
"""Tokens that end a turn or a text in every model that has them; a file names only one."""
_HARMONY = {"<|return|>", "<|call|>"}
"""With both in the vocabulary, ``<|end|>`` ends a message, but not the turn."""
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_NO_RSTRIP = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi-3 that keep the blanks after them; its others strip them, which no field says."""


def tokenizer_files(file: GgufFile) -> dict[str, dict[str, Any]]:
    """The contents of ``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json``.

    Raises ``CheckpointError`` naming the unusable field, ``UnsupportedModelError`` for a projector.
    """
    require_language_model(file)
    vocabulary = _Vocabulary(file)
    ids = {role: vocabulary.id_of(name) for role, name in _ROLES.items()}
    roles = {role: vocabulary.tokens[token_id] for role, token_id in ids.items() if token_id is not None}
    return {
        "tokenizer.json": vocabulary.tokenizer_json(),
        "tokenizer_config.json": roles | _chat_templates(_Fields(file, "tokenizer.")),
        "generation_config.json": {"eos_token_id": vocabulary.ending_ids},
    }


def eos_token_ids(file: GgufFile) -> list[int]:
    """The ids of the tokens that end an answer, first the tokenizer's eos; empty for a file without tokens.

    Raises as ``tokenizer_files`` does.
    """
    return _Vocabulary(file).ending_ids if "tokenizer.ggml.tokens" in file.metadata else []


@dataclass(frozen=True, slots=True)
class _Fields:
    """Metadata below a prefix, checked on access."""

    file: GgufFile
    below: str

    def text(self, name: str) -> str | None:
        value = self.file.metadata.get(self.below + name)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(name, "a text")

    def flag(self, name: str) -> bool | None:
        value = self.file.metadata.get(self.below + name)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false")

    def texts(self, name: str) -> Sequence[str] | None:
        value = self._list(name, "texts")
        if value is not None and not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts")
        return value

    def numbers(self, name: str, count: int) -> Sequence[Any] | None:
        value = self._list(name, "numbers")
        if value is not None and (len(value) != count or not all(isinstance(item, int | float) for item in value)):
            raise self.problem(name, f"is a list of {len(value)}: expected {count} numbers, one for each token")
        return value

    def problem(self, name: str, found: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: {self.below}{name} {found}")

    def _list(self, name: str, of: str) -> Sequence[Any] | None:
        value: Any = self.file.metadata.get(self.below + name)
        if value is None or (isinstance(value, Sequence) and not isinstance(value, str)):
            return value
        raise self._wrong(name, f"a list of {of}")

    def _wrong(self, name: str, expected: str) -> CheckpointError:
        return self.problem(name, f"is {shown(self.file.metadata[self.below + name])}: expected {expected}")


class _Vocabulary:
    """A file's tokens and the metadata about them."""

    def __init__(self, file: GgufFile) -> None:
        self._fields = _Fields(file, "tokenizer.ggml.")
        self.model = self._fields.text("model")
        self.tokens = self._read_tokens(file)
        self.types = self._fields.numbers("token_type", len(self.tokens)) or [_NORMAL] * len(self.tokens)
        self._is_phi3 = self.model == "llama" and file.metadata.get("general.architecture") == "phi3"

    def _read_tokens(self, file: GgufFile) -> list[str]:
        given = self._fields.texts("tokens") or ()
        if len(given) > _MOST_TOKENS:
            raise self._fields.problem("tokens", f"has {len(given)} tokens: expected at most {_MOST_TOKENS}")
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(given)]
        if not tokens:
            raise self._fields.problem("tokens", "is missing, or empty")
        if len(set(tokens)) != len(tokens):
            [(twice, _)] = Counter(tokens).most_common(1)
            raise self._fields.problem("tokens", f"has {twice!r} twice")
        if (embedding := file.tensors.get(_EMBEDDING)) is not None and embedding.shape[0] != len(tokens):
            raise self._fields.problem(
                "tokens", f"has {len(tokens)} tokens, but the model has {embedding.shape[0]} ({_EMBEDDING})"
            )
        return tokens

    def id_of(self, name: str) -> int | None:
        """The id of the token with a role; None if the model has none."""
        found = self._fields.file.metadata.get(f"tokenizer.ggml.{name}")
        if found is None:
            default = _SENTENCEPIECE_IDS.get(name) if self.model == "llama" else None
            return default if default is not None and default < len(self.tokens) else None
        if found == _NO_ID:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < len(self.tokens):
            raise self._fields.problem(
                name, f"is {found!r}: expected an id below {len(self.tokens)}, the tokens there are"
            )
        return found

    @cached_property
    def ending_ids(self) -> list[int]:
        """Ids of the tokens that end an answer: those the file names, and those known by their text."""
        named = [token_id for name in _ENDING_IDS if (token_id := self.id_of(name)) is not None]
        known = {
            token: token_id
            for token, token_id in self._ids.items()
            if token in _ENDING and self.types[token_id] in (*_SPECIAL, _USER_DEFINED)
        }
        if known.keys() >= _HARMONY:
            known.pop("<|end|>", None)
        return list(dict.fromkeys([*named, *known.values()]))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens)}

    def tokenizer_json(self) -> dict[str, Any]:
        if (kind := _KINDS.get(self.model or "")) is None:
            expected = f"expected one of {', '.join(_KINDS)}"
            raise self._fields.problem("model", f"is {self.model!r}, which is not supported: {expected}")
        model, parts, adds_bos = kind(self)
        added = [
            added_token(token_id, token, self._is_special(token_id), self._is_phi3 and token not in _NO_RSTRIP)
            for token_id, token in enumerate(self.tokens)
            if self.types[token_id] in (*_SPECIAL, _USER_DEFINED) or token_id in self.ending_ids
        ]
        around = around_text(self._added("bos", adds_bos), self._added("eos", False))
        return tokenizer_json({"vocab": self._ids, **model}, added, post_processor=around, **parts)

    def _is_special(self, token_id: int) -> bool:
        return self.types[token_id] in _SPECIAL or token_id in self.ending_ids

    def _added(self, role: str, default: bool) -> tuple[str, int] | None:
        """The token added at every text's beginning or end, if any."""
        adds = self._fields.flag(f"add_{role}_token")
        if not (default if adds is None else adds):
            return None
        if (token_id := self.id_of(f"{role}_token_id")) is None:
            raise self._fields.problem(f"{role}_token_id", f"is missing, although add_{role}_token is true")
        return self.tokens[token_id], token_id

    # The following return the model, the parts around it, and whether a text begins with bos by default.

    def byte_level(self) -> tuple[dict[str, Any], dict[str, Any], bool]:
        name = self._fields.text("pre")
        if (found := PRE_TOKENIZERS.get(name or "")) is None:
            known = ", ".join(PRE_TOKENIZERS)
            raise self._fields.problem("pre", f"is {name!r}, which is not supported: expected one of {known}")
        steps = [*map(words, found.patterns), BYTE_LEVEL]
        parts = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "decoder": BYTE_LEVEL}
        if found.nfc:
            parts["normalizer"] = {"type": "NFC"}
        return {"merges": self._merges(), "ignore_merges": found.ignore_merges}, parts, found.adds_bos

    def sentencepiece(self) -> tuple[dict[str, Any], dict[str, Any], bool]:
        scores = self._fields.numbers("scores", len(self.tokens))
        if scores is None:
            raise self._fields.problem("scores", "is missing")
        if any(score != score for score in scores):
            raise self._fields.problem("scores", "has a number that is NaN")
        normal = {token: scores[token_id] for token, token_id in self._ids.items() if self.types[token_id] == _NORMAL}
        space_before = self._fields.flag("add_space_prefix")
        try:
            merges = merges_by_score(normal)
        except CheckpointError as error:
            raise self._fields.problem("tokens", f"is not usable: {error}") from None
        return (
            self._fallback(merges),
            sentencepiece_parts(space_before in (None, True), legacy=True),
            True,
        )

    def listed_merges(self) -> tuple[dict[str, Any], dict[str, Any], bool]:
        return self._fallback(self._merges()), sentencepiece_parts(space_before=False, legacy=True), True

    def _fallback(self, merges: Sequence[tuple[str, str]]) -> dict[str, Any]:
        unknown = self.id_of("unknown_token_id")
        return {
            "merges": merges,
            "byte_fallback": self._ids.keys() >= _BYTES,
            "fuse_unk": True,
            "unk_token": None if unknown is None else self.tokens[unknown],
        }

    def _merges(self) -> list[tuple[str, str]]:
        merges = self._fields.texts("merges")
        if merges is None:
            raise self._fields.problem("merges", "is missing")
        pairs = []
        for number, merge in enumerate(merges):
            end = merge.find(" ", 1)
            left, right = merge[:end], merge[end + 1 :]
            if end < 0 or not {left, right, left + right} <= self._ids.keys():
                raise self._fields.problem(
                    "merges", f"number {number}, {merge!r}, is not of two tokens that make a third"
                )
            pairs.append((left, right))
        return pairs


_KINDS: dict[str, Callable[[_Vocabulary], tuple[dict[str, Any], dict[str, Any], bool]]] = {
    "gpt2": _Vocabulary.byte_level,
    "llama": _Vocabulary.sentencepiece,
    "gemma4": _Vocabulary.listed_merges,
}


def _chat_templates(fields: _Fields) -> dict[str, Any]:
    """The template, or the named ones, in the form of ``tokenizer_config.json``."""
    default, names = fields.text("chat_template"), fields.texts("chat_templates") or ()
    if not names:
        return {} if default is None else {"chat_template": default}
    named = {"default": default} | {name: fields.text(f"chat_template.{name}") for name in names}
    return {"chat_template": [{"name": name, "template": text} for name, text in named.items() if text is not None]}
