"""Rings of two releases, which must work whatever is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc
from ringline.types.v1 import link_pb2

from services.common.links.channels import Endpoint
from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import hello_message, status_from_proto
from services.ring.errors import Reason, Status
from services.ring.identity import MAX_VERSION, PeerId, ring_id
from tests.chaos.fleet import Fleet
from tests.chaos.load import ClosedLoop, ask, connect
from tests.chaos.logs import read_logs
from tests.chaos.outcome import Defect
from tests.chaos.workload import RequestSpec
from tests.mixed.context import Mix, RingResult, RunContext, fleet_of
from tests.mixed.next_release import CAPABILITY
from tests.processes import THIS, Release

CLIENTS = 3
RETRIES = 3
"""How often an engine is killed again if no request moved."""
CALL_TIMEOUT = 60.0
KILL_TIMEOUT = 200.0
"""Seconds until a service has work and, once killed, its requests have ended elsewhere."""


async def one_of_each(context: RunContext, mix: Mix, front: Release, back: Release) -> RingResult:
    """A processor of one release with a detokenizer and an engine of the other, which are killed and restarted."""
    result = RingResult(mix, f"processor {front.name}; detokenizer, engine {back.name}")
    async with fleet_of(context.directory / f"{mix}-{front.name}", [front], [back], [back]) as fleet:
        async with _under_load(context, fleet, result) as load:
            for name in ("detokenizer-0", "engine-0"):
                await _kill_and_restart(fleet, load, name, context)
        if mix is Mix.NEXT:
            await _check_capability(fleet, result)
    return result


async def two_of_each(context: RunContext, mix: Mix, older: Release, newer: Release) -> RingResult:
    """Two of each service, one of either release; each is killed, so that its requests move to the other."""
    result = RingResult(mix, f"processor, detokenizer, engine {older.name} and {newer.name}")
    both = (older, newer)
    async with (
        fleet_of(context.directory / f"{mix}-both", both, both, both) as fleet,
        _under_load(context, fleet, result) as load,
    ):
        # Clients change processors only if they must: the first that is killed may have none, the next two have all.
        for name in (*fleet.names["engine"], *fleet.names["detokenizer"], *fleet.names["processor"], "processor-0"):
            process = fleet.processes[name]
            other = newer if process.release is older else older
            what = f"{process.kind} {process.release.name} to {other.name}"
            moved = await _kill_and_restart(fleet, load, name, context)
            for _ in range(RETRIES if process.kind == "engine" else 0):
                # Its requests may have ended, or been cancelled, just before the kill.
                moved = moved or await _kill_and_restart(fleet, load, name, context)
            result.moved[what] = result.moved.get(what, 0) + moved
    result.problems += [f"no request moved from {what}" for what, count in result.moved.items() if not count]
    return result


@asynccontextmanager
async def _under_load(context: RunContext, fleet: Fleet, result: RingResult) -> AsyncIterator[ClosedLoop]:
    """Run a closed loop during the body, and check every answer."""
    options = context.options
    numerics = {await numerics_of(fleet, name) for name in fleet.names["engine"]}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(fleet.fronts)) for _ in range(CLIENTS)]
        specs = context.specs_for(result.mix)
        load = ClosedLoop(
            clients, specs, context.answers, seed=options.seed, concurrency=options.concurrency, pause=0.0
        )
        try:
            yield load
        finally:
            await load.stop()
    tally = load.tally
    result.requests = tally.requests
    if numerics != {context.numerics}:  # the releases report different numerics: tokens may differ
        del tally.defects[Defect.ALTERED]
    elif tally.not_identical:
        result.problems.append(f"{tally.not_identical} moves were not identical, though all numerics are equal")
    if tally.defects.total():
        result.problems += [*(f"{count} {defect}" for defect, count in tally.defects.items()), *tally.details]
    result.problems += read_logs(process.log for process in fleet.processes.values()).errors


async def _kill_and_restart(fleet: Fleet, load: ClosedLoop, name: str, context: RunContext) -> int:
    """Kill a service that has work; returns how many requests visibly moved.

    If there is another of its kind, the service is restarted only after its requests have ended there.
    """
    process, tally = fleet.processes[name], load.tally
    async with asyncio.timeout(KILL_TIMEOUT):
        live = await wait_for_work(fleet, name)
        moved, resumed, requests = tally.moved, tally.resumed, tally.requests
        process.kill()
        if len(fleet.names[process.kind]) > 1:
            while tally.requests < requests + 2 * context.options.concurrency:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    process.start()
    await process.wait_serving()
    if process.kind == "detokenizer":  # clients are not told of such a move
        return live
    return tally.moved - moved if process.kind == "engine" else tally.resumed - resumed


async def wait_for_work(fleet: Fleet, name: str) -> int:
    """Wait until a service has work; returns a detokenizer's number of requests."""
    if fleet.processes[name].kind == "processor":
        return 0
    while not ((held := await fleet.processes[name].held()).running or held.live_requests):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return held.live_requests


async def _check_capability(fleet: Fleet, result: RingResult) -> None:
    """A capability that only the next release has is refused by name; its own engine accepts it."""
    spec = RequestSpec("requires", "Once", options={"max_tokens": 1, "requires": [CAPABILITY]})
    async with connect(fleet.fronts) as client:
        outcome = await ask(client, spec)
    if outcome.reason == Reason.CAPABILITY_MISSING.name and CAPABILITY in outcome.error:
        result.refused += 1
    else:
        result.problems.append(f"a client that requires {CAPABILITY} is told {outcome.error or 'an answer'!r}")
    if fleet.processes["processor-0"].release is not THIS and not await _unknown_events(fleet):
        result.problems.append("the next release's processor sends no event that is unknown")
    engine = fleet.processes["engine-0"]
    welcome, status = await _submit_that_requires(engine.address)
    if engine.release is THIS:
        taken = status is None or status.reason is not Reason.CAPABILITY_MISSING or CAPABILITY not in status.message
        result.refused += not taken
    else:  # the next release accepts it, speaks the next version and sends unknown fields
        taken = status is None and welcome.version == MAX_VERSION + 1 and len(UnknownFieldSet(welcome)) > 0
    if taken == (engine.release is THIS):
        result.problems.append(
            f"an engine of {engine.release.name}: {CAPABILITY} is answered by {status}, after {welcome}"
        )


async def _submit_that_requires(address: str) -> tuple[link_pb2.Welcome, Status | None]:
    """Return an engine's Welcome to a peer of the next version, and why it refuses the Submit, or None."""
    me = PeerId("mixed", new_incarnation())
    hello = hello_message(me)
    hello.max_version = MAX_VERSION + 1
    submit = engine_pb2.Submit(
        request_id=ring_id(me.incarnation, 1), epoch=1, prompt_token_ids=[50], max_tokens=1, requires=[CAPABILITY]
    )
    async with Endpoint(address).open() as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        call = stub.Attach(timeout=CALL_TIMEOUT)
        await call.write(engine_pb2.AttachRequest(hello=hello, commands=[engine_pb2.Command(submit=submit)]))
        welcome = (await call.read()).welcome
        while (frame := await call.read()) is not grpc.aio.EOF:
            if frame.rejections:
                return welcome, status_from_proto(frame.rejections[0].status)
            if frame.outputs.finished:
                return welcome, None
    raise AssertionError("the engine ended the stream")


async def _unknown_events(fleet: Fleet) -> int:
    """Count unknown events of one request to the processor."""
    frame = inference_pb2.SessionRequest()
    frame.generate.request_id, frame.generate.text = "a", "Once"
    frame.generate.stopping.max_tokens = 4
    async with Endpoint(fleet.processes["processor-0"].address).open() as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Session(timeout=CALL_TIMEOUT)
        await call.write(frame)
        await call.done_writing()
        events = [response.WhichOneof("event") async for answer in call for response in answer.responses]
    assert events[-1] == "request_finished"
    return events.count(None)


async def numerics_of(fleet: Fleet, name: str) -> str:
    async with Endpoint(fleet.processes[name].address).open() as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        return str((await stub.GetModel(engine_pb2.GetModelRequest(), timeout=CALL_TIMEOUT)).numerics)
