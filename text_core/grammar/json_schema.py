"""Checks JSON Schemas keyword by keyword, and rewrites them so that llguidance enforces them.

llguidance ignores unknown keywords, and enforces some wrongly; so it gets only what passes the checks here, in one
form:

- ``$ref`` → a renamed definition, read once; definitions that can never end become ``false``
- keywords of a schema → in a fixed order, since llguidance applies them in the order of the text
- ``oneOf`` → ``anyOf``, if no two of its schemas can accept the same value, or can be kept from that
  (``json_exclusions``); a ``discriminator`` is required in each
- ``propertyNames``, ``uniqueItems``, keywords of OpenAPI and older drafts → the keywords above (``json_spellings``)
- patterns → expressions without anchors inside (``regex``)
- options → ours; those of the client (``x-guidance``) are refused
"""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any, NoReturn
from urllib.parse import unquote

from text_core.grammar import json_keywords as keywords
from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_combinations import (
    Definitions,
    Disjointness,
    Schema,
    check_combinations,
    children,
    refers,
    unending,
    without,
)
from text_core.grammar.json_exclusions import Exclusions
from text_core.grammar.json_formats import FORMATS
from text_core.grammar.json_joins import check_joins, drop_repeated_maps
from text_core.grammar.json_keywords import KeywordError
from text_core.grammar.json_spellings import Respelling, respelled
from text_core.grammar.json_tags import Tags
from text_core.grammar.json_text import read_json, shown
from text_core.grammar.json_ways import check_ways

MAX_SCHEMAS = 5_000
"""Maximum subschemas of a schema, plus objects and arrays within const and enum."""
MAX_VALUES = 20_000
"""Maximum values of all enums together."""
MAX_PROPERTIES = 1_000
"""Per object."""
MAX_OPTIONAL_PROPERTIES = 256
"""Per object: at each point of an answer, any of them may follow."""
MAX_COUNTED_PROPERTIES = 64
"""Maximum optional properties of an object with maxProperties."""
MAX_DEMANDED_PROPERTIES = 40
"""Maximum optional properties of an object with only minProperties: any later one may follow each."""
MAX_BRANCHES = 256
"""Maximum schemas of one anyOf, oneOf or allOf."""
MAX_PATTERNS = 8
"""Per patternProperties: all pairs are compared."""

_VALUES_PER_MATCH = 10
"""What a value beside a pattern counts as: llguidance matches each, in 0.1 ms."""
_MAX_HOPS = 32
"""Maximum chained references followed to names of properties and items of sets."""

# Strings have no \u escapes: in the name of an additional property, llguidance does not see that "\u0061" is "a".
_ESCAPES = 'nrbtf\\"'
_FIXED = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "json_allowed_escapes": _ESCAPES}
# bounded, so that no answer is endless white space
_FLEXIBLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,128}", "json_allowed_escapes": _ESCAPES}


def any_object(any_whitespace: bool = False) -> str:
    """A schema for llguidance, to follow ``%json``: any JSON object."""
    return _with_options({"type": "object"}, any_whitespace)


def checked_schema(schema: str, any_whitespace: bool = False, field: str = "json_schema") -> str:
    """A schema for llguidance, to follow ``%json``, equivalent to ``schema``.

    Raises ``ConstraintError`` with ``field`` and a JSON pointer into the schema.
    """
    return _with_options(_Rewriter(read_json(schema, field), field).document(), any_whitespace)


def _with_options(schema: Schema, any_whitespace: bool) -> str:
    document = {} if schema is True else {"not": {}} if schema is False else schema
    return json.dumps({**document, "x-guidance": _FLEXIBLE if any_whitespace else _FIXED})


class _Rewriter:
    """Rewrites one schema."""

    def __init__(self, root: Any, field: str) -> None:
        self._root = root
        self._field = field
        self._names: dict[str, str] = {}
        """Names of definitions, keyed by reference text."""
        self._definitions: Definitions = {}
        self._queue: list[str] = []
        self._schemas = 0
        self._values = 0

    def document(self) -> Schema:
        """The whole document, rewritten."""
        self._name("#", ())
        while self._queue:  # not recursively: references may form long chains
            reference = self._queue.pop()
            path = tuple(reference[2:].split("/")) if len(reference) > 1 else ()
            _, target = self._target(reference, path)
            self._definitions[self._names[reference]] = self._schema(target, path)
        drop_repeated_maps(self._definitions)
        self._check_together()
        if self._resolve_one_of():
            self._check_together()
        endless = unending(self._definitions)
        if "d0" in endless:
            raise ConstraintError(self._field, "nothing can match it: what it demands has no end, or is false")
        ending = {name: without(schema, endless) for name, schema in self._definitions.items() if name not in endless}
        if refers(ending.values(), "d0"):
            return {"$ref": "#/$defs/d0", "$defs": ending}
        root = ending.pop("d0")
        return {**root, "$defs": ending} if ending and isinstance(root, dict) else root

    def _check_together(self) -> None:
        for check in (check_combinations, check_ways, check_joins):
            if problem := check(self._definitions):
                raise ConstraintError(self._field, problem)

    def _refuse(self, path: tuple[str, ...], problem: str) -> NoReturn:
        place = "".join(f"/{token}" for token in path) or "the schema"
        raise ConstraintError(self._field, f"{place}: {problem}")

    def _name(self, reference: str, path: tuple[str, ...]) -> str:
        """The name of the definition to which ``reference`` refers."""
        if reference != "#" and not reference.startswith("#/"):
            self._refuse(path, f"{shown(reference)} is not supported: expected # or #/…, a place in this schema")
        if reference == "#/":
            reference = "#"
        reference, _ = self._target(reference, path)
        if reference not in self._names:
            self._names[reference] = f"d{len(self._names)}"
            self._queue.append(reference)
        return self._names[reference]

    def _target(self, reference: str, path: tuple[str, ...]) -> tuple[str, Any]:
        """The canonical spelling of ``reference``, so that its place is read only once; and the value there."""
        found, place = self._root, "#"
        for token in reference[2:].split("/") if len(reference) > 1 else ():
            key = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 7 and int(key) < len(found):
                found, key = found[int(key)], str(int(key))
            else:
                self._refuse(path, f"there is no {shown(reference)} in this schema")
            place += "/" + key.replace("~", "~0").replace("/", "~1").replace("%", "%25")
        return place, found

    def _meant(self, schema: Any, path: tuple[str, ...]) -> Any:
        """The schema to which ``schema`` refers, or itself."""
        for _ in range(_MAX_HOPS):
            if not isinstance(schema, dict) or keywords.without_annotations(schema).keys() != {"$ref"}:
                break
            reference = schema["$ref"]
            if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
                break
            _, schema = self._target(reference, path)
        return schema

    def _schema(self, schema: Any, path: tuple[str, ...]) -> Schema:
        self._schemas += 1
        if self._schemas > MAX_SCHEMAS:
            self._refuse((), f"has more than {MAX_SCHEMAS} schemas within it")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self._refuse(path, "expected a schema: an object, true or false")
        try:
            schema = respelled(schema, lambda inner: self._meant(inner, path))
        except Respelling as error:
            self._refuse((*path, error.keyword), str(error))
        simple: dict[str, Any] = {}
        applied: dict[str, Any] = {}
        for keyword, value in schema.items():
            here = (*path, keyword.replace("~", "~0").replace("/", "~1"))
            try:
                self._keyword(keyword, value, here, simple, applied)
            except KeywordError as error:
                self._refuse(here, str(error))
        if (expression := FORMATS.get(format := simple.get("format", ""))) is not None:
            if "pattern" in simple:
                applied.setdefault("allOf", []).append({"pattern": f"^(?:{expression})$"})
            else:
                simple["pattern"] = f"^(?:{expression})$"
        if expression is not None or format not in FORMATS:
            simple.pop("format", None)
        if "pattern" in simple and "enum" in applied:
            self._values += (_VALUES_PER_MATCH - 1) * len(applied["enum"])
            if self._values > MAX_VALUES:
                most = MAX_VALUES // _VALUES_PER_MATCH
                self._refuse((*path, "enum"), f"too many values beside a pattern or format: expected at most {most}")
        self._check_bounds(simple, path)
        self._check_object(simple, path)
        return {**simple, **applied}

    def _keyword(
        self, keyword: str, value: Any, path: tuple[str, ...], simple: dict[str, Any], applied: dict[str, Any]
    ) -> None:
        if check := keywords.SIMPLE.get(keyword):
            simple[keyword] = check(value)
            return
        match keyword:
            case "const" | "enum":
                applied[keyword] = self._literal(keyword, value)
            case "properties" | "patternProperties":
                simple[keyword] = self._by_name(keyword, value, path)
            case "additionalProperties" | "items":
                simple[keyword] = self._schema(value, path)
            case "prefixItems":
                simple[keyword] = self._list(value, path)
            case "allOf" | "anyOf" | "oneOf":
                applied[keyword] = self._list(value, path)
            case "$ref":
                if not isinstance(value, str):
                    raise KeywordError("expected a text")
                applied[keyword] = f"#/$defs/{self._name(value, path)}"
            case "discriminator":
                if isinstance(value, dict) and isinstance(tag := value.get("propertyName"), str):
                    applied[keyword] = tag
            case "$schema":
                keywords.check_draft(value)
            case "$id" | "id" if len(path) > 1 and isinstance(value, str) and not value.startswith("#"):
                self._check_base(path[:-1])
            case _ if not keywords.annotates(keyword):
                raise KeywordError(f"not supported: expected one of {', '.join(keywords.SUPPORTED)}")

    def _check_base(self, path: tuple[str, ...]) -> None:
        """Refuse references within a schema that has a base of its own, to which they would be relative."""
        _, schema = self._target("#" + "".join(f"/{token}" for token in path), path)
        stack = [schema]
        while stack:
            part = stack.pop()
            stack += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
            if isinstance(part, dict) and isinstance(part.get("$ref"), str):
                raise KeywordError("not supported around a $ref: expected none within a schema, or no references in it")

    def _literal(self, keyword: str, value: Any) -> Any:
        if keyword == "enum" and (not isinstance(value, list) or not value):
            raise KeywordError("expected a list of at least one value")
        for each in value if keyword == "enum" else [value]:
            count = keywords.check_value(each)
            self._values += count
            self._schemas += count if isinstance(each, dict | list) else 0
        if self._values > MAX_VALUES or self._schemas > MAX_SCHEMAS:
            raise KeywordError(
                f"too many values in the schema: expected at most {MAX_VALUES}, and {MAX_SCHEMAS} in objects and arrays"
            )
        return value

    def _by_name(self, keyword: str, value: Any, path: tuple[str, ...]) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise KeywordError("expected an object of schemas")
        limit = MAX_PROPERTIES if keyword == "properties" else MAX_PATTERNS
        if len(value) > limit:
            raise KeywordError(f"has {len(value)} entries: expected at most {limit}")
        rewritten: dict[str, Schema] = {}
        for name, schema in value.items():
            if keyword == "properties":
                keywords.check_text(name)
            key = name if keyword == "properties" else keywords.SIMPLE["pattern"](name)
            rewritten[key] = self._schema(schema, (*path, name.replace("~", "~0").replace("/", "~1")))
        return rewritten

    def _list(self, value: Any, path: tuple[str, ...]) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise KeywordError("expected a list of at least one schema")
        if len(value) > MAX_BRANCHES:
            raise KeywordError(f"has {len(value)} schemas: expected at most {MAX_BRANCHES}")
        return [self._schema(schema, (*path, str(index))) for index, schema in enumerate(value)]

    def _check_bounds(self, simple: dict[str, Any], path: tuple[str, ...]) -> None:
        """Exclusive bounds: of integers they become inclusive; of numbers, llguidance accepts some that are whole."""
        low, high = simple.get("exclusiveMinimum"), simple.get("exclusiveMaximum")
        if simple.get("type") == "integer":
            if low is not None:
                del simple["exclusiveMinimum"]
                simple["minimum"] = max(math.floor(low) + 1, simple.get("minimum", -math.inf))
            if high is not None:
                del simple["exclusiveMaximum"]
                simple["maximum"] = min(math.ceil(high) - 1, simple.get("maximum", math.inf))
            return
        lowest = max((simple[key] for key in ("minimum", "exclusiveMinimum") if key in simple), default=-math.inf)
        highest = min((simple[key] for key in ("maximum", "exclusiveMaximum") if key in simple), default=math.inf)
        if lowest < highest < lowest + 1:
            for keyword, bound in (("exclusiveMinimum", low), ("exclusiveMaximum", high)):
                if bound is not None and float(bound).is_integer():
                    self._refuse(
                        (*path, keyword), "not supported less than 1 from the other bound: use an inclusive one"
                    )

    def _check_object(self, simple: dict[str, Any], path: tuple[str, ...]) -> None:
        """What llguidance cannot count."""
        required = simple.get("required", [])
        if len(required) > MAX_PROPERTIES:
            self._refuse((*path, "required"), f"has {len(required)} names: expected at most {MAX_PROPERTIES}")
        demanded = set(required)
        properties = simple.get("properties", {})
        optional = [name for name, schema in properties.items() if name not in demanded and schema is not False]
        if len(optional) > MAX_OPTIONAL_PROPERTIES:
            self._refuse(
                (*path, "properties"),
                f"has {len(optional)} optional properties: expected at most {MAX_OPTIONAL_PROPERTIES}",
            )
        low = max(0, simple.get("minProperties", 0) - len(required))
        high = simple.get("maxProperties")
        if high is not None:
            high = max(0, high - len(required))
        keyword = "minProperties" if low else "maxProperties"
        if optional and (low or high is not None):
            closed = simple.get("additionalProperties") is False and not simple.get("patternProperties")
            most = MAX_COUNTED_PROPERTIES if high is not None else MAX_DEMANDED_PROPERTIES
            if not (closed and low <= 1 and high in (None, 1) and len(optional) <= most):
                self._refuse(
                    (*path, keyword),
                    f"not supported beside optional properties: expected all properties required, or at most {most} "
                    "optional ones, additionalProperties false, and a count of one more than the required ones",
                )
        elif low > 1:  # llguidance would count a key that is there twice as two
            self._refuse(
                (*path, keyword),
                f"not supported: expected at most {len(required) + 1}, one more than the required ones",
            )

    def _resolve_one_of(self) -> bool:
        """Write each ``oneOf`` as ``anyOf``. Returns whether schemas had to be narrowed for that."""
        exclude, tags = Disjointness(self._definitions), Tags(self._definitions)
        exclusions, is_narrowed = Exclusions(self._definitions), False

        def exclusive(branches: list[Schema], path: tuple[str, ...]) -> list[Schema]:
            nonlocal is_narrowed
            overlaps: dict[int, list[int]] = {}
            for first, second in combinations(range(len(branches)), 2):
                if not exclude.is_certain(branches[first], branches[second]):
                    overlaps.setdefault(first, []).append(second)
                    overlaps.setdefault(second, []).append(first)
            narrowed = list(branches)
            for index, others in overlaps.items():
                found = exclusions.excluding(branches[index], [branches[other] for other in others])
                if found is None:
                    self._refuse(
                        (*path, "oneOf"),
                        f"not supported: schemas {min(index, others[0])} and {max(index, others[0])} may accept the "
                        "same value; use anyOf, or demand in each a property that the others do not demand, or with "
                        "another const",
                    )
                narrowed[index] = found
                is_narrowed = True
            return narrowed

        def resolve(schema: Schema, path: tuple[str, ...]) -> None:
            if isinstance(schema, bool):
                return
            for index, inner in children(schema):
                resolve(inner, (*path, *index))
            if (tag := schema.pop("discriminator", None)) is not None:
                tags.demand(schema, tag)
            if (branches := schema.pop("oneOf", None)) is None:
                return
            branches = exclusive(branches, path)
            if "anyOf" in schema:
                schema.setdefault("allOf", []).append({"anyOf": branches})
            else:
                schema["anyOf"] = branches

        for reference, name in self._names.items():
            resolve(self._definitions[name], tuple(reference[2:].split("/")) if len(reference) > 1 else ())
        tags.settle()
        return is_narrowed
