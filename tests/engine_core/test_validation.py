"""Every field of a request that can be out of range is refused by name, and the edges of each range are accepted."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from engine_core.config import ModelSpec
from engine_core.errors import InvalidRequestError
from engine_core.media import MEDIA_DIGEST_BYTES, MediaItem, Picture, PictureShape, View, VisionShape
from engine_core.offline.sampling_params import read_params
from engine_core.request import NoRepeatNgram, ReasoningBudget, Request, SamplingParams
from engine_core.validation import MAX_CHOICES, MAX_LOGPROBS, validate_request

NAN, INF = math.nan, math.inf
MODEL = ModelSpec("m", "M", vocab_size=100, max_model_len=50, eos_token_ids=(1, 2), dtype="float32")
GOOD = Request("r", (5, 6, 7), SamplingParams())

SEES = replace(MODEL, vision=VisionShape(8, limit=3))
PICTURE = Picture.of(PictureShape(2), [View(2, 3, bytes(18))])
ODD_ITEMS = (
    MediaItem(PICTURE, 1.0),
    MediaItem(PICTURE, True),
    MediaItem(None, 1),
    MediaItem(replace(PICTURE, shape=None), 1),
    *(MediaItem(replace(PICTURE, shape=PictureShape(*shape)), 1) for shape in [(2.0,), (2, True), (2, 0, None)]),
    MediaItem(replace(PICTURE, digest="d" * 32), 1),
    MediaItem(replace(PICTURE, views=[View(2, 3, bytes(18))]), 1),
    *(
        MediaItem(replace(PICTURE, views=(view,)), 1)
        for view in [None, View(2.0, 3, bytes(18)), View(2, None, bytes(18)), View(2, 3, bytearray(18))]
    ),
)


def check(request=GOOD, **params):
    if params:
        request = replace(request, params=replace(request.params, **params))
    validate_request(request, MODEL)


def given(field, value):
    """A request with that value of a field, of its own or of its parameters."""
    if hasattr(GOOD.params, field):
        return replace(GOOD, params=replace(GOOD.params, **{field: value}))
    return replace(GOOD, **{field: value})


def refused(request=GOOD, **params):
    """The refusal, if there is one."""
    try:
        check(request, **params)
    except InvalidRequestError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("field", "taken", "wrong"),
    [
        ("temperature", [0.0, 1e-9, 100.0], [NAN, -1.0, -1e-9, INF, 2.0**31]),
        ("top_k", [1, 10**9, None], [0, -1]),
        ("top_p", [1e-9, 1.0], [0.0, 2.0, -0.1, 1.0001, NAN]),
        ("min_p", [0.0, 1.0], [-0.1, 1.1, NAN]),
        ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1, NAN, INF]),
        ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1, NAN, -INF]),
        ("repetition_penalty", [2.0**-31, 0.1, 10.0], [0.0, 1e-46, 4e-10, -1.0, NAN, INF, 2.0**31]),
        ("seed", [0, 2**64 - 1], [-1, 2**64]),
        ("n", [1, MAX_CHOICES], [0, -1, MAX_CHOICES + 1, 10**9]),
        ("max_tokens", [1, 10**9], [0, -1]),
        ("min_tokens", [0, 16], [-1, 17]),
        ("logprobs", [0, MAX_LOGPROBS, None], [-1, MAX_LOGPROBS + 1]),
        ("prompt_logprobs", [0, MAX_LOGPROBS, None], [-1, MAX_LOGPROBS + 1]),
        (
            "logit_bias",
            [{}, {0: -100.0, 99: 100.0}],
            [{100: 1.0}, {-1: 1.0}, {5: NAN}, {5: 100.5}, {5: -INF}, dict.fromkeys(range(2000), 0.0)],
        ),
        (
            "stop_token_ids",
            [frozenset(), frozenset({0, 99})],
            [frozenset({100}), frozenset({-1}), frozenset(range(2000))],
        ),
        (
            "bad_words_token_ids",
            [((0, 99), (5,))],
            [((),), ((5,), ()), ((100,),), ((5, -1),), ((5,) * 2000,), ((5,),) * 2000],
        ),
        ("allowed_token_ids", [(0,), tuple(range(100))], [(), (100,), (5, -1), tuple(range(100)) * 2]),
        (
            "reasoning_budget",
            [None, ReasoningBudget(0, (5,)), ReasoningBudget(2**31 - 1, (0,) * 16, (99,), (99,), frozenset({0, 99}))],
            [
                ReasoningBudget(-1, (5,)),
                ReasoningBudget(2**31, (5,)),
                ReasoningBudget(1, ()),
                *(replace(ReasoningBudget(1, (5,)), **{name: (5,) * 17}) for name in ("closing", "opening", "again")),
                *(replace(ReasoningBudget(1, (5,)), **{name: (100,)}) for name in ("closing", "opening", "again")),
                *(ReasoningBudget(1, (5,), blank=frozenset(blank)) for blank in ([100], [-1], range(2000))),
            ],
        ),
        (
            "no_repeat_ngram",
            [None, NoRepeatNgram(1, 1), NoRepeatNgram(1024, 65536, frozenset({0, 99})), NoRepeatNgram(9, 3)],
            [
                *(NoRepeatNgram(size, 10) for size in (0, -1, 1025)),
                *(NoRepeatNgram(2, size) for size in (0, -1, 65537)),
                *(NoRepeatNgram(2, 10, frozenset(ids)) for ids in ([100], [-1], range(2000))),
            ],
        ),
        ("request_id", ["r"], [""]),
        ("deadline", [0.0, 10**400], [NAN, INF]),
    ],
)
def test_values_beyond_the_edges_of_a_range_are_refused_by_field(field, taken, wrong):
    for value in taken:
        check(given(field, value))
    for value in wrong:
        error = refused(given(field, value))
        assert error.field == field
        assert str(error).startswith(f"{field}: ")
        assert "expected" in error.problem


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", ["hot", None, True, np.float64(0.5)]),
        ("top_k", [1.0, "1", True]),
        ("top_p", ["1", None]),
        ("min_p", [None]),
        ("frequency_penalty", [None, "0"]),
        ("presence_penalty", [None, "0"]),
        ("repetition_penalty", [None, True]),
        ("seed", [1.0, None, True, "1", np.int64(5)]),
        ("n", [1.0, None, True]),
        ("max_tokens", [1.0, None, "5"]),
        ("min_tokens", [0.0, None]),
        ("logprobs", [1.0, True]),
        ("prompt_logprobs", [1.5, "1"]),
        ("ignore_eos", [1, None]),
        ("logit_bias", [[5], {5.0: 1.0}, {"5": 1.0}, {True: 1.0}, {5: "1"}, {5: None}, {np.uint8(5): 1.0}, None]),
        ("stop_token_ids", [[5], frozenset({5.0}), frozenset({"5"}), None]),
        ("bad_words_token_ids", ["ab", (5,), ((5.0,),), ((True,),), ("ab",), None]),
        ("allowed_token_ids", ["ab", (5.0,), (True, 6), {5}]),
        (
            "reasoning_budget",
            [
                5,
                {},
                ReasoningBudget(1.0, (5,)),
                ReasoningBudget(True, (5,)),
                *(
                    replace(ReasoningBudget(1, (5,)), **{name: "ab"})
                    for name in ("closing", "opening", "again", "blank")
                ),
                *(replace(ReasoningBudget(1, (5,)), **{name: (5.0,)}) for name in ("closing", "opening", "again")),
                ReasoningBudget(1, (5,), blank=frozenset({5.5})),
                ReasoningBudget(1, (5,), begun=1),
            ],
        ),
        (
            "no_repeat_ngram",
            [
                5,
                {},
                NoRepeatNgram(2.0, 10),
                NoRepeatNgram(True, 10),
                NoRepeatNgram(2, "10"),
                NoRepeatNgram(2, 10, [5]),
                NoRepeatNgram(2, 10, frozenset({5.0})),
            ],
        ),
        ("media", [None, [], (5,), (PICTURE,), *(((item),) for item in ODD_ITEMS)]),
        ("request_id", [None, 5]),
        ("prompt_token_ids", ["ab", (5, 6.0), (5, True), (5, "6"), (5, None), (math.nan,), None, {5}]),
        ("params", [None, {}]),
        ("priority", [1.5, None]),
        ("tenant", [None, b"a"]),
        ("cache_salt", ["salt", None]),
        ("deadline", ["soon", True]),
        ("resume", [[(5,)], {0: 5}, {0.0: (5,)}, {0: (5.0,)}, {0: "ab"}, {True: (5,)}, {0: (np.int64(5),)}]),
    ],
)
def test_values_of_other_types_are_refused_by_the_name_of_their_field(field, values):
    """Many would pass a comparison, and raise inside of a step, or overflow there, as numpy's numbers do."""
    for value in values:
        error = refused(given(field, value))
        assert error.field == field
        assert "of type" in error.problem
        assert "expected" in error.problem


ODD = (
    *(NAN, INF, -INF, 10**5000, -(10**5000), True, "1", b"1", None, 1j, object(), Decimal("0.5"), Decimal(10**5000)),
    *(Fraction(1, 2), Fraction(10**5000, 3), (), [], {}, set()),
    *((10**5000,), [[10**5000]], {10**5000: 1.0}, {5: 10**5000}),
    *(np.float32(0.5), np.float64(NAN), np.longdouble("1e4000"), np.int64(5), np.uint64(2**64 - 1), np.bool_(True)),
    *(np.array(5), np.array([5, 6]), {"a": 1}, {5: "a"}, {None}, ((None,),), (("a",),), ((10**5000,),), {True}),
)


@pytest.mark.parametrize("field", [each.name for each in fields(SamplingParams)])
def test_odd_values_are_taken_or_refused_by_the_name_of_their_field(field):
    """As ``LLM`` takes them."""
    for value in ODD:
        request = replace(GOOD, params=read_params(given(field, value).params, "").for_engine())
        if (error := refused(request)) is not None:
            beside = {"max_tokens": "min_tokens", "stop_token_ids": "min_tokens"}
            assert error.field in (field, beside.get(field))
            assert "expected" in error.problem
            assert len(str(error)) < 300


def test_prompts():
    check(replace(GOOD, prompt_token_ids=(0, 99)))
    check(replace(GOOD, prompt_token_ids=(5,) * 49))
    for prompt, problem in [
        ((), "empty"),
        ((5,) * 50, "at most 49"),
        ((5, 100), "token id 100"),
        ((-1, 5), "token id -1"),
    ]:
        error = refused(replace(GOOD, prompt_token_ids=prompt))
        assert error.field == "prompt_token_ids"
        assert problem in error.problem


def test_resumed_output():
    check(replace(GOOD, resume={0: (5, 6), 2: ()}), n=3)
    check(replace(GOOD, resume={0: (5,) * 16}))  # all of it: the choice ends at once
    check(replace(GOOD, resume={0: (5,) * 47}), max_tokens=100)
    for resume, params, problem in [
        ({1: (5,)}, {}, "choice 1"),
        ({-1: (5,)}, {}, "choice -1"),
        ({0: (5,) * 17}, {}, "at most 16"),
        ({0: (5,) * 48}, {"max_tokens": 100}, "at most 47"),
        ({0: (5, 100)}, {}, "token id 100"),
    ]:
        error = refused(replace(GOOD, resume=resume), **params)
        assert error.field == "resume"
        assert problem in error.problem


def test_bans_must_leave_something_to_sample():
    assert refused(allowed_token_ids=(5, 6), bad_words_token_ids=((5,), (6,))).field == "bad_words_token_ids"
    check(allowed_token_ids=(5, 6), bad_words_token_ids=((5,), (6, 5)))
    everything = tuple((token_id,) for token_id in range(100))
    assert refused(bad_words_token_ids=everything).field == "bad_words_token_ids"
    check(bad_words_token_ids=everything[1:])


def test_min_tokens_must_leave_something_to_sample():
    assert refused(allowed_token_ids=(1, 2), min_tokens=1).field == "min_tokens"
    check(allowed_token_ids=(1, 2), min_tokens=1, ignore_eos=True)
    check(allowed_token_ids=(1, 2))
    check(allowed_token_ids=(1, 2, 5), min_tokens=1)
    assert refused(allowed_token_ids=(1, 5), stop_token_ids=frozenset({5}), min_tokens=1).field == "min_tokens"
    assert refused(allowed_token_ids=(1, 5), bad_words_token_ids=((5,),), min_tokens=1).field == "min_tokens"
    all_stop = frozenset(range(100))
    assert refused(stop_token_ids=all_stop, min_tokens=1).field == "min_tokens"


def with_pictures(*media):
    return replace(GOOD, prompt_token_ids=(5,) * 10, media=media)


def resized(num_tokens, **shape):
    return replace(PICTURE, shape=PictureShape(num_tokens, **shape))


def test_pictures():
    fine = [
        (),
        (MediaItem(PICTURE, 0), MediaItem(PICTURE, 2), MediaItem(PICTURE, 8)),
        (MediaItem(resized(8, rows=2, columns=1, token_rows=2**31 - 1), 2),),
    ]
    for media in fine:
        validate_request(with_pictures(*media), SEES)
    item = MediaItem(PICTURE, 0)
    for media, problem in [
        ((item, MediaItem(PICTURE, 1)), "offset 1 of picture 1; expected at least 2"),
        ((MediaItem(PICTURE, 4), item), "offset 0 of picture 1; expected at least 6"),
        ((MediaItem(PICTURE, -1),), "offset -1 of picture 0; expected at least 0"),
        ((MediaItem(PICTURE, 9),), "end 11 of picture 0; expected at most the prompt's length, 10"),
        ((MediaItem(PICTURE, 10**5000),), "at most the prompt's length"),
        (tuple(MediaItem(PICTURE, at) for at in (0, 2, 4, 6)), "has 4 pictures; expected at most 3"),
        ((MediaItem(resized(9), 0),), "num_tokens 9 of picture 0; expected from 1 to 8"),
        ((MediaItem(resized(0), 0),), "expected from 1 to 8"),
        ((MediaItem(resized(2, rows=-1), 0),), "rows -1 of picture 0"),
        ((MediaItem(resized(2, token_columns=2**31), 0),), "token_columns"),
        ((MediaItem(replace(PICTURE, digest=b"short"), 0),), f"of 5 bytes; expected {MEDIA_DIGEST_BYTES} bytes"),
        ((MediaItem(replace(PICTURE, views=()), 0),), "0 views of picture 0; expected from 1 to 256"),
        ((MediaItem(replace(PICTURE, views=PICTURE.views * 257), 0),), "257 views"),
        ((MediaItem(replace(PICTURE, views=(View(0, 3, b""),)), 0),), "0 × 3 pixels"),
        ((MediaItem(replace(PICTURE, views=(View(2, 2**17, b""),)), 0),), "pixels; expected"),
        ((MediaItem(replace(PICTURE, views=(View(2, 3, bytes(17)),)), 0),), "17 bytes; expected 18"),
    ]:
        with pytest.raises(InvalidRequestError) as caught:
            validate_request(with_pictures(*media), SEES)
        assert caught.value.field == "media"
        assert problem in caught.value.problem
        assert len(str(caught.value)) < 300
    in_parts = replace(MODEL, vision=VisionShape(8, limit=2, parts=2))
    five = [MediaItem(PICTURE, at) for at in (0, 2, 4, 6, 8)]
    validate_request(with_pictures(*five[:4]), in_parts)
    with pytest.raises(InvalidRequestError, match="has 5 pictures; expected at most 4, 2 for each of 2 "):
        validate_request(with_pictures(*five), in_parts)
    with pytest.raises(InvalidRequestError, match="this model takes no pictures"):
        validate_request(with_pictures(item), MODEL)
