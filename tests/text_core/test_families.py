"""Each family's form of a tokenizer, and a template after its documentation, against transformers' ``AutoTokenizer``.

The vocabularies are trained here; what surrounds them is the family's (``families``).
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.text_core.families import FAMILIES
from tests.text_core.test_chat_templates import CALLS, LAST, PARTS, PLAIN, REASONED, SYSTEM, TOOLS, outcome
from text_core.chat_templates import ChatTemplateError, ChatTemplates
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.message_turns import in_turns
from text_core.tokenizer import Tokenizer

each_family = pytest.mark.parametrize("name", FAMILIES)

TEXTS = [
    "",
    "the quick brown fox, isn't it? don't! 12345 6.78 APPLES",
    " one space before",
    "   three before, and   three within  and two behind  ",
    "def f(x):\n    return x   # jumps\n\n\n\tcounting",
    "naïve cafe\u0301 é 中文字符，日本語 ｈ สวัสดี 😀👩‍👩‍👧 \u3000\u00a0\u0000 \ufffd",
    "▁the ▁▁fox <0x41> <tool> <s> fox </s>the",
    "<|im_start|>user\nthe fox<|im_end|>\n  <|im_sep|> the  <|endoftext|>\n\nfox",
    "<|user|>\n the fox <|end|>\n<|assistant|>\nquick",
    "<start_of_turn>user\nfox<end_of_turn>\n<bos> <eos>",
    "[INST] the fox [/INST] jumps [gMASK]<sop><think>\n",
    "<｜begin▁of▁sentence｜><｜User｜>fox<｜Assistant｜> the",
    "<|start|>user<|message|>the<|end|><|start|>assistant<|channel|>final",
]
DEVELOPER = [{"role": "developer", "content": "Be brief."}, *PLAIN]
TWICE = [PLAIN[0], PLAIN[0]]
THOUGHT = [PLAIN[0], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes. </think>"}, PLAIN[2]]
LONG_IDS = json.loads(json.dumps(CALLS).replace('"c1"', '"c12345678"'))
ANSWERED = [*LONG_IDS, {"role": "assistant", "content": "21 degrees"}, PLAIN[2]]
CHATS = [PLAIN, SYSTEM, CALLS, ANSWERED, REASONED, PARTS, LAST, DEVELOPER, TWICE, THOUGHT]
ARGUMENTS: list[dict[str, Any]] = [{}, {"enable_thinking": False, "reasoning_effort": "high", "controls": {"a": 1}}]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Ours, our templates, and transformers', of one family's files."""

    @cache
    def load(name: str) -> tuple[Tokenizer, ChatTemplates, Any]:
        directory: Path = tmp_path_factory.mktemp(name)
        files = FAMILIES[name].files()
        for file, content in files.items():
            (directory / file).write_bytes(content)
        theirs = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        return Tokenizer.from_files(files), ChatTemplates.from_files(files), theirs

    return load


@each_family
def test_texts_become_the_ids_of_transformers(name, loaded):
    ours, _, theirs = loaded(name)
    begins = [ours.token_id(token) for token in FAMILIES[name].begins]
    for text in TEXTS:
        bare = ours.encode(text, add_special_tokens=False)
        assert bare == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.encode(text) == theirs(text)["input_ids"] == [*begins, *bare]
        for skip in (True, False):
            expected = theirs.decode(bare, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(bare, skip_special_tokens=skip) == expected
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)


@each_family
def test_a_stream_has_the_text_of_all_its_ids(name, loaded):
    """Ids that come one by one, after the ids of a prompt."""
    ours, _, _ = loaded(name)
    prompt = ours.encode("the fox")
    for text, skip in itertools.product(TEXTS, (True, False)):
        ids = ours.encode(text, add_special_tokens=False)
        decoder = ChoiceDecoder(ours.pieces(skip_special_tokens=skip), DecodeOptions(tuple(prompt[-3:])))
        deltas = [decoder.feed([token_id]) for token_id in ids]
        streamed = "".join(delta.text for delta in [*deltas, decoder.finish()] if delta is not None)
        whole = ours.decode(prompt + ids, skip_special_tokens=skip)
        assert streamed == whole.removeprefix(ours.decode(prompt, skip_special_tokens=skip))


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.template is not None])
def test_chats_become_the_ids_of_transformers(name, loaded):
    ours, chat, theirs = loaded(name)
    bos, rendered = ours.bos_token_id, set()
    for messages, tools, prompt, arguments in itertools.product(CHATS, (None, TOOLS), (False, True), ARGUMENTS):
        if tools is not None and chat.formats(None, has_tools=True) != chat.formats(None, has_tools=False):
            continue  # it has no place for tools: they are described in a message
        documents = [{"doc_id": "7", "text": "a text"}] if tools is None else None
        same = {"tools": tools, "documents": documents, "add_generation_prompt": prompt}
        expected = outcome(theirs.apply_chat_template, messages, tokenize=False, **same, **arguments)
        if expected == "refused" and (joined := in_turns(messages)) != messages:
            messages, expected = (
                joined,
                outcome(theirs.apply_chat_template, joined, tokenize=False, **same, **arguments),
            )
        text = outcome(chat.render, messages, template_args=arguments, **same)
        assert text == expected, (messages, tools, prompt, arguments)
        if text != "refused" and text not in rendered:
            rendered.add(text)
            ids = ours.encode(text, add_special_tokens=False)
            assert ids == theirs.apply_chat_template(messages, **same, **arguments)["input_ids"]
            assert bos is None or bos == ours.eos_token_id or ids.count(bos) <= 1
    assert len(rendered) >= 12


def test_a_family_without_template_takes_texts_only(loaded):
    _, chat, _ = loaded("opt")
    with pytest.raises(ChatTemplateError, match="no chat template"):
        chat.render(PLAIN)


SAID_TWICE = [*PLAIN[:1], {"role": "assistant", "content": "Hm"}, {"role": "assistant", "content": "Well"}]


@pytest.mark.parametrize(
    ("name", "messages", "message"),
    [
        ("gemma3_text", SAID_TWICE, "user and assistant must take turns, but assistant is number 3"),
        ("mixtral", SAID_TWICE, "roles must alternate"),
        ("mixtral", CALLS, "Tool call IDs must be 9 characters long"),
        ("gpt_oss", [{"role": "tool", "content": "21"}], "a tool answers without a call"),
    ],
)
def test_a_templates_own_refusal_reaches_the_client(name, messages, message, loaded):
    _, chat, _ = loaded(name)
    with pytest.raises(ChatTemplateError, match=f"the chat template failed: .*{message}"):
        chat.render(messages)


@pytest.mark.parametrize(
    ("name", "eos"),
    [("gemma3_text", ["<end_of_turn>", "<eos>"]), ("gpt_oss", ["<|return|>", "<|call|>"]), ("phi3", ["<|end|>"])],
)
def test_the_text_of_an_eos_token_is_not_in_the_output(name, eos, loaded):
    """Whichever of the eos tokens ended it, and also where special tokens are shown."""
    ours, _, _ = loaded(name)
    ids = ours.encode(" the fox", add_special_tokens=False)
    for token, skip in itertools.product(eos, (True, False)):
        pieces = ours.pieces(skip_special_tokens=skip)
        decoder = ChoiceDecoder(pieces, DecodeOptions(tuple(ours.encode("quick", add_special_tokens=False))))
        text = "" if (first := decoder.feed(ids)) is None else first.text
        assert (text + decoder.finish([ours.token_id(token)], stop_token=True).text).strip() == "the fox"
