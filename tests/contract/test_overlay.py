"""What is planned fits: readers of this version pass over all that ``overlay/`` adds, on links and in the client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ringline
from google.protobuf.message import Message
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.response_reader import ResponseReader

from services.ring.errors import Code
from tests.contract.later import BUF, OVERLAY, PROTOS, later, lay_over
from tests.programs import output_of
from tests.services.processor.ring_requests import Ring, ask, expected
from tests.services.ring.ring_simulation import AttachStream, Detokenizer

UNKNOWN_EVENT = b"\xa2\x06\x02\x08\x01"
"""Field 100 of a GenerateResponse: an event of a version after that."""


def test_the_overlay_breaks_nothing(tmp_path: Path) -> None:
    protos = lay_over(tmp_path / "protos")
    image = tmp_path / "image.binpb"
    for command in (
        ("lint", protos),
        ("build", protos, "--exclude-source-info", "-o", image),
        ("breaking", image, "--against", PROTOS / "baseline.binpb", "--config", PROTOS / "buf.yaml"),
    ):
        output_of(BUF, *command)


def test_the_overlay_takes_the_numbers_that_are_planned() -> None:
    planned = 0
    for proto in PROTOS.glob("ringline/*/v1/*.proto"):
        addition = OVERLAY / proto.relative_to(PROTOS)
        for comment, name in re.findall(r"// Planned: ((?:.*\n//)*?.*)\nmessage (\w+) \{", proto.read_text()):
            numbers = {int(number) for number in re.findall(r"\((\d+)\)", comment)}
            (body,) = re.findall(rf"^message {name} \{{\n((?:.*\n)*?)\}}", addition.read_text(), re.M)
            assert {int(number) for number in re.findall(r" = (\d+);", body)} == numbers, name
            planned += len(numbers)
    assert planned >= 6


@pytest.fixture
def later_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines, detokenizers and processors of a later version, as far as others can see."""

    def grow(frames, kind: type[Message]) -> None:
        for index, data in enumerate(frames):
            frames[index] = later(kind.FromString(data))

    attach_write, attach_send, detokenizer_write = AttachStream.write, AttachStream.send, Detokenizer.write

    def write(self: AttachStream, *arguments: int) -> None:
        attach_write(self, *arguments)
        grow(self.responses, engine_pb2.AttachResponse)

    def send(self: AttachStream, commands, *, hurries: bool = True) -> None:
        attach_send(self, commands, hurries=hurries)
        grow(self.commands, engine_pb2.AttachRequest)

    def write_text(self: Detokenizer, *arguments: int) -> None:
        detokenizer_write(self, *arguments)
        grow(self.texts, detokenizer_pb2.TextOutputs)

    monkeypatch.setattr(AttachStream, "write", write)
    monkeypatch.setattr(AttachStream, "send", send)
    monkeypatch.setattr(Detokenizer, "write", write_text)


@pytest.mark.usefixtures("later_peers")
def test_links_pass_over_what_a_later_version_adds() -> None:
    world = Ring(["engine-0", "engine-1"], ["detokenizer-0", "detokenizer-1"])
    world.ask(ask(n=2))
    world.flow(tokens=5)
    world.kill_detokenizer(next(iter(world.detokenizers)))
    world.flow(tokens=5)
    world.kill_engine(next(name for name, engine in world.engines.items() if engine.core.running))
    world.heal()
    world.settle()
    assert world.ids(0) == expected(20, 0)
    assert world.ids(1) == expected(20, 1)
    assert world.usage().completion_tokens == 40
    assert all(move.identical for move in world.moves())
    assert world.quiet


def test_an_unknown_finish_reason_is_an_error_all_the_way_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Ring(["engine-0"], ["detokenizer-0"])
    write = AttachStream.write

    def unknown(self: AttachStream, *arguments: int) -> None:
        write(self, *arguments)
        for index, data in enumerate(self.responses):
            frame = engine_pb2.AttachResponse.FromString(data)
            for finished in frame.outputs.finished:
                finished.finish_reason = 77  # type: ignore[assignment]
            self.responses[index] = frame.SerializeToString()

    monkeypatch.setattr(AttachStream, "write", unknown)
    world.ask(ask())
    world.settle()
    assert world.ids() == expected(20)
    assert world.end().error.code == Code.UNKNOWN
    assert "77" in world.end().error.message
    assert world.usage().completion_tokens == 20


def test_the_client_passes_over_what_a_later_version_adds() -> None:
    world = Ring(["engine-0"], ["detokenizer-0"])
    world.ask(ask())
    world.settle()
    reader = ResponseReader()
    reader.begin(())
    unknown = inference_pb2.GenerateResponse.FromString(UNKNOWN_EVENT)
    for response in world.received:
        assert not reader.read(unknown)
        reader.read(inference_pb2.GenerateResponse.FromString(later(response)))
    answer = reader.generation()
    assert list(answer.token_ids) == expected(20)
    assert answer.finish_reason is ringline.FinishReason.LENGTH
