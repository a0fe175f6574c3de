import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from text_core.choice_decoder import ChoiceDecoder, DecodeOptions, Delta
from text_core.stop_strings import MAX_STOP_STRINGS, MAX_STOP_STRINGS_TOTAL_BYTES, StopStrings
from text_core.tokenizer import Tokenizer as TextTokenizer

WORDS = ["a", "b", "ab", "ba", "aab", "bba", "c", "abcab", "<skip>", "cbbb"]
fuzz = settings(max_examples=150, deadline=None)

stop_sets = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=5).map(tuple)
id_lists = st.lists(st.integers(0, len(WORDS) - 1), max_size=25)


@pytest.fixture(scope="module")
def words():
    """A tokenizer whose text is its entries, one after the other; ``<skip>`` is special."""
    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    library.decoder = decoders.Fuse()
    library.add_special_tokens(["<skip>"])
    return TextTokenizer.from_files({"tokenizer.json": library.to_str().encode()})


def naive_match(texts, stops, min_tokens):
    """Earliest end, then earliest begin, of every occurrence in the whole text: (end, begin, stop, ids through it)."""
    whole, early = texts[-1], len(texts[min(min_tokens, len(texts) - 1)])
    found = [
        (begin + len(stop), begin, stop)
        for stop in stops
        for begin in range(len(whole))
        if whole.startswith(stop, begin) and begin + len(stop) > early
    ]
    if not found:
        return None
    end, begin, stop = min(found)
    return end, begin, stop, next(k for k, text in enumerate(texts) if len(text) >= end)


def naive_held(text, stops):
    return max(n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))


def split(draw, ids):
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def test_equals_a_search_of_the_whole_text(words):
    @fuzz
    @given(st.data(), id_lists, stop_sets, st.booleans(), st.integers(0, 6))
    def check(data, ids, stops, include, min_tokens):
        texts = [words.decode(ids[:k]) for k in range(len(ids) + 1)]
        options = DecodeOptions((), stops, include, min_tokens)
        decoder = ChoiceDecoder(words.pieces(), options)
        deltas = [delta for chunk in split(data.draw, ids) if (delta := decoder.feed(chunk))]
        stopped = decoder.stopped
        deltas.append(decoder.finish())
        text, count = "".join(delta.text for delta in deltas), sum(len(delta.token_ids) for delta in deltas)
        match = naive_match(texts, stops, min_tokens)
        assert stopped == (match is not None)
        if match is None:
            assert (text, count) == (texts[-1], len(ids))
            return
        end, begin, stop, position = match
        assert text == texts[-1][: end if include else begin]
        assert [delta.stop for delta in deltas if delta.stop] == [stop]
        assert deltas[-2].end == count == decoder.delivered == position
        assert decoder.feed([0]) is None

    check()


def test_holds_back_what_may_become_a_stop_string_and_no_more(words):
    @fuzz
    @given(id_lists, stop_sets, st.integers(0, 6))
    def check(ids, stops, min_tokens):
        decoder, text = ChoiceDecoder(words.pieces(), DecodeOptions((), stops, False, min_tokens)), ""
        texts = [words.decode(ids[:k]) for k in range(len(ids) + 1)]
        for k, token_id in enumerate(ids, 1):
            delta = decoder.feed([token_id])
            if decoder.stopped:
                return
            text += delta.text if delta else ""
            safe = len(texts[k]) - naive_held(texts[k], stops)
            assert decoder.delivered == max(j for j in range(k + 1) if len(texts[j]) <= safe)
            assert text == texts[decoder.delivered]

    check()


def test_nothing_is_held_back_where_the_stop_string_is_included(words):
    decoder = ChoiceDecoder(words.pieces(), DecodeOptions((), ("abc",), True))
    assert decoder.feed([0]) == Delta(0, (0,), "a")
    assert decoder.feed([1, 8]) == Delta(1, (1, 8), "b")
    assert decoder.feed([7, 6]) == Delta(3, (7,), "abc", "abc")


def test_a_new_decoder_finds_the_same_stop(words):
    @fuzz
    @given(st.data(), id_lists, stop_sets, st.booleans(), st.integers(0, 6))
    def check(data, ids, stops, include, min_tokens):
        options = DecodeOptions((), stops, include, min_tokens)
        first = ChoiceDecoder(words.pieces(), options)
        deltas = [Delta(0, (), ""), *(delta for i in ids if (delta := first.feed([i])))]
        if not first.stopped:
            deltas.append(first.finish())
        at = data.draw(st.integers(0, len(deltas) - 2)) if len(deltas) > 1 else 0
        second = ChoiceDecoder(words.pieces(), options, deltas[at].end)
        again = [delta for chunk in split(data.draw, ids) if (delta := second.feed(chunk))]
        if not second.stopped:
            again.append(second.finish())
        rest = deltas[at + 1 :]
        assert "".join(delta.text for delta in again) == "".join(delta.text for delta in rest)
        assert [i for delta in again for i in delta.token_ids] == [i for delta in rest for i in delta.token_ids]
        assert (second.stopped, again[-1].stop) == (first.stopped, deltas[-1].stop)

    check()


def test_a_stop_string_begun_in_delivered_text_still_stops(words):
    decoder = ChoiceDecoder(words.pieces(), DecodeOptions((), ("abc",)), delivered=2)
    assert decoder.feed([0, 1]) is None
    assert decoder.feed([1]) == Delta(2, (1,), "b")
    decoder = ChoiceDecoder(words.pieces(), DecodeOptions((), ("abc",)), delivered=2)
    assert decoder.feed([0, 1, 9, 0]) == Delta(2, (9,), "", "abc")


def test_a_stop_string_within_delivered_ids_ends_the_choice_there(words):
    decoder = ChoiceDecoder(words.pieces(), DecodeOptions((), ("ab",)), delivered=4)
    delta = decoder.feed([0, 1, 0])
    assert delta == Delta(4, (), "", "ab")
    assert delta.end == 4


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "aba")])
def test_the_text_of_a_stop_token(words, include, text):
    options = DecodeOptions((), ("c",), include)
    decoder = ChoiceDecoder(words.pieces(), options)
    assert decoder.finish([0, 3], stop_token=True) == Delta(0, (0, 3), text)
    decoder = ChoiceDecoder(words.pieces(), options)
    assert decoder.finish([0, 3]) == Delta(0, (0, 3), "aba")


def test_a_stop_string_before_the_end_wins_over_it(words):
    decoder = ChoiceDecoder(words.pieces(), DecodeOptions((), ("b",)))
    assert decoder.finish([0, 1, 0, 3], stop_token=True) == Delta(0, (0, 1), "a", "b")
    assert decoder.finish() == Delta(2, (), "")


def test_held_ids_are_delivered_at_the_end(words):
    decoder = ChoiceDecoder(words.pieces(), DecodeOptions((), ("abcab!",)))
    assert decoder.feed([7, 8]) is None
    assert decoder.finish() == Delta(0, (7, 8), "abcab")


def test_stop_strings_across_characters_that_arrive_in_bytes(byte_level, sentencepiece_bpe):
    for tokenizer in (byte_level, sentencepiece_bpe):
        ids = tokenizer.encode("so 😀🎉 it ends", add_special_tokens=False)
        decoder = ChoiceDecoder(tokenizer.pieces(), DecodeOptions((), ("🎉 it",)))
        deltas = [delta for i in ids if (delta := decoder.feed([i]))]
        assert "".join(delta.text for delta in deltas) == "so 😀"
        assert tokenizer.decode(ids[: deltas[-1].end]).startswith("so 😀🎉 it")
        assert not tokenizer.decode(ids[: deltas[-1].end - 1]).startswith("so 😀🎉 it")


LARGEST = MAX_STOP_STRINGS_TOTAL_BYTES // MAX_STOP_STRINGS
"""Of as many stop strings as there may be, all of one size."""


def test_the_largest_set_of_stop_strings():
    stops = StopStrings([chr(ord("0") + i) + "x" * (LARGEST - 1) for i in range(MAX_STOP_STRINGS)])
    partial_stop, match = stops.find("", "y0" + "x" * (LARGEST - 2))
    assert (match, len(partial_stop)) == (None, LARGEST - 1)
    assert stops.find(partial_stop, "zx")[1] is None
    assert stops.find(partial_stop, "x")[1].stop == "0" + "x" * (LARGEST - 1)


def test_the_largest_set_is_set_up_without_going_through_its_characters():
    """It happens on the event loop, for every request: 10 ms each would be a second for a hundred of them."""
    small, large = ([chr(ord("0") + i) + "x" * (size - 1) for i in range(MAX_STOP_STRINGS)] for size in (2, LARGEST))
    assert instructions(lambda: StopStrings(large)) == instructions(lambda: StopStrings(small))


def instructions(call):
    """Lines of Python run within ``services``."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line" and "services" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("stops", [(), ("a", "")])
def test_empty_stop_strings_are_refused(stops):
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(stops)


def test_more_stop_strings_than_a_request_may_have_are_refused():
    with pytest.raises(ValueError, match=f"^{MAX_STOP_STRINGS + 1} stop strings: expected at most {MAX_STOP_STRINGS}$"):
        StopStrings(["x"] * (MAX_STOP_STRINGS + 1))


def test_characters_that_mean_something_to_regular_expressions():
    stops = StopStrings(["]", "^x", "-", "\\d"])
    for text, stop in [("a]", "]"), ("1^x", "^x"), ("+-", "-"), ("5\\d", "\\d")]:
        assert stops.find("", text)[1].stop == stop
    assert stops.find("", "az5,")[1] is None
