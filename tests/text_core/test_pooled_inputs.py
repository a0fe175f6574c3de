"""Inputs of models that pool: the ids are those of transformers' tokenizers, whole and cut."""

from __future__ import annotations

import json

import pytest
from transformers import PreTrainedTokenizerFast

from tests.text_core.word_tokenizers import WORDS, library
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.pooled_inputs import Chats, Cut, InputError, Length, Pair, Segments, Texts
from text_core.tokenizer import EncodedPair, Tokenizer

QUERY, DOCUMENT = "w1 w2 w3", " ".join(WORDS[10:30])
TEMPLATE = """{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<answer>"""


@pytest.fixture(params=[True, False], ids=["types", "no types"])
def tokenizers_of_both(request):
    made = library(request.param)
    files = {"tokenizer.json": made.to_str().encode(), "tokenizer_config.json": json.dumps({}).encode()}
    return Tokenizer.from_files(files), PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]")


def length(most: int, cut: Cut | None = None) -> Length:
    return Length(most, cut, "say cut")


def texts(tokenizer, *inputs, prompt="", special=True, **limits) -> Texts:
    places = [f"inputs[{index}]" for index in range(len(inputs))]
    return Texts(places, inputs, [prompt] * len(inputs), tokenizer, length(**limits), special)


@pytest.mark.parametrize("special", [True, False])
def test_texts_are_as_transformers_has_them(tokenizers_of_both, special):
    tokenizer, reference = tokenizers_of_both
    inputs = texts(tokenizer, DOCUMENT, [7, 8, 9], "W1", prompt="w5 ", special=special, most=100)
    expected = [reference("w5 " + text, add_special_tokens=special).input_ids for text in (DOCUMENT, "W1")]
    found = inputs.encode(0, 3)
    assert found == [EncodedPair(expected[0], None), EncodedPair([7, 8, 9], None), EncodedPair(expected[1], None)]
    assert inputs.encode(1, 2) == found[1:2]
    assert list(inputs.sizes) == [len(DOCUMENT), 3, 2]


@pytest.mark.parametrize(("cut", "side"), [(Cut.END, "right"), (Cut.START, "left")])
@pytest.mark.parametrize("most", [1, 2, 3, 12, 21, 22, 23])
def test_texts_are_cut_as_transformers_cuts_them(tokenizers_of_both, cut, side, most):
    tokenizer, reference = tokenizers_of_both
    reference.truncation_side = side
    [found] = texts(tokenizer, DOCUMENT, most=most, cut=cut).encode(0, 1)
    assert len(found.ids) == min(most, 22)
    if most > 2:  # fewer than the special tokens: transformers cuts nothing
        assert found.ids == reference(DOCUMENT, truncation=True, max_length=most).input_ids
    [of_ids] = texts(tokenizer, list(range(8, 30)), most=most, cut=cut).encode(0, 1)
    assert of_ids.ids == (list(range(8, 30))[:most] if cut is Cut.END else list(range(8, 30))[-most:])


def test_segments_are_as_transformers_has_them(tokenizers_of_both):
    tokenizer, reference = tokenizers_of_both
    pairs = [Pair("queries[0]", QUERY, f"documents[{index}]", text) for index, text in enumerate([DOCUMENT, "w9"])]
    found = Segments(pairs, tokenizer, length(100)).encode(0, 2)
    for pair, one in zip(pairs, found, strict=True):
        expected = reference(pair.query, pair.document, return_token_type_ids=True)
        assert one.ids == expected.input_ids
        kinds = expected.token_type_ids
        assert one.second_text == (kinds.index(1) if 1 in kinds else None)


@pytest.mark.parametrize(("cut", "side"), [(Cut.END, "right"), (Cut.START, "left")])
def test_documents_of_segments_are_cut_as_transformers_cuts_them(tokenizers_of_both, cut, side):
    tokenizer, reference = tokenizers_of_both
    reference.truncation_side = side
    pair = Pair("queries[0]", QUERY, "documents[0]", DOCUMENT)
    for most in (9, 15, 26):
        [found] = Segments([pair], tokenizer, length(most, cut)).encode(0, 1)
        expected = reference(QUERY, DOCUMENT, truncation="only_second", max_length=most)
        assert found.ids == expected.input_ids
    with pytest.raises(InputError, match=r"queries\[0\]: too long for any of documents\[0\] beside it: expected less"):
        Segments([pair], tokenizer, length(6, cut)).encode(0, 1)


def chats(tokenizer, most: int, cut: Cut | None = None, instruction: str = "") -> Chats:
    templates = ChatTemplates({"default": TemplateSource(TEMPLATE)})
    return Chats([Pair("q", QUERY, "d", DOCUMENT)], instruction, tokenizer, templates.render, length(most, cut))


def test_chats_show_query_document_and_instruction(tokenizers_of_both):
    tokenizer, reference = tokenizers_of_both
    [found] = chats(tokenizer, 100, instruction="w7").encode(0, 1)
    text = f"<system> w7 <query> {QUERY} <document> {DOCUMENT} <answer>"
    assert found == EncodedPair(reference(text, add_special_tokens=False).input_ids, None)


def test_the_document_of_a_chat_is_cut_and_nothing_else(tokenizers_of_both):
    tokenizer, reference = tokenizers_of_both
    kept = {Cut.END: WORDS[10:15], Cut.START: WORDS[25:30]}
    for cut, words in kept.items():
        [found] = chats(tokenizer, 11, cut).encode(0, 1)
        text = f"<query> {QUERY} <document> {' '.join(words)} <answer>"
        assert found.ids == reference(text, add_special_tokens=False).input_ids
    with pytest.raises(InputError, match="q: too long for any of d beside it"):
        chats(tokenizer, 6, Cut.END).encode(0, 1)


def test_what_is_too_long_or_empty_is_refused_by_its_place(tokenizers_of_both):
    tokenizer, _ = tokenizers_of_both
    with pytest.raises(InputError, match=r"inputs\[1\]: 22 tokens are too long: expected at most 5 \(say cut\)"):
        texts(tokenizer, "w1", DOCUMENT, most=5).encode(0, 2)
    with pytest.raises(InputError, match=r"inputs\[0\]: its text has no tokens: expected at least one"):
        texts(tokenizer, " ", special=False, most=5).encode(0, 1)
    pair = Pair("queries[0]", QUERY, "documents[3]", DOCUMENT)
    with pytest.raises(InputError, match=r"documents\[3\]: 26|documents\[3\]: 27") as refused:
        Segments([pair], tokenizer, length(9)).encode(0, 1)
    assert refused.value.place == "documents[3]"
    with pytest.raises(InputError, match="d: 26 tokens are too long"):
        chats(tokenizer, 11).encode(0, 1)


def test_a_template_that_fails_names_the_document(tokenizers_of_both):
    tokenizer, _ = tokenizers_of_both
    templates = ChatTemplates({"default": TemplateSource("{{ raise_exception('no such role') }}")})
    pairs = [Pair("q", QUERY, "documents[2]", "w1")]
    with pytest.raises(InputError, match=r"documents\[2\]: .*no such role"):
        Chats(pairs, "", tokenizer, templates.render, length(50)).encode(0, 1)


def test_pairs_without_tokens_are_refused():
    made = library(True)
    made.post_processor = None
    tokenizer = Tokenizer.from_files({"tokenizer.json": made.to_str().encode()})
    pair = Pair("queries[0]", " ", "documents[3]", "  ")
    for inputs in (
        Segments([pair], tokenizer, length(9)),
        Chats([pair], "", tokenizer, lambda messages: " ", length(9)),
    ):
        with pytest.raises(InputError, match=r"documents\[3\]: it and queries\[0\] have no tokens"):
            inputs.encode(0, 1)
