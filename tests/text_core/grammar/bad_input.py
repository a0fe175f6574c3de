"""Constraints that are wrong, endless, enormous or malicious; run as a program, it measures what each costs.

Each ends as a ``ConstraintError`` or is harmless after all. The program runs them on a thread with a small stack and
within a limited memory, so that a stack that overflows or memory that runs out ends it.
"""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.text_core.grammar.matching import checker
from text_core.grammar.constraints import (
    Constraint,
    ConstraintError,
    Grammar,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
    StructuralTags,
)
from text_core.grammar.grammar_text import grammar_of

STACK = 2 << 20
"""Bytes of a thread's stack: what glibc gives where the limit is unlimited; elsewhere it gives 8 MiB."""
MEMORY = 4 << 30

ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


def _chain(count: int, link: dict[str, object]) -> dict[str, object]:
    """``count`` definitions, each of which refers to the next by ``link``."""
    text = json.dumps(link)
    definitions = {f"d{i}": json.loads(text.replace("NEXT", f"#/$defs/d{i + 1}")) for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "string"}}}


def _products() -> Iterator[object]:
    """Schemas whose parts multiply."""
    yield {"allOf": [{"anyOf": [{"properties": {f"a{i}_{j}": True}} for i in range(20)]} for j in range(10)]}
    yield {"allOf": [{"type": "string", "pattern": f"a{i}.*b"} for i in range(50)]}
    yield {"properties": {f"p{i}": True for i in range(200)}, "anyOf": [{"required": [f"p{i}"]} for i in range(200)]}
    yield _chain(50, {"pattern": "a.*b", "$ref": "NEXT"})
    yield {"type": "string", "pattern": "^(.*a.{20}){10}$", "minLength": 1, "maxLength": 10}
    yield {"patternProperties": {f"^(.*{c}.{{20}}){{10}}$": True for c in "abcdefgh"}}
    yield {"enum": [f"value {i}" for i in range(10_000)], "pattern": "9$"}
    yield {"allOf": [{"multipleOf": m} for m in (9_973, 9_967, 9_949)]}
    yield {"oneOf": [{"type": "object", "properties": {f"p{j}": {"const": i}}} for j in range(16) for i in range(16)]}


def _map(index: int, levels: int) -> object:
    """An object with a name of its own and others, whose values are such objects."""
    value: object = True
    for _ in range(levels):
        name = f"p{index}"
        value = {"type": "object", "properties": {name: True}, "required": [name], "additionalProperties": value}
    return value


def _joined_maps() -> Iterator[tuple[str, object]]:
    """Maps joined by allOf: a name of one is joined with the values of the others, at every level."""
    for count, levels in ((10, 4), (6, 6), (5, 8), (20, 10)):
        yield f"{count} maps of {levels} levels", {"allOf": [_map(index, levels) for index in range(count)]}
    for count in (11, 13):
        integers = [[{"type": "integer", "minimum": 2 * index + each} for each in (0, 1)] for index in range(count)]
        maps = [[{"type": "object", "additionalProperties": each} for each in choice] for choice in integers]
        yield f"{count} choices of maps", {"allOf": [{"anyOf": choice} for choice in maps]}
    texts, numbered = {"type": "string"}, [f"p{index}" for index in range(900)]
    large = {"type": "object", "properties": dict.fromkeys(numbered, texts), "required": numbered}
    large["additionalProperties"] = {"type": "integer"}
    beside = {"allOf": [{"$ref": "#/$defs/large"}] * 120 + [{"additionalProperties": texts}] * 120}
    yield "maps beside a large object", {"properties": {f"q{i}": beside for i in range(8)}, "$defs": {"large": large}}
    names = [f"name {i}" for i in range(500)]
    values = {"type": "object", "properties": dict.fromkeys(names, True), "required": names}
    yield (
        "500 names of a map of 500 names",
        {
            "allOf": [
                {"type": "object", "properties": dict.fromkeys(names, True), "required": names},
                {"type": "object", "additionalProperties": values},
            ]
        },
    )


SCHEMAS: dict[str, object] = {
    "false": False,
    "no type": {"type": "integer", "const": "a"},
    "minimum above maximum": {"type": "integer", "minimum": 3, "maximum": 2},
    "no integer between": {"type": "integer", "minimum": 2.1, "maximum": 2.9},
    "no multiple between": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6},
    "pattern too short": {"type": "string", "pattern": "^a$", "minLength": 2},
    "required and forbidden": {"type": "object", "required": ["a"], "additionalProperties": False},
    "refers to itself": {"$ref": "#"},
    "refers in a circle": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    "demands itself": ENDLESS,
    "demands itself in an array": {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    "intersects itself": {
        "$defs": {
            "a": {"properties": {"n": {"$ref": "#/$defs/a"}}},
            "b": {"properties": {"n": {"$ref": "#/$defs/b"}, "k": True}},
        },
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    },
    "10^4 references": _chain(4_000, {"$ref": "NEXT"}),
    "10^3 nested references": _chain(1_000, {"properties": {"a": {"$ref": "NEXT"}}}),
    "levels up to the limit": _chain(60, {"minimum": 1, "allOf": [{"anyOf": [{"$ref": "NEXT"}, {"type": "integer"}]}]}),
    "10^6 alternatives": {"enum": list(range(30_000))},
    "20,000 alternatives": {"enum": list(range(20_000))},
    "10^4 schemas to choose": {"anyOf": [{"const": i} for i in range(10_000)]},
    "256 objects to choose": {
        "anyOf": [{"type": "object", "properties": {f"k{i}": True}, "required": [f"k{i}"]} for i in range(256)]
    },
    "10^4 properties": {"properties": {f"p{i}": True for i in range(10_000)}},
    "1,000 required properties": {
        "properties": {f"p{i}": True for i in range(1_000)},
        "required": [f"p{i}" for i in range(1_000)],
    },
    "256 optional properties": {"properties": {f"p{i}": True for i in range(256)}},
    "5 objects of 1,000 properties": {
        "properties": {
            f"o{j}": {"properties": {f"p{i}": True for i in range(990)}, "required": [f"p{i}" for i in range(990)]}
            for j in range(5)
        }
    },
    "minLength 10^9": {"type": "string", "minLength": 10**9},
    "maxLength 10^9": {"type": "string", "maxLength": 10**9},
    "minItems 10^6": {"type": "array", "minItems": 10**6},
    "maxItems 10^9": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
    "prefixItems and minItems": {"type": "array", "prefixItems": [True] * 256, "minItems": 10**6, "maxItems": 10**6},
    "maxProperties 10^9": {"type": "object", "maxProperties": 10**9},
    "minProperties 10^9": {"type": "object", "minProperties": 10**9},
    "multipleOf 10^-300": {"type": "number", "multipleOf": 1e-300},
    "multipleOf 10,000": {"type": "integer", "multipleOf": 9_973},
    "minimum 10^300": {"type": "number", "minimum": 1e300},
    "string of 200 KiB": {"const": "x" * 200_000},
    "name of 200 KiB": {"properties": {"x" * 200_000: True}, "required": ["x" * 200_000]},
    **{f"product {number}": schema for number, schema in enumerate(_products())},
    **dict(_joined_maps()),
}

SCHEMA_TEXTS = {
    "no JSON": "{",
    "empty": "",
    "a list": "[]",
    "key twice": '{"type": "object", "type": "string"}',
    "half a surrogate pair": '{"const": "\\ud800"}',
    "NaN": '{"minimum": NaN}',
    "1e999": '{"minimum": 1e999}',
    "10^400": '{"minimum": 1' + "0" * 400 + "}",
    "10^5000": '{"const": 1' + "0" * 5000 + "}",
    "10^5 arrays": "[" * 100_000,
    "10^5 objects": '{"not":' * 30_000,
    "100 levels": '{"items":' * 99 + "true" + "}" * 99,
    "properties 50 levels deep": '{"properties":{"a":' * 50 + "true" + "}}" * 50,
    "allOf 50 levels deep": '{"allOf":[' * 49 + "true" + "]}" * 49,
    "10^6 properties": '{"properties": {' + ",".join(f'"p{i}": true' for i in range(1_000_000)) + "}}",
}

PATTERNS = {
    "(a{1,1000}){1,1000}": "(a{1,1000}){1,1000}",
    "a{10^9}": "a{1000000000}",
    "a{20000}": "a{20000}",
    "exponential": "(a|b)*a(a|b){20}",
    "(.*a){200}": "(.*a){200}",
    "(.{0,100}x){150}": "(.{0,100}x){150}",
    "nested stars": "(" * 40 + "a" + ")*" * 40,
    "10^5 groups": "(" * 100_000,
    "10^5 classes": "[" * 100_000,
    "10^5 characters": "a" * 100_000,
    "10^5 alternatives": "a|" * 100_000,
    "huge classes": r"(\p{L}|\p{N}|\W){6000}",
    "a class of 10^4": "[^" + r"\W" * 9_000 + "]",
    "case of 10^4": "(?i)" + "k" * 19_000,
    "matches nothing": r"[^\x00-\U0010ffff]",
    "look-ahead": "(?=a)a",
    "back-reference": r"(a)\1",
    "not closed": "(a",
}

GRAMMARS = {
    "empty": "",
    "blank": " \n",
    "no start": "a: /b/",
    "refers to itself": "start: start",
    "left-recursive without end": 'start: start "a"',
    "right-recursive without end": 'start: "a" start',
    "a part without end": 'start: "a" | "b" x\nx: "c" x',
    "ambiguous": 'start: s\ns: s s | "a" | ""',
    "unknown rule": "start: x",
    "includes": "%import foo.bar\nstart: bar",
    "JSON inside": "start: %json {}",
    "options": '%llguidance {"no_forcing": true}\nstart: "a"',
    "other grammars": "start: @other",
    "limits on tokens": "start: x\nx[max_tokens=5]: /a*/",
    "terminal of itself": "start: A\nA: A",
    "intersections": "start: A\nA: " + " & ".join(f"/.*a{i}.*b/" for i in range(50)),
    "10^6 times": 'start: A\nA: "a"{1000000}',
    "(10^3)^2 times": "start: A\nA: (/a{100}/{100}){100}",
    "2^50 terminals": "\n".join([f"R{i}: R{i + 1} R{i + 1}" for i in range(50)] + ['R50: "a"', "start: R0"]),
    "2^50 rules": "\n".join([f"r{i}: r{i + 1} r{i + 1}" for i in range(50)] + ['r50: "a"', "start: r0"]),
    "2,000 rules": "\n".join([f"r{i}: r{i + 1}" for i in range(1_990)] + ['r1990: "a"', "start: r0"]),
    "10^4 rules": "\n".join([f"r{i}: r{i + 1}" for i in range(9_000)] + ['r9000: "a"', "start: r0"]),
    "10^4 alternatives": "start: " + " | ".join(f'"w{i}"' for i in range(10_000)),
    "10^5 groups": "start: " + "(" * 100_000,
    "50 groups": "start: " + "(" * 50 + '"a"' + ")" * 50,
    "GBNF of itself": "root ::= root",
    "GBNF cut": 'root ::= "a\\',
    "GBNF 10^5 groups": "root ::= " + "(" * 60_000,
    "GBNF 10^4 alternatives": "root ::= " + " | ".join(f'"w{i}"' for i in range(7_000)),
    "GBNF 10^9 times": "root ::= [a-z]{1000000000}",
    "list of grammars": '{"grammars": []}',
}


def cases() -> Iterator[tuple[str, Constraint]]:
    """Names and constraints."""
    for name, schema in SCHEMAS.items():
        yield f"schema: {name}", JsonSchema(json.dumps(schema))
    for name, text in SCHEMA_TEXTS.items():
        yield f"schema: {name}", JsonSchema(text)
    for name, pattern in PATTERNS.items():
        yield f"regex: {name}", Regex(pattern)
        yield f"pattern: {name}", JsonSchema(json.dumps({"type": "string", "pattern": pattern}))
    for name, text in GRAMMARS.items():
        yield f"grammar: {name}", Grammar(text)
    yield "choice: none", OneOf(())
    yield "choice: empty text", OneOf(("",))
    yield "choice: 10,000", OneOf(tuple(f"{i:026}" for i in range(10_000)))
    yield "choice: 10^5", OneOf(tuple(map(str, range(100_000))))
    yield "choice: 16 KiB", OneOf(("x" * 16_384,))
    yield "choice: 256 KiB", OneOf(("x" * 262_144,))
    yield "tags: 256", StructuralTags(tuple(StructuralTag(f"<f{i:04}>", None, "</f>") for i in range(256)))
    yield (
        "tags: 256, one trigger",
        StructuralTags(tuple(StructuralTag(f"<f{i:04}>", None, "</f>", "<f") for i in range(256))),
    )
    yield "tags: 10^4", StructuralTags(tuple(StructuralTag(f"<f{i}>") for i in range(10_000)))
    yield "tags: endless schema", StructuralTags((StructuralTag("<f>", json.dumps(ENDLESS)),))


def _memory(field: str) -> int:
    """Bytes: ``VmRSS`` or, at most since ``_reset_peak``, ``VmHWM``."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))


def _measure() -> None:
    checker().check('start: "a"')
    for name, constraint in cases():
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before, began = _memory("VmRSS"), time.thread_time()
        try:
            checker().check(grammar_of(constraint))
            problem = None
        except ConstraintError as error:
            problem = str(error)
        seconds, mib = time.thread_time() - began, (_memory("VmHWM") - before) / (1 << 20)
        print(json.dumps({"name": name, "seconds": seconds, "mib": mib, "problem": problem}), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.stack_size(STACK)
    thread = threading.Thread(target=_measure)
    thread.start()
    thread.join()
    print(json.dumps({"name": "end"}))
