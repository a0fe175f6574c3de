"""``/classify``: labels of texts, as in vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay

from services.gateway.fields import refused, same
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI
from services.gateway.pooling.embeddings import InputFields, begun, ended, input_names
from services.gateway.pooling.endpoint import PoolingEndpoint
from services.gateway.pooling.fields import add_inputs, answered, build, is_single, read_cut, read_inputs
from services.gateway.pooling.floats import numbers_of, rows_of, shortest
from services.gateway.pooling.rerank import Activation


class ClassifyRequest(InputFields):
    """The body of ``/classify``."""

    use_activation: Activation = None
    activation: Annotated[bool | None, same("use_activation", note="vLLM's older `use_activation`.")] = None
    labels: Annotated[Any, refused("the labels are the model's own", [])] = None


def _request(body: ClassifyRequest, _model: Model | None) -> pb.ClassifyRequest:
    asked = build(pb.ClassifyRequest, body)
    read_cut(body, asked.options)
    add_inputs(asked.inputs, read_inputs(body.input, "input"), "input", single=is_single(body.input))
    return asked


def _write(call: Call, body: ClassifyRequest, told: pb.ClassifyResponse) -> Iterator[bytes]:
    labels = list(told.labels)
    yield begun(call, "classify-", answered(body, told.report))
    for index, row in enumerate(rows_of(told.values, len(labels))):
        probs = shortest(numbers_of(row))
        label = labels[max(range(len(probs)), key=probs.__getitem__)]
        one = {"index": index, "label": label, "probs": probs, "num_classes": len(labels)}
        yield (b"," if index else b"") + msgspec.json.encode(one)
    yield ended(told.report)


CLASSIFY = PoolingEndpoint(ClassifyRequest, Relay.classify, _request, _write, input_names)
ENDPOINTS = tuple(Endpoint("POST", path, CLASSIFY.answer, OPENAI) for path in ("/classify", "/v1/classify"))
