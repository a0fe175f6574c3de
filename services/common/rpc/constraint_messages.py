"""Constraints as protobuf messages."""

from __future__ import annotations

from ringline.types.v1 import constraint_pb2

from services.text.grammar.constraints import (
    Constraint,
    ConstraintError,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
    StructuralTags,
)


def read_constraint(message: constraint_pb2.Constraint) -> Constraint:
    """What ``message`` asks for, not checked. Raises ``ConstraintError`` if it asks for nothing."""
    match message.WhichOneof("kind"):
        case "json_schema":
            return JsonSchema(message.json_schema, message.any_whitespace)
        case "json_object":
            if not message.json_object:
                raise ConstraintError("json_object", "false: expected true, or no constraint")
            return JsonObject(message.any_whitespace)
        case "regex":
            return Regex(message.regex)
        case "choice":
            return OneOf(tuple(message.choice.texts))
        case "grammar":
            return Grammar(message.grammar)
        case "structural_tags":
            tags = message.structural_tags
            return StructuralTags(tuple(map(_tag, tags.tags)), tags.required, tags.single, message.any_whitespace)
        case "tool_calls":
            raise ConstraintError("tool_calls", "has no grammar of its own: send it to a processor, with output.parse")
        case _:
            kinds = "json_schema, json_object, regex, choice, grammar and structural_tags"
            raise ConstraintError("", f"none is set: expected one of {kinds}")


def _tag(tag: constraint_pb2.StructuralTag) -> StructuralTag:
    return StructuralTag(tag.begin, tag.json_schema or None, tag.end, tag.trigger or None)
