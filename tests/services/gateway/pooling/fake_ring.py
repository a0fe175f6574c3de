"""A processor that makes vectors, scores and labels of inputs' characters, so that a test knows each of them."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Sequence

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import pooling_pb2

from tests.clients.scripted_server import ScriptedInference, status

LABELS = ("no", "yes", "perhaps")


def float32(number: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def ids_of(given: pb.PoolingInput) -> list[int]:
    """A text's characters, or ids as they are."""
    return list(map(ord, given.text)) if given.HasField("text") else list(given.token_ids.ids)


def vector(ids: Sequence[int], width: int) -> list[float]:
    """Of ids: numbers of any size, which no other ids have."""
    of = sum((index + 1) * one for index, one in enumerate(ids)) + len(ids)
    return [float32(math.sin(of * (place + 1)) * 10 ** (-(place % 5))) for place in range(width)]


def score(query: Sequence[int], document: Sequence[int]) -> float:
    """Of a pair."""
    return float32(1 / (1 + abs(sum(query) - sum(document))))


class PoolingInference(ScriptedInference):
    """Remembers what it was asked."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.asked: list[pb.EmbedRequest | pb.ScoreRequest | pb.ClassifyRequest] = []
        self.refusal: tuple[grpc.StatusCode, str, tuple[Message, ...]] | None = None
        """How all is refused."""
        self.embedded: pb.EmbedResponse | None = None
        """What Embed answers, whatever it is asked."""
        self.waits = False
        """Whether no call is answered."""
        tasks = (pooling_pb2.POOLING_TASK_EMBED, pooling_pb2.POOLING_TASK_TOKEN_EMBED)
        self.model = pb.Model(
            name="small",
            architecture="BertModel",
            max_model_len=64,
            num_parameters=1000,
            capabilities=["pooling"],
            pooling=pooling_pb2.PoolingFacts(
                tasks=tasks,
                dimensions=width,
                is_matryoshka=True,
                matryoshka_dimensions=[width // 2, width],
                normalizes=True,
                prompts={"query": "query: ", "passage": "passage: "},
            ),
        )

    def classifies(self) -> None:
        """Be a model of labels from now on."""
        tasks = (pooling_pb2.POOLING_TASK_CLASSIFY, pooling_pb2.POOLING_TASK_TOKEN_CLASSIFY)
        self.model.pooling.CopyFrom(pooling_pb2.PoolingFacts(tasks=tasks, labels=LABELS))

    def generates(self) -> None:
        """Be a model that generates text from now on."""
        self.model.ClearField("pooling")

    def refuses(self, code: grpc.StatusCode, message: str, *details: Message) -> None:
        """Refuse all from now on."""
        self.refusal = code, message, details

    async def Embed(self, request, context):
        await self._begin(request, context)
        if self.embedded is not None:
            return self.embedded
        width = request.dimensions if request.HasField("dimensions") else self.width
        inputs = [ids_of(one) for one in request.inputs]
        rows = [[one] for ids in inputs for one in ids] if request.per_token else inputs
        packed = b"".join(struct.pack(f"<{width}f", *vector(row, width)) for row in rows)
        counts = list(map(len, inputs)) if request.per_token else []
        return pb.EmbedResponse(values=packed, dimensions=width, counts=counts, report=report(inputs))

    async def Score(self, request, context):
        await self._begin(request, context)
        queries, documents = (list(map(ids_of, given)) for given in (request.queries, request.documents))
        pairs = list(zip(queries * (len(documents) if len(queries) == 1 else 1), documents, strict=True))
        return pb.ScoreResponse(scores=[score(*pair) for pair in pairs], report=report([[*a, *b] for a, b in pairs]))

    async def Classify(self, request, context):
        await self._begin(request, context)
        inputs = [ids_of(one) for one in request.inputs]
        rows = [[one] for ids in inputs for one in ids] if request.per_token else inputs
        packed = b"".join(struct.pack(f"<{len(LABELS)}f", *vector(row, len(LABELS))) for row in rows)
        counts = list(map(len, inputs)) if request.per_token else []
        return pb.ClassifyResponse(values=packed, labels=LABELS, counts=counts, report=report(inputs))

    async def _begin(self, request, context) -> None:
        self.asked.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        context.add_done_callback(lambda _: self.cancelled.set() if self.waits else None)
        if self.refusal is not None:
            code, message, details = self.refusal
            trailers = (("grpc-status-details-bin", status(code, message, *details).SerializeToString()),)
            await context.abort(code, message, trailing_metadata=trailers)
        if self.waits:
            await asyncio.Event().wait()


def report(inputs: Sequence[Sequence[int]]) -> pb.PoolingReport:
    """Of inputs."""
    usage = pb.Usage(prompt_tokens=sum(map(len, inputs)), cached_tokens=1)
    return pb.PoolingReport(usage=usage, input_tokens=map(len, inputs), model="small")


def bad_field(field: str, problem: str) -> tuple[grpc.StatusCode, str, error_details_pb2.BadRequest]:
    """How a processor refuses a field."""
    details = error_details_pb2.BadRequest()
    details.field_violations.add(field=field, description=problem)
    return grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {problem}", details
