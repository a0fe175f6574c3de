"""Adapters at the HTTP door: named like models, listed with their parents, loaded and unloaded as in vLLM."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import adapter_pb2, output_pb2, part_pb2

from tests.clients.pooling_server import PoolingInference
from tests.clients.scripted_server import Script, admitted, delta, ended, started, status
from tests.services.gateway.http_harness import Running, running

DIGEST = "1" * 64
MESSAGES = [{"role": "user", "content": "Hi"}]


def french() -> Script:
    """The answer of a processor whose model has an adapter."""

    async def script(_: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
        yield admitted(adapter=adapter_pb2.Adapter(name="fr", digest=DIGEST), prompt_token_ids=[1, 2, 3])
        yield started()
        yield delta(0, [10], "Oui", parts=[part_pb2.Part(content="Oui")])
        for response in ended(output_pb2.FINISH_REASON_STOP, completion=1):
            yield response

    return script


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}


@pytest.fixture
async def french_gateway(gateway: Running) -> Running:
    gateway.processor.service.model.adapters.add(name="fr", digest=DIGEST)
    gateway.processor.plays(french())
    return gateway


def model_in(body: bytes) -> set[str]:
    """The names of models in an answer, whole or as events."""
    if not body.startswith((b"data:", b"event:")):
        return {json.loads(body)["model"]}
    data = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]
    found = [part for one in data for part in (one, one.get("response"), one.get("message")) if isinstance(part, dict)]
    return {part["model"] for part in found if "model" in part}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("named", "asked", "answered"),
    [
        ({"model": "fr"}, ("fr", ""), "fr"),
        ({"model": "tiny:fr"}, ("tiny:fr", ""), "tiny:fr"),
        ({"model": "tiny", "adapter": "fr"}, ("tiny", "fr"), "fr"),
        ({"lora_path": "fr"}, ("", "fr"), "fr"),
        ({"lora_path": ["fr", "fr"]}, ("", "fr"), "fr"),
        ({"adapter_id": "fr"}, ("", "fr"), "fr"),
    ],
)
async def test_an_adapter_is_named_like_a_model_and_so_is_the_answer(
    french_gateway: Running, path: str, named: dict[str, str], asked: tuple[str, str], answered: str, stream: bool
) -> None:
    reply = await french_gateway.ask("POST", path, BODIES[path] | named | {"stream": stream})
    assert reply.status == 200, reply.body
    (request,) = french_gateway.processor.service.requests
    assert (request.model, request.adapter) == asked
    assert ("adapters" in request.requires) == bool(asked[1])
    assert model_in(reply.body) == {answered}


@pytest.mark.parametrize("alone", [False, True])
async def test_names_of_tokens_are_those_of_the_base(french_gateway: Running, alone: bool) -> None:
    """Also for a caller who may use the base with that adapter only."""
    if alone:
        french_gateway.processor.service.model.name = "tiny:fr"
    body = {"model": "fr", "prompt": "Hi", "logprobs": 1, "echo": True, "truncate_prompt_tokens": 3}
    french_gateway.processor.plays(french())
    reply = await french_gateway.ask("POST", "/v1/completions", body | {"logprobs": None})
    assert reply.status == 200, reply.body
    assert reply.json()["choices"][0]["text"] == "\x01\x02\x03Oui"


async def test_adapters_are_listed_as_models_behind_their_parents(gateway: Running) -> None:
    service = gateway.processor.service
    service.model.adapters.add(name="fr", digest=DIGEST)
    service.model.adapters.add(name="tiny-2", digest=DIGEST)
    service.model.adapters.add(name="both", digest=DIGEST)
    other, alone = pb.Model(name="tiny-2", max_model_len=7), pb.Model(name="hidden:de", max_model_len=9)
    other.adapters.add(name="both", digest=DIGEST)
    alone.adapters.add(name="de", digest=DIGEST)
    service.listed_before += [other, alone]
    listed = (await gateway.ask("GET", "/v1/models")).json()
    assert [(one["id"], one["parent"], one["root"], one["max_model_len"]) for one in listed["data"]] == [
        ("tiny-2", None, "tiny-2", 7),
        ("tiny-2:both", "tiny-2", "tiny-2:both", 7),
        ("de", "hidden", "hidden:de", 9),
        ("tiny", None, "tiny", 64),
        ("fr", "tiny", "tiny:fr", 64),
        ("tiny:tiny-2", "tiny", "tiny:tiny-2", 64),
        ("tiny:both", "tiny", "tiny:both", 64),
    ]
    assert (listed["first_id"], listed["last_id"]) == ("tiny-2", "tiny:both")
    for name, parent in (("fr", "tiny"), ("tiny:fr", "tiny"), ("hidden:de", "hidden"), ("tiny-2", None)):
        one = (await gateway.ask("GET", f"/v1/models/{name}")).json()
        assert one["parent"] == parent, name
    assert (await gateway.ask("GET", "/v1/models/es")).error["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/score", "/classify", "/pooling", "/embed"])
async def test_vectors_scores_and_labels_are_asked_for_with_an_adapter(path: str) -> None:
    service = PoolingInference()
    service.model.adapters.add(name="fr", digest=DIGEST)
    service.adapters_used = iter([adapter_pb2.Adapter(name="fr", digest=DIGEST)] * 2)
    inputs = {
        "/v1/rerank": {"query": "a", "documents": ["b"]},
        "/score": {"queries": "a", "documents": ["b"]},
        "/embed": {"inputs": "a"},
    }
    async with running(service) as gateway:
        reply = await gateway.ask("POST", path, inputs.get(path, {"input": "a"}) | {"model": "tiny:fr"})
        assert reply.status == 200, reply.body
        assert path == "/embed" or reply.json()["model"] == "tiny:fr"
        reply = await gateway.ask("POST", path, inputs.get(path, {"input": "a"}) | {"adapter": "fr"})
        assert path == "/embed" or reply.json()["model"] == "fr"
    first, second = service.pooled
    assert (first.model, second.options.adapter, list(second.options.requires)) == ("tiny:fr", "fr", ["adapters"])


async def test_several_names_of_adapters_are_refused(french_gateway: Running) -> None:
    for given, words in (
        ({"lora_path": ["fr", "de"]}, "lora_path: a list of different adapters: expected one for all prompts"),
        ({"lora_path": ["fr", None]}, "lora_path: a list of different adapters: expected one for all prompts"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "name an adapter as the model"),
        ({"lora_request": {"name": "fr"}}, "name an adapter as the model"),
    ):
        reply = await french_gateway.ask("POST", "/v1/completions", {"prompt": "Hi"} | given)
        assert reply.status == 400, given
        assert words in reply.error["message"]
    for none in ([], [None], [None, None], ""):
        assert (await french_gateway.ask("POST", "/v1/completions", {"prompt": "Hi", "lora_path": none})).status == 200


# Loading and unloading


def refusing(gateway: Running, code: grpc.StatusCode, reason: str, message: str = "engine e0: no") -> None:
    """Let the processor refuse the next calls that change adapters."""
    details = status(code, message, error_details_pb2.ErrorInfo(reason=reason, domain="ringline"))

    async def refuse(_: object, context: Any) -> None:
        trailers = (("grpc-status-details-bin", details.SerializeToString()),)
        await context.abort(code, message, trailing_metadata=trailers)

    service: Any = gateway.processor.service
    service.refuse_control = refuse


async def test_loading_and_unloading_answer_as_vllm_does(gateway: Running) -> None:
    body = {"lora_name": "fr", "lora_path": "folder"}
    loaded = await gateway.ask("POST", "/v1/load_lora_adapter", body)
    assert (loaded.status, loaded.body) == (200, b"Success: LoRA adapter 'fr' added successfully.")
    again = await gateway.ask("POST", "/v1/load_lora_adapter", body | {"load_inplace": True, "base_model_name": "tiny"})
    assert again.status == 200
    unloaded = await gateway.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "fr", "lora_int_id": 1})
    assert (unloaded.status, unloaded.body) == (200, b"Success: LoRA adapter 'fr' removed successfully.")
    assert gateway.processor.service.controlled == [
        pb.LoadAdapterRequest(name="fr", path="folder"),
        pb.LoadAdapterRequest(name="fr", path="folder", model="tiny", replace=True),
        pb.UnloadAdapterRequest(name="fr"),
    ]


@pytest.mark.parametrize(
    ("path", "code", "reason", "http", "words"),
    [
        ("load", "ALREADY_EXISTS", "ADAPTER_EXISTS", 400, "The lora adapter 'fr' has already been loaded. If you want"),
        ("load", "PERMISSION_DENIED", "PERMISSION_DENIED", 403, "engine e0: no"),
        ("load", "INVALID_ARGUMENT", "INVALID_FIELD", 400, "engine e0: no"),
        ("load", "FAILED_PRECONDITION", "CAPABILITY_MISSING", 400, "engine e0: no"),
        ("unload", "NOT_FOUND", "ADAPTER_NOT_FOUND", 404, "The lora adapter 'fr' cannot be found."),
        ("unload", "NOT_FOUND", "MODEL_NOT_FOUND", 404, "engine e0: no"),
    ],
)
async def test_refusals(gateway: Running, path: str, code: str, reason: str, http: int, words: str) -> None:
    refusing(gateway, grpc.StatusCode[code], reason)
    reply = await gateway.ask("POST", f"/v1/{path}_lora_adapter", {"lora_name": "fr", "lora_path": "folder"})
    assert reply.status == http
    assert reply.error["message"].startswith(words)


async def test_missing_names(gateway: Running) -> None:
    for body in ({"lora_name": "fr"}, {"lora_path": "folder"}, {}):
        reply = await gateway.ask("POST", "/v1/load_lora_adapter", body)
        assert (reply.status, reply.error["message"]) == (400, "Both 'lora_name' and 'lora_path' must be provided.")
    reply = await gateway.ask("POST", "/v1/unload_lora_adapter", {})
    assert reply.error["message"] == "'lora_name' needs to be provided to unload a LoRA adapter."
