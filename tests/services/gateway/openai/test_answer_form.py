"""The form of an answer as the ring's options."""

import copy
from typing import Any

import msgspec
import pytest

from services.gateway.http.api_error import ApiError
from services.gateway.openai.chat import ChatRequest
from services.gateway.openai.sampling_fields import form_names, sampling_options

SCHEMA = {"type": "object"}
TAGS = {
    "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f="],
}
RING_TAGS = {"tags": [{"begin": "<f=a>", "json_schema": SCHEMA, "end": "</f>", "trigger": "<f="}]}


def options(**fields: Any) -> dict[str, Any]:
    return sampling_options(msgspec.convert(fields, ChatRequest))


def test_one_of_means_any_of_only_in_schemas_that_are_not_strict() -> None:
    one_of = {"oneOf": [{"minimum": 1}, {"oneOf": [{"type": "string"}], "anyOf": [True]}], "const": {"oneOf": [1]}}
    schema = {"properties": {"oneOf": one_of}, "items": [one_of], "$defs": {"d": {"not": one_of}}}
    any_of = {
        "anyOf": [{"minimum": 1}, {"anyOf": [True], "allOf": [{"anyOf": [{"type": "string"}]}]}],
        "const": {"oneOf": [1]},
    }
    wanted = {"properties": {"oneOf": any_of}, "items": [any_of], "$defs": {"d": {"not": any_of}}}
    referring = {**schema, "additionalProperties": {"$ref": "#/properties/oneOf/oneOf/0"}}
    before = copy.deepcopy(schema)

    def form(schema: dict[str, Any], **others: Any) -> dict[str, Any]:
        wrapper = {"name": "x", "schema": schema, **others}
        return options(response_format={"type": "json_schema", "json_schema": wrapper})

    assert form(schema, strict=False) == {"json_schema": wanted}
    assert form(schema) == form(schema, strict=True) == {"json_schema": before}
    assert form(referring, strict=False) == {"json_schema": referring}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            {"json_schema": SCHEMA},
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", **SCHEMA}}}, {"json_schema": SCHEMA}),
        ({"response_format": {"json_schema": {"schema": False}}}, {"json_schema": False}),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}}, {"json_schema": SCHEMA}),
        ({"response_format": {"type": "json", "value": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"response_format": SCHEMA}, {"json_schema": SCHEMA}),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, {"regex": "a+"}),
        ({"response_format": {"type": "grammar", "grammar": "root ::= x"}}, {"grammar": "root ::= x"}),
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"ebnf": "root ::= x", "grammar": "", "format": ""}, {"grammar": "root ::= x"}),
        ({"grammar": "root ::= x", "grammar_lazy": False}, {"grammar": "root ::= x"}),
        ({"grammar": {"type": "json", "value": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"format": "json"}, {"json_object": True}),
        ({"format": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json_object": True}, {"json_object": True}),
        ({"response_format": {"type": "structural_tag", **TAGS}}, {"structural_tags": RING_TAGS}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": "root ::= x"}}, {"grammar": "root ::= x"}),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": False}},
            {"json_object": True, "any_whitespace": True},
        ),
        (
            {"structured_outputs": {"structural_tag": msgspec.json.encode(TAGS).decode()}},
            {"structural_tags": RING_TAGS},
        ),
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_regex": "a", "guided_choice": None}, {"regex": "a"}),
        ({"guided_choice": ["a"]}, {"choice": ["a"]}),
        ({"guided_grammar": "g", "response_format": {"type": "text"}}, {"grammar": "g"}),
    ],
)
def test_forms(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert options(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": []}}, "response_format.type"),
        ({"response_format": {"type": {"a": 1}}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": 3}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"schema": SCHEMA, "json_schema": {"schema": SCHEMA}}}, "response_format.schema"),
        ({"response_format": {"type": "regex"}}, "response_format.regex"),
        ({"format": "xml"}, "format"),
        ({"format": "json", "regex": "a"}, "format"),
        ({"grammar": {"type": "xml", "value": "a"}}, "grammar"),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format.format"),
        (
            {"response_format": {"type": "structural_tag", "structures": TAGS["structures"], "triggers": ["x"]}},
            "response_format.triggers",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": "[" * 5000}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {"structures": [3]}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {**TAGS, "triggers": 3}}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_forms_that_cannot_be_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        options(**fields)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"response_format": {"type": "text"}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
        ({"format": SCHEMA}, "format"),
    ],
)
def test_errors_name_the_field_that_gave_the_form(fields: dict[str, Any], name: str) -> None:
    assert form_names(msgspec.convert(fields, ChatRequest))["json_schema"] == name


def test_vllms_spelling_of_numbers() -> None:
    assert options(top_k=-1, seed=-1) == {"top_k": 0, "seed": 2**64 - 1}
    assert options(top_k=5, seed=2**63) == {"top_k": 5, "seed": 2**63}
    with pytest.raises(ApiError) as refusal:
        options(seed=2**64)
    assert refusal.value.param == "seed"
