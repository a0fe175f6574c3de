"""Adapters of a model as clients see and change them: all engines of the model are asked, and each answer counts."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import structlog
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import adapter_pb2

from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import adapter_from_proto, adapter_to_proto, status_of_call
from services.processor.admission.tenant_policy import TenantPolicies, forbidden_model
from services.processor.admission.validation import refuse
from services.processor.linked_peers import LinkedEngine, LinkedPeers
from services.processor.served_models import ServedModel, ServedModels
from services.ring.adapters import Adapter, AdapterBook
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.identity import check_adapter_name
from services.ring.limits import MAX_ADAPTER_PATH_BYTES, MAX_LISTED_ADAPTERS
from services.ring.model_generations import Generation

log = structlog.get_logger(__name__)

FLAG = "--enable-adapter-control"
CALL_TIMEOUT = 120.0
"""Seconds for an engine's answer: it reads and checks the adapter's file."""
_Answer = adapter_pb2.Adapter | Status
_Call = Callable[[Any], Awaitable[adapter_pb2.Adapter]]
"""A call with an engine's stub."""


class AdapterControl:
    """The RPCs ``LoadAdapter``, ``UnloadAdapter`` and ``ListAdapters`` of all clients."""

    def __init__(
        self,
        models: ServedModels,
        adapters: AdapterBook,
        peers: LinkedPeers,
        policies: TenantPolicies,
        *,
        enabled: bool = False,
    ) -> None:
        """``enabled``: whether clients may load and unload adapters."""
        self._models = models
        self._adapters = adapters
        self._peers = peers
        self._policies = policies
        self._enabled = enabled

    async def load(self, request: inference_pb2.LoadAdapterRequest, tenant: str) -> inference_pb2.LoadAdapterResponse:
        """Make an adapter known at every engine of a model. Raises ``Refused``."""
        self._check_allowed(tenant)
        model = self._model(request.model)
        check_adapter_name("name", request.name)
        if any(each.limits.answers_to(request.name) for each in self._models.held.values()):
            raise refuse("name", f"{request.name!r} is the name of a model: expected another")
        if not 1 <= (size := len(request.path.encode())) <= MAX_ADAPTER_PATH_BYTES:
            raise refuse("path", f"{size} bytes: expected 1 to {MAX_ADAPTER_PATH_BYTES}")
        message = engine_pb2.LoadAdapterRequest(name=request.name, path=request.path, replace=request.replace)

        async def call(stub: Any) -> adapter_pb2.Adapter:
            answer: engine_pb2.LoadAdapterResponse = await stub.LoadAdapter(message, timeout=CALL_TIMEOUT)
            return answer.adapter

        begun = new_incarnation()
        loaded, failed = await self._at_all(model, call)
        for engine, adapter in loaded.items():
            if self._adapters.changed_at(engine.peer, adapter.name) <= begun:  # else it has told what came of this call
                self._adapters.loaded_by_call(engine.peer, adapter, new_incarnation())
        if failed:
            raise _failure(failed, f"{len(loaded)} of {len(loaded) + len(failed)} engines know it")
        if len({adapter.digest for adapter in loaded.values()}) > 1:
            shown = ", ".join(f"{engine.peer.name} {adapter.digest[:12]}…" for engine, adapter in loaded.items())
            problem = f"path: engines read adapters of different contents there: {shown}"
            raise Refused(Code.FAILED_PRECONDITION, f"{problem}; put equal files there, and replace it", field="path")
        (adapter,) = set(loaded.values())
        log.info("adapter loaded", adapter=adapter.name, digest=adapter.digest, tenant=tenant, engines=len(loaded))
        return inference_pb2.LoadAdapterResponse(adapter=adapter_to_proto(adapter), engines=len(loaded))

    async def unload(
        self, request: inference_pb2.UnloadAdapterRequest, tenant: str
    ) -> inference_pb2.UnloadAdapterResponse:
        """Forget the adapter of a name at every engine of a model that knows it. Raises ``Refused``."""
        self._check_allowed(tenant)
        model = self._model(request.model)
        check_adapter_name("name", request.name)
        message = engine_pb2.UnloadAdapterRequest(name=request.name)

        async def call(stub: Any) -> adapter_pb2.Adapter:
            answer: engine_pb2.UnloadAdapterResponse = await stub.UnloadAdapter(message, timeout=CALL_TIMEOUT)
            return answer.adapter

        begun = new_incarnation()
        unloaded, failed = await self._at_all(model, call)
        for engine, adapter in unloaded.items():
            if self._adapters.changed_at(engine.peer, adapter.name) <= begun:  # as in ``load``
                self._adapters.unloaded_by_call(engine.peer, adapter, new_incarnation())
        others = {engine: status for engine, status in failed.items() if status.code is not Code.NOT_FOUND}
        if others:
            raise _failure(others, f"{len(unloaded)} of {len(unloaded) + len(failed)} engines forgot it")
        if not unloaded:
            problem = f"name: no engine of {model.limits.name!r} has an adapter {request.name!r}"
            raise Refused(Code.NOT_FOUND, problem, reason=Reason.ADAPTER_NOT_FOUND, field="name")
        log.info("adapter unloaded", adapter=request.name, tenant=tenant, engines=len(unloaded))
        first = next(iter(unloaded.values()))
        return inference_pb2.UnloadAdapterResponse(adapter=adapter_to_proto(first), engines=len(unloaded))

    def list(self, request: inference_pb2.ListAdaptersRequest, tenant: str) -> inference_pb2.ListAdaptersResponse:
        """A page of the adapters that the caller may use. Raises ``Refused``."""
        model, policy = self._model(request.model), self._policies.of(tenant)
        limit = request.limit if request.HasField("limit") else MAX_LISTED_ADAPTERS
        if not 1 <= limit <= MAX_LISTED_ADAPTERS:
            raise refuse("limit", f"{limit} is out of range: expected 1 to {MAX_LISTED_ADAPTERS}")
        own, generations = model.limits.name, self._generations(model)
        names = sorted(self._adapters.all_names())
        permitted = [name for name in names[bisect_right(names, request.after) :] if policy.permits_adapter(own, name)]
        answer, listed = inference_pb2.ListAdaptersResponse(), 0
        for name in permitted:
            if not (found := self._adapters.under(name, generations)):
                continue
            if listed == limit:
                answer.more = True
                break
            listed += 1
            for adapter, (current, loaded) in found.items():
                answer.adapters.add(adapter=adapter_to_proto(adapter), engines=current, loaded_engines=loaded)
        if not permitted and not policy.permits(own):
            raise forbidden_model()
        return answer

    def _check_allowed(self, tenant: str) -> None:
        if not self._enabled:
            problem = f"adapters are not loaded and unloaded by clients here: start the processor with {FLAG}"
        elif not self._policies.may_control_adapters(tenant):
            problem = "this tenant may not load and unload adapters: set adapter_control = true for it (--tenants-file)"
        else:
            return
        raise Refused(Code.PERMISSION_DENIED, problem)

    def _model(self, name: str) -> ServedModel:
        model, refused = self._models.for_lookups().choose(name)
        if refused is not None:
            raise refused
        return model

    def _generations(self, model: ServedModel) -> frozenset[Generation]:
        """All that are held of its name: clients do not tell them apart."""
        same = (each for each in self._models.held.values() if each.limits.name == model.limits.name)
        return frozenset(each.generation for each in same)

    async def _at_all(
        self, model: ServedModel, call: _Call
    ) -> tuple[Mapping[LinkedEngine, Adapter], Mapping[LinkedEngine, Status]]:
        """What the engines of a model answer, and why others do not. Raises ``Refused`` if there are none."""
        generations, name = self._generations(model), model.limits.name
        engines = [each for each in self._peers.engines.values() if each.generation in generations]
        if not engines:
            raise Refused(Code.UNAVAILABLE, f"no engine of {name!r} is attached; retry later", retry_after_ms=1000)
        if not any(each.serves_adapters for each in engines):
            problem = f"model: the engines of {name!r} serve no adapters: start them with --enable-lora"
            raise Refused(Code.FAILED_PRECONDITION, problem, reason=Reason.CAPABILITY_MISSING, field="model")
        engines = [each for each in engines if each.serves_adapters]
        answers = await asyncio.gather(*(_ask(each, call) for each in engines))
        known, failed = {}, {}
        for engine, answer in zip(engines, answers, strict=True):
            adapter = answer if isinstance(answer, Status) else adapter_from_proto(answer)
            if isinstance(adapter, Adapter):
                known[engine] = adapter
            else:
                failed[engine] = adapter or Status(Code.INTERNAL, "it answered with no adapter's name and digest")
        return known, failed


async def _ask(engine: LinkedEngine, call: _Call) -> _Answer:
    if (stub := engine.link.stub) is None:
        return Status(Code.UNAVAILABLE, "it was lost", retry_after_ms=1000)
    try:
        return await call(stub)
    except grpc.aio.AioRpcError as error:
        return status_of_call(error)


def _failure(failed: Mapping[LinkedEngine, Status], done: str) -> Refused:
    """The error of a call that some engines refused."""
    engine, status = next(iter(failed.items()))
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    message = f"engine {engine.peer.name}{more}: {status.message}; {done}"
    return Refused(status.code, message, status.retry_after_ms, reason=status.given_reason)
