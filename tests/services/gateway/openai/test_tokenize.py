"""The tokenizer and the models, as evaluations and SDKs ask for them."""

from __future__ import annotations

import openai
import pytest
from ringline import Client

from tests.ring import Ring
from tests.services.gateway.raw_http import get, post

TEXT = "Once there was a €"


def test_text_to_ids_and_back(ring: Ring, native: Client) -> None:
    found = post(f"{ring.http}/tokenize", {"prompt": TEXT, "return_token_strs": True}).json()
    assert found["tokens"] == list(native.tokenize(TEXT).token_ids)
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == native.models()[0].max_model_len
    assert found["token_strs"][0] == "Once"
    assert post(f"{ring.http}/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": TEXT}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    ids = post(f"{ring.http}/tokenize", chat).json()["tokens"]
    assert ids == list(native.tokenize(messages=chat["messages"], add_generation_prompt=False).token_ids)
    rendered = post(f"{ring.http}/detokenize", {"tokens": ids}).json()["prompt"]
    assert post(f"{ring.http}/tokenize", {"prompt": rendered, "add_special_tokens": False}).json()["tokens"] == ids


def test_the_tokens_that_end_a_text(ring: Ring, native: Client) -> None:
    info = get(f"{ring.http}/tokenizer_info").json()
    (eos,) = native.tokenize(info["eos_token"], add_special_tokens=False).token_ids
    assert eos in native.models()[0].eos_token_ids


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens[0]"),
    ],
)
def test_errors(ring: Ring, path: str, body: dict[str, object], param: str) -> None:
    refused = post(ring.http + path, body)
    assert (refused.status, refused.json()["error"]["param"]) == (400, param)


def test_models(door: openai.OpenAI, native: Client) -> None:
    (model,) = door.models.list().data
    assert model.id == native.models()[0].name
    assert door.models.retrieve(model.id) == model
    assert door.get("/models/", cast_to=object) == door.get("/models", cast_to=object)
    with pytest.raises(openai.NotFoundError):
        door.models.retrieve("some/other")
