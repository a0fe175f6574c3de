"""The rule: text delivered = decode(context + ids delivered) less decode(context), at every delta."""

from functools import cache
from itertools import chain, groupby, product

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tests.text_core import trained_tokenizers
from tests.text_core.reference_decoder import Account
from tests.text_core.trained_tokenizers import KINDS, tokenizer_json
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.incremental_decoder import MAX_UNFINISHED_TOKENS, left_context
from text_core.tokenizer import Tokenizer as TextTokenizer
from text_core.tokenizer import TokenizerError

each_kind = pytest.mark.parametrize("kind", KINDS)
fuzz = settings(max_examples=60, deadline=None)

SAMPLES = ["the ", "naïve", " café", "中文", "日本語", "한국어", "สวัสดี", "नमस्ते", "😀", "👩‍👩‍👧", "🇩🇪", "🏳️‍🌈", "👍🏽"]
SAMPLES += ["e\u0301\u0323", "\u202e", "\x00", "\n\n", "  ", "▁", "<s>", "<|im_end|>", "<tool>", "\U0010fffd", "ﬁ"]
texts = (
    st.lists(st.sampled_from(SAMPLES) | st.text(max_size=4), max_size=14)
    .map("".join)
    .map(lambda t: t.replace("\ufffd", ""))
)


def chunked(draw, ids):
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def feed_all(decoder, chunks):
    """The deltas for ``chunks``, the last from the end of the stream."""
    deltas = [decoder.feed(chunk) for chunk in chunks]
    return [delta for delta in deltas if delta is not None] + [decoder.finish()]


def text_at(deltas):
    """Text so far by ids delivered; checks that positions have neither gap nor overlap."""
    known, text, count = {}, "", deltas[0].first_position
    for delta in deltas:
        assert delta.first_position == count
        count += len(delta.token_ids)
        text += delta.text
        known[count] = text
    return known


@st.composite
def prompts_and_outputs(draw, tokenizer):
    """One text's ids, cut anywhere, the middle of a character included."""
    ids = tokenizer.encode(draw(texts))
    cut = draw(st.integers(0, len(ids)))
    return ids[:cut], ids[cut:]


@each_kind
@pytest.mark.parametrize("skip", [True, False])
def test_text_equals_decode_at_every_delta(kind, skip):
    tokenizer = KINDS[kind]()

    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=skip)

    @fuzz
    @given(st.data())
    def check(data):
        prompt, ids = data.draw(prompts_and_outputs(tokenizer))
        pieces = tokenizer.pieces(skip_special_tokens=skip)
        context = tuple(left_context(pieces, prompt))
        decoder = ChoiceDecoder(pieces, DecodeOptions(context))
        settled = max(j for j in range(len(prompt) + 1) if not decode(prompt[:j]).endswith("\ufffd"))
        # The prompt's own characters; the library shows a whole run of fallback bytes as ill-formed while one is open.
        before = max(len(decode(prompt[:settled])), len(decode(prompt).rstrip("\ufffd")))
        whole, text = 0, ""
        for k, token_id in enumerate(ids, 1):
            delta = decoder.feed([token_id])
            text += delta.text if delta else ""
            expected = decode(prompt + ids[:k])
            if not expected.endswith("\ufffd"):
                whole = k
            if k - whole <= MAX_UNFINISHED_TOKENS:
                assert decoder.delivered == whole
            if whole == k:
                assert text == expected[before:]
        text += decoder.finish().text
        assert text == decode(prompt + ids)[before:]

    check()


@cache
def token_of_byte(tokenizer):
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [by_bytes[bytes([byte])] for byte in range(256)]


def check_stream(tokenizer, account, context, ids, skip=True):
    """Exactly what is sure is delivered after each id, and all at the end."""
    decoder = ChoiceDecoder(tokenizer.pieces(skip_special_tokens=skip), DecodeOptions(tuple(context)))
    text = ""
    for token_id in ids:
        delta = decoder.feed([token_id])
        text += delta.text if delta else ""
        account.push(token_id)
        assert (decoder.delivered, text) == (account.delivered, account.text)
    assert text + decoder.finish().text == account.whole_text
    return account


@cache
def decode_with(tokenizer, skip):
    return cache(lambda ids: tokenizer.decode(ids, skip_special_tokens=skip))


def check_byte_level(tokenizer, context, ids, skip=True):
    decode = decode_with(tokenizer, skip)
    account = check_stream(tokenizer, Account(decode, token_of_byte(tokenizer), context, decode), context, ids, skip)
    if not account.losses:
        assert decode((*context, *ids)).endswith(account.whole_text)
    return account


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_byte_level(byte_level, skip):
    of_byte = token_of_byte(byte_level)
    special = [byte_level.token_id(text) for text in trained_tokenizers.SPECIAL]
    any_id = st.integers(0, byte_level.vocab_size + 2) | st.sampled_from(of_byte[0xC0:]) | st.sampled_from(special)
    any_id |= st.sampled_from([of_byte[byte] for byte in "é中😀".encode()])
    losses = []

    @fuzz
    @given(st.lists(any_id, max_size=5), st.lists(any_id, max_size=30))
    @example([], [of_byte[0xF0], *[special[0]] * 4, of_byte[0x9F], *byte_level.encode("é")])
    def check(context, ids):
        losses.append(check_byte_level(byte_level, context, ids, skip).losses)

    check()
    assert any(losses) == skip


CORNERS = (0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC3)
"""Bytes on either side of what may follow some first byte of a character."""
FIRST = (0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF)
"""One of each kind of first bytes: their neighbours begin the same characters, or none."""


@pytest.mark.parametrize(
    ("first", "third"),
    [(FIRST, CORNERS[::3]), pytest.param(range(0xC0, 0x100), CORNERS, marks=pytest.mark.wide)],
    ids=["kinds", "all"],
)
def test_every_kind_of_ill_formed_bytes(byte_level, sentencepiece_bpe, first, third):
    of_byte = token_of_byte(byte_level)
    for sequence in ([a, b, c, 0xBF] for a in first for b in CORNERS for c in third):
        check_byte_level(byte_level, [], [of_byte[byte] for byte in sequence])
        check_byte_fallback(sentencepiece_bpe, [], [sentencepiece_bpe.token_id(f"<0x{byte:02X}>") for byte in sequence])


def run_text(data):
    """A run of byte-fallback tokens as text. Nothing is taken back."""
    text = ""
    while data:
        size = next((n for n in (1, 2, 3, 4) if is_utf8(data[:n])), None)
        if size is None:
            return text + "\ufffd" * len(data)
        text, data = text + data[:size].decode(), data[size:]
    return text


def is_utf8(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@cache
def library(tokenizer):
    return tokenizers.Tokenizer.from_str(tokenizer_json(tokenizer))


def fallback_text(tokenizer, ids, skip=True, lost=False):
    """Independent account of the SentencePiece-style tokenizer's text, and whether it is plain ``decode``'s: a run that
    is ill-formed after good characters is not. With ``lost``, a character was given up in a run before these ids."""
    decode, entry = decode_with(tokenizer, skip), library(tokenizer).id_to_token
    a, *_ = tokenizer.encode("a", add_special_tokens=False)
    visible = [i for i in ids if decode((a, i, a)) != decode((a, a))]
    text, plain = "", not lost
    for is_byte, group in groupby(visible, lambda i: entry(i).startswith("<0x")):
        group = tuple(group)
        if is_byte:
            data = bytes(int(entry(i)[3:5], 16) for i in group)
            run = "\ufffd" * len(data) if lost else run_text(data)
            plain = plain and (is_utf8(data) or run == "\ufffd" * len(data))
        else:
            run = decode((a, *group)).removeprefix(decode((a,)))
        text, lost = text + run, False
    if plain:
        assert text.removeprefix(" ") == decode(ids)
    return text, plain


def check_byte_fallback(tokenizer, context, ids, skip=True):
    of_byte = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in range(256)]
    account = Account(
        lambda ids: fallback_text(tokenizer, ids, skip)[0].removeprefix(" "),
        of_byte,
        context,
        lambda ids: fallback_text(tokenizer, ids, skip, lost=True)[0],
    )
    return check_stream(tokenizer, account, context, ids, skip)


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_byte_fallback(sentencepiece_bpe, skip):
    tokenizer = sentencepiece_bpe
    bytes_ = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in range(256)]
    special = [tokenizer.token_id(text) for text in trained_tokenizers.SPECIAL]
    any_id = st.integers(0, tokenizer.vocab_size + 2) | st.sampled_from(bytes_) | st.sampled_from(bytes_[0xC0:])
    any_id |= st.sampled_from([bytes_[b] for b in "é中😀".encode()]) | st.sampled_from(special)
    plain, losses = [], []

    @fuzz
    @given(st.lists(any_id, max_size=5), st.lists(any_id, max_size=30))
    @example([], [bytes_[0xF0], *[special[0]] * 4, bytes_[0x9F], *tokenizer.encode("é")])
    @example([bytes_[0xD5]], [tokenizer.token_id("▁")])
    def check(context, ids):
        losses.append(check_byte_fallback(tokenizer, context, ids, skip).losses)
        plain.append(fallback_text(tokenizer, tuple(ids), skip)[1] * len(ids))

    check()
    assert max(plain) > 3
    assert any(losses) == skip


def test_random_ids_unigram(unigram):
    @fuzz
    @given(st.lists(st.integers(0, unigram.vocab_size + 2), max_size=40), st.booleans())
    def check(ids, skip):
        decoder = ChoiceDecoder(unigram.pieces(skip_special_tokens=skip), DecodeOptions())
        text = ""
        for k, token_id in enumerate(ids, 1):
            text += decoder.feed([token_id]).text
            assert text == unigram.decode(ids[:k], skip_special_tokens=skip)

    check()


@st.composite
def ids_of(draw, tokenizer):
    """Ids of a text with random ones, many of them parts of characters, strewn in."""
    parts = [i for i in range(tokenizer.vocab_size) if not is_utf8(tokenizer.token_bytes(i))]
    strange = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(parts or [0])
    return draw(
        st.lists(texts.map(tokenizer.encode) | st.lists(strange, max_size=8), max_size=4).map(
            lambda ls: list(chain(*ls))
        )
    )


@each_kind
def test_calls_do_not_matter(kind):
    tokenizer = KINDS[kind]()

    @fuzz
    @given(st.data())
    def check(data):
        context, ids = tuple(data.draw(ids_of(tokenizer))[-6:]), data.draw(ids_of(tokenizer))
        one_by_one = ChoiceDecoder(tokenizer.pieces(), DecodeOptions(context))
        reference = text_at(feed_all(one_by_one, [[i] for i in ids]))
        decoder = ChoiceDecoder(tokenizer.pieces(), DecodeOptions(context))
        known = text_at(feed_all(decoder, chunked(data.draw, ids)))
        assert known.items() <= reference.items()
        assert max(known) == len(ids)

    check()


@each_kind
def test_a_new_decoder_continues_where_another_was(kind):
    tokenizer = KINDS[kind]()

    @fuzz
    @given(st.data())
    def check(data):
        context, ids = tuple(data.draw(ids_of(tokenizer))[-6:]), data.draw(ids_of(tokenizer))
        first, deltas = ChoiceDecoder(tokenizer.pieces(), DecodeOptions(context)), []
        for i in ids:
            deltas += [delta] if (delta := first.feed([i])) else []
            assert first.received - first.delivered <= MAX_UNFINISHED_TOKENS
        reference = {0: ""} | (text_at(deltas) if deltas else {})
        delivered = data.draw(st.sampled_from(sorted(reference)))
        whole = ChoiceDecoder(tokenizer.pieces(), DecodeOptions(context))
        text = "".join(delta.text for delta in feed_all(whole, [ids]))
        second = ChoiceDecoder(tokenizer.pieces(), DecodeOptions(context), delivered)
        deltas = feed_all(second, chunked(data.draw, ids))
        assert reference[delivered] + "".join(delta.text for delta in deltas) == text
        assert list(chain(*(delta.token_ids for delta in deltas))) == ids[delivered:]
        assert second.delivered == second.received == len(ids)

    check()


def test_unfinished_bytes_are_given_up_after_four_tokens(byte_level, sentencepiece_bpe):
    for tokenizer, lead, letter, after in (
        (byte_level, byte_level.encode("😀")[0], byte_level.encode("e")[0], "e"),
        # The letter's byte is a part of the same run, which is ill-formed.
        (sentencepiece_bpe, sentencepiece_bpe.token_id("<0xF0>"), sentencepiece_bpe.token_id("<0x41>"), "\ufffd"),
    ):
        decoder = ChoiceDecoder(tokenizer.pieces(), DecodeOptions())
        eos = tokenizer.token_id("</s>")  # skipped: it neither finishes the character nor breaks it off
        assert [decoder.feed([i]) for i in (lead, eos, eos, eos)] == [None] * 4
        delta = decoder.feed([eos])
        assert (delta.first_position, len(delta.token_ids), delta.text) == (0, 5, "\ufffd")
        assert decoder.feed([letter]).text == after


def test_special_tokens_do_not_hide_the_text_before_them(sentencepiece_bpe):
    prompt = [*sentencepiece_bpe.encode("the"), *[sentencepiece_bpe.token_id("<|im_end|>")] * 30]
    ids = sentencepiece_bpe.encode("fox", add_special_tokens=False)
    for context, text in ((prompt, " fox"), (prompt[-30:], "fox")):  # at the start of a text, the space is dropped
        known = tuple(left_context(sentencepiece_bpe.pieces(), context))
        decoder = ChoiceDecoder(sentencepiece_bpe.pieces(), DecodeOptions(known))
        assert decoder.feed(ids).text == text
        assert sentencepiece_bpe.decode(context + ids).endswith(text)


@cache
def across_characters():
    """A byte-level tokenizer with tokens that end one character and begin the next."""
    bytes_ = trained_tokenizers.byte_level()
    alphabet = [bytes_._tokenizer.id_to_token(token_id) for token_id in token_of_byte(bytes_)]
    parts = [bytes([byte]) for byte in range(256)]
    parts += ["า".encode()[:2], "าา".encode()[2:5], "😀😀".encode()[3:6], b"\xa9\xe2", b"\xa9A\xe2", b"\xbfB", b""]
    library = Tokenizer(models.BPE({"".join(alphabet[byte] for byte in part): i for i, part in enumerate(parts)}, []))
    library.decoder = decoders.ByteLevel()
    return TextTokenizer.from_files({"tokenizer.json": library.to_str().encode()})


def test_good_text_stays_good_where_tokens_end_inside_characters():
    tokenizer, ids = across_characters(), [256, *[257] * 20, 0xB2]
    account = check_byte_level(tokenizer, [], ids)
    assert account.early > 3  # it does not wait for the end
    assert account.text == "า" * 21

    any_id = st.integers(256, tokenizer.vocab_size) | st.integers(0x80, 0xFF)

    @fuzz
    @given(st.integers(0, 9), st.lists(any_id, max_size=20))
    def check(count, then):
        check_byte_level(tokenizer, [], [256, *[257] * count, *then])

    check()


def test_ill_formed_bytes_are_not_mixed_with_good_ones_that_follow():
    """Five ids in a row end inside a character, none of which is one for long."""
    ids = [0x41, 0xC3, 0xE2, 0xA9, 0xE2, 0xA9, 0xA9]
    decoder = ChoiceDecoder(across_characters().pieces(), DecodeOptions())
    deltas = [(delta.token_ids, delta.text) if (delta := decoder.feed([i])) else None for i in ids]
    known = [((0x41,), "A"), None, ((0xC3,), "\ufffd"), None, ((0xE2, 0xA9), "\ufffd"), None, ((0xE2, 0xA9, 0xA9), "⩩")]
    assert deltas == known


def test_the_prompts_unfinished_character_is_the_prompts_unless_finished(byte_level):
    prompt = byte_level.encode("x😀")
    context, last, letter = tuple(prompt[:-1]), prompt[-1], byte_level.encode("e")[0]
    finished = ChoiceDecoder(byte_level.pieces(), DecodeOptions(context))
    assert finished.feed([last, letter]).text == "😀e"
    broken = ChoiceDecoder(byte_level.pieces(), DecodeOptions(context))
    assert broken.feed([letter]).text == "e"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Fuse(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    ],
)
def test_other_decoders(decoder):
    vocabulary = ["##ing", "run", "▁a", "▁", "don", "'t", ".", "##", "n't", "▁▁x"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="run"))
    if decoder is not None:
        tokenizer.decoder = decoder
    ours = TextTokenizer.from_files({"tokenizer.json": tokenizer.to_str().encode()})
    for ids in product(range(len(vocabulary)), repeat=3):
        stream, text = ChoiceDecoder(ours.pieces(), DecodeOptions()), ""
        for k, token_id in enumerate(ids, 1):
            text += stream.feed([token_id]).text
            assert text == tokenizer.decode(list(ids[:k]))


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (decoders.CTC(), "CTC"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), '"stop": 1'),
        (
            decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
            "order that cannot be streamed: Fuse, ByteFall",
        ),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused(decoder, message):
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoder
    with pytest.raises(TokenizerError, match=message):
        TextTokenizer.from_files({"tokenizer.json": tokenizer.to_str().encode()})
