"""Structural tags: free text in which certain texts begin a constrained part."""

from __future__ import annotations

from collections.abc import Callable

from text_core.grammar.constraints import (
    MAX_MARKER_BYTES,
    MAX_TAGS,
    MAX_TEXT_BYTES,
    ConstraintError,
    StructuralTag,
    StructuralTags,
)
from text_core.grammar.json_schema import any_object, checked_schema
from text_core.grammar.lark import FREE_TEXT, leading_terminal, until


def tags_grammar(constraint: StructuralTags, marker: Callable[[str], str]) -> str:
    """The grammar in Lark's notation; ``marker`` makes an expression of a text. Raises ``ConstraintError``."""
    tags = constraint.tags
    _check(tags)
    triggers = _triggers(tags)
    bodies: dict[str, list[str]] = {trigger: [] for trigger in triggers}
    rules: list[str] = []
    for index, tag in enumerate(tags):
        trigger = next(each for each in triggers if tag.begin.startswith(each))
        field = f"structural_tags.tags[{index}].json_schema"
        whitespace = constraint.any_whitespace
        content = (
            any_object(whitespace) if tag.json_schema is None else checked_schema(tag.json_schema, whitespace, field)
        )
        rest = [marker(text) for text in (tag.begin[len(trigger) :],) if text]
        end = [marker(tag.end)] if tag.end else []
        bodies[trigger].append(" ".join([*rest, f"%json {content}", *end]))
    opened, reached = [], []
    for number, (trigger, alternatives) in enumerate(bodies.items()):
        rules.append(f"body_{number}: " + "\n | ".join(alternatives))
        first, others = leading_terminal(marker(trigger))
        opened.append(f"{first}{others} body_{number}")
        if first.startswith("<"):  # a special token, which no text contains
            reached.append(f"TEXT {first}{others} body_{number}")
        else:
            rules.append(f"trigger_{number}[lazy]: {until(first)}")
            reached.append(f"trigger_{number}{others} body_{number}")
    rules += [f"first: {' | '.join(opened)}", f"next: {' | '.join(reached)}", f"TEXT: {FREE_TEXT}"]
    match constraint.required, constraint.single:
        case True, True:
            start = "first"
        case True, False:
            start = "first next* TEXT"
        case False, True:
            start = "next | TEXT"
        case _:
            start = "next* TEXT"
    return "\n".join([f"start: {start}", *rules])


def _check(tags: tuple[StructuralTag, ...]) -> None:
    if not 1 <= len(tags) <= MAX_TAGS:
        raise ConstraintError("structural_tags.tags", f"has {len(tags)} tags: expected 1 to {MAX_TAGS}")
    for index, tag in enumerate(tags):
        field = f"structural_tags.tags[{index}]"
        if not 1 <= (size := len(tag.begin.encode())) <= MAX_MARKER_BYTES:
            raise ConstraintError(f"{field}.begin", f"has {size} bytes: expected 1 to {MAX_MARKER_BYTES}")
        if (size := len(tag.end.encode())) > MAX_MARKER_BYTES:
            raise ConstraintError(f"{field}.end", f"has {size} bytes: expected at most {MAX_MARKER_BYTES}")
        if tag.trigger is not None and not (tag.trigger and tag.begin.startswith(tag.trigger)):
            raise ConstraintError(f"{field}.trigger", f"{tag.trigger!r} is not the beginning of {tag.begin!r}")
    size = sum(len(text.encode()) for tag in tags for text in (tag.begin, tag.end, tag.json_schema or ""))
    if size > MAX_TEXT_BYTES:
        raise ConstraintError("structural_tags", f"has {size} bytes: expected at most {MAX_TEXT_BYTES}")


def _triggers(tags: tuple[StructuralTag, ...]) -> list[str]:
    """The texts that begin tags, without those that start with a shorter one, which is reached first."""
    triggers: dict[str, int] = {}
    asked = sorted(((tag.trigger or tag.begin, index) for index, tag in enumerate(tags)), key=lambda item: len(item[0]))
    for trigger, index in asked:
        if any(trigger.startswith(shorter) for shorter in triggers):
            continue
        if inside := next((shorter for shorter in triggers if shorter in trigger), None):
            raise ConstraintError(
                f"structural_tags.tags[{index}].trigger", f"{trigger!r} contains {inside!r}, which begins another tag"
            )
        triggers[trigger] = index
    return list(triggers)
