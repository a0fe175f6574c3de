"""What each format's parser makes of answers, however they are cut, as text and as tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from tests.text_core import chat_template_samples, family_templates
from tests.text_core.parsing.call_templates import CALL_TEMPLATES, OTHER_FORMS
from tests.text_core.parsing.parsing import merged, options_of, parse, shown
from tests.text_core.parsing.samples import EMPTY, MALFORMED, WHOLE, Shown
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.parsing import json_calls, tagged_calls, text_parser
from text_core.parsing.choice_parser import ChoiceParser
from text_core.parsing.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    begins_in_reasoning,
    has_ended_reasoning,
    make_parser,
    marker_texts,
)
from text_core.parsing.marks import mark
from text_core.parsing.parts import ParseOptions, Part, PartWriter, ToolCallPiece, call_id
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.parsing.text_parser import ReadingParser
from text_core.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WITH_SPECIAL_TOKENS = [(name, *sample) for samples in (WHOLE, EMPTY) for name in samples for sample in samples[name]]
SAMPLES = WITH_SPECIAL_TOKENS + [(name, *sample) for name, samples in MALFORMED.items() for sample in samples]


@pytest.mark.parametrize(("name", "text", "parts"), SAMPLES)
def test_an_answer_cut_at_every_character(name: str, text: str, parts: Shown) -> None:
    options = options_of(name)
    *known, whole = parse(text, options)
    assert shown(whole) == parts
    for at in range(1, len(text)):
        first, second, end = parse([text[:at], text[at:]], options)
        assert (first, second, end) == (known[at - 1], known[-1], whole), at


@pytest.mark.parametrize(("name", "text", "parts"), WITH_SPECIAL_TOKENS)
def test_the_end_of_an_answer_may_cut_what_closes_its_last_call(name: str, text: str, parts: Shown) -> None:
    if isinstance(parts[-1], tuple):
        ends = [shown(parse([text[:at]], options_of(name))[-1]) for at in range(len(text) + 1)]
        assert all(end == parts for end in ends[ends.index(parts) :])


@pytest.fixture(scope="module")
def tokenizers() -> dict[bool, Tokenizer]:
    """A token for each byte; the formats' markers are special tokens or not."""
    forms = [*TOOL_FORMATS.values(), *REASONING_FORMATS.values()]
    markers = dict.fromkeys(marker for form in forms for marker in form.markers)
    made = {}
    for special in (False, True):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        library = HFTokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        if special:
            library.add_special_tokens([AddedToken(marker, special=True) for marker in markers])
        made[special] = Tokenizer.from_files({"tokenizer.json": library.to_str().encode()})
    return made


@pytest.mark.parametrize(
    ("special", "name", "text", "parts"),
    [(False, *sample) for sample in SAMPLES] + [(True, *sample) for sample in WITH_SPECIAL_TOKENS],
)
def test_an_answer_cut_at_every_byte(
    tokenizers: dict[bool, Tokenizer], special: bool, name: str, text: str, parts: Shown
) -> None:
    tokenizer, options = tokenizers[special], options_of(name)
    if special and '"</tool_call>' in text:
        return  # a special token does not stand for the same text within a string
    ids = tokenizer.encode(text)
    for cuts in (range(1, len(ids) + 1), [len(ids)]):
        assert shown(merged(tokens_parsed(tokenizer, options, ids, cuts))) == parts


def tokens_parsed(
    tokenizer: Tokenizer, options: ParseOptions, ids: Sequence[int], cuts: Sequence[int]
) -> Iterator[Part]:
    decode = DecodeOptions()
    decoder = ChoiceDecoder(tokenizer.pieces(), decode)
    parser = ChoiceParser(tokenizer, options, 0, decode, skip_special_tokens=True)
    for begin, end in zip([0, *cuts], cuts, strict=False):
        delta = decoder.feed(ids[begin:end])
        if delta is not None:
            yield from parser.feed(delta)
    yield from parser.feed(decoder.finish(), last=True)
    yield from parser.finish()


def test_changed_answers_are_parsed_alike_however_they_are_cut() -> None:
    """What a model gets wrong: a piece of an answer is left out, doubled, or anything else comes between."""
    chance = random.Random(37)
    for name, text, _ in SAMPLES * 6:
        options = options_of(name, reasoning=chance.choice([None, "none", "think"]), inside=chance.random() < 0.2)
        for marker in marker_texts(options):
            text = text.replace(marker, chance.choice([marker, marker, mark(marker)]))
        for _ in range(chance.randrange(1, 4)):
            at, to = chance.randrange(len(text)), chance.randrange(len(text))
            some = text[at : at + chance.randrange(1, 6)]
            text = chance.choice([text[:at] + text[at + len(some) :], text[:to] + some + text[to:], text[:at] + some])
            text = text[:to] + chance.choice("{}[]()\"\\', =:\n<;é") + text[to:]
        *known, whole = parse(text, options)
        at = chance.randrange(1, len(text)) if len(text) > 1 else 0
        first, second, end = parse([text[:at], text[at:]], options)
        assert (second, end) == (known[-1], whole), (name, text, at)
        assert not at or first == known[at - 1], (name, text, at)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_no_text_is_held_without_bound(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (text_parser, json_calls, tagged_calls):
        monkeypatch.setattr(module, "MAX_HELD", 1024)
    halves = [text[: len(text) * part // 8] for text, _ in WHOLE[name] for part in range(1, 8)]
    for beginning in halves:
        for repeated in ('"', "a", " ", "{", '{"name": "', '{"arguments": {"a": "', "\\", "<"):
            parser = make_parser(options_of(name, reasoning="none"), PartWriter(str), ReasoningMeter())
            assert isinstance(parser, ReadingParser)
            parser.feed(beginning + repeated * 2048, 0)
            assert parser.num_waiting <= 1024 + 256, (beginning, repeated)


def test_a_template_tells_the_format() -> None:
    formats = {
        name: ChatTemplates({"default": TemplateSource(text)}, SPECIAL).formats(None, has_tools=False)
        for module in (chat_template_samples, family_templates)
        for name, text in vars(module).items()
        if name.isupper()
    }
    assert {name: formats for name, formats in formats.items() if formats != ("none", "none")} == {
        "HEADERS": ("llama3_json", "none"),
        "CHATML": ("hermes", "think"),
        "HARMONY": ("harmony", "harmony"),
        "GLM_4": ("glm45", "think"),
        "GEMMA_4": ("gemma4", "gemma4"),
        "DEEPSEEK": ("deepseek", "think"),
        "DEEPSEEK_V3": ("deepseek", "think"),
        "DEEPSEEK_V3_1": ("deepseek", "none"),
        "MINISTRAL_3": ("mistral", "none"),
        "MISTRAL": ("mistral", "none"),
        "SMOLLM_3": ("none", "think"),
    }


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_template_that_shows_calls_tells_their_format(name: str) -> None:
    template = TemplateSource(CALL_TEMPLATES[name])
    assert ChatTemplates({"default": template}).formats(None, has_tools=True)[0] == name


def test_a_prompt_may_end_with_what_begins_a_call() -> None:
    template = TemplateSource(CALL_TEMPLATES["functionary_v32"] + ">>>")
    assert ChatTemplates({"default": template}).formats(None, has_tools=True)[0] == "functionary_v32"


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_form_that_no_format_fits_exactly_has_none(name: str) -> None:
    template = TemplateSource(OTHER_FORMS[name])
    assert ChatTemplates({"default": template}).formats(None, has_tools=True)[0] == "none"


def test_a_prompt_tells_whether_it_opened_the_reasoning() -> None:
    assert begins_in_reasoning("think", "<|im_start|>assistant\n<think>\n")
    assert not begins_in_reasoning("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not begins_in_reasoning("none", "<think>\n")
    assert begins_in_reasoning("harmony", "<|start|>assistant<|channel|>analysis<|message|>")


def test_a_prompt_tells_whether_it_ended_the_reasoning() -> None:
    assert has_ended_reasoning("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert has_ended_reasoning("think", "<｜Assistant｜></think>")
    assert not has_ended_reasoning("think", "<|im_start|>assistant\n<think>\n")
    assert not has_ended_reasoning("think", "</think> Yes.<|im_start|>assistant\n")
    assert not has_ended_reasoning("none", "</think>")


def test_an_answer_that_begins_in_the_reasoning() -> None:
    for text in ("Hm.\n</think>\n\nYes.", "<think>\nHm.\n</think>\n\nYes."):
        assert shown(parse(text, options_of("hermes", inside=True))[-1]) == ["think: Hm.", "Yes."]


APRIEL = [
    (
        "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]\n",
        ["think: Hm.", "Yes.\n"],
    ),
    ("Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nYes.", ["think: Hm.", "Yes."]),
    ("Yes: [END FINAL", ["Yes: [END FINAL"]),
    ("Here are my reasons.", ["Here are my reasons."]),
    (
        'Here are my reasoning steps:\nHm. [BEGIN FINAL RESPONSE]\n<tool_calls>[{"name": "f"}]</tool_calls>\n'
        "[END FINAL RESPONSE]",
        ["think: Hm. ", ("f", "{}")],
    ),
]


@pytest.mark.parametrize(("text", "parts"), APRIEL)
def test_reasoning_before_a_final_response(tokenizers: dict[bool, Tokenizer], text: str, parts: Shown) -> None:
    options = options_of("hunyuan_a13b", reasoning="apriel")
    *known, whole = parse(text, options)
    assert shown(whole) == parts
    for at in range(1, len(text)):
        first, second, end = parse([text[:at], text[at:]], options)
        assert (first, second, end) == (known[at - 1], known[-1], whole), at
    ids = tokenizers[False].encode(text)
    assert merged(tokens_parsed(tokenizers[False], options, ids, range(1, len(ids) + 1))) == whole
    begun = text.removeprefix("Here are my reasoning steps:\n")
    if begun != text:
        assert parse(begun, options_of("hunyuan_a13b", reasoning="apriel", inside=True))[-1] == whole


SOLAR_OPEN = [
    ("<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.", ["think: Hm.", "Yes."]),
    ("<|content|>Yes.", ["Yes."]),
    ("Yes <|con", ["Yes <|con"]),
    (
        "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>f<|tool_call:args|>{}"
        "<|tool_call:end|><|calls|>",
        ["think: Hm.", ("f", "{}")],
    ),
    (
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>So<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a"
        "<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        ["think: Hm.", "So", ("f", "{}")],
    ),
]


@pytest.mark.parametrize(("text", "parts"), SOLAR_OPEN)
@pytest.mark.parametrize("special", [False, True])
def test_reasoning_in_a_message_of_its_own(
    tokenizers: dict[bool, Tokenizer], special: bool, text: str, parts: Shown
) -> None:
    options = options_of("solar_open", reasoning="solar_open")
    ids = tokenizers[special].encode(text)
    whole = merged(tokens_parsed(tokenizers[special], options, ids, [len(ids)]))
    assert shown(whole) == parts
    assert merged(tokens_parsed(tokenizers[special], options, ids, range(1, len(ids) + 1))) == whole
    assert {part.id for part in whole if isinstance(part, ToolCallPiece)} <= {"a"}


def test_a_prompt_without_reasoning_has_an_empty_message_of_it() -> None:
    assert has_ended_reasoning("solar_open", "<|begin|>assistant<|think|><|end|><|begin|>assistant")
    assert not has_ended_reasoning("solar_open", "<|begin|>user<|content|>Hi<|end|><|begin|>assistant")


def test_ids_of_calls() -> None:
    ids = {call_id(seed, choice, index) for seed in (b"a", b"b") for choice in range(3) for index in range(3)}
    assert len(ids) == 18
    assert all(len(one) == 29 and one.startswith("call_") and one[5:].isalnum() for one in ids)
    assert call_id(b"a", 1, 2) == call_id(b"a", 1, 2)
    mistral = TOOL_FORMATS["mistral"].call_id(b"a", 0, 0)
    assert len(mistral) == 9
    assert mistral.isalnum()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no format 'x': expected one of harmony, mistral, .*, think, none"):
        marker_texts(ParseOptions(reasoning="x"))
