"""Text by the model's own tokenizer: stop strings and chats are read, searched and refused as in the ring."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from transformers import AutoTokenizer

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.llm import LLM, Completion, Result, SamplingParams
from engine_core.offline.model_text import ModelText
from engine_core.request import FinishReason, Request
from engine_core.request import SamplingParams as EngineSamplingParams
from engine_core.validation import validate_request
from text_core.chat_templates import ChatTemplates
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.incremental_decoder import left_context
from text_core.tokenizer import Tokenizer
from text_core.tokenizer_files import read_tokenizer_files

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "tiny"
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_bytes": "16MiB"}
PROMPT = "Once upon a time"
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.fixture(scope="module", params=[False, True], ids=["one step", "overlapping steps"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(TINY, async_scheduling=request.param, **OPTIONS) as started:
        yield started


def stopped(tokenizer: Tokenizer, whole: Result, params: SamplingParams, choice: int) -> tuple[object, ...]:
    """What the ring makes of a choice that was computed without stop strings."""
    pieces, completion = tokenizer.pieces(), whole.choices[choice]
    options = DecodeOptions(
        tuple(left_context(pieces, whole.prompt_token_ids)),
        params.stop_strings,
        params.include_stop_str_in_output,
        params.min_tokens,
    )
    assert completion.finish is not None
    by_token = completion.finish.stop_token_id is not None
    delta = ChoiceDecoder(pieces, options).finish(completion.token_ids, stop_token=by_token)
    if delta.stop is None:
        return delta.text, completion.token_ids, completion.finish.finish_reason, completion.finish.stop_token_id
    return delta.text, completion.token_ids[: delta.end], FinishReason.STOP, delta.stop


def outcome(completion: Completion) -> tuple[object, ...]:
    assert completion.finish is not None
    return completion.text, completion.token_ids, completion.finish.finish_reason, completion.stop


def test_stop_strings_end_choices_where_the_ring_would_end_them(llm: LLM) -> None:
    """Random pieces of the answers themselves, several at a time, in a batch: no choice changes another's tokens."""
    rng, tokenizer = Random(4), Tokenizer.from_directory(TINY)
    free = [SamplingParams(temperature=0.8, seed=seed, n=2, max_tokens=32, logprobs=1) for seed in range(24)]
    whole = llm.generate([PROMPT] * 24, free)
    params = []
    for result, each in zip(whole, free, strict=True):
        text = result.choices[rng.randrange(2)].text or ""
        starts = [rng.randrange(len(text)) for _ in range(rng.randint(1, 3))]
        stops = [text[start : start + rng.randint(1, 8)] for start in starts]
        chosen = {"include_stop_str_in_output": rng.random() < 0.5, "min_tokens": rng.choice([0, 0, 5])}
        params.append(replace(each, stop=stops if rng.random() < 0.8 else stops[0], **chosen))
    results = llm.generate([PROMPT] * 24, params)
    for result, reference, each in zip(results, whole, params, strict=True):
        for index, completion in enumerate(result.choices):
            assert outcome(completion) == stopped(tokenizer, reference, each, index)
            assert completion.logprobs is not None
            assert len(completion.logprobs) == len(completion.token_ids)
    ends = [completion.stop for result in results for completion in result.choices]
    assert 24 <= sum(isinstance(stop, str) for stop in ends) < 48  # both kinds of ends were seen
    assert (llm.stats().running_seqs, llm.stats().waiting_seqs, llm.stats().kv_blocks_used) == (0, 0, 0)


def test_ids_have_text_where_a_stop_string_needs_it(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    [free], [ended] = llm.generate([ids], GREEDY), llm.generate([ids], replace(GREEDY, stop="."))
    assert (free.choices[0].text, ended.prompt) == (None, None)
    assert ended.choices[0].text is not None
    assert "." not in ended.choices[0].text
    assert ended.choices[0].token_ids == free.choices[0].token_ids[: len(ended.choices[0].token_ids)]


def test_a_chat_is_rendered_as_in_the_ring(llm: LLM) -> None:
    templates = ChatTemplates.from_files(read_tokenizer_files(TINY))
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3, "b": 4}'}}
    plain_call = call | {"function": {"name": "add", "arguments": {"a": 3, "b": 4}}}
    one = [{"role": "system", "content": "Be brief."}, QUESTION]
    two = [
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "3 plus 4?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
    ]
    rendered = [
        {"role": "user", "content": "What is\n3 plus 4?"},
        {"role": "assistant", "content": "", "tool_calls": [plain_call]},
        two[2],
    ]
    results = llm.chat([one, two], GREEDY, tools=tools)
    assert [result.prompt for result in results] == [templates.render(each, tools=tools) for each in (one, rendered)]
    for result in results:
        assert result.prompt_token_ids == Tokenizer.from_directory(TINY).encode(result.prompt, add_special_tokens=False)
    [answer] = llm.chat([QUESTION], GREEDY)
    assert answer.choices[0].text == "3 + 4 = 7."
    begun = [QUESTION, {"role": "assistant", "content": "3 + 4 ="}]
    [answer] = llm.chat(begun, GREEDY, continue_final_message=True)
    assert answer.choices[0].text == " 7."


def test_the_tokenizer_renders_chats_as_that_of_transformers(llm: LLM) -> None:
    tokenizer, theirs = llm.get_tokenizer(), AutoTokenizer.from_pretrained(TINY)
    assert tokenizer is llm.tokenizer
    begun = [QUESTION, {"role": "assistant", "content": "3 + 4 ="}]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    for chat, options in (
        ([QUESTION], {}),
        ([QUESTION], {"add_generation_prompt": True}),
        ([QUESTION], {"tools": tools, "add_generation_prompt": True, "enable_thinking": False}),
        (begun, {"continue_final_message": True}),
        ([[QUESTION], begun], {}),
    ):
        text = tokenizer.apply_chat_template(chat, tokenize=False, **options)
        assert text == theirs.apply_chat_template(chat, tokenize=False, **options)
        ids = tokenizer.apply_chat_template(chat, return_dict=False, **options)
        assert ids == theirs.apply_chat_template(chat, return_dict=False, **options)
    prompt = tokenizer.apply_chat_template([QUESTION], add_generation_prompt=True)
    assert llm.generate(prompt, GREEDY)[0].outputs[0].token_ids == llm.chat([QUESTION], GREEDY)[0].outputs[0].token_ids
    assert tokenizer.decode(tokenizer.encode(PROMPT)) == PROMPT


def test_the_tokenizer_refuses_what_it_cannot_render(llm: LLM) -> None:
    render = llm.get_tokenizer().apply_chat_template
    with pytest.raises(TypeError, match=r"^parameter 'return_tensors' is not supported: a prompt is text or a list of"):
        render([QUESTION], return_tensors="pt")
    with pytest.raises(InvalidRequestError, match=r"^messages: the model has no chat template named 'no'"):
        render([QUESTION], chat_template="no")
    with pytest.raises(TypeError, match=r"^messages\[0\]\.role is missing"):
        render([{"content": "Hello"}])


def test_without_a_tokenizer_there_are_ids_alone() -> None:
    text = ModelText(ModelConfig(model=str(TINY), skip_tokenizer_init=True))
    with pytest.raises(CheckpointError, match=r"^a text needs a tokenizer"):
        text.tokenizer.encode("abc")
    with pytest.raises(InvalidRequestError, match=r"^prompt: stop: needs a tokenizer"):
        text.check(SamplingParams(stop="x"), "prompt")
    choice = text.choice([5, 6], SamplingParams())
    choice.add([7, 8], None)
    assert choice.text == ""


def test_texts_have_their_form(llm: LLM) -> None:
    """One after the other and in a batch with free ones, whose texts do not change."""
    drawn = SamplingParams(temperature=1.0, seed=5, n=2, max_tokens=48)
    digits = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 4}
    closed = {"type": "object", "additionalProperties": False}
    forms: dict[str, Any] = {
        "choice": ["yes", "no", "perhaps"],
        "regex": "[a-z]{3}-[0-9]{2}",
        "json_schema": {"properties": {"digits": digits}, "required": ["digits"], **closed},
        "grammar": 'start: WORD (" " WORD)~2\nWORD: /[a-z]{1,5}/',
    }
    held = [replace(drawn, **{name: form}) for name, form in forms.items()]
    prompts = [PROMPT] * len(held)
    answers = llm.generate(prompts * 2, [*held, *[drawn] * len(held)])
    assert [answer.choices for answer in answers[len(held) :]] == [llm.generate(PROMPT, drawn)[0].choices] * len(held)
    for answer, each in zip(answers, held, strict=False):
        assert answer.choices == llm.generate(PROMPT, each)[0].choices
        for choice in answer.choices:
            assert choice.finish is not None
            assert choice.finish.finish_reason is FinishReason.STOP
    chosen, matched, objects, words = [[choice.text or "" for choice in answer.choices] for answer in answers[:4]]
    assert set(chosen) <= set(forms["choice"])
    assert all(re.fullmatch(forms["regex"], text) for text in matched)
    assert all({1, 2, 3}.issuperset(json.loads(text)["digits"]) for text in objects)
    assert all(re.fullmatch(r"[a-z]{1,5}( [a-z]{1,5}){2}", text) for text in words)
    verbatim = EngineSamplingParams(grammar='start: "so"', temperature=1.0, seed=1)
    assert llm.generate(PROMPT, verbatim)[0].choices[0].text == "so"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"regex": "("}, "sampling_params[1]: regex: "),
        ({"json_schema": "{"}, "sampling_params[1]: json_schema: "),
        ({"choice": []}, "sampling_params[1]: choice.texts: has 0 texts"),
        ({"grammar": "start: absent"}, "sampling_params[1]: grammar: "),
    ],
)
def test_forms_that_cannot_be_used_are_refused_where_they_are(llm: LLM, form: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        llm.generate([PROMPT] * 2, [GREEDY, replace(GREEDY, **form)])
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("Hello", "^messages is of type str; expected a list with a message such as"),
        ([], "^messages is empty; expected at least one message"),
        ([[QUESTION], []], r"^messages\[1\] is empty; expected at least one message"),
        ([QUESTION, 5], r"^messages\[0\] is of type dict; expected a list"),
        ([{"role": "user"}], r"^messages\[0\]\.content is missing; expected text"),
        ([{"content": "Hello"}], r"^messages\[0\]\.role is missing; expected text"),
        ([QUESTION | {"text": "Hi"}], r"^messages\[0\] has the key 'text'; expected role, content"),
        (
            [[QUESTION], [{"role": "user", "content": [{"type": "video_url"}]}]],
            r"^messages\[1\]\[0\]\.content\[0\] is a part of type 'video_url'; expected parts of type 'text'",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            r"^messages\[0\]\.tool_calls\[0\]\.arguments is not JSON",
        ),
        ([QUESTION | {"role": "owner"}], "^messages: the chat template failed: the role of a message must be"),
    ],
)
def test_what_is_no_conversation_is_refused_before_any_step(llm: LLM, messages: Any, words: str) -> None:
    steps = llm.stats().steps
    with pytest.raises((TypeError, ValueError), match=words):
        llm.chat(messages, GREEDY)
    assert llm.stats().steps == steps


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ([""], "stop: has a string of 0 bytes; expected 1 to 1024 bytes"),
        (["a" * 1025], "stop: has a string of 1025 bytes; expected 1 to 1024 bytes"),
        (["a"] * 65, "stop: has 65 strings; expected at most 64"),
        (["a" * 1024] * 9, "stop: has 9216 bytes together; expected at most 8192"),
        (["a", 5], "stop: has an item of type int; expected strings"),
        (["\ud800"], "stop: has '.ud800'; expected text that UTF-8 can encode"),
        (5, "stop: is of type int; expected a string, or a list of strings"),
    ],
)
def test_stop_strings_that_cannot_be_searched_for_are_refused(llm: LLM, stop: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"^sampling_params\[1\]: " + words):
        llm.generate([PROMPT] * 2, [GREEDY, replace(GREEDY, stop=stop)])


def test_stop_strings_are_refused_where_they_would_be_ignored(llm: LLM) -> None:
    """Below ``LLM`` there are only token ids."""
    with pytest.raises(
        ValueError, match=r"^params: is of type SamplingParams; expected SamplingParams of engine_core\.request"
    ):
        validate_request(Request("a", (5,), replace(GREEDY, stop="a")), llm.model)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tools", {"type": "function"}, "^tools is of type dict; expected a list"),
        ("tools", [{"f": float("nan")}], "^tools cannot be written as JSON: "),
        ("chat_template_kwargs", 5, "^chat_template_kwargs is of type int; expected a dictionary"),
        ("chat_template_kwargs", {"a": object()}, "^chat_template_kwargs cannot be written as JSON: "),
        ("template_name", [], "^template_name is of type list; expected text"),
        ("template_name", "no", "^messages: the model has no chat template named 'no': expected one of default"),
    ],
)
def test_what_a_template_cannot_be_given_is_refused_by_name(llm: LLM, name: str, value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        llm.chat([QUESTION], GREEDY, **{name: value})


def test_a_damaged_tokenizer_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"the tokenizer cannot be read: tokenizer\.json cannot be read: "):
        ModelText(ModelConfig(model=str(tmp_path)))
