"""Talks to the server at the address given with whatever packages its interpreter has, and prints what came as JSON.

``test_oldest.py`` runs it with the oldest packages that the client distribution promises to work with.
"""

import asyncio
import importlib
import json
import sys
from importlib.metadata import version

import grpc
import ringline
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1 import inference_pb2_grpc

GREEDY = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, "timeout": 60.0}
PROMPT = "Once upon a time"


def shown(answer: ringline.Generation) -> dict:
    usage = answer.usage
    return {"text": answer.text, "token_ids": answer.token_ids, "completion_tokens": usage.completion_tokens}


def blocking(address: str) -> dict:
    """The library over Generate: an answer, a refusal with its details. Nobody is at the other address."""
    with ringline.Client(f"127.0.0.1:1,{address}") as client:
        answer = client.generate(PROMPT, **GREEDY)
        chosen = client.generate(PROMPT, json_schema={"enum": [{"a": 1}]}, parse=True, timeout=60.0)
        try:
            client.generate(PROMPT, temperature=-1.0)
        except ringline.InvalidRequest as error:
            refusal = str(error)
        return {
            "models": len(client.models()),
            "generate": shown(answer),
            "refusal": refusal,
            "parsed": chosen.parsed,
            "content": chosen.content,
        }


async def multiplexed(address: str) -> list[dict]:
    """The library over a Session: three requests at once. Nobody is at the other address."""
    async with ringline.AsyncClient(["127.0.0.1:1", address]) as client:
        return [shown(a) for a in await asyncio.gather(*(client.generate(PROMPT, **GREEDY) for _ in range(3)))]


def bare(address: str) -> dict:
    """The stubs alone."""
    request = pb.GenerateRequest(text=PROMPT)
    request.sampling.temperature = 0.0
    request.stopping.max_tokens, request.stopping.ignore_eos = GREEDY["max_tokens"], True
    ids: list[int] = []
    with grpc.insecure_channel(address) as channel:
        for response in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=60):
            ids += response.delta.token_ids
    return {"token_ids": ids}


def main(address: str) -> None:
    for package in ("detokenizer.v1.detokenizer", "engine.v1.engine"):
        importlib.import_module(f"ringline.{package}_pb2_grpc")
    packages = ("googleapis-common-protos", "grpcio", "protobuf")
    result = {"versions": {package: version(package) for package in packages}}
    result |= blocking(address)
    result |= {"session": asyncio.run(multiplexed(address)), "bare": bare(address)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
