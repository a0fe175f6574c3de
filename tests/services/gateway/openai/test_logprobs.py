"""Where the tokens of a completion begin in its text."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ringline import TokenLogprob

from services.gateway.openai.logprobs import CompletionLogprobs, TokenNames
from services.gateway.token_texts import TokenTexts


def test_tokens_without_text_are_named_by_their_ids() -> None:
    """Of a model without a tokenizer, none has any: alternatives of one name would be lost."""
    names = TokenNames(TokenTexts(cast(Any, None), "m", {5: b"", 6: b"", 7: b"a"}, 1))
    assert [names[token_id] for token_id in (5, 6, 7)] == ["token_id:5", "token_id:6", "a"]


@pytest.mark.parametrize(
    ("pieces", "text", "offsets"),
    [
        ([b"a", b"bc", b"d"], "abcd", [0, 1, 3]),
        ([b"a", b"<|x|>", b"b"], "ab", [0, 1, 1]),
        ([b" a", b"b"], "ab", [0, 1]),
        ([b"\xe2", b"a", b"b"], "\ufffdab", [0, 0, 2]),
        ([b"\xe2", b"<|x|>", b"\x82\xac", b"b"], "\u20acb", [0, 0, 0, 1]),
        ([b"\xe2\x82", b"a", b"b"], "\ufffd\ufffdab", [0, 0, 3]),
        ([b"a", b"b cut"], "a", [0, 1]),
    ],
)
def test_offsets_are_those_of_the_text(pieces: list[bytes], text: str, offsets: list[int]) -> None:
    texts = TokenTexts(cast(Any, None), "m", dict(enumerate(pieces)), 1)
    lists = CompletionLogprobs(TokenNames(texts))
    scores = [TokenLogprob(-1.0, 1, ())] * len(pieces)
    assert lists.add(range(len(pieces)), scores, text)["text_offset"] == offsets
    assert lists.add([0], scores[:1], text)["text_offset"] == [len(text)]
