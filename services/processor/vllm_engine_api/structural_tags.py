"""Converts structural tags from vLLM's two forms of JSON to ours: free text in which tags begin JSON."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

from ringline.types.v1 import constraint_pb2

from services.processor.admission.validation import refuse
from services.ring.errors import Refused
from text_core.grammar.constraints import MAX_TAGS, MAX_TEXT_BYTES

FIELD = "sampling_params.structural_tag"


def read_structural_tags(text: str) -> constraint_pb2.StructuralTags:
    """The tags in ``text``: ``{"structures": [{"begin", "schema", "end"}], "triggers"}``, or a ``format`` of the type
    ``triggered_tags`` or ``tag`` whose contents are of the type ``json_schema``. Raises ``Refused``.
    """
    if (size := len(text.encode())) > MAX_TEXT_BYTES:
        raise refuse(FIELD, f"{size} bytes: expected at most {MAX_TEXT_BYTES}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(FIELD, f"not JSON ({error}): expected an object") from None
    document = _object(document, "the document")
    if "structures" in document:
        structures = [_object(each, "a structure") for each in _list(document, "structures")]
        tags = [(each.get("begin"), each.get("schema", {}), each.get("end", "")) for each in structures]
        return _tags(tags, _list(document, "triggers"))
    given = _object(document.get("format"), "format")
    match given.get("type"):
        case "triggered_tags":
            tags = [_tag(_object(each, "a tag")) for each in _list(given, "tags")]
            found = _tags(tags, _list(given, "triggers"))
            found.required = given.get("at_least_one", False) is True
            found.single = given.get("stop_after_first", False) is True
        case "tag":
            found = _tags([_tag(given)], [])
            found.required = found.single = True
        case other:
            raise _not_supported("format", other, "triggered_tags or tag")
    return found


def _tag(tag: dict[str, Any]) -> tuple[object, object, object]:
    content = _object(tag.get("content"), "content")
    if content.get("type") != "json_schema":
        raise _not_supported("content", content.get("type"), "json_schema")
    return tag.get("begin"), content.get("json_schema", {}), tag.get("end", "")


def _tags(tags: list[tuple[object, object, object]], triggers: list[Any]) -> constraint_pb2.StructuralTags:
    for count, what in ((len(tags), "tags"), (len(triggers), "triggers")):
        if count > MAX_TAGS:
            raise refuse(FIELD, f"has {count} {what}: expected at most {MAX_TAGS}")
    found = constraint_pb2.StructuralTags()
    for begin, schema, end in tags:
        if not _is_text(begin) or not _is_text(end):
            raise refuse(FIELD, "begin and end of a tag must be texts")
        trigger = next((each for each in triggers if _is_text(each) and each and begin.startswith(each)), None)
        if trigger is None and triggers:
            raise refuse(FIELD, f"no trigger begins {begin[:80]!r}: expected one for every tag")
        found.tags.add(begin=begin, json_schema=json.dumps(schema), end=end, trigger=trigger or "")
    return found


def _is_text(value: object) -> TypeGuard[str]:
    """Whether it is a string that UTF-8 can encode: JSON may contain a lone surrogate."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(FIELD, f"{what} is a JSON {type(value).__name__}: expected an object")
    return value


def _list(value: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(found := value.get(name, []), list):
        raise refuse(FIELD, f"{name} is a JSON {type(found).__name__}: expected a list")
    return found


def _not_supported(what: str, kind: object, expected: str) -> Refused:
    return refuse(FIELD, f"a {what} of the type {str(kind)[:80]!r} is not supported: expected {expected}")
