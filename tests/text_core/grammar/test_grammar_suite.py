"""``make test-grammars``: schemas beside jsonschema, regular expressions beside ``re``, and bad input measured."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.text_core.grammar.bad_input import cases
from tests.text_core.grammar.matching import Compiled, checker
from tests.text_core.grammar.strategies import FORMAT_CHECKER, Values, keywords_of, schemas, written
from text_core.grammar import json_formats, json_keywords
from text_core.grammar.constraints import ConstraintError, JsonSchema, Regex
from text_core.grammar.grammar_text import grammar_of

pytestmark = [pytest.mark.grammars, pytest.mark.timeout(1800)]

SCHEMAS = 1_000
SUITE = "jsonschema==4.26.0"
SECONDS = 0.5
"""Of a processor, for each bad input; the longest takes 0.3 s."""
MIB = 32


def compiled(schema: Any) -> Compiled:
    grammar = grammar_of(JsonSchema(json.dumps(schema)))
    checker().check(grammar)
    return Compiled(grammar)


def test_a_thousand_schemas() -> None:
    """What jsonschema accepts, the grammar does; what it rejects, too; and what random walks write fits."""
    counts: Counter[str] = Counter()
    used: Counter[str] = Counter()
    wrong: list[str] = []

    @settings(
        max_examples=SCHEMAS, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(schemas())
    def try_schema(schema: Any) -> None:
        counts["schemas"] += 1
        try:
            grammar = compiled(schema)
        except ConstraintError as refused:
            counts["refused"] += 1
            if "failed" in refused.problem:
                wrong.append(f"{refused} {json.dumps(schema)}")
            return
        used.update(keywords_of(schema))
        validator = Draft202012Validator(schema, format_checker=FORMAT_CHECKER)
        values = Values(schema, counts["schemas"])
        for _ in range(6):
            value = values()
            text, valid = written(value, schema, schema), validator.is_valid(value)
            counts[f"{'valid' if valid else 'invalid'} values"] += 1
            # Python's $ matches before a line break at the end as well
            if grammar.accepts(text) != valid and not (valid and '\\n"' in text):
                wrong.append(f"{'valid' if valid else 'invalid'}: {text} {json.dumps(schema)}")
        for seed in range(2):
            text = grammar.walk(seed)
            if text is None:
                counts["walks without an end"] += 1
                continue
            counts["walks"] += 1
            if not validator.is_valid(json.loads(text)):
                wrong.append(f"walk: {text} {json.dumps(schema)}")

    try_schema()
    print(f"\n{dict(counts)}\n{dict(used)}")
    assert wrong == []
    assert counts["walks"] >= 9 * counts["walks without an end"]
    assert counts["refused"] <= SCHEMAS / 5
    assert {keyword: used[keyword] for keyword in json_keywords.SUPPORTED if used[keyword] < 30} == {}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any]]:
    """Groups of tests of JSON Schema's own suite, which the sources of jsonschema contain."""
    folder = tmp_path_factory.mktemp("sdist")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "jsonschema",
        "-d",
        str(folder),
        SUITE,
    ]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
    sources = list(folder.glob("*.tar.gz"))
    if not sources:
        pytest.skip(f"pip cannot download the sources of {SUITE}: {done.stderr[-300:]}")
    found = []
    with tarfile.open(sources[0]) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            if "/json/tests/draft2020-12/" in member.name and member.name.endswith(".json"):
                content = archive.extractfile(member)
                assert content is not None
                found += [(Path(member.name).name, group) for group in json.load(content)]
    return found


def test_the_suite_of_json_schema(official: list[tuple[str, Any]]) -> None:
    """No invalid instance is accepted; valid ones are, but for the narrower forms that the documentation names."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for file, group in official:
        try:
            grammar = compiled(group["schema"])
        except ConstraintError:
            counts["refused schemas"] += 1
            continue
        counts["schemas"] += 1
        # formats are enforced, here only where a group says so; some formats, classes and bounds are narrower, and
        # properties that others demand come first
        schema = group["schema"] if isinstance(group["schema"], dict) else {}
        narrower = "format" in schema or file in (
            "ecmascript-regex.json",
            "bignum.json",
            "dependencies-compatibility.json",
            "dependentRequired.json",
        )
        annotates = schema.get("format", "date") not in json_formats.FORMATS
        for test in group["tests"]:
            accepted = grammar.accepts(written(test["data"], group["schema"], group["schema"]))
            counts[f"{'valid' if test['valid'] else 'invalid'}, {'accepted' if accepted else 'rejected'}"] += 1
            if accepted != (test["valid"] or annotates) and not (test["valid"] and narrower):
                wrong.append(f"{file}: {group['description']}: {test['description']}: {test['data']!r}")
    print(f"\n{dict(counts)}")
    assert wrong == []
    assert counts["schemas"] >= 180


_CHARS = st.sampled_from('abcxyzAB019 _-.é😀\n/"')


@st.composite
def _patterns(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 8 if depth else 3))
    match kind:
        case 0 | 1:
            return re.escape(draw(_CHARS))
        case 2:
            return draw(st.sampled_from((r"\d", r"\w", r"\s", ".", r"\.", r"\x41", r"é")))
        case 3:
            members = "".join(
                draw(
                    st.lists(
                        st.sampled_from(["a", "b-y", "0-9", r"\d", r"\w", "_", r"\-", "é"]), min_size=1, max_size=3
                    )
                )
            )
            return f"[{draw(st.sampled_from(('', '^')))}{members}]"
        case 4:
            return "(" + "|".join(draw(st.lists(_patterns(depth - 1), min_size=1, max_size=3))) + ")"
        case 5:
            return (
                "(?:"
                + draw(_patterns(depth - 1))
                + ")"
                + draw(st.sampled_from(("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?")))
            )
    return draw(_patterns(depth - 1)) + draw(_patterns(depth - 1))


def test_two_hundred_regular_expressions() -> None:
    """As ``re.fullmatch`` says, of ASCII; classes and complements of more characters are narrower."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []

    @settings(max_examples=200, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_patterns(), st.lists(st.text(_CHARS, max_size=6), min_size=10, max_size=20))
    def try_pattern(pattern: str, texts: list[str]) -> None:
        counts["expressions"] += 1
        grammar = grammar_of(Regex(pattern))
        checker().check(grammar)
        matcher = Compiled(grammar)
        walks = [matcher.walk(seed, 8, 80) for seed in range(3)]
        for text in [*texts, *(each for each in walks if each is not None)]:
            wide = re.fullmatch(pattern, text) is not None
            matches = wide and re.fullmatch(pattern, text, re.ASCII) is not None
            counts["matches" if matches else "others"] += 1
            accepted = matcher.accepts(text)
            if (accepted and not wide) or (accepted != matches and text.isascii()):
                wrong.append(f"{pattern!r} {text!r}: {accepted}")
        assert all(each is None or re.fullmatch(pattern, each) for each in walks), (pattern, walks)

    try_pattern()
    print(f"\n{dict(counts)}")
    assert wrong == []
    assert counts["expressions"] >= 200


def test_bad_input_costs_little_and_never_ends_the_process() -> None:
    program = [sys.executable, "-m", "tests.text_core.grammar.bad_input"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in sorted(rows[:-1], key=lambda row: -row["seconds"])[:12]:
        figures = f"{row['seconds'] * 1e3:7.1f} ms {row['mib']:6.1f} MiB"
        print(f"{row['name']:40} {figures}  {(row['problem'] or 'accepted')[:80]}")
    assert rows[-1] == {"name": "end"}, f"it ended after {rows[-1]}: {done.stderr[-500:]}"
    assert done.returncode == 0
    assert len(rows) == 1 + len(list(cases()))
    assert [row for row in rows[:-1] if row["seconds"] > SECONDS or row["mib"] > MIB] == []


def test_masks_of_enormous_schemas_keep_their_limits() -> None:
    """Accepted at the limits, they can be answered: random walks end."""
    for schema in (
        {"enum": [f"value {i}" for i in range(10_000)]},
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(256)}},
        {"anyOf": [{"type": "object", "properties": {f"k{i}": True}, "required": [f"k{i}"]} for i in range(256)]},
    ):
        grammar = compiled(schema)
        ends = [grammar.walk(random.Random(seed).randrange(1000)) for seed in range(3)]
        assert any(end is not None and Draft202012Validator(schema).is_valid(json.loads(end)) for end in ends)
