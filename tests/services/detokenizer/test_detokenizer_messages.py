"""What a detokenizer sends is what a processor reads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ringline.detokenizer.v1 import detokenizer_pb2

from services.common.rpc.part_messages import read_parts, typed_parts
from services.common.rpc.shared_messages import read_logprobs
from services.detokenizer.detokenizer_messages import outputs_of
from services.processor.inference_messages import TextEntry, ends_of, entries_of
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason, Prefill
from services.ring.outbox import Outboxes, RequestUpdate
from tests.services.ring.token_logprobs import TokenLogprob, packed
from text_core.parsing.parts import Content, Part, Reasoning, ToolCallPiece

ids = st.lists(st.integers(0, 2**32 - 1), max_size=5)
statuses = st.builds(Status, st.sampled_from(Code), st.text(max_size=5), st.none() | st.integers(0, 10**6))
ends = st.one_of(
    st.builds(
        ChoiceEnd,
        st.sampled_from([FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.DEADLINE]),
        st.integers(0, 9),
    ),
    st.builds(ChoiceEnd, st.just(FinishReason.STOP), st.integers(0, 9), stop_token_id=st.integers(0, 2**32 - 1)),
    st.builds(ChoiceEnd, st.just(FinishReason.STOP), st.integers(0, 9), stop_string=st.text(max_size=3)),
    st.builds(ChoiceEnd, st.just(FinishReason.ERROR), st.integers(0, 9), error=statuses),
)
parts = st.tuples(ids, st.text(max_size=3), st.booleans(), st.integers(0, 2**31), st.none() | ends)


def through_the_wire(taken: list[RequestUpdate]) -> detokenizer_pb2.TextOutputs:
    return detokenizer_pb2.TextOutputs.FromString(outputs_of(taken).SerializeToString())


@settings(deadline=None)
@given(requests=st.lists(st.dictionaries(st.integers(0, 127), parts, max_size=4), max_size=4))
def test_deltas_and_ends_arrive_as_they_were(
    requests: list[dict[int, tuple[list[int], str, bool, int, ChoiceEnd | None]]],
) -> None:
    outbox = Outboxes().open("", lambda: None)
    deltas: list[TextEntry] = []
    finished: list[tuple[str, int, int, ChoiceEnd]] = []
    for index, choices in enumerate(requests):
        name, epoch = f"1-{index}", index + 1
        for choice, (tokens, text, scored, first, end) in choices.items():
            scores = (
                packed(TokenLogprob(-0.5, i + 1, (i,), (-0.25,)) for i, _ in enumerate(tokens))
                if scored and tokens
                else None
            )
            outbox.delta(name, choice, first, tokens, text, scores, epoch=epoch)
            if tokens or text:
                deltas.append(TextEntry(name, epoch, choice, first, tokens, scores, text, None))
            if end is not None:
                outbox.end(name, choice, end, epoch=epoch)
                finished.append((name, epoch, choice, end))
    read = through_the_wire(outbox.take(1 << 30))
    assert [entry._replace(ids=list(entry.ids)) for entry in entries_of(read)] == deltas
    assert list(ends_of(read)) == finished


def test_news_of_a_prompt_arrives() -> None:
    scores = packed([TokenLogprob(-0.5, 1), TokenLogprob(-1.5, 3)])
    update = RequestUpdate("1-1", 4, prefill=Prefill(9, 5, 2), prompt_logprobs=scores, prompt_offset=7)
    read = through_the_wire([update])
    (prefill,), (scored,) = read.prefills, read.prompt_logprobs
    assert (prefill.request_id, prefill.epoch) == (scored.request_id, scored.epoch) == ("1-1", 4)
    assert (prefill.prompt_tokens, prefill.computed_tokens, prefill.cached_tokens) == (9, 5, 2)
    assert (scored.offset, read_logprobs(scored.logprobs)) == (7, scores)


def call(index: int, name: str, arguments: str) -> ToolCallPiece:
    return ToolCallPiece(index, f"call_{index}" if name else "", name, arguments)


def test_pieces_that_continue_each_other_arrive_as_one() -> None:
    outbox = Outboxes().open("", lambda: None)
    deltas: list[list[Part]] = [
        [Reasoning("Let me "), Reasoning("see")],
        [],
        [Reasoning("."), Content("The"), call(0, "add", '{"a"')],
        [call(0, "", ": 1}"), call(1, "sub", "")],
        [call(1, "", "{}"), Content(" end")],
    ]
    for position, pieces in enumerate(deltas):
        outbox.delta("1-1", 2, position, [position], "t", None, typed_parts(pieces, position))
    outbox.end("1-1", 2, ChoiceEnd(FinishReason.STOP, 5, parts=typed_parts([Content("!")], 3)))
    outbox.delta("1-2", 0, 0, [1], "t")
    frame = through_the_wire(outbox.take(1 << 20))
    parsed, plain = entries_of(frame)
    assert plain.parts is None
    assert parsed.parts is not None
    assert parsed.parts.pieces == [
        Reasoning("Let me see."),
        Content("The"),
        call(0, "add", '{"a": 1}'),
        call(1, "sub", "{}"),
        Content(" end"),
    ]
    assert parsed.parts.reasoning_tokens == 4, "over all of the choice"
    [(_, _, _, end)] = ends_of(frame)
    assert end.parts == typed_parts([Content("!")], 3)
    assert parsed.parts.wire_bytes >= frame.parts[0].ByteSize()


def test_a_part_of_an_unknown_kind_is_skipped() -> None:
    frame = detokenizer_pb2.TextOutputs()
    entry = frame.parts.add()
    entry.parts.add()
    entry.parts.add(content="known")
    assert read_parts(entry.parts, 0).pieces == [Content("known")]
