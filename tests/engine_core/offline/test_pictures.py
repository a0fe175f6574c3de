"""Pictures as programs have them, and as parts of conversations and prompts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from PIL import Image

from engine_core.errors import InvalidRequestError
from engine_core.llm import LLM, SamplingParams
from engine_core.offline.conversations import read_conversations
from engine_core.offline.pictures import read_picture
from engine_core.offline.prompts import read_prompts
from engine_core.offline.sampling_params import read_params
from engine_core.request import NoRepeatNgram
from tests.engine_core.vision.deepseek_ocr_checkpoints import write_deepseek_ocr

PICTURE = Image.new("RGB", (90, 60), (200, 20, 40))
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def png(picture: Image.Image = PICTURE) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


URL = "data:image/png;base64," + base64.b64encode(png()).decode()


def chat(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def image(picture: Any) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def test_forms_of_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    for given in (png(), bytearray(png()), path, PICTURE, URL):
        assert read_picture(given, "x").data == png()
    assert Image.open(io.BytesIO(read_picture(PICTURE.convert("CMYK"), "x").data)).mode == "RGB"


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("a.png", ValueError, "x is 'a.png'; expected bytes, a pathlib.Path, a picture of Pillow, or a data: URL"),
        ("https://a.com/b.png", ValueError, "Nothing is fetched"),
        ("data:image/png;base64,!", ValueError, "x is not base64 after the comma"),
        (Path("/none/a.png"), ValueError, "x is '/none/a.png', which cannot be read: No such file"),
        (3, TypeError, "x is of type int; expected bytes"),
        (None, TypeError, "x is missing; expected bytes"),
    ],
)
def test_what_is_no_picture(given: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace(".", r"\.")):
        read_picture(given, "x")


def test_parts_of_a_conversation() -> None:
    parts = chat(
        {"type": "text", "text": "One"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
        {"type": "image_url", "image_url": URL},
        {"type": "image_pil", "image_pil": PICTURE},
        image(png()),
        {"type": "text", "text": "Two"},
    )
    (read,) = read_conversations(parts)
    assert [part.get("text", part["type"]) for part in read.messages[0]["content"]] == ["One", *["image"] * 4, "Two"]
    assert [picture.data for picture in read.pictures] == [png()] * 4
    assert read.pictures[1].place == "messages[0].content[2].image_url"
    (read,) = read_conversations(chat({"type": "text", "text": "One"}, {"type": "text", "text": "Two"}))
    assert read.messages[0]["content"] == "One\nTwo"
    assert read.pictures == ()


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "video"}, r"content\[0\] is a part of type 'video'; expected parts of type 'text', 'image_url' or"),
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            r"image_url.detail is 'low'; expected 'auto'",
        ),
        ({"type": "image", "image": b"", "x": 1}, r"content\[0\] has the key 'x'"),
    ],
)
def test_other_parts_are_refused(part: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_conversations(chat(part))


def test_prompts_with_pictures() -> None:
    prompts = [
        {"prompt": "a", "multi_modal_data": {"image": PICTURE}},
        {"prompt": "a", "multi_modal_data": {"image": [png(), URL]}},
    ]
    one, two = read_prompts(prompts)
    assert [picture.data for picture in one.pictures + two.pictures] == [png()] * 3
    assert two.pictures[1].place == "prompts[1]['multi_modal_data']['image'][1]"
    for data in ({"video": 1}, {"image": PICTURE, "audio": 1}, 3):
        with pytest.raises(ValueError, match=r"expected \{'image': picture\}"):
            read_prompts({"prompt": "a", "multi_modal_data": data})


def test_the_rule_against_repetitions() -> None:
    expected = NoRepeatNgram(30, 90, frozenset({7}))
    of_vllm = {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [7]}
    own: Any = {"ngram_size": 30, "window_size": 90, "allowed_token_ids": [7]}
    for params in (
        SamplingParams(extra_args=of_vllm),
        SamplingParams(no_repeat_ngram=own),
        SamplingParams(no_repeat_ngram=expected),
    ):
        assert read_params(params, "p").no_repeat_ngram == expected
    assert read_params(SamplingParams(extra_args={"ngram_size": 3}), "p").no_repeat_ngram == NoRepeatNgram(3, 100)
    assert read_params(SamplingParams(extra_args={"window_size": 3}), "p").no_repeat_ngram is None
    for wrong in (
        SamplingParams(extra_args={"size": 3}),
        SamplingParams(extra_args={"ngram_size": 3}, no_repeat_ngram=expected),
        SamplingParams(extra_args=3),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequestError, match=r"^p: extra_args"):
            read_params(wrong, "p")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    directory = tmp_path_factory.mktemp("checkpoint") / "ocr"
    write_deepseek_ocr(directory)
    with LLM(directory, kv_cache_memory_bytes="64MiB", limit_mm_per_prompt={"image": 2}) as made:
        yield made


def test_a_conversation_with_a_picture(llm: LLM) -> None:
    text = {"type": "text", "text": "a"}
    [first] = llm.chat(chat(image(PICTURE), text), GREEDY)
    [same] = llm.chat(chat({"type": "image_url", "image_url": {"url": URL}}, text), GREEDY)
    [other] = llm.chat(chat(image(Image.effect_noise((90, 60), 90).convert("RGB")), text), GREEDY)
    assert same.outputs[0].token_ids == first.outputs[0].token_ids
    assert same.num_cached_tokens
    assert other.prompt_token_ids == first.prompt_token_ids
    assert not other.num_cached_tokens, "pictures are known by their pixels"
    assert first.prompt == "<｜begin▁of▁sentence｜><image>\na", "as docs/reference/offline.md writes it"
    prompt: Any = {"prompt": first.prompt, "multi_modal_data": {"image": [png()]}}
    [completed] = llm.generate(prompt, GREEDY)
    assert completed.prompt_token_ids == first.prompt_token_ids
    assert completed.outputs[0].token_ids == first.outputs[0].token_ids


def test_what_a_model_refuses_is_named(llm: LLM) -> None:
    for messages, text in (
        (chat(image(b"x")), r"messages\[0\].content\[0\].image: it is no picture of a known format"),
        (chat(*[image(PICTURE)] * 3), "messages: has 3 pictures; expected at most 2"),
        (
            chat({"type": "text", "text": "<image>"}, image(PICTURE)),
            r"messages\[0\].content: has '<image>', which stands",
        ),
    ):
        with pytest.raises(InvalidRequestError, match=text):
            llm.chat(messages, GREEDY)
    refused = patch.object(llm._engine.executor, "check_picture", side_effect=InvalidRequestError("media", "is odd"))
    with refused, pytest.raises(InvalidRequestError, match=r"^messages: is odd"):
        llm.chat(chat(image(PICTURE)), GREEDY)
    with pytest.raises(InvalidRequestError, match="the chat template shows 0 of 1 pictures"):
        llm.generate({"prompt": "a", "multi_modal_data": {"image": PICTURE}}, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="is a picture; LLM"):
        llm.get_tokenizer().apply_chat_template(chat(image(PICTURE)))
