"""Grammars are compiled once, by whoever asks first, kept within bounds, and refused with a reason."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llguidance
import pytest

from engine_core.errors import InvalidRequestError
from engine_core.structured_output import compiler as module
from engine_core.structured_output.compiler import GrammarCompiler, GrammarsUnavailableError
from tests.engine_core.structured_output.grammars import PERSON, VOCAB, ids_of, new_compiler
from text_core.grammar import limits
from text_core.grammar.limits import WRITTEN_GRAMMAR


class Counted:
    """Makes matchers, and counts them by grammar."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self._make = llguidance.LLMatcher

    def __call__(self, tokenizer: object, grammar: str, **options: object) -> object:
        self.compiled.append(grammar)
        return self._make(tokenizer, grammar, **options)  # type: ignore[arg-type]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(llguidance, "LLMatcher", counted)
    return counted


def test_threads_that_ask_for_the_same_grammar_share_one(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, asked = new_compiler(), threading.Barrier(8)

    def ask(_: int) -> None:
        asked.wait()
        compiler.compile(PERSON)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert counted.compiled == [PERSON]
    first, second = compiler.matcher(PERSON), compiler.matcher(PERSON)
    first.advance([95])
    assert (first.num_tokens, second.num_tokens) == (1, 0)
    assert counted.compiled == [PERSON]
    assert compiler.has(PERSON)


def test_the_grammars_used_last_are_kept(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_GRAMMARS", 3)
    compiler = new_compiler()
    grammars = [f'start: "{name}"' for name in "abcd"]
    for grammar in (*grammars[:3], grammars[0], grammars[3]):
        compiler.compile(grammar)
    assert [compiler.has(each) for each in grammars] == [True, False, True, True]
    monkeypatch.setattr(module, "KEPT_BYTES", len(grammars[0]))
    compiler.compile(grammars[1])
    assert [compiler.has(each) for each in grammars] == [False, True, False, False]
    assert compiler._kept_bytes == len(grammars[1])
    assert counted.compiled == [*grammars, grammars[1]]


def test_grammars_whose_lexers_have_grown_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_MASK", 0.1)
    monkeypatch.setattr(module, "KEPT_SECONDS", 1.0)
    compiler, grammars = new_compiler(), ['start: "a"', 'start: "b"', 'start: "c"']
    first, second, third = map(compiler.matcher, grammars)
    for matcher, seconds in [(first, 0.6), (first, 0.1), (second, 0.3), (third, 0.1)]:
        matcher._observe(seconds)
    assert all(map(compiler.has, grammars))
    second._observe(0.2)
    assert [compiler.has(each) for each in grammars] == [False, True, True]
    first._observe(0.9)  # which is dropped already
    assert compiler._kept_seconds == pytest.approx(0.5)
    third._observe(1.1)
    assert not any(map(compiler.has, grammars))
    assert compiler._kept_seconds == pytest.approx(0.0)
    assert compiler._kept_bytes == 0


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ("", "Empty grammar"),
        ("start: (", r"1\(9\): Expected token '\)'"),
        ("start: x", "x"),
        ("start: /[/", "regex|unclosed"),
        ('start: "a" <[700]>', "token|range"),
        ('{"grammars": [{"json_schema": {"type": "nothing"}}]}', "nothing"),
        ('start: "' + "a" * (1 << 20) + '"', "expected at most 1048576"),
    ],
    ids=lambda value: value[:24],
)
def test_grammars_that_cannot_be_used(grammar: str, problem: str) -> None:
    compiler = new_compiler()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=problem) as caught:
            compiler.compile(grammar)
        assert caught.value.field == "grammar"
        assert "verbose" not in str(caught.value)
    assert not compiler.has(grammar)
    assert compiler._kept_bytes == 0


@pytest.mark.parametrize(
    ("files", "eos", "problem"),
    [
        ({"tokenizer.json": "{}"}, [], "no eos token"),
        ({"tokenizer.json": "{}"}, [2], "the tokenizer cannot be read"),
        ({}, [2], "no tokenizer.json"),
    ],
)
def test_models_that_have_no_grammars(files: dict[str, str], eos: list[int], problem: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(GrammarsUnavailableError, match=problem):
        GrammarCompiler.from_directory(tmp_path, VOCAB, eos)


def test_limits_of_a_mask_grow_with_the_vocabulary() -> None:
    small, large = limits.parser_limits(VOCAB, ""), limits.parser_limits(260_000, WRITTEN_GRAMMAR)
    assert (small.step_lexer_fuel, small.step_max_items) == (200_000, 50_000)
    assert (large.step_lexer_fuel, large.step_max_items) == (1_040_000, 260_000)
    assert small.max_lexer_states == large.max_lexer_states
    assert (small.max_items_in_row, large.max_items_in_row) == (2_000, 1_100)


def test_a_grammar_that_a_client_wrote_may_be_less_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules may make every token slower than the one before, which a schema's do not."""
    monkeypatch.setattr(limits, "MAX_ITEMS", limits.MAX_ITEMS // 10)  # else it takes 10 s
    monkeypatch.setattr(limits, "MAX_WRITTEN_ITEMS", limits.MAX_WRITTEN_ITEMS // 10)
    rules, ways = 'start: s\ns: s s | "a"\n', []
    for grammar in (rules, f"{WRITTEN_GRAMMAR}\n{rules}"):
        matcher = new_compiler().matcher(grammar)
        matcher.advance(ids_of("a" * 60))
        ways.append(matcher.failed_at)
    assert ways[0] is None
    assert ways[1] is not None
    assert ways[1] > 50
