"""Schemas with ``strict: false``, which ask for what can be enforced: their ``oneOf`` becomes ``anyOf``.

That one schema of a ``oneOf`` fits and no other can be enforced only where no value fits two; the ring refuses others.
"""

from __future__ import annotations

from typing import Any

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalItems", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else")


def with_any_of(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with ``anyOf`` for every ``oneOf``; itself if it refers into one, or has none."""
    changed = dict(schema)
    waiting = [changed]
    found = False
    while waiting:
        part = waiting.pop()
        if isinstance(reference := part.get("$ref"), str) and "/oneOf/" in reference:
            return schema
        for name in _MAPS:
            if isinstance(inner := part.get(name), dict):
                part[name] = {key: _copied(one, waiting) for key, one in inner.items()}
        for name in _LISTS:
            if isinstance(inner := part.get(name), list):
                part[name] = [_copied(one, waiting) for one in inner]
        for name in _SINGLE:
            if isinstance(inner := part.get(name), dict):
                part[name] = _copied(inner, waiting)
        if isinstance(branches := part.get("oneOf"), list):
            found = True
            del part["oneOf"]
            if "anyOf" not in part:
                part["anyOf"] = branches
            elif isinstance(together := part.setdefault("allOf", []), list):
                together.append({"anyOf": branches})
    return changed if found else schema


def _copied(schema: Any, waiting: list[dict[str, Any]]) -> Any:
    """A copy of ``schema``, which is added to those to change; what is no object is left as it is."""
    if not isinstance(schema, dict):
        return schema
    copied = dict(schema)
    waiting.append(copied)
    return copied
