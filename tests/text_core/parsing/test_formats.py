"""What each format's parser makes of answers, however they are cut, as text and as tokens."""

from __future__ import annotations

import random
from functools import cache

import pytest

from tests.text_core import chat_template_samples, family_templates
from tests.text_core.parsing.byte_tokenizers import byte_tokenizer
from tests.text_core.parsing.call_templates import CALL_TEMPLATES, OTHER_FORMS
from tests.text_core.parsing.parsing import merged, options_of, parse, shown, tokens_parsed
from tests.text_core.parsing.samples import EMPTY, MALFORMED, WHOLE, Shown
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.parsing import json_calls, tagged_calls, text_parser
from text_core.parsing.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    begins_in_reasoning,
    has_ended_reasoning,
    make_parser,
    marker_texts,
)
from text_core.parsing.marks import mark
from text_core.parsing.parts import ParseOptions, PartWriter, ToolCallPiece, call_id
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


@cache
def tokenizer_of(name: str, special: bool) -> Tokenizer:
    """A token for each byte; the markers of the format and those of all reasoning are special tokens or not."""
    reasoning = [marker for form in REASONING_FORMATS.values() for marker in form.markers]
    return byte_tokenizer(dict.fromkeys([*TOOL_FORMATS[name].markers, *reasoning]) if special else ())


@pytest.mark.parametrize(
    ("special", "name", "text", "parts"),
    [(False, *sample) for sample in SAMPLES] + [(True, *sample) for sample in WITH_SPECIAL_TOKENS],
)
def test_an_answer_cut_at_every_byte(special: bool, name: str, text: str, parts: Shown) -> None:
    tokenizer, options = tokenizer_of(name, special), options_of(name)
    if special and '"</tool_call>' in text:
        return  # a special token does not stand for the same text within a string
    ids = tokenizer.encode(text)
    for cuts in (range(1, len(ids) + 1), [len(ids)]):
        assert shown(merged(tokens_parsed(tokenizer, options, ids, cuts))) == parts


@pytest.mark.parametrize("name", [name for name in REASONING_FORMATS if name != "harmony"])
def test_reasoning_that_begins_behind_content_is_cut_at_every_byte(name: str) -> None:
    tokenizer, options = tokenizer_of("hermes", special=True), options_of("none", reasoning=name)
    form = REASONING_FORMATS[name]
    ids = tokenizer.encode(f"So {form.opening}a{form.closing}b")
    for cuts in (range(1, len(ids) + 1), [len(ids)]):
        assert shown(merged(tokens_parsed(tokenizer, options, ids, cuts))) == ["So ", "think: a", "b"]


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


@pytest.mark.parametrize("value", ["{{ v }}", '"{{ v }}"'])
def test_calls_of_python_are_found_though_their_values_are_not_pythons(value: str) -> None:
    """As templates of vLLM show those of Llama 3.2 and 4."""
    template = TemplateSource(CALL_TEMPLATES["pythonic"].replace("{{ v | tojson }}", value))
    assert ChatTemplates({"default": template}).formats(None, has_tools=True)[0] == "pythonic"


def test_words_of_a_format_with_markers_count_more_than_a_call_without_markers() -> None:
    """As in the template of vLLM for Phi-4-mini."""
    words = '{# Call functions as functools[{"name": … #}'
    for text, name in ((CALL_TEMPLATES["llama3_json"], "llama3_json"), (CALL_TEMPLATES["hermes"], "hermes")):
        told = ChatTemplates({"default": TemplateSource(words + text)}).formats(None, has_tools=True)[0]
        assert told == ("functools" if name == "llama3_json" else name)


def test_a_template_may_show_a_call_twice() -> None:
    """As that of MiniCPM5."""
    template = TemplateSource(CALL_TEMPLATES["minicpm5"].replace("{% for call in m", "{% for call in 2 * m"))
    assert ChatTemplates({"default": template}).formats(None, has_tools=True)[0] == "minicpm5"


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
def test_reasoning_before_a_final_response(text: str, parts: Shown) -> None:
    tokenizer = tokenizer_of("hunyuan_a13b", special=False)
    options = options_of("hunyuan_a13b", reasoning="apriel")
    *known, whole = parse(text, options)
    assert shown(whole) == parts
    for at in range(1, len(text)):
        first, second, end = parse([text[:at], text[at:]], options)
        assert (first, second, end) == (known[at - 1], known[-1], whole), at
    ids = tokenizer.encode(text)
    assert merged(tokens_parsed(tokenizer, options, ids, range(1, len(ids) + 1))) == whole
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
def test_reasoning_in_a_message_of_its_own(special: bool, text: str, parts: Shown) -> None:
    tokenizer = tokenizer_of("solar_open", special)
    options = options_of("solar_open", reasoning="solar_open")
    ids = tokenizer.encode(text)
    whole = merged(tokens_parsed(tokenizer, options, ids, [len(ids)]))
    assert shown(whole) == parts
    assert merged(tokens_parsed(tokenizer, options, ids, range(1, len(ids) + 1))) == whole
    assert {part.id for part in whole if isinstance(part, ToolCallPiece)} <= {"a"}


KIMI_K3 = [
    ("Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|><|close|>message<|sep|>", "Yes."),
    (
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>So<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="g" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>',
        "So",
    ),
]


@pytest.mark.parametrize(("text", "content"), KIMI_K3)
@pytest.mark.parametrize("special", [False, True])
def test_reasoning_and_text_in_elements(special: bool, text: str, content: str) -> None:
    tokenizer = tokenizer_of("kimi_k3", special)
    options = options_of("kimi_k3", reasoning="kimi_k3", inside=True)
    ids = tokenizer.encode(text)
    whole = merged(tokens_parsed(tokenizer, options, ids, [len(ids)]))
    assert shown(whole) == ["think: Hm.", content, *([("g", "{}")] if "tools" in text else [])]
    assert merged(tokens_parsed(tokenizer, options, ids, range(1, len(ids) + 1))) == whole


def test_a_prompt_without_reasoning_has_an_empty_message_of_it() -> None:
    assert has_ended_reasoning("solar_open", "<|begin|>assistant<|think|><|end|><|begin|>assistant")
    assert has_ended_reasoning("kimi_k3", '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>')
    assert not has_ended_reasoning("solar_open", "<|begin|>user<|content|>Hi<|end|><|begin|>assistant")


def test_ids_of_calls() -> None:
    ids = {call_id(seed, choice, index) for seed in (b"a", b"b") for choice in range(3) for index in range(3)}
    assert len(ids) == 18
    assert all(len(one) == 29 and one.startswith("call_") and one[5:].isalnum() for one in ids)
    assert call_id(b"a", 1, 2) == call_id(b"a", 1, 2)
    mistral = TOOL_FORMATS["mistral"].call_id(b"a", 0, 0)
    assert len(mistral) == 9
    assert mistral.isalnum()


def test_an_id_without_punctuation_is_of_the_only_tool_that_it_can_name() -> None:
    call = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    read = {
        "functions_read_file_3": ("read_file", "functions.read_file:3"),
        "functionsreadfile12": ("read_file", "functions.read_file:12"),
        "functionsexec": ("exec", None),
        "functionsexec5": ("functionsexec5", None),
        "exec_2": ("exec_2", None),
        "functions.exec_2:7": ("exec_2", "functions.exec_2:7"),
    }
    for written, (name, own_id) in read.items():
        options = ParseOptions("kimi_k2", tool_names=("exec", "exec5", "read_file"), call_id_seed=b"a")
        (part,) = parse([call.format(written)], options)[-1]
        assert part == ToolCallPiece(0, own_id or call_id(b"a", 0, 0), name, "{}")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no format 'x': expected one of harmony, mistral, .*, think, none"):
        marker_texts(ParseOptions(reasoning="x"))
