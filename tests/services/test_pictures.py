"""Chats with pictures through real services: what they answer, resume and refuse, and what engines take from peers."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import grpc
import pytest
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1 import inference_pb2_grpc

from engine_core.media import Picture, PictureShape, View
from services.cli.supervise.runtime_directory import running_stacks
from services.ring.errors import Code
from tests.engine_core.vision.deepseek_ocr_checkpoints import IN_ORDER, write_deepseek_ocr
from tests.engine_core.vision.pictures import random_picture
from tests.ring import Ring, running_ring
from tests.services.in_process import status_of
from tests.services.test_engine_attach import Backend
from tests.text_core.pictures.samples import noise, saved

TEMPLATE = IN_ORDER + "{% if tools %}{{ tools | tojson }}{% endif %}{{ note }}"
MEDIA_MEMORY = 16 << 20
PLACEHOLDER = "<image>"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A ring whose model sees pictures."""
    directory = tmp_path_factory.mktemp("seeing")
    model = write_deepseek_ocr(directory / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    with running_ring(directory, "--media-memory-bytes", str(MEDIA_MEMORY), model=model) as ring:
        yield ring


@pytest.fixture
def stub(seeing: Ring) -> Iterator[Any]:
    with grpc.insecure_channel(seeing.address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def png(seed: int, width: int = 90, height: int = 60) -> bytes:
    """A picture of noise."""
    return saved(noise(width, height, seed=seed))


def chat(*parts: bytes | str) -> pb.Chat:
    """A question with pictures and texts."""
    content = [
        pb.ContentPart(text=part) if isinstance(part, str) else pb.ContentPart(media=pb.Media(data=part))
        for part in parts
    ]
    return pb.Chat(messages=[pb.ChatMessage(role="user", content_parts=content)])


def asked(*parts: bytes | str, max_tokens: int = 16, **fields: Any) -> pb.GenerateRequest:
    request = pb.GenerateRequest(chat=chat(*parts), **fields)
    request.sampling.temperature, request.sampling.seed = 0.8, 5
    request.stopping.max_tokens, request.stopping.ignore_eos = max_tokens, True
    request.output.return_prompt_token_ids = True
    return request


class Answer:
    """Everything that came."""

    def __init__(self, responses: Any) -> None:
        self.ids: list[int] = []
        self.splits: list[int] = []
        for response in responses:
            match response.WhichOneof("event"):
                case "admitted":
                    self.admitted = response.admitted
                case "started":
                    self.started = response.started
                case "delta":
                    self.ids += response.delta.token_ids
                    self.splits.append(len(self.ids))
                case "choice_finished":
                    self.finish = response.choice_finished
                case "request_finished":
                    self.usage = response.request_finished.usage


def engine_pid(ring: Ring) -> int:
    """Of the engine that runs now."""
    stack = next(state for state in running_stacks() if state.pid == ring.process.pid)
    return stack.services["engine"].pid


def refused(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as error:
        for _ in call:
            pass
    return status_of(error.value)


def test_a_picture_changes_the_answer_and_equal_pictures_give_equal_ones(stub: Any) -> None:
    first, again, other = (Answer(stub.Generate(asked(png(seed), "What is it?"))) for seed in (1, 1, 2))
    assert first.ids == again.ids != other.ids
    assert first.admitted.prompt_token_ids == other.admitted.prompt_token_ids
    assert first.admitted.media_digests == again.admitted.media_digests != other.admitted.media_digests
    assert first.usage.media_tokens == other.usage.media_tokens > 0
    assert first.usage.prompt_tokens == len(first.admitted.prompt_token_ids)


def test_cached_blocks_are_those_of_equal_pictures(stub: Any) -> None:
    first, again = (Answer(stub.Generate(asked(png(11), "What is it?"))) for _ in range(2))
    other = Answer(stub.Generate(asked(png(12), "What is it?")))
    assert (first.usage.cached_tokens, other.usage.cached_tokens) == (0, 0)
    assert again.usage.cached_tokens > 0


def test_tenants_share_nothing(stub: Any) -> None:
    def cached(tenant: str) -> int:
        call = stub.Generate(asked(png(13), "What is it?"), metadata=[("x-ringline-tenant", tenant)])
        return int(Answer(call).usage.cached_tokens)

    assert [cached(tenant) for tenant in ("a", "b", "a")] == [0, 0, cached("b")]


def test_pictures_stand_where_the_chat_has_them(stub: Any) -> None:
    """Both orders have the same number of tokens, and other digests."""
    one, two = png(21), png(22)
    first = Answer(stub.Generate(asked(one, "and", two, "differ how?")))
    other = Answer(stub.Generate(asked(two, "and", one, "differ how?")))
    assert list(first.admitted.media_digests) == list(reversed(other.admitted.media_digests))
    assert first.ids != other.ids


def test_a_data_url_is_the_same_picture(stub: Any) -> None:
    data = png(31)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    request = asked(data, "What is it?")
    expected = Answer(stub.Generate(request)).ids
    request.chat.messages[0].content_parts[0].media.data_url = url
    assert Answer(stub.Generate(request)).ids == expected


def test_tokenize_has_the_prompts_ids(stub: Any) -> None:
    request = asked(png(32), "What is it?")
    expected = Answer(stub.Generate(request)).admitted.prompt_token_ids
    answer = stub.Tokenize(pb.TokenizeRequest(chat=request.chat))
    assert answer.token_ids == expected
    assert answer.rendered.count(PLACEHOLDER) == 1


def test_a_cut_request_goes_on_as_if_it_had_not_been_cut(stub: Any) -> None:
    request = asked(png(41), "What is it, and", png(42), "that?")
    whole = Answer(stub.Generate(request))
    for position in [0, *whole.splits[:-1]]:
        resumed = resumed_at(request, whole, position)
        assert Answer(stub.Generate(resumed)).ids == whole.ids[position:], position


def resumed_at(request: pb.GenerateRequest, whole: Answer, position: int) -> pb.GenerateRequest:
    resumed = pb.GenerateRequest(
        chat=request.chat, sampling=whole.admitted.sampling, stopping=whole.admitted.stopping, output=request.output
    )
    resumed.resume.choices.add(choice=0, token_ids=whole.ids[:position])
    resumed.resume.model_digest = whole.admitted.model_digest
    resumed.resume.media_digests.extend(whole.admitted.media_digests)
    resumed.resume.prompt_digest = whole.admitted.prompt_digest
    return resumed


def test_a_resume_with_other_pictures_is_refused(stub: Any) -> None:
    request = asked(png(43), "What is it?")
    whole = Answer(stub.Generate(request))
    other = resumed_at(request, whole, 3)
    other.chat.messages[0].content_parts[0].media.data = png(44)
    without = resumed_at(request, whole, 3)
    del without.resume.media_digests[:]
    for wrong in (other, without):
        status = refused(stub.Generate(wrong))
        assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "resume.media_digests")


def test_a_resume_whose_prompt_has_become_another_is_refused(stub: Any) -> None:
    """As after midnight, if the template writes the date."""
    request = asked(png(43), "Today is the first.")
    whole = Answer(stub.Generate(request))
    other = resumed_at(request, whole, 3)
    other.chat.messages[0].content_parts[1].text = "Today is the second."
    status = refused(stub.Generate(other))
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "resume.prompt_digest")


def test_a_killed_engine_changes_no_token(seeing: Ring, stub: Any) -> None:
    request = asked(png(51), "What is it, and", png(52), "that?", max_tokens=120)
    expected = Answer(stub.Generate(request)).ids
    killed = False

    def killing(responses: Any) -> Iterator[Any]:
        nonlocal killed
        for response in responses:
            yield response
            if response.HasField("delta") and not killed:
                killed = True
                os.kill(engine_pid(seeing), signal.SIGKILL)

    answer = Answer(killing(stub.Generate(request)))
    assert killed
    assert answer.ids == expected


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"content": "text"}, "chat.messages[0].content_parts"),
        ({"content_parts": [{"text": f"a {PLACEHOLDER} b"}, {"media": {"data": png(1)}}]}, "content_parts[0].text"),
        ({"content_parts": [{"media": {"data": b"no picture"}}]}, "content_parts[0].media"),
        ({"content_parts": [{"media": {"data": b""}}]}, "content_parts[0].media"),
        ({"content_parts": [{"media": {}}]}, "content_parts[0].media"),
        ({"content_parts": [{}]}, "content_parts[0]"),
        ({"content_parts": [{"media": {"data_url": "https://example.com/a.png"}}]}, "media.data_url"),
        ({"content_parts": [{"media": {"data_url": "data:image/png;base64,AA=A"}}]}, "media.data_url"),
        ({"content_parts": [{"media": {"data": png(1), "mime_type": "picture"}}]}, "media.mime_type"),
        ({"content_parts": [{"media": {"data": png(1)}}] * 65}, "content_parts[64].media"),
    ],
)
def test_what_is_wrong_with_a_picture_is_said_of_its_part(stub: Any, change: dict[str, Any], field: str) -> None:
    request = asked(png(1), "What is it?")
    message = request.chat.messages[0]
    if "content_parts" in change:
        message.ClearField("content_parts")
    message.MergeFrom(pb.ChatMessage(**change))
    status = refused(stub.Generate(request))
    assert status.code is Code.INVALID_ARGUMENT
    assert (status.field or "").endswith(field), status


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tools": [{"name": "f", "description": PLACEHOLDER}]}, "chat.tools[0].description"),
        ({"template_args_json": f'{{"note": "{PLACEHOLDER}"}}'}, "chat.template_args_json"),
    ],
)
def test_the_field_that_shows_a_picture_too_many_is_named(stub: Any, change: dict[str, Any], field: str) -> None:
    request = asked(png(1), "What is it?")
    request.chat.MergeFrom(pb.Chat(**change))
    status = refused(stub.Generate(request))
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, field)


def test_pictures_that_no_engine_can_hold_together_are_refused(stub: Any) -> None:
    """Each takes half a megabyte as pixels: 33 of them fit."""
    pictures = [png(seed, 300, 200) for seed in range(36)]
    status = refused(stub.Generate(asked(*pictures)))
    assert status.code is Code.INVALID_ARGUMENT
    assert status.field == "chat.messages[0].content_parts[33].media"
    assert f"at most {MEDIA_MEMORY} " in status.message


def test_a_prompt_with_pictures_is_not_cut(stub: Any) -> None:
    status = refused(stub.Generate(asked(png(1), "What is it?", truncate_prompt_tokens=5)))
    assert status.field == "truncate_prompt_tokens"


def test_a_model_of_text_takes_no_pictures(ring: Ring) -> None:
    with grpc.insecure_channel(ring.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        status = refused(stub.Generate(asked(png(1), "What is it?")))
        assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "chat.messages[0].content_parts[0].media")
        status = refused(stub.Generate(asked(png(1), "What is it?", requires=["media"])))
        assert status.code is Code.INVALID_ARGUMENT
        text = Answer(stub.Generate(asked("What ", "is it?")))
        plain = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="What is it?")]))
        plain.output.return_prompt_token_ids = True
        assert text.admitted.prompt_token_ids == Answer(stub.Generate(plain)).admitted.prompt_token_ids


# An engine and its peers


def picture(seed: int, side: int = 256) -> Picture:
    """As the model's family makes it: the whole picture alone."""
    quarter = side // 64
    return random_picture(PictureShape(quarter * (quarter + 1) + 1), (side, side), seed=seed)


def chunks(one: Picture, size: int = 256 << 10, **changed: Any) -> list[engine_pb2.Command]:
    """Its chunks; ``changed``: fields of the header, or the digest."""
    shape = one.shape
    digest = changed.pop("digest", one.digest)
    header = {
        "views": [engine_pb2.MediaView(height=view.height, width=view.width) for view in one.views],
        "rows": shape.rows,
        "columns": shape.columns,
        "num_tokens": shape.num_tokens,
    }
    data = b"".join(view.pixels for view in one.views)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    first = engine_pb2.MediaChunk(digest=digest, header=engine_pb2.MediaHeader(**{**header, **changed}), data=pieces[0])
    rest = [engine_pb2.MediaChunk(digest=digest, data=piece) for piece in pieces[1:]]
    return [engine_pb2.Command(media=chunk) for chunk in (first, *rest)]


def submit(backend: Backend, counter: int, *pictures: Picture, epoch: int = 1) -> engine_pb2.Command:
    """A request with ``pictures``; to an engine, the ids in their places are any ids."""
    ids, places = [5], []
    for one in pictures:
        places.append(engine_pb2.MediaPlace(digest=one.digest, offset=len(ids)))
        ids += [6] * one.shape.num_tokens
    command = backend.submit(counter, epoch, media=places, requires=["media"])
    command.submit.prompt_token_ids[:] = [*ids, 7]
    return command


class Peers:
    """A channel to an engine, and backends on it."""

    def __init__(self, ring: Ring) -> None:
        self.channel = grpc.aio.insecure_channel(ring.engine_address, options=[("grpc.default_authority", "localhost")])

    async def __aenter__(self) -> Backend:
        backend = Backend(engine_pb2_grpc.EngineServiceStub(self.channel))
        await backend.hello()
        return backend

    async def __aexit__(self, *raised: object) -> None:
        await self.channel.close()


async def test_a_backend_of_ones_own_sends_pictures_before_its_requests(seeing: Ring) -> None:
    one = picture(61)
    async with Peers(seeing) as backend:
        await backend.send(submit(backend, 1, one))
        await backend.until(lambda: backend.rejections)
        status = backend.rejections[0].status
        assert (status.code, status.message[:6]) == (Code.FAILED_PRECONDITION, "media:")
        await backend.send(*chunks(one), submit(backend, 2, one), submit(backend, 3, one, one))
        await backend.until(lambda: len(backend.ends) == 2)
        assert {end.finish_reason for end in backend.ends.values()} == {2}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"digest": bytes(32)}, "media.digest"),
        ({"digest": b"short"}, "media.digest"),
        ({"views": []}, "media.header.views"),
        ({"views": [{"height": 1, "width": 1}] * 257}, "media.header.views"),
        ({"views": [{"height": 0, "width": 256}]}, "media.header.views[0].height"),
        ({"views": [{"height": 65537, "width": 1}]}, "media.header.views[0].height"),
        ({"views": [{"height": 65536, "width": 65536}]}, "media.header.views"),
        ({"views": [{"height": 4, "width": 4}]}, "media.data"),
        ({"num_tokens": 0}, "media.header.num_tokens"),
        ({"num_tokens": 1 << 31}, "media.header.num_tokens"),
        ({"num_tokens": 9}, "media.digest"),
    ],
)
async def test_a_picture_that_is_not_what_its_header_says_is_refused(
    seeing: Ring, changed: dict[str, Any], field: str
) -> None:
    one = picture(crc32(repr(changed).encode()))  # one that the engine does not hold
    async with Peers(seeing) as backend:
        await backend.send(*chunks(one, **changed), *chunks(one), submit(backend, 1, one))
        await backend.until(lambda: backend.ends)
        (rejection,) = backend.rejections
        assert rejection.in_reply_to > 0
        assert rejection.status.message.startswith(f"{field}: "), rejection.status.message


async def test_a_picture_of_another_family_is_refused_before_any_step(seeing: Ring) -> None:
    odd = Picture.of(PictureShape(21), [View(250, 256, bytes(250 * 256 * 3))])
    async with Peers(seeing) as backend:
        await backend.send(*chunks(odd), submit(backend, 1, odd))
        await backend.until(lambda: len(backend.rejections) == 2)
        codes = [rejection.status.code for rejection in backend.rejections]
        assert codes == [Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT]
        assert backend.rejections[1].status.message.startswith("media: ")


async def test_pictures_beyond_the_engines_room_make_way_for_others(seeing: Ring, stub: Any) -> None:
    """Three times as many as there is room for; a request of a processor has its own again."""
    before = Answer(stub.Generate(asked(png(71), "What is it?")))
    many = [picture(100 + seed) for seed in range(3 * MEDIA_MEMORY // picture(0).nbytes)]
    async with Peers(seeing) as backend:
        for one in many:
            await backend.send(*chunks(one))
        await backend.send(submit(backend, 1, many[0]), submit(backend, 2, many[-1]))
        await backend.until(lambda: backend.rejections and backend.ends)
        assert [rejection.request_id for rejection in backend.rejections] == [backend.request_id(1)]
    after = Answer(stub.Generate(asked(png(71), "What is it?")))
    assert after.ids == before.ids


async def test_a_begun_picture_takes_room_only_while_its_peer_is_there(seeing: Ring) -> None:
    """Peers that begin as much as there is, and go: the next one finds all of the room."""
    side = 2048
    large = Picture(PictureShape(21), (View(side, side, bytes(side * side * 3)),), bytes(32))
    for _ in range(4):
        async with Peers(seeing) as backend:
            await backend.send(chunks(large)[0])
            await backend.send(chunks(large)[0])
            await backend.send(backend.submit(1))
            await backend.until(lambda: backend.ends)
            assert not backend.rejections


async def test_pixels_without_a_picture_are_refused(seeing: Ring) -> None:
    one = picture(63)
    async with Peers(seeing) as backend:
        await backend.send(engine_pb2.Command(media=engine_pb2.MediaChunk(digest=one.digest, data=b"abc")))
        await backend.until(lambda: backend.rejections)
        assert backend.rejections[0].status.message.startswith("media.header: ")


async def test_an_engine_of_text_takes_no_pictures(ring: Ring) -> None:
    one = picture(64)
    async with Peers(ring) as backend:
        await backend.send(chunks(one)[0], submit(backend, 1, one))
        await backend.until(lambda: len(backend.rejections) == 2)
        assert {rejection.status.code for rejection in backend.rejections} == {Code.FAILED_PRECONDITION}
