"""The base of grammar rules for a strict tool's arguments, where a format writes objects and lists in its own way."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_keywords import without_annotations
from text_core.grammar.json_schema import checked_schema
from text_core.parsing.argument_types import TypeReader
from text_core.parsing.tool_grammar import ToolSpec, object_schema, other_name

OF_ITEMS, OF_PROPERTIES = ("items", "minItems", "maxItems"), ("properties", "required", "additionalProperties")
_MAX_SCHEMAS = 1_000
"""Schemas of one tool, each as often as it is referred to."""


def is_any(schema: Any) -> bool:
    """Whether ``schema`` allows any value."""
    return schema is True or (isinstance(schema, Mapping) and not without_annotations(schema))


class NestedValues(ABC):
    """Makes the rules of one strict tool's arguments. Raises ``ConstraintError`` for what cannot be enforced."""

    def __init__(self, tool: ToolSpec, index: int, format_name: str) -> None:
        self._field = f"tools[{index}].parameters_json"
        self._index = index
        self._format = format_name
        self._schema = object_schema(tool, index)
        checked_schema(json.dumps(self._schema), field=self._field)  # the code below relies on a valid schema
        self._reader = TypeReader(self._schema)
        self._rules: list[str] = []
        self._named: dict[str, str] = {}
        """Rules by the reference that they stand for."""
        self._left = _MAX_SCHEMAS

    def rules(self) -> list[str]:
        """A rule ``arguments_<index>``, and those that it refers to."""
        pairs = self._pairs(self._schema)
        return [f"arguments_{self._index}: {pairs}", *self._rules]

    @abstractmethod
    def _ways(self, schema: Any, name: str) -> list[str]:
        """Expressions for a value, one of which matches; ``name`` begins the names of the rules that they need."""

    @abstractmethod
    def _pairs(self, schema: Mapping[str, Any]) -> str:
        """An expression for the pairs of an object, in the order of its properties; optional ones may be left out."""

    def _new(self) -> str:
        self._left -= 1
        if self._left < 0:
            raise ConstraintError(
                self._field, f"more than {_MAX_SCHEMAS} schemas within it, for the format {self._format}"
            )
        return f"value_{self._index}_{_MAX_SCHEMAS - self._left}"

    def _value(self, schema: Any) -> str:
        """The name of a rule for a value that ``schema`` allows."""
        name = self._new()
        ways = self._ways(schema, name)
        if not ways:
            raise ConstraintError(self._field, "an argument allows no value")
        self._rules.append(f"{name}: {' | '.join(ways)}")
        return name

    def _referred(self, reference: str) -> str:
        if reference not in self._named:
            self._named[reference] = name = self._new()  # first, as a schema may refer to itself
            self._rules.append(f"{name}: {' | '.join(self._ways(self._reader.target(reference), name))}")
        return self._named[reference]

    def _properties(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str], Any]:
        """The properties of an object, which are required, and the schema of others: False, there are none."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if missing := sorted(set(required) - set(properties)):
            raise ConstraintError(self._field, f"required: {missing[0]!r} is not a property")
        self._check(schema, ("type", "nullable", *OF_PROPERTIES, *OF_ITEMS))
        return properties, required, schema.get("additionalProperties", not properties)

    def _other(self, names: str, properties: Collection[str], schema: Any) -> tuple[str, str]:
        """Names of the terminal for the name of a property beside ``properties``, and of the rule for its value.

        ``names``: a regular expression for all names.
        """
        value = self._value(schema)
        name = f"{value.upper()}_NAME"
        self._rules.append(f"{name}: {other_name(names, properties)}")
        return name, value

    def _only_one(self, schema: Mapping[str, Any]) -> Any:
        """The schema of ``allOf``."""
        self._check(schema, ("allOf",))
        if len(schema["allOf"]) > 1:
            raise ConstraintError(self._field, f"allOf: several schemas are not supported in the format {self._format}")
        return schema["allOf"][0]

    def _listed(self, schema: Mapping[str, Any]) -> list[Any]:
        return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))

    def _no_nested(self, value: Any) -> None:
        if isinstance(value, dict | list):
            problem = f"objects and lists in enum or const: not supported in the format {self._format}"
            raise ConstraintError(self._field, problem)

    def _check(self, schema: Mapping[str, Any], known: Sequence[str]) -> None:
        if unknown := sorted(without_annotations(schema).keys() - set(known)):
            problem = f"{unknown[0]}: not supported beside {known[0]} in the format {self._format}"
            raise ConstraintError(self._field, problem)
