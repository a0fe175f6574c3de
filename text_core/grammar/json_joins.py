"""Bounds what llguidance makes of schemas that must hold at once: it joins them part by part.

Names that one object has are joined with what the others demand of additional properties, at every depth; and each
alternative of one ``anyOf`` is joined with each of another. So a short schema may become a large one, which takes long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from text_core.grammar.json_combinations import Definitions, Schema, children, own_types, referred, value_key, values_of

MAX_JOINED = 10_000
"""Maximum schemas of a document once they are joined: each takes 10 to 30 µs."""
_MAX_WORK = 120_000
"""Maximum steps of counting them: less than 0.1 s."""
_MAX_COMPARISONS = 50_000
"""Maximum comparisons of what maps demand, per document; maps that are left stay as they are."""
_MAX_DEPTH = 200

_Choice = list[Schema]


@dataclass(frozen=True, slots=True)
class _Joined:
    """Schemas that hold at once: their own keywords, and the choices that each leaves."""

    parts: tuple[dict[str, Any], ...] = ()
    choices: tuple[_Choice, ...] = ()

    @property
    def key(self) -> tuple[int, ...]:
        """Equal schemas count each time: llguidance joins them, too."""
        return tuple(sorted(map(id, (*self.parts, *self.choices))))


def drop_repeated_maps(definitions: Definitions) -> None:
    """Drop additionalProperties from a schema of allOf if another one demands the same of every property.

    Some generators write each map twice; joined, maps within maps would double at every level.
    """
    waiting: list[Schema] = list(definitions.values())
    left = _MAX_COMPARISONS
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, bool):
            continue
        waiting += [inner for _, inner in children(schema)]
        members = [schema, *schema.get("allOf", [])]
        for member in members[1:]:
            if isinstance(member, bool) or member.keys() - {"additionalProperties", "type"}:
                continue
            for other in members:
                meant = True if other is member else _meant(other, definitions)
                kinds = [] if isinstance(meant, bool) else _kinds(meant)
                if (left := left - 1 - len(kinds)) < 0:
                    return
                if kinds and all(kind == member.get("additionalProperties", True) for kind in kinds):
                    member.pop("additionalProperties", None)
                    break


def _meant(schema: Schema, definitions: Definitions) -> Schema:
    name = None if isinstance(schema, bool) else referred(schema)
    return schema if name is None else definitions[name]


def _kinds(schema: dict[str, Any]) -> list[Schema]:
    """What ``schema`` demands of the properties of an object."""
    kinds = [*schema.get("properties", {}).values(), *schema.get("patternProperties", {}).values()]
    return [*kinds, schema.get("additionalProperties", True)]


class _TooManyError(Exception):
    """There is more than the limits allow."""


def check_joins(definitions: Definitions) -> str | None:
    """A problem with the number of schemas that joining makes; None if there is none."""
    try:
        counts = _Counts(definitions)
        if sum(counts.of([schema], 0, is_defined=True) for schema in definitions.values()) <= MAX_JOINED:
            return None
    except _TooManyError:
        pass
    return (
        f"would become more than {MAX_JOINED} schemas, as each that allOf or $ref joins is joined with the others at "
        "every depth, and each alternative of anyOf or oneOf with those of another: join fewer, or write out the "
        "schema that they are together"
    )


class _Counts:
    """Counts what joining makes; each set of schemas is looked at once."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._known: dict[tuple[int, ...], int] = {}
        self._work = 0

    def of(self, schemas: Iterable[Schema], depth: int, is_defined: bool = False) -> int:
        """The number for ``schemas``, which hold at once. A reference alone is kept, except by its definition."""
        given = [schema for schema in schemas if isinstance(schema, dict) and schema]
        if not is_defined and len(given) == 1 and given[0].keys() == {"$ref"}:
            return 0
        return self._of(self._flat(_Joined(), given), depth)

    def _of(self, joined: _Joined, depth: int) -> int:
        key = joined.key
        if key not in self._known:
            self._known[key] = 0  # a schema that leads to itself is not joined further
            if depth > _MAX_DEPTH:
                raise _TooManyError
            count = self._choices(joined, depth) if joined.choices else self._members(joined.parts, depth)
            if count > MAX_JOINED:
                raise _TooManyError
            self._known[key] = count
        return self._known[key]

    def _step(self, steps: int = 1) -> None:
        self._work += steps
        if self._work > _MAX_WORK:
            raise _TooManyError

    def _flat(self, joined: _Joined, schemas: Iterable[Schema]) -> _Joined:
        """``joined`` and also ``schemas``, without the keywords that apply others in place."""
        parts, choices, waiting = [*joined.parts], [*joined.choices], list(schemas)
        while waiting:
            schema = waiting.pop()
            self._step()
            if isinstance(schema, bool):
                continue
            waiting += schema.get("allOf", [])
            if (name := referred(schema)) is not None:
                waiting.append(self._definitions[name])
            choices += [schema[key] for key in ("anyOf", "oneOf") if key in schema]
            if schema.keys() - {"allOf", "anyOf", "oneOf", "$ref"}:
                parts.append(schema)
        return _Joined(tuple(parts), tuple(choices))

    def _choices(self, joined: _Joined, depth: int) -> int:
        """Each alternative of each choice, joined with those of the others."""
        if len(joined.choices) == 1 and not joined.parts:
            return sum(self.of([schema], depth + 1) for schema in joined.choices[0])
        alternatives = [_Joined(joined.parts)]
        count = 0
        for choice in joined.choices:
            if count + len(alternatives) * len(choice) > MAX_JOINED:
                raise _TooManyError
            made = [self._flat(one, [schema]) for one in alternatives for schema in choice]
            alternatives = [one for one in made if _may_hold(one.parts)]
            count += len(made)
        for one in alternatives:
            count += self._of(one, depth + 1)
            if count > MAX_JOINED:
                raise _TooManyError
        return count

    def _members(self, parts: tuple[dict[str, Any], ...], depth: int) -> int:
        """What joining makes of the properties and items of ``parts``."""
        count = int(bool(parts))
        if not _may_hold(parts):
            return count
        names = dict.fromkeys(name for part in parts for name in part.get("properties", ()))
        patterns = dict.fromkeys(pattern for part in parts for pattern in part.get("patternProperties", ()))
        places = max(len(part.get("prefixItems", ())) for part in parts) if parts else 0
        self._step(len(parts) * (len(names) + len(patterns) + places + 2))
        inner: list[list[Schema]] = [[_property(part, name) for part in parts] for name in names]
        inner += [[_of_pattern(part, pattern) for part in parts] for pattern in patterns]
        inner += [[_item(part, place) for part in parts] for place in range(places)]
        inner.append([part.get("additionalProperties", True) for part in parts])
        inner.append([part.get("items", True) for part in parts])
        for number, schemas in enumerate(inner):
            count += self.of(schemas, depth + 1) or number < len(names)
            if count > MAX_JOINED:
                raise _TooManyError
        return count


def _property(part: dict[str, Any], name: str) -> Schema:
    found: Schema = part.get("properties", {}).get(name, part.get("additionalProperties", True))
    return found


def _of_pattern(part: dict[str, Any], pattern: str) -> Schema:
    found: Schema = part.get("patternProperties", {}).get(pattern, part.get("additionalProperties", True))
    return found


def _item(part: dict[str, Any], place: int) -> Schema:
    prefix = part.get("prefixItems", [])
    found: Schema = prefix[place] if place < len(prefix) else part.get("items", True)
    return found


def _may_hold(parts: Iterable[dict[str, Any]]) -> bool:
    """Whether the types and constants of ``parts`` leave anything."""
    types: frozenset[str] | None = None
    keys: set[str] | None = None
    for part in parts:
        types = own_types(part) if types is None else types & own_types(part)
        if (values := values_of(part)) is not None:
            given = set(map(value_key, values))
            keys = given if keys is None else keys & given
    return (types is None or bool(types)) and (keys is None or bool(keys))
