"""Tagged unions: makes the property that ``discriminator`` names required in each of their schemas.

pydantic gives the tag a default, so does not list it as required, but rejects values without it. Requiring it narrows
the union, and only then do the schemas exclude each other.
"""

from __future__ import annotations

from typing import Any

from text_core.grammar.json_combinations import PREFIX, Definitions, Schema, referred


class Tags:
    """Makes tags required; copies definitions to do so, as other references to them must stay without the tag."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._copies: dict[tuple[str, str], str] = {}

    def demand(self, schema: dict[str, Any], tag: str) -> None:
        """Make ``tag`` required in each schema of its ``oneOf`` and ``anyOf``."""
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                schema[keyword] = [self._tagged(branch, tag) for branch in schema[keyword]]

    def settle(self) -> None:
        """Make the copies again, from the final definitions."""
        for (name, tag), copy in list(self._copies.items()):
            self._definitions[copy] = self._tagged(self._definitions[name], tag)

    def _tagged(self, branch: Schema, tag: str) -> Schema:
        if isinstance(branch, bool):
            return branch
        if (name := referred(branch)) is not None:
            if len(branch) > 1 or not _has(self._definitions[name], tag):
                return branch
            if (copy := self._copies.get((name, tag))) is None:
                copy = self._copies[name, tag] = f"t{len(self._copies)}"
                self._definitions[copy] = self._tagged(self._definitions[name], tag)
            return {"$ref": f"{PREFIX}{copy}"}
        if _has(branch, tag):
            return {**branch, "required": list(dict.fromkeys([*branch.get("required", []), tag]))}
        changed = dict(branch)
        self.demand(changed, tag)
        return changed


def _has(schema: Schema, tag: str) -> bool:
    return isinstance(schema, dict) and tag in schema.get("properties", {})
