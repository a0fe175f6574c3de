"""A choice that is cut anywhere and goes on with another decoder is the choice that was not cut.

Every output of a few tokens, with every kind of end: an eos or stop token, a stop string, a limit. Tokens are chosen so
that the text of a stop token is a stop string, ends one or begins one. The engine's part is its own ``end_of``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models

from engine_core.config import ModelSpec
from engine_core.request import Finish, Request, SamplingParams
from engine_core.scheduling.outputs import end_of
from engine_core.sequence import SequenceGroup
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.pieces import Pieces
from text_core.tokenizer import Tokenizer

WORDS = ("a", "b", "ab", "<eos>")
EOS = 3
STOPS = (["a"], ["b"], ["ab"], ["<eos>"], ["a", "b<"], ["ba", "aab"], ["aa"], ["<eos>a", "bb"])
"""Sets of stop strings."""
PARTS = (b"\xc3", b"\xa9\xc3", b"\xa9", b"")
"""Tokens of bytes: a character begun, one ended and another begun, one ended, and nothing (a special token)."""
MODEL = ModelSpec("m", "M", 1 << 20, 1 << 20, (), "float32")


class End(NamedTuple):
    """How a choice ended, for its client."""

    stop_string: str | None = None
    stop_token_id: int | None = None


@dataclass
class Read:
    """What a client has of a choice."""

    ids: tuple[int, ...] = ()
    text: str = ""
    end: End | None = None


@dataclass(frozen=True)
class Case:
    """A choice's options, and how its ids become text."""

    pieces: Pieces
    stop: tuple[str, ...] = ()
    include: bool = False
    min_tokens: int = 0
    max_tokens: int = 4
    stop_token_ids: frozenset[int] = frozenset({EOS})

    @property
    def options(self) -> DecodeOptions:
        return DecodeOptions((), self.stop, self.include, self.min_tokens)

    def logs(self, num_tokens: int) -> list[tuple[tuple[int, ...], Finish]]:
        """What an engine keeps of every output of these tokens: the ids up to its end, and that end."""
        params = SamplingParams(
            max_tokens=self.max_tokens, min_tokens=self.min_tokens, stop_token_ids=self.stop_token_ids
        )
        group = SequenceGroup(Request("r", (0,), params), MODEL, 0.0, block_size=4, priority=0, tenant="")
        growing: list[tuple[int, ...]] = [()]
        logs: list[tuple[tuple[int, ...], Finish]] = []
        while growing:
            longer = [(*output, token_id) for output in growing for token_id in range(num_tokens)]
            ends = [(output, end_of(group, output)) for output in longer]
            logs += [(output, finish) for output, finish in ends if finish is not None]
            growing = [output for output, finish in ends if finish is None]
        return logs


def read(case: Case, delivered: int, frames: Sequence[tuple[Sequence[int], Finish | None]]) -> Iterator[Read]:
    """What a decoder adds to ``delivered`` ids if it is given these frames: after each delta, and with the end."""
    decoder, had = ChoiceDecoder(case.pieces, case.options, delivered), Read()
    for ids, finish in frames:
        stop_token = None if finish is None else finish.stop_token_id
        delta = decoder.feed(ids) if finish is None else decoder.finish(ids, stop_token=stop_token is not None)
        if delta is not None and (delta.token_ids or delta.text):
            assert delta.first_position == delivered + len(had.ids)
            had = Read(had.ids + delta.token_ids, had.text + delta.text)
            yield had
        if delta is not None and delta.stop is not None:
            assert delta.end == delivered + len(had.ids)
            yield Read(had.ids, had.text, End(stop_string=delta.stop))
            return
        if finish is not None:
            yield Read(had.ids, had.text, End(stop_token_id=stop_token))
            return


def one_by_one(ids: Sequence[int], finish: Finish) -> list[tuple[Sequence[int], Finish | None]]:
    """The frames of an engine that computes a token a step: the end comes with the last."""
    return [*(([token_id], None) for token_id in ids[:-1]), (ids[-1:], finish)]


def resumed(ids: Sequence[int], count: int, finish: Finish) -> list[tuple[Sequence[int], Finish | None]]:
    """The frames of another engine: the ids it was given, what it computes, and its end, with its last id if any."""
    return [(ids[:count], None), *(one_by_one(ids[count:], finish) if count < len(ids) else [((), finish)])]


def check(case: Case, ids: tuple[int, ...], finish: Finish) -> End:
    """Cut it everywhere; returns the end, which is always the same."""
    *parts, whole = read(case, 0, one_by_one(ids, finish))
    for had in [Read(), *parts]:
        count = len(had.ids)
        for frames in (resumed(ids, count, finish), [(ids, finish)]):  # at another engine; a replay by the same
            *_, rest = read(case, count, frames)
            together = Read(had.ids + rest.ids, had.text + rest.text, rest.end)
            assert together == whole, (case, ids, finish, had, frames)
    assert whole.end is not None
    return whole.end


@pytest.fixture(scope="module")
def words() -> Pieces:
    """The texts of ids that are words."""
    library = HFTokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    library.decoder = decoders.Fuse()
    return pieces_of(library)


@pytest.fixture(scope="module")
def parts() -> Pieces:
    """The texts of ids that are bytes."""
    library = HFTokenizer(models.BPE({part.decode("latin-1"): i for i, part in enumerate(PARTS)}, []))
    library.decoder = decoders.ByteLevel()
    return pieces_of(library)


def pieces_of(library: HFTokenizer) -> Pieces:
    return Tokenizer.from_files({"tokenizer.json": library.to_str().encode()}).pieces()


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_whose_text_is_part_of_a_stop_string(words: Pieces, include: bool) -> None:
    cases = [
        Case(words, tuple(stop), include, min_tokens, stop_token_ids=frozenset(stop_token_ids))
        for stop, min_tokens, stop_token_ids in product(STOPS, (0, 2), ({EOS}, {2}))
    ]
    ends = {check(case, *log) for case in cases for log in case.logs(len(WORDS))}
    assert {(end.stop_string is None, end.stop_token_id is None) for end in ends} == {
        (False, True),
        (True, False),
        (True, True),
    }


@pytest.mark.parametrize("stop", [(), ("\ufffd",), ("é\ufffd",)])
def test_an_end_within_a_character(parts: Pieces, stop: tuple[str, ...]) -> None:
    """As long as ids are held back for a character, and longer."""
    case = Case(parts, stop, max_tokens=7, stop_token_ids=frozenset({2}))
    for ids, finish in case.logs(len(PARTS)):
        if ids[0] == 0:  # else no character is begun
            check(case, ids, finish)
