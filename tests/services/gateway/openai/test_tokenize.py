"""The tokenizer and the models, as evaluations and SDKs ask for them."""

from __future__ import annotations

import json
import math

import httpx2
import openai
import pytest
from ringline import Client
from safetensors import safe_open

from tests.ring import MODEL, Ring
from tests.services.gateway.conftest import Post

TEXT = "Once there was a €"


def test_text_to_ids_and_back(post: Post, native: Client) -> None:
    found = post("/tokenize", {"prompt": TEXT, "return_token_strs": True}).json()
    assert found["tokens"] == list(native.tokenize(TEXT).token_ids)
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == native.models()[0].max_model_len
    assert found["token_strs"][0] == "Once"
    assert post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": TEXT}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    ids = post("/tokenize", chat).json()["tokens"]
    assert ids == list(native.tokenize(messages=chat["messages"], add_generation_prompt=False).token_ids)
    rendered = post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert post("/tokenize", {"prompt": rendered, "add_special_tokens": False}).json()["tokens"] == ids


def test_the_tokens_that_end_a_text(ring: Ring, native: Client) -> None:
    info = httpx2.get(f"{ring.http}/tokenizer_info").json()
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
def test_errors(post: Post, path: str, body: dict[str, object], param: str) -> None:
    refused = post(path, body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_a_text_that_no_context_holds_is_too_long_whatever_its_size(post: Post, native: Client, field: str) -> None:
    model = native.models()[0]
    for size in (12 * model.max_model_len + (128 << 10), 16 * model.max_model_len + 4 * model.vocab_size + (300 << 10)):
        body = {"prompt": "a " * (size // 2), "messages": [{"role": "user", "content": "a " * (size // 2)}]}
        refused = post("/tokenize", {field: body[field]})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "context_length_exceeded"), error
        assert error["param"] in (field, None)
        counted = post("/v1/messages/count_tokens", {"messages": body["messages"]})
        assert counted.status_code == 400
        assert counted.json()["error"]["message"].startswith("prompt is too long: ")


def test_models(door: openai.OpenAI, native: Client) -> None:
    (model,) = door.models.list().data
    assert model.id == native.models()[0].name
    assert door.models.retrieve(model.id) == model
    assert door.get("/models/", cast_to=object) == door.get("/models", cast_to=object)
    with pytest.raises(openai.NotFoundError):
        door.models.retrieve("some/other")


def test_a_model_says_how_it_samples_by_default_and_how_large_it_is(door: openai.OpenAI, native: Client) -> None:
    """As generation_config.json of the bundled model and the sizes in its weights' header say."""
    own = json.loads((MODEL / "generation_config.json").read_text())
    model = native.models()[0]
    neutral = {"top_k": 0, "min_p": 0, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "n": 1}
    assert model.default_sampling == neutral | {"temperature": own["temperature"], "top_p": own["top_p"]}
    with safe_open(MODEL / "model.safetensors", "np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.offset_keys()]
    assert model.num_parameters == sum(map(math.prod, shapes))
    (told,) = door.models.list().data
    assert (
        told.to_dict().items()
        >= {
            "default_sampling": model.default_sampling,
            "num_parameters": model.num_parameters,
        }.items()
    )
