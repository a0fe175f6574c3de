"""Changes of a ``tokenizer.json`` that its publisher asks for in other files."""

from __future__ import annotations

import json
from typing import Any

import tokenizers

from text_core.tokenizer_files import TokenizerError


def changed_tokenizer(data: bytes, *, lowers: bool, end: str | None) -> bytes | None:
    """``data`` of a ``tokenizer.json`` that makes texts lower-case, and puts the token ``end`` behind them; None if it
    does so already. Raises ``TokenizerError``.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exceptions
        raise TokenizerError(f"tokenizer.json cannot be read: {error}") from error
    spec = json.loads(tokenizer.to_str())
    changes = False
    steps = _steps(spec["normalizer"], "normalizers")
    if lowers and not any(step["type"] == "Lowercase" or step.get("lowercase") for step in steps):
        spec["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
        changes = True
    end_id = None if end is None else tokenizer.token_to_id(end)
    if end_id is not None and tokenizer.encode("a").ids[-1:] != [end_id]:
        steps = _steps(spec["post_processor"], "processors")
        spec["post_processor"] = {"type": "Sequence", "processors": _with_end(steps, str(end), end_id)}
        changes = True
    return json.dumps(spec).encode() if changes else None


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """A part of a tokenizer as a list; ``name``: of the list in a sequence."""
    if part is None:
        return []
    steps: list[dict[str, Any]] = part[name] if part["type"] == "Sequence" else [part]
    return steps


def _with_end(steps: list[dict[str, Any]], end: str, end_id: int) -> list[dict[str, Any]]:
    """The steps behind the vocabulary, with ``end`` behind each text. Of templates there may be one."""
    own = next((step for step in steps if step["type"] == "TemplateProcessing"), None)
    texts = [{"Sequence": {"id": name, "type_id": type_id}} for type_id, name in enumerate("AB")]
    single, pair = (texts[:1], texts) if own is None else (own["single"], own["pair"])
    last = [{"SpecialToken": {"id": end, "type_id": type_id}} for type_id in (0, 1)]
    template = {
        "type": "TemplateProcessing",
        "single": [*single, last[0]],
        "pair": [*pair, last[1]],
        "special_tokens": ({} if own is None else own["special_tokens"])
        | {end: {"id": end, "ids": [end_id], "tokens": [end]}},
    }
    return [*(step for step in steps if step is not own), template]
