"""Makes schemas of a ``oneOf`` exclude each other: where one demands a property, another forbids it.

That narrows what is accepted: values with both properties of which one does not fit are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from text_core.grammar.json_combinations import Definitions, Schema, own_types, referred

MAX_EXCLUSIONS = 2_000
"""Maximum properties that are forbidden in all schemas of a document together."""
_STEPS = 20_000
"""Maximum schemas looked at per document: 20 ms."""
_MAX_CHOICES = 2
"""Maximum choices of a property to forbid, per schema: each multiplies the ways of an answer."""
_DEPTH = 6
"""Depth to which schemas are searched for what they demand."""


class Exclusions:
    """Makes schemas exclude each other; gives up after ``_STEPS`` and ``MAX_EXCLUSIONS``."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._exclusions = MAX_EXCLUSIONS
        self._steps = _STEPS

    def excluding(self, schema: Schema, others: Sequence[Schema]) -> Schema | None:
        """What fits ``schema`` and, for certain, none of ``others``; None if that cannot be said."""
        demanded = self._demanded(schema)
        forbidden: set[str] = set()
        choices: list[list[str]] = []
        is_object = False
        for other in others:
            names = self._demanded(other)
            if self._steps < 0:
                return None
            is_object |= not self._is_object(other)
            if apart := [name for name in names if name not in demanded]:
                if len(apart) == 1:
                    forbidden.add(apart[0])
                else:
                    choices.append(apart)
            elif isinstance(other, dict) and other.keys() <= {"required", "type"} and own_types(other) == {"object"}:
                return False  # whatever fits the schema fits the other, too
            elif isinstance(other, dict) and other.keys() == {"required"}:
                return False
            else:
                return None
        choices = [names for names in choices if forbidden.isdisjoint(names)]
        self._exclusions -= len(forbidden) + sum(map(len, choices))
        if len(choices) > _MAX_CHOICES or self._exclusions < 0:
            return None
        kind: dict[str, Any] = {"type": "object"} if is_object else {}
        lacking = [{**kind, "properties": dict.fromkeys(sorted(forbidden), False)}] if forbidden else []
        lacking += [{**kind, "anyOf": [{"properties": {name: False}} for name in names]} for names in choices]
        return {"allOf": [schema, *lacking]}

    def _demanded(self, schema: Schema, depth: int = _DEPTH) -> dict[str, None]:
        """Names of the properties that an object must have to fit ``schema``, in their order."""
        self._steps -= 1
        if isinstance(schema, bool) or not depth or self._steps < 0:
            return {}
        found = dict.fromkeys(schema.get("required", ()))
        for part in self._parts(schema):
            found |= self._demanded(part, depth - 1)
        return found

    def _is_object(self, schema: Schema, depth: int = _DEPTH) -> bool:
        """Whether it is certain that only objects fit ``schema``."""
        self._steps -= 1
        if isinstance(schema, bool) or not depth or self._steps < 0:
            return schema is False
        return own_types(schema) <= {"object"} or any(self._is_object(part, depth - 1) for part in self._parts(schema))

    def _parts(self, schema: dict[str, Any]) -> list[Schema]:
        """Schemas that hold, too, for what fits ``schema``."""
        name = referred(schema)
        return [*schema.get("allOf", ()), *([] if name is None else [self._definitions[name]])]
