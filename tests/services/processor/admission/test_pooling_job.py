"""Which requests are encoded on the event loop: short ones, whatever stands before each input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import pooling_pb2

from services.processor.admission.model_choice import Chosen
from services.processor.admission.pooling_job import QUICK_SIZE, PoolingJob
from services.processor.pooling.plan import PoolingMessage
from services.processor.request import Asked, Request, RequestMessage
from tests.services.processor.model_specs import learned, served_model


class OneModel:
    """Offers a model to every request."""

    def __init__(self, **prompts: str) -> None:
        described = engine_pb2.GetModelResponse(model="m", pooling=pooling_pb2.PoolingFacts(prompts=prompts))
        self._model = replace(served_model(), model=described)

    def choose(self, asked: Asked, tenant: str, suits: object) -> Chosen:
        return Chosen(self._model)


def is_quick(message: PoolingMessage, **prompts: str) -> bool:
    stream: Any = None
    request = Request("r", "c", 1, "tenant", stream, 0.0)
    kept = RequestMessage(message.SerializeToString(), Asked(), 0, kind=type(message))
    choices: Any = OneModel(**prompts)
    job = PoolingJob(request, kept, lambda *_: None, learned(), choices)
    assert job.is_ready()
    return job.is_quick


def embed(*texts: str) -> pb.EmbedRequest:
    return pb.EmbedRequest(inputs=[pb.PoolingInput(text=text) for text in texts])


@pytest.mark.parametrize(
    ("message", "prompts", "quick"),
    [
        (embed("A dog runs.", "It barks."), {}, True),
        (embed("w" * QUICK_SIZE), {}, False),
        (embed(*[""] * 200), {}, True),
        (embed(*[""] * 200), {"query": "Instruct: find what answers it. Query: "}, False),
        (embed("A dog runs."), {"query": "Instruct: find what answers it. Query: "}, True),
        (pb.ScoreRequest(queries=embed("Who?").inputs, documents=embed("A dog.").inputs), {}, False),
    ],
)
def test_what_takes_long_to_encode_is_not_quick(message: PoolingMessage, prompts: dict[str, str], quick: bool) -> None:
    assert is_quick(message, **prompts) == quick
