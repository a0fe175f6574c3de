"""The RPCs of vLLM's contract over gRPC, at a processor whose engines never answer."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import struct
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from services.common.config.errors import ExitCode, FatalError
from services.processor import main
from services.processor.linked_peers import LinkedEngine
from services.processor.served_models import ServedModel, ServedModels, TextCodec
from services.processor.vllm_engine_api.facts import PackedTokenizer, ServerFacts
from services.processor.vllm_engine_api.service import DESCRIPTION, VllmEngineService
from services.ring.errors import invalid_field
from services.ring.identity import PeerId
from services.ring.model_generations import Generation
from tests.services.in_process import served, status_of
from tests.services.processor.model_specs import MAX_MODEL_LEN, files, served_model, tokenizer
from tests.services.processor.service_harness import ServiceHarness
from tests.waiting import until
from text_core.chat_templates import ChatTemplates
from text_core.tokenizer_files import archive_of


@pytest.fixture
async def stub(harness: ServiceHarness) -> AsyncIterator[Any]:
    service = VllmEngineService(
        harness.service,
        harness.models,
        harness.intake,
        harness.admission,
        harness.peers,
        harness.policies,
        harness.metrics,
    )
    async with served(DESCRIPTION, service) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield vllm_engine_pb2_grpc.VllmEngineStub(channel)


def ask(name: str, **params: Any) -> Any:
    params = {"sampling_params": params, "tokenized": {"input_ids": [5, 6]}, "stream": True}
    return vllm_engine_pb2.GenerateRequest(request_id=name, **params)


async def ended(call: Any) -> Any:
    """The last message of a call; raises its error."""
    async with asyncio.timeout(20):
        *_, last = [message async for message in call]
        return last


async def test_a_request_is_aborted_by_its_own_tenant_alone(harness: ServiceHarness, stub: Any) -> None:
    mine, theirs = ((("x-tenant", name),) for name in ("mine", "theirs"))
    call, twin = stub.Generate(ask("a"), metadata=mine), stub.Generate(ask("a"), metadata=mine)
    beside = stub.Generate(ask("a"), metadata=theirs)
    await until(lambda: len(harness.in_flight) == 3)
    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["b"]), metadata=mine)
    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["a"]))
    assert len(harness.in_flight) == 3
    await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["b", "a"]), metadata=mine)
    for aborted in (call, twin):
        assert (await ended(aborted)).complete.finish_reason == "abort"
    assert len(harness.in_flight) == 1
    beside.cancel()
    await until(lambda: not harness.in_flight and not harness.intake.streams)


async def test_a_client_that_goes_cancels_its_request(harness: ServiceHarness, stub: Any) -> None:
    call = stub.Generate(ask("a"))
    await until(lambda: len(harness.in_flight) == 1)
    call.cancel()
    await until(lambda: not len(harness.in_flight))


async def test_refusals_are_counted_and_name_the_field(harness: ServiceHarness, stub: Any) -> None:
    for params, field in (({"top_p": 2.0}, "sampling_params.top_p"), ({"logprobs": -1}, "sampling_params.logprobs")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ended(stub.Generate(ask("a", **params)))
        status = status_of(refused.value)
        assert (status.code.name, status.field) == ("INVALID_ARGUMENT", field)
    assert harness.counted()["ringline_requests_refused_total", "INVALID_ARGUMENT"] == 2
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await ended(stub.Generate(ask("a"), timeout=0.1))
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    harness.intake.drain()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ended(stub.Generate(ask("a")))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def embed(*token_ids: int) -> Any:
    return vllm_engine_pb2.EmbedRequest(request_id="a", tokenized={"input_ids": token_ids})


async def test_a_vector(harness: ServiceHarness, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, asked = [0.5, -2.0, 1e-30], list[inference_pb2.EmbedRequest]()

    async def pooled(kind: type[inference_pb2.EmbedRequest], data: bytes, _context: object) -> Any:
        asked.append(kind.FromString(data))
        report = inference_pb2.PoolingReport(usage=inference_pb2.Usage(prompt_tokens=2))
        embedded = inference_pb2.EmbedResponse(values=struct.pack("<3f", *numbers), dimensions=3, report=report)
        return embedded.SerializeToString()

    monkeypatch.setattr(harness.service, "pooled", pooled)
    answer = await stub.Embed(embed(5, 6))
    assert list(answer.embedding) == pytest.approx(numbers, rel=1e-7)
    assert (answer.prompt_tokens, answer.embedding_dim) == (2, 3)
    expected = inference_pb2.EmbedRequest(request_id="a", inputs=[{"token_ids": {"ids": [5, 6]}}])
    assert asked == [expected]


@pytest.mark.parametrize("field", ["inputs[0]", "inputs[0].token_ids", "inputs[0].token_ids.ids"])
async def test_a_refused_vector_names_the_field(
    harness: ServiceHarness, stub: Any, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    async def pooled(*_arguments: object) -> Any:
        return invalid_field(field, "it is wrong").status

    monkeypatch.setattr(harness.service, "pooled", pooled)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Embed(embed(5))
    status = status_of(refused.value)
    assert (status.field, status.message) == ("tokenized.input_ids", "tokenized.input_ids: it is wrong")


async def test_vectors_that_there_are_none_of(stub: Any) -> None:
    """Without an input; and of a model that generates text."""
    for message, code in ((vllm_engine_pb2.EmbedRequest(), "INVALID_ARGUMENT"), (embed(5), "FAILED_PRECONDITION")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Embed(message, timeout=20)
        assert status_of(refused.value).code.name == code


async def test_health_is_that_of_requests(harness: ServiceHarness, stub: Any) -> None:
    assert (await stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest())).healthy
    harness.intake.drain()
    answer = await stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest())
    assert (answer.healthy, answer.message) == (False, "draining")


async def test_what_is_not_there_says_so(stub: Any) -> None:
    for call in (
        stub.FlushCache(common_pb2.FlushCacheRequest()),
        stub.StartProfile(common_pb2.StartProfileRequest()),
        stub.StopProfile(common_pb2.StopProfileRequest()),
        stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="not supported: ") as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_model_and_the_server(stub: Any) -> None:
    model = await stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
    assert (model.served_model_name, model.is_generation, model.max_context_length) == ("m", True, MAX_MODEL_LEN)
    assert list(model.eos_token_ids) == list(served_model().model.eos_token_ids)
    server = await stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
    assert (server.data_parallel_size, server.constrained_decoding_start) == (1, "first_token")
    loads = await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest())
    assert (loads.dp_rank_count, len(loads.loads)) == (1, 1)


def test_the_load_is_that_of_all_engines(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ServerFacts(harness.peers)
    for name, running in (("one", 3), ("two", 5)):
        peer = PeerId(name, 1)
        engine = LinkedEngine("engine", peer, "", link=None, numerics="", generation=Generation("m", ""))  # type: ignore[arg-type]
        engine.load = engine_pb2.Load(
            running_choices=running, waiting_requests=1, waiting_tokens=9, generated_tokens=50
        )
        engine.load.blocks_used, engine.load.blocks_total = running, 16
        engine.load.prefix_queries, engine.load.prefix_hits = 10, 4
        harness.peers.engines[peer] = engine
    model = served_model()
    model.model.block_size, model.model.max_num_seqs = 4, 8
    monkeypatch.setattr(facts, "_generated_at", facts._generated_at - 1000.0)
    (load,) = facts.loads(model, waiting_here=2).loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (8, 4, 12)
    assert (load.num_used_tokens, load.max_total_num_tokens, load.token_usage) == (32, 128, 0.25)
    assert (load.max_running_requests, load.utilization, load.num_waiting_uncached_tokens) == (16, 0.5, 18)
    assert load.cache_hit_rate == 0.4
    assert load.gen_throughput == pytest.approx(0.1, rel=0.05)


def test_the_tokenizer_is_a_zip_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ServedModels(1, list, keeps_archives=True)
    codec = TextCodec(tokenizer(), ChatTemplates.from_files(files()), archive_of(files()))
    models.add(served_model().model, codec)
    assert models.newest is not None
    monkeypatch.setattr("services.processor.vllm_engine_api.facts._CHUNK_BYTES", 100)
    packed = PackedTokenizer()
    chunks, kept = list(packed.chunks(models.newest)), packed._data
    data = b"".join(chunk.data for chunk in chunks)
    assert [len(chunk.data) for chunk in chunks[:-1]] == [100] * (len(chunks) - 1)
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
    others = packed.chunks(models.newest)
    assert (next(others), packed._data is kept) == (chunks[0], True), "it is made once"
    other = type(models.newest.model)()
    other.CopyFrom(models.newest.model)
    other.tokenizer_digest = "another"
    next(packed.chunks(replace(models.newest, model=other)))
    assert (list(others), packed._data is kept) == (chunks[1:], False), "a call goes on with what it began"
    assert ServedModel not in map(type, vars(packed).values()), "a model that is replaced is forgotten"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(found.pop("config.json"))
    assert found == files()
    assert config["eos_token_id"] == list(served_model().model.eos_token_ids)
    assert archive_of(files()) == archive_of(dict(reversed(files().items())))


def test_without_the_extra_the_option_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("services.processor.vllm_engine_api")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "smg_grpc_proto", None)
    with pytest.raises(
        FatalError, match=r"--vllm-engine-api needs smg_grpc_proto: pip install 'ringline-server\[smg\]'"
    ) as fatal:
        main._import_vllm_engine_api()
    assert fatal.value.code == ExitCode.USAGE
