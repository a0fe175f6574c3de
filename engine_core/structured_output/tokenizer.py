"""The bytes of a model's tokens, as llguidance takes them: from ``tokenizer.json`` and the files beside it.

llguidance reads byte-level and byte-fallback tokenizers. Tokens that only the configuration files declare are written
into ``tokenizer.json`` first, with the ids and flags that they have in services/text/special_tokens.py, after
transformers: the texts of tokens must be those that the detokenizer puts out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WORD_SLICES = ("[a-zA-Z0-9 ]{1,10}", "[a-zA-Z0-9 ]{1,30}")
"""Tokens that a mask allows all at once where an expression allows such texts: half of most vocabularies. llguidance's
own slices are of what a JSON string may have in it."""

Token = dict[str, Any]
"""An added token as ``tokenizer.json`` has it: content, flags, and an id where it is known."""


class GrammarsUnavailableError(Exception):
    """Grammars cannot be used with this model; the text says why."""


def load_tokenizer(directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The tokenizer in ``directory``, for logits of ``vocab_size`` tokens: ids that it does not have are never allowed.

    Raises ``GrammarsUnavailableError``.
    """
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise GrammarsUnavailableError(f"llguidance is not installed on the engine: {error}") from None
    if not eos_token_ids:
        raise GrammarsUnavailableError("the model has no eos token, with which an output could end")
    try:
        text = _complete(directory, vocab_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GrammarsUnavailableError(
            f"the tokenizer's files cannot be read: {type(error).__name__}: {error}"
        ) from error
    try:
        slices = [*LLTokenizer.json_slices(), *_WORD_SLICES]
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids), slices=slices)
    except BaseException as error:  # a panic in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise GrammarsUnavailableError(f"the tokenizer cannot be used for grammars: {error}") from error


def _complete(directory: Path, vocab_size: int) -> str:
    """``tokenizer.json`` with all tokens that the other files declare, without truncation and padding."""
    text = (directory / "tokenizer.json").read_text("utf-8")
    spec = json.loads(text)
    config = _read(directory / "tokenizer_config.json")
    if config.get("added_tokens_decoder") is None:
        config |= _read(directory / "special_tokens_map.json")
    changes = {
        "added_tokens": _with_ids(_added_tokens(spec["added_tokens"], config), spec, vocab_size),
        "decoder": _decoder(spec["decoder"]),
        "truncation": None,
        "padding": None,
    }
    if all(spec.get(name) == value for name, value in changes.items()):
        return text
    return json.dumps(spec | changes)


def _read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not an object")
    return content


def _decoder(decoder: Any) -> Any:
    """``decoder``, or one that turns tokens into the same bytes and is known to llguidance."""
    parts = list(_flat(decoder))
    kinds = {part["type"] for part in parts}
    if kinds <= {"ByteLevel", "Fuse"} and "ByteLevel" in kinds:
        return decoder
    spaces = [part for part in parts if part["type"] in ("Replace", "Metaspace")]
    written = [_space(part) for part in spaces]
    is_known = kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"} and (
        spaces or "ByteFallback" in kinds
    )
    if not is_known or None in written or len(spaces) > 1:
        names = ", ".join(part["type"] for part in parts) or "none"
        raise GrammarsUnavailableError(
            f"the tokenizer's decoder ({names}) is not one of byte-level or byte-fallback tokenizers, whose tokens "
            "grammars can be matched with"
        )
    if "Metaspace" not in kinds and "ByteFallback" in kinds:
        return decoder
    replaced = [{"type": "Replace", "pattern": {"String": space}, "content": " "} for space in written]
    return {"type": "Sequence", "decoders": [*replaced, {"type": "ByteFallback"}, {"type": "Fuse"}]}


def _flat(decoder: Any) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    for part in decoder["decoders"] if decoder["type"] == "Sequence" else ():
        yield from _flat(part)
    if decoder["type"] != "Sequence":
        yield decoder


def _space(part: dict[str, Any]) -> str | None:
    """The character that a part of a decoder turns into a space; None if it does something else."""
    if part["type"] == "Metaspace":
        return str(part.get("replacement", "▁"))
    pattern = part["pattern"].get("String")
    return pattern if part["content"] == " " and isinstance(pattern, str) and len(pattern) == 1 else None


def _added_tokens(existing: Sequence[Token], config: Mapping[str, Any]) -> list[Token]:
    """The added vocabulary of the tokenizer: ``existing`` tokens, those with other flags, and new ones."""
    named = {role: _parse(value) for role, value in _with_role(config)}
    with_role = {token["content"] for token in named.values()}
    listed = config.get("added_tokens_decoder")
    base = existing if listed is None else [_parse(token) for _, token in sorted(_by_id(listed))]
    tokens = {token["content"]: token for token in existing}
    for token in base:
        tokens[token["content"]] = token | {"special": True} if token["content"] in with_role else token
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    others = [_parse(value) for value in (extra if isinstance(extra, list) else [])]
    for token in (*({**each, "special": True} for each in named.values()), *others):
        tokens.setdefault(token["content"], token)
    return list(tokens.values())


def _by_id(listed: Mapping[str, Any]) -> list[tuple[int, Any]]:
    return [(int(token_id), token) for token_id, token in listed.items()]


def _with_role(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((role, config[role]) for role in _ROLES if config.get(role) is not None)
    for key, value in config.items():
        if key not in _ROLES and key.endswith("_token") and isinstance(value, str | dict):
            yield key, value
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        yield from extra.items()


def _parse(value: Any) -> Token:
    if isinstance(value, str):
        value = {"content": value, "special": True}
    special = bool(value.get("special", False))
    flags = {name: bool(value.get(name, name == "normalized" and not special)) for name in _FLAGS}
    return {"content": str(value["content"]), **flags, "special": special}


def _with_ids(tokens: Sequence[Token], spec: Mapping[str, Any], vocab_size: int) -> list[Token]:
    """``tokens`` with the ids that the tokenizer gives them; those that the model has no logits for are left out."""
    vocabulary = spec["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        vocabulary = {entry: token_id for token_id, (entry, _) in enumerate(vocabulary)}
    ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
    free = max([len(vocabulary) - 1, *ids.values()]) + 1
    numbered: list[Token] = []
    for token in tokens:
        content = token["content"]
        known = vocabulary.get(content, ids.get(content))
        token_id = free if known is None else known
        free += known is None
        if content and token_id < vocab_size:
            numbered.append({"id": token_id} | {name: value for name, value in token.items() if name != "id"})
    return sorted(numbered, key=lambda token: int(token["id"]))
