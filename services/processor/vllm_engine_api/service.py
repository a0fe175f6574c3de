"""The RPCs of ``vllm.grpc.engine.VllmEngine``."""

from __future__ import annotations

import time
from typing import Any

from ringline.inference.v1 import inference_pb2
from smg_grpc_proto import vllm_engine_pb2

from services.common.rpc.handlers import Context
from services.common.rpc.message_limits import SMALL_MESSAGE, parse
from services.common.rpc.output_stream import write_in_time
from services.common.rpc.shared_messages import abort
from services.processor.admission.admission import Admission
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.client_stream import ClientStream
from services.processor.intake import Intake
from services.processor.linked_peers import LinkedPeers
from services.processor.metrics import ProcessorMetrics
from services.processor.served_models import ServedModel, ServedModels
from services.processor.service import InferenceService
from services.processor.vllm_engine_api.answers import Answer, HeldBytes, embed_response
from services.processor.vllm_engine_api.facts import PackedTokenizer, ServerFacts, model_info
from services.processor.vllm_engine_api.requests import as_named_here, read_embed_request, read_request
from services.ring.errors import Code, Refused, Status

DESCRIPTION = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
_MAX_HELD_BYTES = 128 << 20
"""Limit on all answers' held output; at least the limit of one."""
_PROFILES = "engines are profiled through their own contract, by Profile"


class VllmEngineService:
    """Methods take messages as bytes, like those of ``InferenceService``, which writes the answers."""

    def __init__(
        self,
        inference: InferenceService,
        models: ServedModels,
        intake: Intake,
        admission: Admission,
        peers: LinkedPeers,
        policies: TenantPolicies,
        metrics: ProcessorMetrics,
    ) -> None:
        self._inference = inference
        self._models = models
        self._intake = intake
        self._admission = admission
        self._policies = policies
        self._metrics = metrics
        self._facts = ServerFacts(peers)
        self._tokenizer = PackedTokenizer()
        self._held = HeldBytes(max(_MAX_HELD_BYTES, inference.limits.max_message_bytes))
        self._open: dict[tuple[str, str], list[ClientStream]] = {}
        """Streams of requests in progress, by tenant and client's id, which may repeat."""

    async def Generate(self, data: bytes, context: Context) -> None:
        principal = await self._inference.principal(context)
        stream = self._intake.open(principal, context.invocation_metadata() or ())
        answer = key = None
        try:
            answer, key = await self._begin(stream, data, context)
            del data
            error = await self._inference.write_answer(stream, context, answer.pack)
        except TimeoutError:
            error = self._inference.stalled(stream)
        finally:
            if answer is not None and key is not None:
                answer.close()
                self._forget(key, stream)
            self._intake.close(stream)
        if error is not None:
            await abort(context, error)

    async def _begin(self, stream: ClientStream, data: bytes, context: Context) -> tuple[Answer, tuple[str, str]]:
        """Begin the call's request; returns its ``Answer`` and its key in ``_open``. Raises ``Refused``."""
        arrived_at, self._facts.last_request_at = time.monotonic(), time.time()
        try:
            message = await self._inference.parse(vllm_engine_pb2.GenerateRequest, data, stream.tenant)
            model = self._models.newest
            request = read_request(message, model.limits.max_model_len if model else None)
            self._intake.begin(stream, request, 1, arrived_at, context.time_remaining())
        except Refused as refused:
            self._metrics.request_refused(refused.status.code.name, stream.tenant)
            refused.status = as_named_here(refused.status)
            raise
        key = stream.tenant, request.request_id
        self._open.setdefault(key, []).append(stream)
        eos = model.model.eos_token_ids if model else ()
        return Answer(message, eos, self._inference.limits.max_message_bytes, self._held), key

    def _forget(self, key: tuple[str, str], stream: ClientStream) -> None:
        self._open[key].remove(stream)
        if not self._open[key]:
            del self._open[key]

    async def Abort(self, data: bytes, context: Context) -> Any:
        tenant = (await self._inference.principal(context)).tenant
        for request_id in set(parse(vllm_engine_pb2.AbortRequest, data, SMALL_MESSAGE).request_ids):
            for stream in self._open.get((tenant, request_id), ()):
                self._intake.cancel(stream)
        return vllm_engine_pb2.AbortResponse()

    async def HealthCheck(self, data: bytes, context: Context) -> Any:
        reason = "draining" if self._intake.draining else self._models.no_route_reason
        return vllm_engine_pb2.HealthCheckResponse(healthy=not reason, message=reason or "healthy")

    async def GetModelInfo(self, data: bytes, context: Context) -> Any:
        return model_info(await self._model(context))

    async def GetServerInfo(self, data: bytes, context: Context) -> Any:
        return self._facts.server_info(await self._model(context), self._intake.num_open)

    async def GetLoads(self, data: bytes, context: Context) -> Any:
        await self._inference.principal(context)
        return self._facts.loads(self._models.newest, self._admission.num_waiting)

    async def GetTokenizer(self, data: bytes, context: Context) -> None:
        model = await self._model(context)
        for chunk in self._tokenizer.chunks(model):
            await write_in_time(context, chunk, self._inference.limits.stall_timeout)

    async def _model(self, context: Context) -> ServedModel:
        """The served model; raises ``Refused`` without one, or if the caller may not use it."""
        tenant = (await self._inference.principal(context)).tenant
        if (model := self._models.newest) is None:
            raise self._models.refuse_without_model()
        self._policies.check_model(tenant, model.limits.name)
        return model

    async def Embed(self, data: bytes, context: Context) -> Any:
        tenant = (await self._inference.principal(context)).tenant
        self._facts.last_request_at = time.time()
        message = await self._inference.parse(vllm_engine_pb2.EmbedRequest, data, tenant)
        request = read_embed_request(message)
        answer = await self._inference.pooled(type(request), request.SerializeToString(), context)
        if isinstance(answer, Status):
            await abort(context, as_named_here(answer))
        return embed_response(inference_pb2.EmbedResponse.FromString(answer))

    async def SubscribeKvEvents(self, data: bytes, context: Context) -> None:
        raise _not_supported("the processor routes requests to cached prefixes itself")

    async def FlushCache(self, data: bytes, context: Context) -> None:
        raise _not_supported("cached prefixes do not change answers, and give way to new ones")

    async def StartProfile(self, data: bytes, context: Context) -> None:
        raise _not_supported(_PROFILES)

    async def StopProfile(self, data: bytes, context: Context) -> None:
        raise _not_supported(_PROFILES)


def _not_supported(instead: str) -> Refused:
    return Refused(Code.UNIMPLEMENTED, f"not supported: {instead}")
