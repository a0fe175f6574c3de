"""An InferenceService whose vectors, scores and labels are made of the inputs by simple rules."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import repeat

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import adapter_pb2, pooling_pb2

from tests.clients.scripted_server import ScriptedInference, status

DIMENSIONS = 4
LABELS = ("calm", "glad", "sad")
MANY = 2048
"""Most inputs of a message."""


def ids_of(one: pb.PoolingInput) -> list[int]:
    return list(one.token_ids.ids) or list(one.text.encode())


def vector(ids: list[int], width: int = DIMENSIONS) -> list[float]:
    """Distinct ids have distinct vectors, whose numbers need all bits of a float."""
    return [len(ids) / 3, sum(ids) / 7, sum(k * each for k, each in enumerate(ids)) / 11, -ids[0] / 13][:width]


def score(query: list[int], document: list[int]) -> float:
    """The share of the query's ids that the document has."""
    return sum(each in document for each in query) / len(query)


class PoolingInference(ScriptedInference):
    """Refuses empty texts by their place in the message, as a processor does."""

    def __init__(self) -> None:
        super().__init__()
        self.pooled: list[pb.EmbedRequest | pb.ScoreRequest | pb.ClassifyRequest] = []
        self.under_way = 0
        self.most_under_way = 0
        self.wait: Callable[[Message], Awaitable[object]] | None = None
        """Called with each request before it is answered."""
        self.extra_values = b""
        """Sent behind the values, which nobody expects."""
        self.numerics = iter(["n0"] * 1000)
        self.adapters_used: Iterator[adapter_pb2.Adapter | None] = repeat(None)
        self.model.pooling.CopyFrom(
            pooling_pb2.PoolingFacts(
                tasks=[pooling_pb2.POOLING_TASK_EMBED, pooling_pb2.POOLING_TASK_CLASSIFY, 99],
                dimensions=DIMENSIONS,
                normalizes=True,
                labels=LABELS,
                prompts={"query": "Q: "},
                pair_form=pooling_pb2.PAIR_FORM_SEGMENTS,
            )
        )

    async def Embed(self, request, context):
        async with self._asked(request, request.inputs, "inputs", context):
            width = request.dimensions or DIMENSIONS
            rows = [
                [each] if request.per_token else ids
                for ids in map(ids_of, request.inputs)
                for each in (ids if request.per_token else ids[:1])
            ]
            values = [number for row in rows for number in vector(row, width)]
            counts = [len(ids_of(one)) for one in request.inputs] if request.per_token else []
            packed = array("f", values).tobytes() + self.extra_values
            return pb.EmbedResponse(
                values=packed, dimensions=width, counts=counts, report=self._report(map(ids_of, request.inputs))
            )

    async def Score(self, request, context):
        async with self._asked(request, request.documents, "documents", context):
            queries = list(map(ids_of, request.queries))
            documents = list(map(ids_of, request.documents))
            pairs = list(zip(queries * (len(documents) if len(queries) == 1 else 1), documents, strict=True))
            return pb.ScoreResponse(
                scores=[score(*pair) for pair in pairs], report=self._report(a + b for a, b in pairs)
            )

    async def Classify(self, request, context):
        async with self._asked(request, request.inputs, "inputs", context):
            inputs = list(map(ids_of, request.inputs))
            rows = [each for ids in inputs for each in ([[one] for one in ids] if request.per_token else [ids])]
            values = [number for row in rows for number in vector(row, len(LABELS))]
            counts = list(map(len, inputs)) if request.per_token else []
            return pb.ClassifyResponse(
                values=array("f", values).tobytes(), labels=LABELS, counts=counts, report=self._report(inputs)
            )

    @asynccontextmanager
    async def _asked(self, request, inputs, name: str, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """A request under way."""
        await self._fail_unary(context)
        self.pooled.append(request)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.wait is not None:
                await self.wait(request)
            assert 1 <= len(inputs) <= MANY
            for index, one in enumerate(inputs):
                if not ids_of(one):
                    await _refuse(f"{name}[{index}]", context)
            yield
        finally:
            self.under_way -= 1

    def _report(self, inputs) -> pb.PoolingReport:
        tokens = list(map(len, inputs))
        return pb.PoolingReport(
            usage=pb.Usage(prompt_tokens=sum(tokens)),
            input_tokens=tokens,
            model="tiny",
            model_digest="d",
            numerics=next(self.numerics),
            adapter=next(self.adapters_used),
            server_request_id=f"r{len(self.pooled)}",
        )


async def _refuse(place: str, context: grpc.aio.ServicerContext) -> None:
    problem = f"{place}: empty: expected a text"
    violation = error_details_pb2.BadRequest.FieldViolation(field=place, description=problem)
    details = error_details_pb2.BadRequest(field_violations=[violation])
    code = grpc.StatusCode.INVALID_ARGUMENT
    trailers = (("grpc-status-details-bin", status(code, problem, details).SerializeToString()),)
    await context.abort(code, problem, trailing_metadata=trailers)
