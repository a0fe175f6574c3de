"""Converts constraints to grammar text in the engine's notation, checked against limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from text_core.grammar.constraints import (
    MAX_CHOICE_BYTES,
    MAX_CHOICES,
    MAX_TEXT_BYTES,
    Constraint,
    ConstraintError,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTags,
)
from text_core.grammar.context_free import checked_grammar
from text_core.grammar.json_schema import any_object, checked_schema
from text_core.grammar.lark import leading_terminal, literal, until
from text_core.grammar.regex import RegexError, whole_match
from text_core.grammar.structural_tags import tags_grammar

Marker = Callable[[str], str]
"""Converts a text that may contain special tokens to a Lark expression: ``GrammarChecker.marker``."""


def grammar_of(constraint: Constraint, marker: Marker = literal) -> str:
    """The grammar of a whole answer in llguidance's notation.

    Raises ``ConstraintError`` if the constraint is unsupported, too large or contradicts itself; problems that
    only compiling shows are left to ``GrammarChecker.check``. ``marker`` is for the texts around structural tags, and
    for tokens in GBNF.
    """
    match constraint:
        case JsonSchema():
            return f"start: %json {checked_schema(constraint.schema, constraint.any_whitespace)}"
        case JsonObject():
            return f"start: %json {any_object(constraint.any_whitespace)}"
        case Regex():
            return _regex(constraint.pattern)
        case OneOf():
            return _choice(constraint)
        case Grammar():
            return checked_grammar(constraint.text, marker)
        case StructuralTags():
            return tags_grammar(constraint, marker)


def without_forcing(grammar: str) -> str:
    """``grammar`` for a matcher that allows every token of a text that must come, not only the tokenizer's first."""
    option = '%llguidance {"no_forcing": true}\n'
    if not grammar.startswith("{"):
        return option + grammar
    parts = json.loads(grammar)
    parts["grammars"][0]["lark_grammar"] = option + parts["grammars"][0]["lark_grammar"]
    return json.dumps(parts)


def with_parts(rules: str, parts: Mapping[str, str]) -> str:
    """A grammar in which ``rules``, and the grammars ``parts``, may refer to parts as ``@name``."""
    if len(parts) == 1 and rules in (f"start: @{name}" for name in parts):
        return next(iter(parts.values()))
    named = [{"name": name, "lark_grammar": grammar} for name, grammar in parts.items()]
    return json.dumps({"grammars": [{"lark_grammar": rules}, *named]})


def after_reasoning(
    answer: str,
    parts: Mapping[str, str],
    opening: str | None,
    closing: str,
    begins_inside: bool,
    marker: Marker,
    answer_begin: str = "",
) -> str:
    """A grammar of reasoning in free text up to ``closing``, and then of ``answer``, after at most two line breaks.

    ``answer``: an expression of ``parts``, as in ``with_parts``. ``begins_inside``: the prompt has opened the
    reasoning. Otherwise reasoning is optional, and begins with ``opening``, if any, after a blank and line breaks at
    most. ``answer_begin`` may come before ``answer``.
    """
    close = marker(closing)
    if close.startswith("<"):  # text never contains a special token
        rules, reasoning = [], f"/(?s:.*)/ {close}"
    else:
        first, rest = leading_terminal(close)
        rules, reasoning = [f"reasoning[lazy]: {until(first)}"], f"reasoning{rest}"
    reasoning += r" /\n{0,2}/"  # models are used to them
    if not begins_inside:
        reasoning = rf"(/ ?\n{{0,2}}/ {marker(opening)} {reasoning})?" if opening else f"({reasoning})?"
    if answer_begin:
        answer = f"({marker(answer_begin)})? {answer}"
    return with_parts("\n".join([f"start: {reasoning} {answer}", *rules]), parts)


def _regex(pattern: str) -> str:
    if (size := len(pattern.encode())) > MAX_TEXT_BYTES:
        raise ConstraintError(
            "regex", f"has {size} bytes: expected at most {MAX_TEXT_BYTES} ({MAX_TEXT_BYTES >> 10} KiB)"
        )
    try:
        return f"start: /{whole_match(pattern)}/"
    except RegexError as error:
        raise ConstraintError("regex", str(error)) from None


def _choice(constraint: OneOf) -> str:
    texts = constraint.texts
    if not 1 <= len(texts) <= MAX_CHOICES:
        raise ConstraintError("choice.texts", f"has {len(texts)} texts: expected 1 to {MAX_CHOICES}")
    sizes = [len(text.encode()) for text in texts]
    for index, size in enumerate(sizes):
        if not 1 <= size <= MAX_CHOICE_BYTES:
            raise ConstraintError(f"choice.texts[{index}]", f"has {size} bytes: expected 1 to {MAX_CHOICE_BYTES}")
    size = sum(sizes)
    if size > MAX_TEXT_BYTES:
        raise ConstraintError(
            "choice.texts", f"have {size} bytes: expected at most {MAX_TEXT_BYTES} ({MAX_TEXT_BYTES >> 10} KiB)"
        )
    # one terminal, so that the parser sees one item, not thousands
    return "start: CHOICE\nCHOICE: " + " | ".join(map(literal, dict.fromkeys(texts)))
