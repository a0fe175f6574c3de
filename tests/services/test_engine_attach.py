"""Attach as a foreign backend uses it: token ids in, token ids out."""

from __future__ import annotations

import asyncio
import itertools
import time

import grpc
import pytest
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.common.rpc.shared_messages import status_from_proto
from services.ring.errors import Code, Reason
from tests.services.streams import LONG_CHOICES, LONG_TOKENS

_lives = itertools.count(time.time_ns())


class Backend:
    """One attached process; reads everything it is sent."""

    def __init__(self, stub, name: str = "backend", incarnation: int | None = None) -> None:
        self.incarnation = incarnation or next(_lives)
        self.name = name
        self.call = stub.Attach()
        self.ids: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], engine_pb2.Finish] = {}
        self.opened: list[engine_pb2.Opened] = []
        self.closed: list[engine_pb2.Closed] = []
        self.rejections: list[link_pb2.Rejection] = []
        self.loads: list[engine_pb2.Load] = []
        self.peers: list[str] = []

    async def hello(self) -> engine_pb2.AttachResponse:
        await self.say_hello()
        return await self.call.read()

    async def say_hello(self, **fields) -> None:
        usual = {"name": self.name, "incarnation": self.incarnation, "min_version": 1, "max_version": 1}
        await self.call.write(engine_pb2.AttachRequest(hello=link_pb2.Hello(**(usual | fields))))

    def request_id(self, counter: int) -> str:
        return f"{self.incarnation}-{counter}"

    def submit(self, counter: int, epoch: int = 1, max_tokens: int = 8, **fields) -> engine_pb2.Command:
        submit = engine_pb2.Submit(
            request_id=self.request_id(counter),
            epoch=epoch,
            prompt_token_ids=[5, 6, 7],
            max_tokens=max_tokens,
            ignore_eos=True,
            **fields,
        )
        submit.sampling.temperature = 0
        return engine_pb2.Command(submit=submit)

    async def send(self, *commands: engine_pb2.Command) -> None:
        await self.call.write(engine_pb2.AttachRequest(commands=commands))

    async def until(self, condition) -> None:
        async with asyncio.timeout(30):
            while not condition():
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF, await self.call.details()
                self.take(frame)

    def take(self, frame: engine_pb2.AttachResponse) -> None:
        outputs, start = frame.outputs, 0
        self.opened += outputs.opened
        self.closed += outputs.closed
        self.rejections += frame.rejections
        if frame.HasField("load"):
            self.loads.append(frame.load)
        if frame.HasField("peers"):
            if frame.peers.reset:
                self.peers = []
            gone = {peer.name for peer in frame.peers.removed}
            self.peers = [name for name in self.peers if name not in gone] + [peer.name for peer in frame.peers.added]
        for i, request_id in enumerate(outputs.request_ids):
            ids = self.ids.setdefault((request_id, outputs.choices[i]), [])
            count = outputs.token_counts[i]
            assert outputs.first_positions[i] <= len(ids), "gapless"
            del ids[outputs.first_positions[i] :]
            ids += outputs.token_ids[start : start + count]
            start += count
        for finish in outputs.finished:
            self.ends[finish.request_id, finish.choice] = finish

    async def status(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(30):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await self.call.code(), await self.call.details()


@pytest.fixture
async def backend(engine):
    one = Backend(engine)
    welcome = (await one.hello()).welcome
    assert welcome.version == 1
    yield one
    one.call.cancel()


async def test_a_backend_gets_its_own_token_ids(backend: Backend) -> None:
    await backend.send(backend.submit(1), backend.submit(2, max_tokens=3))
    first, second = (backend.request_id(1), 0), (backend.request_id(2), 0)
    await backend.until(lambda: {first, second} <= set(backend.ends))
    assert backend.ends[first].position == len(backend.ids[first]) == 8
    assert backend.ids[second] == backend.ids[first][:3]
    assert [opened.request_id for opened in backend.opened] == [first[0], second[0]]


async def test_bad_commands_are_answered_one_by_one(backend: Backend) -> None:
    bad_ids = backend.submit(2)
    bad_ids.submit.prompt_token_ids.append(4_000_000_000)
    await backend.send(engine_pb2.Command(), bad_ids, backend.submit(3, epoch=0), backend.submit(4))
    await backend.until(lambda: backend.ends and len(backend.rejections) == 3)
    messages = {rejection.request_id: rejection.status.message for rejection in backend.rejections}
    assert "command" in messages[""]
    assert "prompt_token_ids" in messages[backend.request_id(2)]
    assert "epoch" in messages[backend.request_id(3)]


async def test_a_refusal_by_the_scheduler_names_its_command_and_is_the_only_end(backend: Backend) -> None:
    bad = backend.submit(2)
    bad.submit.bad_words.add()
    await backend.send(backend.submit(1, max_tokens=1500))
    await backend.until(lambda: backend.ids)  # a step is under way: the next one is refused behind it
    await backend.send(bad)
    await backend.until(lambda: backend.rejections)
    await backend.send(backend.submit(3))
    await backend.until(lambda: (backend.request_id(3), 0) in backend.ends)  # what would follow a rejection has come
    (rejection,) = backend.rejections
    assert (rejection.request_id, rejection.epoch, rejection.in_reply_to) == (backend.request_id(2), 1, 2)
    assert rejection.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert rejection.status.message.startswith("bad_words: ")
    assert not backend.closed


async def test_what_a_submit_requires_is_known_or_refused_by_name(backend: Backend) -> None:
    await backend.send(backend.submit(1, requires=["adapter"]))
    await backend.until(lambda: backend.rejections)
    (rejection,) = backend.rejections
    assert rejection.status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert rejection.status.message.startswith("requires[0]: 'adapter' ")


async def test_what_was_begun_on_another_model_is_refused(backend: Backend, engine) -> None:
    own = (await engine.GetModel(engine_pb2.GetModelRequest())).model_digest
    await backend.send(backend.submit(1, model_digest="another"), backend.submit(2, model_digest=own))
    await backend.until(lambda: backend.ends)
    (rejection,) = backend.rejections
    assert rejection.request_id == backend.request_id(1)
    status = status_from_proto(rejection.status)
    assert (status.code, status.reason, status.field) == (
        Code.FAILED_PRECONDITION,
        Reason.MODEL_GONE,
        "model_digest",
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 1001}, "steps"),
        ({"steps": 1, "timeout_ms": 600_001}, "timeout_ms"),
    ],
)
async def test_calls_out_of_range_are_refused_by_the_name_of_their_field(engine, fields: dict, named: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await engine.Profile(engine_pb2.ProfileRequest(**fields))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith(f"{named}: ")


async def test_stop_cuts_a_choice_and_done_forgets_it(backend: Backend, engine) -> None:
    long = backend.submit(1, max_tokens=LONG_TOKENS)
    long.submit.sampling.n = LONG_CHOICES  # it is not at its end when the stop comes
    await backend.send(long)
    key = (backend.request_id(1), 0)
    await backend.until(lambda: len(backend.ids.get(key, ())) >= 3)
    stop = engine_pb2.Stop(request_id=key[0], epoch=1, choice=0, position=2)
    await backend.send(engine_pb2.Command(stop=stop))
    await backend.until(lambda: key in backend.ends)
    assert backend.ends[key].position == 2
    assert (await engine.GetLoad(engine_pb2.GetLoadRequest())).load.ledgers >= 1
    await backend.send(engine_pb2.Command(done=engine_pb2.Done(request_id=key[0], epoch=1)))
    await idle(engine)


async def test_redirect_replays_from_the_start(backend: Backend, engine) -> None:
    await backend.send(backend.submit(1, max_tokens=300, output_context=b"mine"))
    key = (backend.request_id(1), 0)
    await backend.until(lambda: len(backend.ids.get(key, ())) >= 5)
    receiver = Backend(engine, "receiver")
    await receiver.hello()
    delivered = [engine_pb2.Delivered(choice=0, count=5)]
    redirect = engine_pb2.Redirect(request_id=key[0], epoch=2, deliver_to="receiver", delivered=delivered)
    await backend.send(engine_pb2.Command(redirect=redirect))
    await receiver.until(lambda: key in receiver.ends)
    await backend.until(lambda: backend.closed or key in backend.ends)  # it had all of it before it was redirected
    assert receiver.opened[0].output_context == b"mine"
    assert receiver.opened[0].delivered == delivered
    assert len(receiver.ids[key]) == 300
    assert receiver.ids[key][: len(backend.ids[key])] == backend.ids[key]
    receiver.call.cancel()


async def test_a_newer_life_supersedes_and_an_older_is_refused(backend: Backend, engine) -> None:
    newer = Backend(engine, incarnation=backend.incarnation + 1)
    assert (await newer.hello()).HasField("welcome")
    code, _ = await backend.status()
    assert code is grpc.StatusCode.ABORTED
    older = Backend(engine, incarnation=backend.incarnation)
    await older.say_hello()
    code, details = await older.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "incarnation" in details
    newer.call.cancel()


@pytest.mark.parametrize(
    ("fields", "ends", "named"),
    [
        ({"name": "no spaces please"}, grpc.StatusCode.INVALID_ARGUMENT, "hello.name"),
        ({"min_version": 98, "max_version": 99}, grpc.StatusCode.FAILED_PRECONDITION, "speaks versions 98 to 99"),
        ({"min_version": 0, "max_version": 0}, grpc.StatusCode.FAILED_PRECONDITION, "names no version"),
    ],
)
async def test_a_broken_hello_ends_its_stream(engine, fields: dict, ends: grpc.StatusCode, named: str) -> None:
    broken = Backend(engine)
    await broken.say_hello(**fields)
    code, details = await broken.status()
    assert code is ends
    assert named in details


async def test_a_second_hello_ends_its_stream(backend: Backend, engine) -> None:
    beside = Backend(engine, "beside")
    await beside.hello()
    await backend.call.write(engine_pb2.AttachRequest(hello=link_pb2.Hello(name="again", incarnation=1)))
    code, details = await backend.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "hello" in details
    await beside.send(beside.submit(1))
    await beside.until(lambda: beside.ends)
    beside.call.cancel()


async def test_a_submitter_that_is_gone_leaves_nothing_after_the_grace(engine) -> None:
    gone = Backend(engine, "gone")
    await gone.hello()
    await gone.send(gone.submit(1, max_tokens=1500), gone.submit(2, max_tokens=1500))
    await gone.until(lambda: gone.ids)
    gone.call.cancel()
    await idle(engine)


async def idle(engine) -> None:
    """Returns once nothing is left of any request."""
    end = time.monotonic() + 60
    while (load := (await engine.GetLoad(engine_pb2.GetLoadRequest())).load) and (
        load.ledgers or load.running_choices or load.blocks_used
    ):
        assert time.monotonic() < end, load
        await asyncio.sleep(0.1)


async def begun(engine, profile: engine_pb2.ProfileRequest) -> asyncio.Future[engine_pb2.ProfileResponse]:
    """Ask for a profile; returns when it waits for steps: the engine does what it is asked in the order it is asked.

    First it waits for what was submitted for requests that are gone: each of these calls lies behind such a step, of
    which there are two at most.
    """
    for _ in range(2):
        await engine.ResetPrefixCache(engine_pb2.ResetPrefixCacheRequest())
    profiling = asyncio.ensure_future(engine.Profile(profile))
    await engine.ResetPrefixCache(engine_pb2.ResetPrefixCacheRequest())
    return profiling


async def test_peers_are_announced(backend: Backend, engine) -> None:
    await backend.until(lambda: backend.peers)
    assert {"processor-0", "detokenizer-0", "backend"} <= set(backend.peers)
    other = Backend(engine, "newcomer")
    await other.hello()
    await backend.until(lambda: "newcomer" in backend.peers)
    other.call.cancel()
    await backend.until(lambda: "newcomer" not in backend.peers)


async def test_a_profile_of_the_next_steps(backend: Backend, engine) -> None:
    await idle(engine)
    profiling = await begun(engine, engine_pb2.ProfileRequest(steps=5))
    await backend.send(backend.submit(1, max_tokens=50))
    await backend.until(lambda: backend.ends)
    profile = await profiling
    assert profile.steps == len(profile.step_ms) == 5
    assert list(profile.step_tokens) == [3, 1, 1, 1, 1]
    assert "aten::" in profile.table or "mkldnn" in profile.table


async def test_one_profile_is_recorded_at_a_time_and_none_for_nobody(engine) -> None:
    await idle(engine)
    long = engine_pb2.ProfileRequest(steps=5, timeout_ms=600_000)
    both = {asyncio.ensure_future(engine.Profile(long)) for _ in range(2)}
    async with asyncio.timeout(60):
        done, (given_up,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = [one.exception() for one in done]
    assert isinstance(refused, grpc.aio.AioRpcError)
    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    given_up.cancel()
    async with asyncio.timeout(60):  # much less than what was given up would take
        while True:
            try:
                short = engine_pb2.ProfileRequest(steps=5, timeout_ms=1)
                assert (await engine.Profile(short)).steps == 0
                break
            except grpc.aio.AioRpcError as busy:
                assert busy.code() is grpc.StatusCode.FAILED_PRECONDITION  # noqa: PT017 - it may take a moment


async def test_the_prefix_cache_can_be_reset(backend: Backend, engine) -> None:
    await idle(engine)
    long = backend.submit(1, max_tokens=1)
    del long.submit.prompt_token_ids[:]
    long.submit.prompt_token_ids.extend([9] * 100)
    await backend.send(long)
    await backend.until(lambda: backend.ends)
    done = engine_pb2.Done(request_id=backend.request_id(1), epoch=1)
    await backend.send(engine_pb2.Command(done=done))
    assert (await engine.ResetPrefixCache(engine_pb2.ResetPrefixCacheRequest())).blocks > 0
    assert (await engine.ResetPrefixCache(engine_pb2.ResetPrefixCacheRequest())).blocks == 0
