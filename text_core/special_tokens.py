"""The special tokens that a tokenizer's configuration files declare, read as transformers reads them.

``tokenizer.json`` is not enough: ``tokenizer_config.json`` (and, in older checkpoints, ``special_tokens_map.json``)
names the tokens that templates refer to, and may add tokens, which changes how text is encoded. The reference is
``PreTrainedTokenizerFast.from_pretrained`` of transformers 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

from text_core.tokenizer_files import TokenizerError, load_json

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Tokens that the configuration files declare."""

    named: Mapping[str, str]
    """Text of tokens keyed by role, such as ``bos_token``; variables of chat templates."""
    special: tuple[AddedToken, ...]
    """Tokens with a role, then special tokens without one."""
    listed: tuple[AddedToken, ...] | None
    """The added vocabulary in order of ids; None if ``tokenizer_config.json`` does not list it."""

    def to_add(self, existing: Iterable[AddedToken]) -> list[AddedToken]:
        """The tokens to add to a tokenizer whose added vocabulary is ``existing``.

        Existing tokens are repeated on purpose: adding one again gives it the flags declared here, and a token with a
        role is special even if ``tokenizer.json`` says otherwise.
        """
        known = list(existing)
        with_role = set(self.named.values())
        base = known if self.listed is None else self.listed
        tokens = [_as_special(token) if token.content in with_role else token for token in base]
        contents = {token.content for token in (*known, *tokens)}
        for token in self.special:
            if token.content not in contents:
                contents.add(token.content)
                tokens.append(token)
        return tokens


def read_special_tokens(files: Mapping[str, bytes]) -> SpecialTokens:
    """Read ``tokenizer_config.json`` and, where that lists no added vocabulary, ``special_tokens_map.json``."""
    config = load_json(files, "tokenizer_config.json")
    listed = _listed(config.get("added_tokens_decoder"))
    if listed is None:
        config |= load_json(files, "special_tokens_map.json")
    named = {role: _parse(value, role) for role, value in _with_role(config)}
    special = [_as_special(token) for token in named.values()]
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    special += [_parse(value, "extra_special_tokens") for value in (extra if isinstance(extra, list) else [])]
    return SpecialTokens({role: token.content for role, token in named.items()}, tuple(special), listed)


def _listed(declared: Any) -> tuple[AddedToken, ...] | None:
    if declared is None:
        return None
    try:
        by_id = sorted((int(token_id), token) for token_id, token in declared.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise TokenizerError("added_tokens_decoder of tokenizer_config.json must map token ids to tokens") from error
    return tuple(_parse(token, "added_tokens_decoder") for _, token in by_id)


def _with_role(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Tokens with the seven roles of transformers, then those with the model's own roles."""
    for role in _ROLES:
        if config.get(role) is not None:
            yield role, config[role]
    for key, value in config.items():
        if key not in _ROLES and key.endswith("_token") and isinstance(value, str | dict):
            yield key, value
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        yield from extra.items()


def _parse(value: Any, where: str) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise TokenizerError(f"{where} of the tokenizer's configuration must be text or an object with content")
    flags = {name: bool(value[name]) for name in _FLAGS if name in value}
    return AddedToken(value["content"], special=bool(value.get("special", False)), **flags)


def _as_special(token: AddedToken) -> AddedToken:
    flags = {name: getattr(token, name) for name in _FLAGS}
    return AddedToken(token.content, special=True, **flags)
