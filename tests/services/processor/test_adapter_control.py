"""Adapters that clients load, unload and list: at all engines of a model, and as far as each may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from ringline.engine.v1 import engine_pb2
from ringline.errors import from_rpc
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1 import inference_pb2_grpc
from ringline.types.v1 import adapter_pb2

from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import status_to_proto
from services.processor.adapter_control import AdapterControl
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.linked_peers import LinkedEngine
from services.ring.adapters import Adapter, AdapterState
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.identity import PeerId
from tests.services.processor.model_specs import served_model
from tests.services.processor.service_harness import ServiceHarness
from tests.waiting import until

POLICIES = """\
[default]
models = ["m", "m:*"]

[tenants.operator]
adapter_control = true

[tenants.one]
models = ["m:a1"]

[tenants.none]
models = ["x"]
"""


class FakeStub:
    """An engine's calls: each path has a digest."""

    def __init__(self, salt: str = "") -> None:
        self.names: dict[str, str] = {}
        self.salt = salt
        self.error: Status | None = None

    async def LoadAdapter(self, request: engine_pb2.LoadAdapterRequest, **_: float) -> engine_pb2.LoadAdapterResponse:
        self._check()
        digest = f"{len(request.path):02x}{self.salt}".ljust(64, "0")
        if self.names.get(request.name, digest) != digest and not request.replace:
            raise failed(Status(Code.ALREADY_EXISTS, "name: it stands for another", given_reason=Reason.ADAPTER_EXISTS))
        self.names[request.name] = digest
        return engine_pb2.LoadAdapterResponse(adapter=adapter_pb2.Adapter(name=request.name, digest=digest))

    async def UnloadAdapter(
        self, request: engine_pb2.UnloadAdapterRequest, **_: float
    ) -> engine_pb2.UnloadAdapterResponse:
        self._check()
        if (digest := self.names.pop(request.name, None)) is None:
            raise failed(Status(Code.NOT_FOUND, "name: none", given_reason=Reason.ADAPTER_NOT_FOUND))
        return engine_pb2.UnloadAdapterResponse(adapter=adapter_pb2.Adapter(name=request.name, digest=digest))

    def _check(self) -> None:
        if self.error is not None:
            raise failed(self.error)


def failed(status: Status) -> grpc.aio.AioRpcError:
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status_to_proto(status).SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, status.message)


class Engines:
    """Engines of the harness' model."""

    def __init__(self, harness: ServiceHarness) -> None:
        self.harness = harness
        self.stubs: dict[str, FakeStub] = {}
        self.generation = served_model().generation

    def add(self, name: str, salt: str = "", *, serves_adapters: bool = True) -> FakeStub:
        stub = self.stubs[name] = FakeStub(salt)
        peer, link = PeerId(name, len(self.stubs)), SimpleNamespace(stub=stub)
        self.harness.peers.engines[peer] = LinkedEngine(
            "engine",
            peer,
            name,
            link,  # type: ignore[arg-type]
            "",
            self.generation,
            serves_adapters=serves_adapters,
        )
        if serves_adapters:
            self.harness.routes.adapters.attached(peer, self.generation)
            self.harness.routes.adapters.told(peer, [], complete=True, now=1)
        return stub


@pytest.fixture
def engines(harness: ServiceHarness) -> Engines:
    return Engines(harness)


def control(harness: ServiceHarness, tmp_path: Path) -> AdapterControl:
    """As with a file of tenants."""
    (tmp_path / "tenants.toml").write_text(POLICIES)
    policies = TenantPolicies(str(tmp_path / "tenants.toml"))
    return AdapterControl(harness.models, harness.routes.adapters, harness.peers, policies, enabled=True)


async def test_it_is_loaded_at_every_engine_and_known_at_once(
    harness: ServiceHarness, engines: Engines, stub: inference_pb2_grpc.InferenceServiceStub
) -> None:
    stubs = [engines.add("e0"), engines.add("e1"), engines.add("older", serves_adapters=False)]
    answer = await stub.LoadAdapter(pb.LoadAdapterRequest(name="a1", path="folder"))  # type: ignore[misc]
    assert (answer.adapter.name, answer.engines) == ("a1", 2)
    assert [list(each.names) for each in stubs] == [["a1"], ["a1"], []]
    found = harness.routes.adapters.current(engines.generation, "a1")
    assert found == Adapter("a1", answer.adapter.digest)
    (model,) = (await stub.ListModels(pb.ListModelsRequest())).models  # type: ignore[misc]
    assert [each.name for each in model.adapters] == ["a1"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.LoadAdapter(pb.LoadAdapterRequest(name="a1", path="another folder"))  # type: ignore[misc]
    error = from_rpc(refused.value)
    assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ADAPTER_EXISTS")
    assert str(error) == "engine e0 (and 1 more): name: it stands for another; 0 of 2 engines know it"
    request = pb.LoadAdapterRequest(name="a1", path="another folder", replace=True)
    replaced = await stub.LoadAdapter(request)  # type: ignore[misc]
    assert replaced.adapter.digest != answer.adapter.digest
    assert harness.routes.adapters.current(engines.generation, "a1") == Adapter("a1", replaced.adapter.digest)
    gone = await stub.UnloadAdapter(pb.UnloadAdapterRequest(name="a1"))  # type: ignore[misc]
    assert (gone.adapter, gone.engines) == (replaced.adapter, 2)
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await stub.UnloadAdapter(pb.UnloadAdapterRequest(name="a1"))  # type: ignore[misc]
    assert from_rpc(unknown.value).reason == "ADAPTER_NOT_FOUND"


async def test_an_engine_that_fails_is_named_and_the_call_can_be_repeated(
    harness: ServiceHarness, engines: Engines, tmp_path: Path
) -> None:
    good, bad = engines.add("good"), engines.add("bad")
    bad.error = Status(Code.INVALID_ARGUMENT, "path: rank 64 is above --max-lora-rank, 16")
    calls, request = control(harness, tmp_path), pb.LoadAdapterRequest(name="a1", path="p")
    with pytest.raises(Refused, match="engine bad: path: rank 64 is above --max-lora-rank, 16; 1 of 2 engines know"):
        await calls.load(request, "operator")
    bad.error = None
    assert (await calls.load(request, "operator")).engines == 2
    del good.names["a1"]
    assert (await calls.unload(pb.UnloadAdapterRequest(name="a1"), "operator")).engines == 1
    bad.error = Status(Code.UNAVAILABLE, "draining")
    with pytest.raises(Refused, match="engine bad: draining; 0 of 2 engines forgot it"):
        await calls.unload(pb.UnloadAdapterRequest(name="a1"), "operator")


async def test_an_answer_that_comes_late_does_not_bring_back_what_was_replaced(
    harness: ServiceHarness, engines: Engines, tmp_path: Path
) -> None:
    """One engine reads slowly, and the other one has told of later changes meanwhile."""
    fast, slow = engines.add("fast"), engines.add("slow")
    calls, book, (told, _) = control(harness, tmp_path), harness.routes.adapters, harness.peers.engines
    request, go_on = pb.LoadAdapterRequest(name="a1", path="p"), asyncio.Event()
    waits = slow.LoadAdapter

    async def wait(request: Any, **options: Any) -> Any:
        await go_on.wait()
        return await waits(request, **options)

    slow.LoadAdapter = wait  # type: ignore[method-assign]
    loading = asyncio.create_task(calls.load(request, "operator"))
    await until(lambda: fast.names)
    first, later = Adapter("a1", fast.names["a1"]), Adapter("a1", "f" * 64)
    for state in ((first, True), (later, True), (first, False)):
        book.told(told, [(state[0], AdapterState(state[1]))], complete=True, now=new_incarnation())
        await asyncio.sleep(0.002)
    go_on.set()
    await loading
    assert book.under("a1", [engines.generation]) == {first: (1, 0), later: (1, 0)}


async def test_engines_that_read_different_files_are_told_apart(
    harness: ServiceHarness, engines: Engines, tmp_path: Path
) -> None:
    engines.add("e0"), engines.add("e1", "1")
    with pytest.raises(Refused, match="path: engines read adapters of different contents there: e0 01000000000"):
        await control(harness, tmp_path).load(pb.LoadAdapterRequest(name="a1", path="p"), "operator")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "a:b", "path": "p"}, "name: 'a:b' is not a name: expected"),
        ({"name": "m", "path": "p"}, "name: 'm' is the name of a model: expected another"),
        ({"name": "a", "path": ""}, "path: 0 bytes: expected 1 to 4096"),
        ({"name": "a", "path": "p" * 4097}, "path: 4097 bytes: expected 1 to 4096"),
        ({"name": "a", "path": "p", "model": "x"}, "model: 'x' is not served here: expected 'm'"),
    ],
)
async def test_what_cannot_be_loaded(
    harness: ServiceHarness, engines: Engines, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    engines.add("e0")
    with pytest.raises(Refused) as refused:
        await control(harness, tmp_path).load(pb.LoadAdapterRequest(**fields), "operator")
    assert refused.value.status.message.startswith(words)


async def test_only_those_who_may_change_adapters_do(harness: ServiceHarness, engines: Engines, tmp_path: Path) -> None:
    calls, request = control(harness, tmp_path), pb.LoadAdapterRequest(name="a1", path="p")
    with pytest.raises(Refused, match="no engine of 'm' is attached; retry later"):
        await calls.load(request, "operator")
    engines.add("older", serves_adapters=False)
    with pytest.raises(Refused, match="the engines of 'm' serve no adapters: start them with --enable-lora"):
        await calls.load(request, "operator")
    engines.add("e0")
    for change in (lambda: calls.load(request, "one"), lambda: calls.unload(pb.UnloadAdapterRequest(name="a1"), "one")):
        with pytest.raises(Refused, match="this tenant may not load and unload adapters") as refused:
            await change()
        assert refused.value.status.code is Code.PERMISSION_DENIED
    closed = AdapterControl(harness.models, harness.routes.adapters, harness.peers, harness.policies)
    with pytest.raises(Refused, match="start the processor with --enable-adapter-control"):
        await closed.load(request, "")


def listed(calls: AdapterControl, tenant: str, **fields: Any) -> list[tuple[str, str, int, int]]:
    answer = calls.list(pb.ListAdaptersRequest(**fields), tenant)
    return [(each.adapter.name, each.adapter.digest[0], each.engines, each.loaded_engines) for each in answer.adapters]


def test_a_list_has_what_the_caller_may_use_page_by_page(
    harness: ServiceHarness, engines: Engines, tmp_path: Path
) -> None:
    engines.add("e0"), engines.add("e1")
    one, other, another = Adapter("a1", "1" * 64), Adapter("a1", "2" * 64), Adapter("a2", "3" * 64)
    tell = harness.routes.adapters.told
    tell(
        PeerId("e0", 1),
        [(one, AdapterState(current=False, loaded=True)), (other, AdapterState())],
        complete=True,
        now=2,
    )
    tell(PeerId("e1", 2), [(other, AdapterState(loaded=True)), (another, AdapterState())], complete=True, now=3)
    calls = control(harness, tmp_path)
    every = [("a1", "1", 0, 1), ("a1", "2", 2, 1), ("a2", "3", 1, 0)]
    assert listed(calls, "anyone") == listed(calls, "anyone", model="m") == every
    assert listed(calls, "anyone", limit=1) == every[:2]
    assert calls.list(pb.ListAdaptersRequest(limit=1), "anyone").more
    assert listed(calls, "anyone", limit=1, after="a1") == every[2:]
    assert not calls.list(pb.ListAdaptersRequest(after="a1"), "anyone").more
    assert listed(calls, "one") == every[:2]
    with pytest.raises(Refused, match="this tenant may not use the served model"):
        listed(calls, "none")
    with pytest.raises(Refused, match="limit: 1001 is out of range: expected 1 to 1000"):
        listed(calls, "anyone", limit=1001)
