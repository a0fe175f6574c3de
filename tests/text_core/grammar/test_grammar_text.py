"""Constraints other than JSON Schema, and the grammar of reasoning before an answer."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.text_core.grammar.bad_input import GRAMMARS, PATTERNS
from tests.text_core.grammar.matching import Compiled, bundled, checker
from text_core.grammar.constraints import (
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
from text_core.grammar.grammar_text import after_reasoning, grammar_of

TAGS = (
    StructuralTag("<f=add>", '{"type": "integer"}', "</f>", "<f="),
    StructuralTag("<f=none>", None, "</f>", "<f="),
    StructuralTag("<g>", '{"type": "null"}'),
)


def compiled(constraint: Constraint) -> Compiled:
    grammar = grammar_of(constraint, checker().marker)
    checker().check(grammar)
    return Compiled(grammar)


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("^abc$", ["abc"], ["ab", "xabc"]),
        ("a|b$|^c", ["a", "b", "c"], ["ac"]),
        (r"\d{2,3}-\w+", ["12-a_1"], ["1-a", "12-é"]),
        (r"[^\W\d]+", ["abc"], ["a1", "é", "a b"]),
        (r"[\w.-]+@\S*", ["a-b.c@"], ["@"]),
        (r"a{,2}".replace("{,", "{0,"), ["", "aa"], ["aaa"]),
        (r"{x}", ["{x}"], ["x"]),
        ("a/b\n", ["a/b\n"], ["a/b"]),
        (r"(?i)straße|\u00e9\x41", ["STRAße", "éA"], ["éB"]),
        (r".", ["é", "😀", "\t"], ["\n", "\r", "\u2028", "\u2029", "ab"]),
        (r"[\D][\W]", ["a-", "é "], ["1-", "٣-", "aa", "aé", "a中", "a٣"]),
        (r"(?s).", ["\n"], [""]),
        (r"[a&&b]+?", ["a&b"], ["c"]),
        (r"\ud83d\ude00", ["😀"], [""]),
    ],
)
def test_regular_expressions(pattern: str, fitting: list[str], others: list[str]) -> None:
    grammar = compiled(Regex(pattern))
    assert [text for text in fitting if not grammar.accepts(text)] == []
    assert [text for text in others if grammar.accepts(text)] == []


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (PATTERNS["(a{1,1000}){1,1000}"], "is larger than 20000 characters"),
        (PATTERNS["10^5 groups"], "groups nest deeper than 50, at character 52"),
        (PATTERNS["10^5 characters"], "has more than 20000 characters and classes"),
        (PATTERNS["a{10^9}"], "it repeats more than 20000 times"),
        ("(?=a)", "look-around is not supported, at character 1"),
        (r"(a)\1", "back-references are not supported, at character 5"),
        (r"a\b", "word boundaries are not supported, at character 3"),
        ("a^b", "has an anchor"),
        ("(^a)?", "an anchor is repeated"),
        ("a++", "a repetition is repeated, or possessive"),
        ("*a", "'*' has nothing to repeat, at character 1"),
        ("(a", "a '(' is not closed, at character 1"),
        ("a)", "there is a ')' without a '(', at character 2"),
        ("[a", "a '[' is not closed, at character 1"),
        ("[b-a]", "the range b-a ends before it begins"),
        ("a{2,1}", "the count {2,1} ends before it begins"),
        ("\\", "it ends in a backslash"),
        (r"\q", r"the escape '\q' is not supported"),
        (r"\ud800", "0xd800 is not a character"),
        ("(?P=a)", "'(?P' is not supported"),
        ("a?" * 501, "has more than 500 optional parts in a row"),
        ("(?:a*b{0,3}(?:c|))" * 200, "has more than 500 optional parts in a row"),
    ],
    ids=lambda value: value[:30],
)
def test_regular_expressions_that_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ConstraintError, match=f"^regex: {re.escape(problem)}"):
        grammar_of(Regex(pattern))


def test_choices() -> None:
    grammar = compiled(OneOf(("a", "ab", 'say "hi"\n', "a", "\x7f\\")))
    assert all(map(grammar.accepts, ("a", "ab", 'say "hi"\n', "\x7f\\")))
    assert not any(map(grammar.accepts, ("", "abc", "b")))


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ((), "choice.texts: has 0 texts: expected 1 to 10000"),
        (("a", ""), "choice.texts[1]: has 0 bytes"),
        (("a",) * 10_001, "choice.texts: has 10001 texts"),
        (("a" * 16_385,), "choice.texts[0]: has 16385 bytes: expected 1 to 16384"),
        (("a" * 16_384,) * 17, "choice.texts: have 278528 bytes: expected at most 262144"),
    ],
)
def test_choices_that_are_refused(texts: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(problem)):
        grammar_of(OneOf(texts))


@pytest.mark.parametrize(
    ("text", "fitting", "others"),
    [
        ('start: "a" b? // comment\nb: /[xy\\/]+/ | "z"i\n', ["a", "ax/", "aZ"], ["b", "az/"]),
        ('%import common.INT\n%ignore " "\nstart: INT ("," INT)*\n', ["1 , 22", "3"], [",", "a"]),
        ('?start: e\ne: e "+" T | T\nT: "(" /[a-c]/{1,2} ")"\n', ["(a)+(bc)"], ["(a)+", "(d)"]),
        ('root ::= "a" b*\nb ::= [0-9] | "-" b # x\n', ["a1", "a--2"], ["a-", "1"]),
        ('\n  start: a\n    | "x"\n\n    // comment\n  a: "b"\n\tC: "d"\n', ["b", "x"], ["d"]),
        ('%llguidance {} // as its examples begin\nstart: "a"\n', ["a"], ["b"]),
        (r'root ::= "\u00e9\u0041" [\u00e0-\u00ef\U0001F600]', ["éAé", "éA😀"], ["éa", "éAÿ"]),
    ],
)
def test_context_free_grammars(text: str, fitting: list[str], others: list[str]) -> None:
    grammar = compiled(Grammar(text))
    assert [text for text in fitting if not grammar.accepts(text)] == []
    assert [text for text in others if grammar.accepts(text)] == []


def test_tokens_in_gbnf() -> None:
    token = bundled().token_id("<tool_call>")
    text = 'root ::= tokenq1 (!<[10]>)* <[11]>\ntokenq1 ::= <tool_call> "<[12]>" [<[a>] !<tool_call> # <[13]>\n'
    grammar = grammar_of(Grammar(text), checker().marker)
    assert "start: tokenq1 <[^10]>* <[11]>" in grammar
    assert f'tokenq1: <[{token}]> "<[12]>" /[\\x{{3c}}\\x{{5b}}a\\x{{3e}}]/ <[^{token}]>' in grammar
    assert "tokenqq" not in grammar
    checker().check(grammar)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("root ::= <nothing>", 'unknown special token: "<nothing>"'),
        ("root ::=\n !<nothing>", "line 2: !<nothing> negates no special token of the model: expected one, or an id"),
        (
            '%llguidance {"no_forcing": true}\nstart: "a"',
            "line 1: %llguidance is only supported before all rules and w",
        ),
        ('start: "a"\n%llguidance {}', "line 2: %llguidance is only supported before all rules"),
    ],
)
def test_what_other_servers_write_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(problem)):
        checker().check(grammar_of(Grammar(text), checker().marker))


@pytest.mark.parametrize("name", [name for name in GRAMMARS if name not in ("ambiguous", "2^50 rules")])
def test_context_free_grammars_that_are_refused(name: str) -> None:
    began = time.thread_time()
    with pytest.raises(ConstraintError):
        checker().check(grammar_of(Grammar(GRAMMARS[name])), "grammar")
    assert time.thread_time() - began < 2


def test_optional_parts_in_a_row_are_counted_through_terminals() -> None:
    repeated = "start: TEXT\nTEXT: " + "PART " * 60 + '\nOTHER: OPTIONAL\nOPTIONAL: "d"*\nPART: '
    for part in ('"b"?', "/b*/", '["b"]', '("b" | "c"?)', '(/b/ | "" | "c")', "OTHER"):
        with pytest.raises(ConstraintError, match="has more than 500 optional parts in a row in a terminal"):
            grammar_of(Grammar(repeated + f"{part} " * 9))
    for part in ('"b"', "/b+/", '("b" | "c"+)', "OTHER+ /b/"):
        checker().check(grammar_of(Grammar(repeated + f"{part} " * 9)))
    with pytest.raises(ConstraintError, match="/pattern: has more than 500 optional"):
        grammar_of(JsonSchema(json.dumps({"type": "string", "pattern": "^" + "a?" * 501})))


def test_long_rules_are_read_in_time() -> None:
    rules = [f"b{i}" for i in range(1_500)]
    long = "a " * 50_000 + " ".join(rules)
    began = time.thread_time()
    grammar_of(Grammar(f'start: {long}\na: "x"\n' + "\n".join(f'{rule}: "y"' for rule in rules)))
    assert time.thread_time() - began < 2


@pytest.mark.parametrize("beginning", ['"\\', "[", "[\\"])
def test_gbnf_that_does_not_end_is_read_once(beginning: str) -> None:
    began = time.thread_time()
    with pytest.raises(ConstraintError):
        grammar_of(Grammar("root ::= " + beginning * 30_000))
    assert time.thread_time() - began < 2


def test_structural_tags() -> None:
    grammar = compiled(StructuralTags(TAGS))
    for text in ("", "hello", "a <f", 'x <f=add>12</f> and <f=none>{"a": 1}</f><g>null bye', "<g>null"):
        assert grammar.accepts(text), text
    for text in ("<f=", "<f=sub>", "<f=add>a</f>", "<g>1", "a <g>"):
        assert not grammar.accepts(text), text


def test_structural_tags_that_must_come_first_or_alone() -> None:
    required, single = compiled(StructuralTags(TAGS, required=True)), compiled(StructuralTags(TAGS, single=True))
    both = compiled(StructuralTags(TAGS, required=True, single=True))
    tag = "<f=add>1</f>"
    assert [grammar.accepts(tag) for grammar in (required, single, both)] == [True, True, True]
    assert [grammar.accepts("hi") for grammar in (required, single, both)] == [False, True, False]
    assert [grammar.accepts(f"hi {tag}") for grammar in (required, single, both)] == [False, True, False]
    assert [grammar.accepts(f"{tag} {tag} hi") for grammar in (required, single, both)] == [True, False, False]


def test_tags_may_begin_with_any_text() -> None:
    for begin in ("call <f>", 'a "\n <f> "'):
        grammar = compiled(StructuralTags((StructuralTag(begin, None, "</f>"),)))
        assert grammar.accepts(f"Hi {begin}{{}}</f>, {begin}{{}}</f>")
        assert not grammar.accepts(f"{begin}none")


def test_special_tokens_begin_and_end_tags_as_such() -> None:
    token = bundled().token_id("<tool_call>")
    grammar = grammar_of(StructuralTags((StructuralTag("<tool_call>\n", None, "\n</tool_call>"),)), checker().marker)
    assert checker().marker("<tool_call>") == f"<[{token}]>"
    assert checker().marker("a<tool_call>\n") == f'"a" <[{token}]> "\\n"'
    assert Compiled(grammar).accepts('so: <tool_call>\n{"a": 1}\n</tool_call>')
    assert not Compiled(grammar).accepts("so: <tool_call>\n[]\n</tool_call>")


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ((), "structural_tags.tags: has 0 tags: expected 1 to 256"),
        ((StructuralTag(""),), "structural_tags.tags[0].begin: has 0 bytes: expected 1 to 256"),
        ((StructuralTag("a", None, "b" * 257),), "structural_tags.tags[0].end: has 257 bytes"),
        ((StructuralTag("a", None, "", "b"),), "structural_tags.tags[0].trigger: 'b' is not the beginning of 'a'"),
        ((StructuralTag("f"), StructuralTag("<f>")), "structural_tags.tags[1].trigger: '<f>' contains 'f'"),
        ((StructuralTag("a", '{"not": {"const": 1}}'),), "structural_tags.tags[0].json_schema: /not: not supported"),
    ],
)
def test_structural_tags_that_are_refused(tags: tuple[StructuralTag, ...], problem: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(problem)):
        grammar_of(StructuralTags(tags))


def test_reasoning_before_the_answer() -> None:
    answer = "@answer", {"answer": grammar_of(JsonObject())}
    begun = Compiled(after_reasoning(*answer, "<think>", "</think>", True, checker().marker))
    assert begun.accepts('so {"x"\n</think>{"a": 1}')
    assert not begun.accepts('{"a": 1}')
    assert not begun.accepts("so</think>x")
    optional = Compiled(after_reasoning(*answer, "<think>", "</think>", False, checker().marker))
    assert optional.accepts('<think>so</think>{"a": 1}')
    assert optional.accepts('{"a": 1}')
    assert not optional.accepts('so</think>{"a": 1}')
    special = Compiled(after_reasoning(*answer, "<tool_call>", "</tool_call>\n", False, checker().marker))
    assert special.accepts('<tool_call>so </think></tool_call>\n{"a": 1}')


def test_the_checker_names_the_field() -> None:
    with pytest.raises(ConstraintError, match=r"^grammar: line 1, column 8: unknown name"):
        checker().check("start: x", "grammar")
    with pytest.raises(ConstraintError, match="larger than 1024 KiB"):
        checker().check("start: " + " " * (1 << 20))
