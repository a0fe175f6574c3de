"""Whatever callers may write as prompts: what is taken, and what is refused with its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine_core.offline.prompts import read_prompts

Parts = list[tuple[str | None, tuple[int, ...] | None]]


def parts(prompts: Any) -> Parts:
    return [(prompt.text, prompt.token_ids) for prompt in read_prompts(prompts)]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("text", [("text", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        (("a", [1]), [("a", None), (None, (1,))]),
        ([], []),
        ([1, 2], [(None, (1, 2))]),
        ((1, 2), [(None, (1, 2))]),
        (range(3), [(None, (0, 1, 2))]),
        ([-1, 2**70], [(None, (-1, 2**70))]),  # integers: whether a model has them is for the engine to say
        ([[1, 2], [3]], [(None, (1, 2)), (None, (3,))]),
        ([[]], [(None, ())]),
        ([np.int64(3), np.uint8(4)], [(None, (3, 4))]),
        (np.array([1, 2]), [(None, (1, 2))]),
        (np.array([[1, 2], [3, 4]]), [(None, (1, 2)), (None, (3, 4))]),
        (torch.tensor([5, 6]), [(None, (5, 6))]),
        ([torch.tensor([5, 6]), [7]], [(None, (5, 6)), (None, (7,))]),
        ({"prompt": "text"}, [("text", None)]),
        ({"prompt_token_ids": [1]}, [(None, (1,))]),
        (
            [{"prompt": "a"}, {"prompt_token_ids": (1,)}, "b", [2]],
            [("a", None), (None, (1,)), ("b", None), (None, (2,))],
        ),
    ],
    ids=repr,
)
def test_what_is_taken(prompts: Any, expected: Parts) -> None:
    read = parts(prompts)
    assert read == expected
    assert all(type(token_id) is int for _, ids in read for token_id in ids or ())


ANY = r"expected text, a list of token ids, \{\"prompt\": text\} or \{\"prompt_token_ids\": ids\}"


@pytest.mark.parametrize(
    ("prompts", "error", "words"),
    [
        (None, TypeError, f"^prompts is None; {ANY}, or a list of these$"),
        (3, TypeError, f"^prompts is 3, of type int; {ANY}, or a list"),
        (b"text", TypeError, f"^prompts is b'text', of type bytes; {ANY}, or a list"),
        ({1, 2}, TypeError, "^prompts is .*, of type set; "),
        ((token for token in [1]), TypeError, "^prompts is .*, of type generator; "),
        (np.int64(3), TypeError, r"^prompts is .*, of type int64; "),
        ([1, 2.5], TypeError, r"^prompts\[1\] is 2.5, of type float; expected a token id, an integer$"),
        ([1.0], TypeError, r"^prompts\[0\] is 1.0, of type float"),
        ([float("nan")], TypeError, r"^prompts\[0\] is nan"),
        ([True], TypeError, r"^prompts\[0\] is True, of type bool"),
        ([1, "a"], TypeError, r"^prompts\[1\] is 'a', of type str; expected a token id"),
        ([[1], [2, None]], TypeError, r"^prompts\[1\]\[1\] is None; expected a token id"),
        ([[1], [np.float32(2)]], TypeError, r"^prompts\[1\]\[0\] is .*2.0.*, of type float32; expected a token id"),
        ([[np.bool_(True)]], TypeError, r"^prompts\[0\]\[0\] is .* of type bool"),
        (np.array([1.0]), TypeError, r"^prompts\[0\] is 1.0, of type float"),
        ({"prompt": 10**5000}, TypeError, r"^prompts\['prompt'\] is a number of thousands of digits, of type int; "),
        (["a", "b\ud800"], ValueError, r"^prompts\[1\] has U\+D800 at position 1, half of a surrogate pair; expected"),
        ({"prompt": ""}, ValueError, r"^prompts\['prompt'\] is empty; expected text$"),
        ({"prompt": "\udfff"}, ValueError, r"^prompts\['prompt'\] has U\+DFFF at position 0"),
        (torch.tensor([[True]]), TypeError, r"^prompts\[0\]\[0\] is True, of type bool"),
        ([[[1]]], TypeError, r"^prompts\[0\]\[0\] is \[1\], of type list"),
        (["a", 3], TypeError, rf"^prompts\[1\] is 3, of type int; {ANY}$"),
        (["a", None], TypeError, rf"^prompts\[1\] is None; {ANY}$"),
        ({}, ValueError, "^prompts has the keys none; expected 'prompt' or 'prompt_token_ids' alone, or 'prompt' and"),
        ([{"text": "a"}], ValueError, r"^prompts\[0\] has the keys 'text'; expected"),
        (
            {"prompt": "a", "multi_modal_data": {}},
            ValueError,
            r"^prompts\['multi_modal_data'\] has the keys none; expected \{'image'",
        ),
        (
            {"prompt": "a", "multi_modal_data": 3},
            ValueError,
            r"^prompts\['multi_modal_data'\] is 3, of type int; expected \{'image'",
        ),
        ({"prompt": "a", "prompt_token_ids": [1]}, ValueError, "alone, or 'prompt' and 'multi_modal_data'$"),
        ({"prompt": [1]}, TypeError, r"^prompts\['prompt'\] is \[1\], of type list; expected text$"),
        ([{"prompt_token_ids": "a"}], TypeError, r"^prompts\[0\]\['prompt_token_ids'\] is 'a', .* a list of token ids"),
        (
            [{"prompt_token_ids": [1, 2.0]}],
            TypeError,
            r"^prompts\[0\]\['prompt_token_ids'\]\[1\] is 2.0, of type float",
        ),
    ],
)
def test_what_is_refused_names_place_value_and_what_is_accepted(
    prompts: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read_prompts(prompts)


def test_what_is_shown_of_a_value_is_short() -> None:
    with pytest.raises(TypeError) as refused:
        read_prompts([["x" * 10_000]])
    assert len(str(refused.value)) < 200
