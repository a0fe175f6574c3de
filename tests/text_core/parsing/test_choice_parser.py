"""A choice that is cut anywhere and goes on with another parser has the parts of the choice that was not cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as HFTokenizer

from tests.text_core.parsing.parsing import merged
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.parsing.answer_gate import AnswerGate
from text_core.parsing.choice_parser import ChoiceParser
from text_core.parsing.parts import Content, ParseOptions, Part
from text_core.tokenizer import Tokenizer

BYTES = ("a", "<", "think>", "</", "tool_call>", '{"name": "', 'f"', ', "arguments": {', "}", "Ã", "Ã©", "©", "Ċ", "Ġb")
"""Tokens in the alphabet of bytes; two halves of é among them."""
SPECIAL = ("<eos>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|x|>")
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "analysis", "commentary", "final", "assistant")
"""Of gpt-oss's format; the latter are no special tokens."""
EOS = len(BYTES)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    vocabulary = {token.replace(" ", "Ġ"): token_id for token_id, token in enumerate(BYTES)}
    library = HFTokenizer(models.BPE(vocabulary, []))
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    library.add_tokens([AddedToken(token, special=token[0] == "<", normalized=False) for token in CHANNELS])
    return Tokenizer.from_files({"tokenizer.json": library.to_str().encode()})


@dataclass(frozen=True)
class Case:
    """One choice."""

    ids: tuple[int, ...]
    stop: tuple[str, ...]
    include: bool
    skip: bool
    tool_calls: str
    reasoning: str
    inside: bool
    stop_ids: frozenset[int] = frozenset()
    gated: bool = False
    """Stops count behind the reasoning alone."""

    def read(self, tokenizer: Tokenizer, delivered: int, sizes: Sequence[int]) -> Iterator[Read]:
        """What a client has after each delta and at the end, if frames of these sizes follow ``delivered`` ids."""
        options = ParseOptions(self.tool_calls, self.reasoning, self.inside, content_tokens=True)
        decode = DecodeOptions((), self.stop, self.include, stop_token_ids=self.stop_ids)
        if self.gated and self.reasoning != "none":
            gate = partial(AnswerGate, tokenizer, options, skip_special_tokens=self.skip)
            decode = replace(decode, make_gate=gate)
        decoder = ChoiceDecoder(tokenizer.pieces(skip_special_tokens=self.skip), decode, delivered)
        parser = ChoiceParser(tokenizer, options, 0, decode, skip_special_tokens=self.skip)
        parser.restore(self.ids[:delivered])
        stop_token = self.ids[-1] == EOS
        at, had = 0, Read(delivered)
        for size in [delivered, *sizes, len(self.ids)]:
            frame, at = self.ids[at : at + size], at + size
            last = at >= len(self.ids)
            delta = decoder.finish(frame, stop_token=stop_token) if last else decoder.feed(frame)
            if delta is not None:
                parts = parser.feed(delta, last=last, stop_token=last and stop_token)
                last |= delta.stop is not None
                had = Read(delta.end, had.text + delta.text, had.parts + parts, parser.reasoning_tokens)
                yield had
            if last:
                break
        yield Read(had.count, had.text, had.parts + parser.finish(), parser.reasoning_tokens)


@dataclass(frozen=True)
class Read:
    """What a client has of a choice."""

    count: int
    """Ids, those delivered before included."""
    text: str = ""
    parts: tuple[Part, ...] = ()
    reasoning_tokens: int = 0


CASES = st.builds(
    Case,
    st.lists(st.integers(0, len(BYTES) + len(SPECIAL) - 1), min_size=1, max_size=14).map(tuple),
    st.sampled_from([(), (), ("a",), ("<",), ("}b", "é"), ("\ufffd",), ("l>",)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["none", "hermes"]),
    st.sampled_from(["none", "think"]),
    st.booleans(),
    st.frozensets(st.sampled_from([0, 12, EOS + 5]), max_size=2),
    st.booleans(),
)


@given(CASES, st.lists(st.integers(1, 4), max_size=6))
@settings(max_examples=120)
def test_any_frames_and_any_resume(tokenizer: Tokenizer, case: Case, sizes: list[int]) -> None:
    *parts, whole = case.read(tokenizer, 0, [1] * len(case.ids))
    *_, in_frames = case.read(tokenizer, 0, sizes)
    assert (merged(in_frames.parts), in_frames.text) == (merged(whole.parts), whole.text)
    assert in_frames.reasoning_tokens == whole.reasoning_tokens
    for had in parts:
        *_, rest = case.read(tokenizer, had.count, sizes)
        assert (merged(had.parts + rest.parts), had.text + rest.text) == (merged(whole.parts), whole.text), had
        assert rest.reasoning_tokens == whole.reasoning_tokens


def test_text_of_a_stop_token_comes_once(tokenizer: Tokenizer) -> None:
    case = Case((0, EOS + 5), (), True, False, "none", "none", False, frozenset({EOS + 5}))
    *_, whole = case.read(tokenizer, 0, [])
    *_, rest = case.read(tokenizer, 2, [])
    assert (whole.text, rest.text) == ("a<|x|>", "")


def test_what_waits_for_more_at_a_stop_string_comes_after_a_resume(tokenizer: Tokenizer) -> None:
    """White space that might be a call's, where the stream was lost between the last token and the end."""
    case = Case((0, BYTES.index("Ġb"), 0, 0), ("b",), False, False, "hermes", "none", False)
    *_, last, whole = case.read(tokenizer, 0, [1, 1])
    *_, rest = case.read(tokenizer, last.count, [1])
    assert [part.text for part in last.parts + rest.parts] == ["a", " "]
    assert merged(last.parts + rest.parts) == merged(whole.parts)


@given(CASES)
@settings(max_examples=60)
def test_what_is_not_marked_is_content(tokenizer: Tokenizer, case: Case) -> None:
    *_, plain = replace(case, tool_calls="none", reasoning="none").read(tokenizer, 0, [1] * len(case.ids))
    assert [replace(part, tokens=()) for part in merged(plain.parts)] == ([Content(plain.text)] if plain.text else [])


@pytest.mark.parametrize(
    ("tokens", "counted"),
    [
        (["<think>", "a", "Ċ", "</think>", "Ċ", "a"], 5),
        (["<", "think>", "a", "</", "think>", "a"], 5),
        (["<think>", "Ã", "©", "<", "a"], 5),
        (["a", "<", "think>", "a", "</", "think>"], 0),
    ],
)
def test_tokens_of_reasoning(tokenizer: Tokenizer, tokens: list[str], counted: int) -> None:
    """Those of markers and of the line breaks next to them count; a token counts by its first character."""
    ids = tuple([*BYTES, *SPECIAL].index(token) for token in tokens)
    case = Case(ids, (), False, True, "hermes", "think", False)
    *_, whole = case.read(tokenizer, 0, [1] * len(ids))
    assert whole.reasoning_tokens == counted


@pytest.mark.parametrize(
    ("tokens", "inside", "text"),
    [
        (["a", "</think>", "<", "a"], True, "a<"),
        (["<think>", "a", "Ċ", "a", "</think>", "Ċ", "<", "a"], False, "a\na\n<"),
        (["<", "think>", "a", "</", "think>", "<", "a"], False, "<think>a</think><"),
        (["Ġb", "<", "think>", "a"], False, " b<think>"),
        (["Ċ", "a", "Ċ", "</think>", "Ċ", "Ċ", "<", "|x|"], True, "\na\n\n\n<"),
        (["a", "</think>", "|x|"], True, "a"),
        (["|x|", "a", "</think>", "<"], True, "a<"),
        (["<", "<think>", "a", "</think>", "<", "a"], False, "<a<"),
    ],
)
def test_stops_count_in_the_answer_and_not_in_reasoning(
    tokenizer: Tokenizer, tokens: list[str], inside: bool, text: str
) -> None:
    ids = tuple([*BYTES, *SPECIAL].index(token if token != "|x|" else "<|x|>") for token in tokens)
    case = Case(ids, ("a", "\n"), False, True, "none", "think", inside, frozenset({EOS + 5}), True)
    *_, gated = case.read(tokenizer, 0, [1] * len(ids))
    *_, everywhere = replace(case, gated=False).read(tokenizer, 0, [1] * len(ids))
    assert (gated.text, gated.count) == (text, len(ids))
    assert everywhere.count < len(ids) or inside is False


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("before", ["analysis", "commentary"])
@pytest.mark.parametrize("stop", ["final", "assistant", "s", "ss"])
def test_stops_do_not_count_in_headers(tokenizer: Tokenizer, before: str, stop: str, skip: bool) -> None:
    header = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>"]
    tokens = ["<|channel|>", before, "<|message|>", "a", "<|end|>", *header, "a", "<", "final", "assistant", "a"]
    ids = tuple([*BYTES, *SPECIAL, *CHANNELS].index(token) for token in tokens)
    case = Case(ids, (stop,), False, skip, "none", "harmony", False, gated=True)
    *_, whole = case.read(tokenizer, 0, [1] * len(ids))
    stopped_by = "final" if stop == "final" else "assistant"
    assert whole.count == len(tokens) - tokens[::-1].index(stopped_by)
    content = "".join(part.text for part in whole.parts if isinstance(part, Content))
    assert content.endswith("a<" if stop == "final" else "a<final" + "assistant".partition(stop)[0])
