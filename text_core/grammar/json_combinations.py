"""Analyses a document's schemas together: which can never end, exclude each other, or are intersected.

All functions take rewritten schemas (``json_schema``), whose references name definitions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from text_core.grammar.references import MAX_LEVELS, in_order, levels

Schema = dict[str, Any] | bool
Definitions = dict[str, Schema]

PREFIX = "#/$defs/"
_EVERY_TYPE = frozenset(("null", "boolean", "number", "string", "array", "object"))
_DEPTH = 6
"""Depth to which ``Disjointness`` looks into schemas."""
_COMPARISONS = 50_000
"""Maximum comparisons by ``Disjointness`` per document: 0.1 s."""


def children(schema: dict[str, Any]) -> list[tuple[tuple[str, ...], Schema]]:
    """The direct subschemas of a schema, with their places."""
    found: list[tuple[tuple[str, ...], Schema]] = []
    for keyword in ("properties", "patternProperties"):
        found += [((keyword, name), inner) for name, inner in schema.get(keyword, {}).items()]
    for keyword in ("prefixItems", "allOf", "anyOf", "oneOf"):
        found += [((keyword, str(index)), inner) for index, inner in enumerate(schema.get(keyword, []))]
    return found + [((keyword,), schema[keyword]) for keyword in ("additionalProperties", "items") if keyword in schema]


def referred(schema: dict[str, Any]) -> str | None:
    """The name of the definition to which ``schema`` refers."""
    reference: str | None = schema.get("$ref")
    return None if reference is None else reference.removeprefix(PREFIX)


def refers(schemas: Iterable[Schema], name: str) -> bool:
    """Whether any of ``schemas`` refers to ``name``, at any depth."""
    stack = list(schemas)
    while stack:
        schema = stack.pop()
        if isinstance(schema, dict):
            if referred(schema) == name:
                return True
            stack += [inner for _, inner in children(schema)]
    return False


def without(schema: Schema, endless: set[str]) -> Schema:
    """``schema`` with references to ``endless`` replaced by false."""
    if isinstance(schema, bool):
        return schema
    if referred(schema) in endless:
        return False
    changed = dict(schema)
    for keyword in ("properties", "patternProperties"):
        if keyword in schema:
            changed[keyword] = {name: without(inner, endless) for name, inner in schema[keyword].items()}
    for keyword in ("prefixItems", "allOf", "anyOf", "oneOf"):
        if keyword in schema:
            changed[keyword] = [without(inner, endless) for inner in schema[keyword]]
    for keyword in ("additionalProperties", "items"):
        if keyword in schema:
            changed[keyword] = without(schema[keyword], endless)
    return changed


def unending(definitions: Definitions) -> set[str]:
    """Names of the definitions that no finite value fits, since they require themselves, or false.

    A fixed point: definitions that end, then those that end because of them, and so on. A schema with contradictory
    demands counts as ending: llguidance finds most of these.
    """
    ending: set[str] = set()
    order, _ = in_order({name: references(schema, in_place=False) for name, schema in definitions.items()})
    while True:
        before = len(ending)
        for name in order:
            if name not in ending and _ends(definitions[name], ending):
                ending.add(name)
        if len(ending) == before:
            return set(definitions) - ending


def _ends(schema: Schema, ending: set[str]) -> bool:
    if isinstance(schema, bool):
        return schema
    if (name := referred(schema)) is not None and name not in ending:
        return False
    if not all(_ends(inner, ending) for inner in schema.get("allOf", [])):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(_ends(inner, ending) for inner in schema[keyword]):
            return False
    types = own_types(schema)
    if types - {"object", "array"}:
        return True
    return ("object" in types and _object_ends(schema, ending)) or ("array" in types and _array_ends(schema, ending))


def _object_ends(schema: dict[str, Any], ending: set[str]) -> bool:
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties", True)
    patterns = schema.get("patternProperties")
    return all(
        _ends(properties[name], ending) if name in properties else bool(patterns) or _ends(additional, ending)
        for name in schema.get("required", [])
    )


def _array_ends(schema: dict[str, Any], ending: set[str]) -> bool:
    prefix, count = schema.get("prefixItems", []), schema.get("minItems", 0)
    return all(_ends(inner, ending) for inner in prefix[:count]) and (
        count <= len(prefix) or _ends(schema.get("items", True), ending)
    )


def own_types(schema: dict[str, Any]) -> frozenset[str]:
    """Types that the schema's own keywords allow; an integer is a number."""
    types = _EVERY_TYPE
    if (declared := schema.get("type")) is not None:
        listed = [declared] if isinstance(declared, str) else declared
        types = frozenset("number" if name == "integer" else name for name in listed)
    if (values := values_of(schema)) is not None:
        types &= {_type_of(value) for value in values}
    return types


def values_of(schema: dict[str, Any]) -> list[Any] | None:
    """The only values of a schema with const or enum."""
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


class Disjointness:
    """Whether schemas exclude each other; gives up, and says no, after ``_COMPARISONS``."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._left = _COMPARISONS

    def is_certain(self, first: Schema, second: Schema, depth: int = _DEPTH) -> bool:
        """Whether it is certain that no value fits both."""
        self._left -= 1
        if first is False or second is False:
            return True
        if isinstance(first, bool) or isinstance(second, bool) or depth == 0 or self._left < 0:
            return False
        return (
            self._by_parts(first, second, depth)
            or self._by_parts(second, first, depth)
            or self._by_types(first, second, depth)
        )

    def _by_parts(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        """By a schema that ``one`` refers to or consists of."""
        if (name := referred(one)) is not None and self.is_certain(self._definitions[name], other, depth - 1):
            return True
        if any(self.is_certain(inner, other, depth - 1) for inner in one.get("allOf", [])):
            return True
        return any(
            all(self.is_certain(inner, other, depth - 1) for inner in one[keyword])
            for keyword in ("anyOf", "oneOf")
            if keyword in one
        )

    def _by_types(self, first: dict[str, Any], second: dict[str, Any], depth: int) -> bool:
        shared = own_types(first) & own_types(second)
        if not shared:
            return True
        values, others = values_of(first), values_of(second)
        if values is not None and others is not None:
            return not {value_key(value) for value in values} & {value_key(value) for value in others}
        if shared != {"object"}:
            return False
        demanded = dict.fromkeys([*first.get("required", []), *second.get("required", [])])
        return any(self.is_certain(_property(first, name), _property(second, name), depth - 1) for name in demanded)


def _property(schema: dict[str, Any], name: str) -> Schema:
    if name in (properties := schema.get("properties", {})):
        found: Schema = properties[name]
        return found
    additional: Schema = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
    return additional


def value_key(value: Any) -> str:
    """A text that is equal for equal values: 1 equals 1.0, but not true."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case float() if value.is_integer():
            return int(value)
    return value


Weights = Counter[tuple[str, str]]
"""How much of a kind (``_LIMITS``) must hold at once: in place (an empty text), or within ``[]``, ``*`` or a name."""

_ALONE = 100

_LIMITS = {
    "text": (3, "patterns, formats and limits of length for one text"),
    "multiple": (1, "multipleOf for one number"),
    "patterns": (8, "patternProperties for one object"),
    "bounds": (_ALONE, "bounds for one number, exclusive ones among them,"),
}
"""llguidance's time is exponential in the intersected constraints, and a product of multiples may overflow."""


def check_combinations(definitions: Definitions) -> str | None:
    """A problem with constraints that must hold at once: self-references, patterns, multiples; None if there is none.

    Texts are distinguished only by their property's name, so the counts may be too high.
    """
    _, circular = in_order({name: references(schema, in_place=True) for name, schema in definitions.items()})
    if circular:
        return "a $ref leads back to itself without a property or item in between"
    graph = {name: references(schema, in_place=False) for name, schema in definitions.items()}
    if levels(graph, {name: _levels(schema) for name, schema in definitions.items()}) > MAX_LEVELS:
        return f"nests schemas more than {MAX_LEVELS} deep: expected fewer levels"
    weights: dict[str, Weights] = {}
    for name in in_order(graph)[0]:
        weights[name] = _weigh(definitions[name], weights)
        for (kind, place), count in weights[name].items():
            limit, what = _LIMITS[kind]
            if place not in ("", "*", "[]"):
                count += weights[name][kind, "*"]
            if count > limit:
                where = {"": "", "[]": " in an array", "*": " in an object"}.get(place, f" in {json.dumps(place)}")
                least = "" if kind == "bounds" else f"{count} "
                most = "" if kind == "bounds" else f": expected at most {limit}"
                return f"demands {least}{what}{where} at once (by allOf or $ref){most}"
    return None


def _levels(schema: Schema) -> int:
    if isinstance(schema, bool):
        return 1
    return 1 + max((_levels(inner) for _, inner in children(schema)), default=int("$ref" in schema))


def references(schema: Schema, in_place: bool) -> set[str]:
    """Names that ``schema`` refers to, at any depth; ``in_place``: only for the same value, not for parts of it."""
    found: set[str] = set()
    stack = [schema]
    while stack:
        if isinstance(each := stack.pop(), dict):
            if name := referred(each):
                found.add(name)
            stack += [
                inner for place, inner in children(each) if not in_place or place[0] in ("allOf", "anyOf", "oneOf")
            ]
    return found


def _weigh(schema: Schema, weights: Mapping[str, Weights]) -> Weights:
    """``weights``: of definitions, except of those that refer to this one; llguidance refuses to intersect these."""
    total: Weights = Counter()
    if isinstance(schema, bool):
        return total
    own = {
        "text": ("pattern" in schema) + ("format" in schema) + ("minLength" in schema or "maxLength" in schema),
        "multiple": int("multipleOf" in schema),
        "patterns": len(schema.get("patternProperties", {})),
        # Of exclusive bounds within one of another, llguidance accepts the bound (json_schema): none may meet others.
        "bounds": _ALONE
        if "exclusiveMinimum" in schema or "exclusiveMaximum" in schema
        else int("minimum" in schema or "maximum" in schema),
    }
    total.update({(kind, ""): count for kind, count in own.items() if count})
    branches: dict[str, Weights] = {"anyOf": Counter(), "oneOf": Counter(), "within": Counter()}
    for (keyword, *rest), inner in children(schema):
        weight = _weigh(inner, weights)
        match keyword:
            case "allOf":
                total += weight
            case "anyOf" | "oneOf":
                branches[keyword] |= weight
            case _:
                place = rest[0] if keyword == "properties" else "[]" if "tems" in keyword else "*"
                branches["within"] |= Counter({(kind, where or place): n for (kind, where), n in weight.items()})
    for weight in branches.values():
        total += weight
    if (name := referred(schema)) is not None:
        total += weights.get(name, Counter())
    return total
