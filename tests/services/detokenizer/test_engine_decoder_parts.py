"""Typed parts of answers: whatever frames the ids come in and whoever decodes them, the parts are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import part_pb2

from services.detokenizer.detokenizer_messages import outputs_of
from services.detokenizer.engine_decoder import EngineDecoder
from services.detokenizer.subscribers import Subscribers
from services.processor.inference_messages import ends_of, entries_of
from services.ring.errors import Code
from services.ring.events import ChoiceEnd, FinishReason, TypedParts
from services.ring.identity import PeerId
from tests.services.processor.model_specs import EOS_TEXT, tokenizer
from text_core.parsing.parts import Content, Part, Reasoning, ToolCallPiece

TOKENIZER = tokenizer()
EOS = TOKENIZER.token_id(EOS_TEXT)
ME = PeerId("processor-0", 5)
NAME = "5-1"
ANSWER = 'Hm é.</think>Now <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>end'
IDS = TOKENIZER.encode(ANSWER, add_special_tokens=False)
REASONING_TOKENS = len(TOKENIZER.encode("Hm é.</think>", add_special_tokens=False))
PARSE = part_pb2.ParseParams(tool_calls="hermes", reasoning="think", begins_in_reasoning=True, tool_names=["add"])


@dataclass
class Answer:
    """What a processor has of the choice."""

    count: int = 0
    parts: list[Part] = field(default_factory=list)
    reasoning_tokens: int = 0
    end: ChoiceEnd | None = None

    def take(self, parts: TypedParts | None) -> None:
        assert parts is not None
        self.parts += parts.pieces
        assert parts.reasoning_tokens >= self.reasoning_tokens
        self.reasoning_tokens = parts.reasoning_tokens

    @property
    def joined(self) -> list[tuple[str, ...]]:
        """The parts with pieces that continue each other joined."""
        joined: list[list[str]] = []
        for part in self.parts:
            match part:
                case Content(text) | Reasoning(text):
                    subject, texts = [type(part).__name__], [text]
                case ToolCallPiece():
                    subject, texts = [f"call {part.index}"], [part.id, part.name, part.arguments]
            if joined and joined[-1][0] == subject[0]:
                joined[-1][1:] = [old + new for old, new in zip(joined[-1][1:], texts, strict=True)]
            else:
                joined.append(subject + texts)
        return [tuple(one) for one in joined]


class Detokenizer:
    """A decoder with one subscriber."""

    def __init__(self) -> None:
        self.subscribers = Subscribers(lambda peer: None)
        self.decoder = EngineDecoder(TOKENIZER, self.subscribers)
        self.outbox = self.subscribers.add(ME).outbox

    def open(
        self,
        delivered: int = 0,
        parse: part_pb2.ParseParams = PARSE,
        stop: Sequence[str] = (),
        answer_stop_ids: Sequence[int] | None = None,
    ) -> None:
        """``answer_stop_ids``: stop tokens; None: stop strings count in the reasoning, too."""
        context = detokenizer_pb2.OutputContext(
            reply_to=ME.name,
            reply_incarnation=ME.incarnation,
            tokenizer_digest=TOKENIZER.fingerprint(),
            skip_special_tokens=True,
            parse=parse,
            call_id_seed=b"0123456789abcdef",
            stop_strings=stop,
            stop_token_ids=answer_stop_ids,
            stops_in_answer_only=answer_stop_ids is not None,
        )
        opened = engine_pb2.Opened(request_id=NAME, epoch=1, output_context=context.SerializeToString(), choices=[0])
        opened.delivered.add(choice=0, count=delivered)
        self.decoder.frame(engine_pb2.StepOutputs(opened=[opened]))

    def feed(self, ids: Sequence[int], first: int, *, ends: bool = False) -> None:
        outputs = engine_pb2.StepOutputs(
            request_ids=[NAME], epochs=[1], choices=[0], first_positions=[first], token_counts=[len(ids)], token_ids=ids
        )
        if ends:
            end = outputs.finished.add(request_id=NAME, epoch=1, choice=0, position=first + len(ids))
            end.finish_reason, end.stop_token_id = int(FinishReason.STOP), EOS or 0  # type: ignore[assignment]
        self.decoder.frame(outputs)

    def read(self, answer: Answer) -> None:
        """Deliver what waits, through the wire."""
        frame = outputs_of(self.outbox.take(1 << 20))
        frame = detokenizer_pb2.TextOutputs.FromString(frame.SerializeToString())
        for entry in entries_of(frame):
            assert entry.first_position == answer.count
            answer.count += len(entry.ids)
            answer.take(entry.parts)
        for _, _, _, end in ends_of(frame):
            answer.end = end
            if end.parts is not None:
                answer.take(end.parts)


def answered(cuts: Sequence[int] = (), move_after: int | None = None, stop: Sequence[str] = ()) -> Answer:
    """The answer in frames of these sizes; after ``move_after`` ids another detokenizer takes over."""
    assert EOS is not None
    ids = [*IDS, EOS]
    answer, detokenizer = Answer(), Detokenizer()
    detokenizer.open(stop=stop)
    first = 0
    for size in [*cuts, len(ids)]:
        piece = ids[first : first + size]
        detokenizer.feed(piece, first, ends=first + len(piece) == len(ids))
        detokenizer.read(answer)
        first += len(piece)
        if answer.end is not None:
            return answer
        if move_after is not None and first >= move_after:
            detokenizer, first, move_after = Detokenizer(), 0, None
            detokenizer.open(answer.count, stop=stop)
    raise AssertionError("it did not end")


WHOLE = answered()


def test_an_answer_is_divided_into_its_parts() -> None:
    assert [part[0] for part in WHOLE.joined] == ["Reasoning", "Content", "call 0", "Content"]
    _, (_, now), (_, call_id, name, arguments), (_, end) = WHOLE.joined
    assert WHOLE.joined[0] == ("Reasoning", "Hm é.")
    assert (now.strip(), name, arguments, end) == ("Now", "add", '{"a": 1}', "end")
    assert call_id.startswith("call_")
    assert WHOLE.reasoning_tokens == REASONING_TOKENS


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_frames_do_not_matter(size: int) -> None:
    answer = answered([size] * len(IDS))
    assert (answer.joined, answer.reasoning_tokens) == (WHOLE.joined, WHOLE.reasoning_tokens)


def test_another_detokenizer_goes_on_anywhere() -> None:
    """What was delivered is parsed silently; ids of calls and the count of reasoning tokens are those of before."""
    for position in range(1, len(IDS) + 1, 3):
        answer = answered([1] * len(IDS), move_after=position)
        assert (answer.joined, answer.reasoning_tokens) == (WHOLE.joined, WHOLE.reasoning_tokens), position


def test_a_stop_string_ends_the_parts_with_the_text() -> None:
    answer = answered([1] * len(IDS), stop=["e", "add"])
    assert answer.joined == answered(stop=["e", "add"]).joined
    assert answer.end is not None
    assert answer.end.stop_string == "e"


@pytest.mark.parametrize("field", ["tool_calls", "reasoning"])
def test_a_format_that_is_not_known_ends_its_request_and_not_the_link(field: str) -> None:
    detokenizer, answer = Detokenizer(), Answer()
    parse = part_pb2.ParseParams(tool_calls="none", reasoning="none")
    setattr(parse, field, "a later one")
    detokenizer.open(parse=parse)
    detokenizer.read(answer)
    assert answer.end is not None
    assert answer.end.error is not None
    assert answer.end.error.code is Code.INVALID_ARGUMENT
    assert "a later one" in answer.end.error.message
    detokenizer.open()
    detokenizer.feed(IDS[:3], 0)
    answer = Answer()
    detokenizer.read(answer)
    assert answer.count > 0


def test_stops_in_reasoning_do_not_count_if_the_request_says_so() -> None:
    (stop_id,) = set(TOKENIZER.encode("é", add_special_tokens=False)[:1])
    for stop, ids, ended in (
        (["Hm", "Now"], [], (None, "Now")),
        (["Hm"], [IDS[-1]], (IDS[-1], None)),
        ([], [stop_id], (EOS, None)),
    ):
        detokenizer, answer = Detokenizer(), Answer()
        detokenizer.open(stop=stop, answer_stop_ids=ids)
        detokenizer.feed([*IDS, EOS or 0], 0, ends=True)
        detokenizer.read(answer)
        assert answer.end is not None
        assert (answer.end.stop_token_id, answer.end.stop_string) == ended
        assert answer.joined[0] == ("Reasoning", "Hm é.")
