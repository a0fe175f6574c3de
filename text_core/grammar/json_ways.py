"""Bounds the ways an answer may continue: the optional properties of all objects possible at one point.

The engine's parser follows all of them at once, and fails if they are too many. So they are counted beforehand: 256
properties are few enough in one object, but not in each of two branches of anyOf.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from text_core.grammar.json_combinations import (
    Definitions,
    Schema,
    children,
    own_types,
    references,
    referred,
    value_key,
    values_of,
)
from text_core.grammar.references import in_order

MAX_WAYS = 1_900
"""Maximum at one point; the engine's parser follows 2,000 (engine_core/structured_output/compiler.py)."""
_OPTIONAL = 4
"""Ways of an optional property, as measured. With minProperties, n of them have n² + n together."""
_OTHERS = 8
"""Ways of the properties that an object does not name."""
_MAX_PAIRS = 100_000
"""Maximum pairs per document, of branches of one anyOf with those of another that must also hold: 0.1 s."""

_Key = tuple[str, str] | None
"""(first required property, its constant value or an empty text); None if no property is required."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """Objects with the same first required property."""

    objects: int = 0
    before: int = 0
    """Ways in all of them together up to that property; of all optional properties if none is required."""
    after: int = 0
    """Most ways after it."""

    def or_else(self, other: _Branch) -> _Branch:
        return _branch(self.objects + other.objects, self.before + other.before, self.after + other.after)


def _branch(*counts: int) -> _Branch:
    """Clamps counts to ``MAX_WAYS`` + 1: repeated products would have millions of digits."""
    return _Branch(*(min(count, MAX_WAYS + 1) for count in counts))


@dataclass(frozen=True, slots=True)
class _Ways:
    """Branches in which an answer may be. Those whose first properties have other constants exclude each other."""

    branches: dict[_Key, _Branch] = field(default_factory=dict)

    @property
    def most(self) -> int:
        always = self.branches.get(None, _Branch()).before
        behind = [
            branch.after + (self.branches.get((key[0], ""), _Branch()).after if key[1] else 0) + always
            for key, branch in self.branches.items()
            if key is not None
        ]
        return max(sum(branch.before for branch in self.branches.values()), *behind, 0)

    def and_then(self, other: _Ways) -> _Ways:
        """Each of these objects, followed by the properties of each object of ``other``."""
        joined: dict[_Key, _Branch] = {}
        for key, one in self.branches.items():
            for behind, two in other.branches.items():
                objects = one.objects * two.objects
                if key is None:
                    ahead = one.before * two.objects + two.before * one.objects
                    pair = _branch(objects, ahead, two.after * one.objects)
                else:
                    rest = one.after * two.objects + (two.before + two.after) * one.objects
                    pair = _branch(objects, one.before * two.objects, rest)
                joined[key or behind] = joined.get(key or behind, _Branch()).or_else(pair)
        return _Ways(joined)


_ANY = _Ways({None: _Branch(1)})
"""The ways of a schema that names no properties."""


def check_ways(definitions: Definitions) -> str | None:
    """A problem with the optional properties that an answer may have at one point; None if there is none."""
    counted: dict[str, _Ways] = {}
    most = pairs = 0

    def joined(total: _Ways, other: _Ways) -> _Ways:
        nonlocal most, pairs
        pairs += len(total.branches) * len(other.branches)
        if pairs > _MAX_PAIRS:
            most = MAX_WAYS + 1
            return _ANY
        return total.and_then(other)

    def ways_of(schema: Schema) -> _Ways:
        nonlocal most
        if isinstance(schema, bool) or most > MAX_WAYS:
            return _ANY
        total = _own_ways(schema)
        for inner in schema.get("allOf", []):
            total = joined(total, ways_of(inner))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                total = joined(total, _any_of(ways_of(inner) for inner in schema[keyword]))
        if (name := referred(schema)) is not None:
            total = joined(total, counted.get(name, _ANY))
        most = max(most, total.most)
        for place, inner in children(schema):
            if place[0] not in ("allOf", "anyOf", "oneOf"):
                ways_of(inner)
        return total

    for name in in_order({name: references(schema, in_place=True) for name, schema in definitions.items()})[0]:
        counted[name] = ways_of(definitions[name])
    if most <= MAX_WAYS:
        return None
    return (
        f"allows more than {MAX_WAYS // _OPTIONAL} optional properties at one place, in all branches of anyOf, oneOf, "
        "allOf and $ref together: demand some of them, such as a first one with another const in each branch"
    )


def _any_of(parts: Iterable[_Ways]) -> _Ways:
    total: dict[_Key, _Branch] = {}
    for part in parts:
        for key, branch in part.branches.items():
            total[key] = total.get(key, _Branch()).or_else(branch)
    return _Ways(total)


def _own_ways(schema: dict[str, Any]) -> _Ways:
    """The ways of the properties that ``schema`` itself names, in order."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if "object" not in own_types(schema) or not (properties or required):
        return _ANY
    runs = [0]
    """Lengths of the runs of optional properties before, between and after the required ones."""
    key: _Key = None
    for name in [*properties, *(name for name in required if name not in properties)]:
        if name in required:
            key = key or (name, _constant(properties.get(name, True)))
            runs.append(0)
        elif properties[name] is not False:
            runs[-1] += 1
    is_counted = schema.get("minProperties", 0) > len(required) and "maxProperties" not in schema
    ways = [count * (count + 1 if is_counted else _OPTIONAL) for count in runs]
    ways[-1] += _OTHERS if schema.get("additionalProperties", True) is not False else 1
    return _Ways({key: _Branch(1, max(1, ways[0]), max(ways[1:], default=0))})


def _constant(schema: Schema) -> str:
    values = values_of(schema) if isinstance(schema, dict) else None
    return value_key(values[0]) if values is not None and len(values) == 1 else ""
