"""One engine's requests: whatever frames their ids come in, each choice's text, scores and end come out whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2

from services.common.rpc.shared_messages import write_logprobs
from services.detokenizer.engine_decoder import EngineDecoder
from services.detokenizer.subscribers import Subscribers
from services.ring.errors import Code
from services.ring.events import ChoiceEnd, FinishReason
from services.ring.identity import PeerId
from services.ring.outbox import RequestUpdate
from tests.services.processor.model_specs import EOS_TEXT, files, tokenizer
from tests.services.ring.token_logprobs import TokenLogprob, packed, unpacked
from tests.text_core.panicking import Panicking
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.tokenizer import Tokenizer as TextTokenizer

TOKENIZER = tokenizer()
EOS = TOKENIZER.token_id(EOS_TEXT)
ME = PeerId("processor-0", 5)
NAME = "5-1"
PIECES = TOKENIZER.pieces(skip_special_tokens=True)
BYTES = [TOKENIZER.encode(text, add_special_tokens=False) for text in ("a", "b", "ab", " a", "é", "€", "😀")]
PARTS = sorted({token for ids in BYTES for token in ids})
"""Letters, and bytes that alone are no character."""

id_lists = st.lists(st.sampled_from(PARTS), max_size=24)


def logprob(position: int, token: int) -> TokenLogprob:
    return TokenLogprob(-1.0, token + 1, (position,), (-1.0,))


@dataclass
class Read:
    """What a processor would have of one choice."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    deltas: list[tuple[int, str]] = field(default_factory=list)
    """(ids, text) so far, after each delta."""
    end: ChoiceEnd | None = None

    @property
    def failed(self) -> tuple[Code, int]:
        """The code of the error that ended it, and where."""
        assert self.end is not None
        assert self.end.error is not None
        assert self.end.finish_reason is FinishReason.ERROR
        return self.end.error.code, self.end.position


class Detokenizer:
    """A decoder and one subscriber who reads at once."""

    def __init__(self) -> None:
        self.subscribers = Subscribers(lambda peer: self.decoder.drop_subscriber(peer))
        self.decoder = EngineDecoder(TOKENIZER, self.subscribers)
        self.subscriber = self.subscribers.add(ME)
        self.stops: list[engine_pb2.Stop] = []

    def frame(self, outputs: engine_pb2.StepOutputs) -> list[RequestUpdate]:
        outputs = engine_pb2.StepOutputs.FromString(outputs.SerializeToString())
        self.stops += [command.stop for command in self.decoder.frame(outputs)]
        return self.subscriber.outbox.take(1 << 30)

    def read(self, outputs: engine_pb2.StepOutputs, choices: dict[int, Read]) -> None:
        for update in self.frame(outputs):
            for choice, part in update.choices.items():
                read = choices.setdefault(choice, Read())
                assert read.end is None, "nothing follows an end"
                if part.ids or part.texts:
                    assert part.first_position == len(read.ids)
                read.ids += part.ids
                read.text += "".join(part.texts)
                read.logprobs += unpacked(part.logprobs)
                read.end = part.end
                read.deltas.append((len(read.ids), read.text))


def opened(
    choices: Sequence[int] = (0,),
    delivered: dict[int, int] | None = None,
    epoch: int = 1,
    reply_to: PeerId = ME,
    **context: object,
) -> engine_pb2.Opened:
    fields: dict[str, object] = {"tokenizer_digest": TOKENIZER.fingerprint(), "skip_special_tokens": True}
    message = detokenizer_pb2.OutputContext(
        reply_to=reply_to.name,
        reply_incarnation=reply_to.incarnation,
        **fields | context,  # type: ignore[arg-type]
    )
    return engine_pb2.Opened(
        request_id=NAME,
        epoch=epoch,
        output_context=message.SerializeToString(),
        choices=choices,
        delivered=[engine_pb2.Delivered(choice=c, count=n) for c, n in (delivered or {}).items()],
    )


def tokens(
    ids: Sequence[int], first: int = 0, choice: int = 0, epoch: int = 1, scored_from: int | None = None
) -> engine_pb2.StepOutputs:
    """An entry; from position ``scored_from`` on it has log probabilities."""
    outputs = engine_pb2.StepOutputs(
        request_ids=[NAME],
        epochs=[epoch],
        choices=[choice],
        first_positions=[first],
        token_counts=[len(ids)],
        token_ids=ids,
    )
    if scored_from is not None:
        scores = [logprob(first + i, token) for i, token in enumerate(ids) if first + i >= scored_from]
        write_logprobs(outputs.logprobs.add(entry=0).logprobs, packed(scores))
    return outputs


def finish(position: int, stop_token_id: int | None = None, choice: int = 0, epoch: int = 1) -> engine_pb2.Finished:
    finish_reason = FinishReason.LENGTH if stop_token_id is None else FinishReason.STOP
    return engine_pb2.Finished(
        request_id=NAME,
        epoch=epoch,
        choice=choice,
        position=position,
        finish_reason=int(finish_reason),  # type: ignore[arg-type]
        stop_token_id=stop_token_id,
    )


def frames_of(
    ids: Sequence[int], cuts: Sequence[int], opening: engine_pb2.Opened, scored_from: int | None, eos: bool
) -> list[engine_pb2.StepOutputs]:
    """The whole log of choice 0 in pieces of these sizes, with its opening and its end."""
    frames, first = [], 0
    for size in [*cuts, len(ids)]:
        piece = ids[first : first + size]
        if piece:
            frames.append(tokens(piece, first, scored_from=scored_from))
        first += len(piece)
    frames = frames or [engine_pb2.StepOutputs()]
    frames[0].opened.append(opening)
    frames[-1].finished.append(finish(len(ids), ids[-1] if eos else None))
    return frames


def undisturbed(ids: Sequence[int], stops: tuple[str, ...], eos: bool) -> tuple[int, str, str | None]:
    """How many ids, their text and the stop string, of a decoder that is given everything at once."""
    delta = ChoiceDecoder(PIECES, DecodeOptions(stop=stops)).finish(ids, stop_token=eos)
    return len(delta.token_ids), delta.text, delta.stop


@settings(deadline=None)
@given(
    ids=id_lists,
    cuts=st.lists(st.integers(1, 6), max_size=10),
    stops=st.lists(st.sampled_from(["ab", "ba", "é", "a€", "bb"]), max_size=2).map(tuple),
    eos=st.booleans(),
    scored=st.booleans(),
)
def test_the_frames_do_not_matter(
    ids: list[int], cuts: list[int], stops: tuple[str, ...], eos: bool, scored: bool
) -> None:
    ids = [*ids, EOS] if eos else ids
    detokenizer, choices = Detokenizer(), {0: Read()}
    for frame in frames_of(ids, cuts, opened(stop_strings=stops), 0 if scored else None, eos):
        detokenizer.read(frame, choices)
    read = choices[0]
    count, text, stop = undisturbed(ids, stops, eos)
    assert (read.ids, read.text) == (ids[:count], text)
    assert read.logprobs == ([logprob(i, token) for i, token in enumerate(ids[:count])] if scored else [])
    for n, so_far in read.deltas[:-1]:
        assert TOKENIZER.decode(ids[:n]) == so_far, "at every delta the text is that of the ids"
    if stop is not None:
        assert read.end == ChoiceEnd(FinishReason.STOP, count, stop_string=stop)
        (command,) = detokenizer.stops
        assert (command.request_id, command.epoch, command.choice, command.position) == (NAME, 1, 0, count)
    elif eos:
        assert read.end == ChoiceEnd(FinishReason.STOP, len(ids), stop_token_id=EOS)
    else:
        assert read.end == ChoiceEnd(FinishReason.LENGTH, len(ids))
    assert detokenizer.decoder.num_requests == 0


@settings(deadline=None)
@given(
    ids=id_lists,
    cuts=st.lists(st.integers(1, 6), max_size=10),
    again=st.lists(st.integers(1, 6), max_size=10),
    stops=st.lists(st.sampled_from(["ab", "ba", "é"]), max_size=2).map(tuple),
    lost_after=st.integers(0, 12),
    resumed=st.integers(0, 8),
    stop_token=st.booleans(),
    lose_end=st.booleans(),
)
def test_a_replay_goes_on_where_the_processor_is(
    ids: list[int],
    cuts: list[int],
    again: list[int],
    stops: tuple[str, ...],
    lost_after: int,
    resumed: int,
    stop_token: bool,
    lose_end: bool,
) -> None:
    """The first detokenizer is lost after some deltas, or before an end; another is given the log from position 0."""
    stop_token = stop_token and bool(ids)
    first, choices = Detokenizer(), {0: Read()}
    frames = frames_of(ids, cuts, opened(stop_strings=stops), 0, eos=stop_token)
    for frame in frames[:lost_after]:
        first.read(frame, choices)
    read = choices[0]
    if lose_end:
        read.end = None
    if read.end is None:
        delivered = {0: len(read.ids)}
        scored_from = min(resumed, len(read.ids))  # ids that were resumed have no log probabilities
        second = Detokenizer()
        opening = opened(stop_strings=stops, delivered=delivered)
        for frame in frames_of(ids, again, opening, scored_from, eos=stop_token):
            second.read(frame, choices)
        assert second.decoder.num_requests == 0
    count, text, stop = undisturbed(ids, stops, eos=stop_token)
    assert (read.ids, read.text) == (ids[:count], text)
    assert read.logprobs == [logprob(i, token) for i, token in enumerate(ids[:count])]
    assert read.end is not None
    assert read.end.stop_string == stop


@pytest.mark.parametrize("replayed", [False, True])
def test_a_stop_token_that_was_delivered_without_its_end_is_no_stop_string(replayed: bool) -> None:
    """Its text is a stop string, but it is not searched: neither by another engine nor in a replay."""
    ids = [*BYTES[0], *BYTES[1]]
    second, choices = Detokenizer(), {0: Read(ids=list(ids), text="a")}
    frame = tokens(ids)
    frame.opened.append(opened(stop_strings=["b"], delivered={0: 2}))
    end = engine_pb2.StepOutputs(finished=[finish(2, stop_token_id=ids[1])])
    if replayed:
        frame.MergeFrom(end)
    for outputs in [frame] if replayed else [frame, end]:
        second.read(outputs, choices)
    assert (choices[0].ids, choices[0].text) == (ids, "a")
    assert choices[0].end == ChoiceEnd(FinishReason.STOP, 2, stop_token_id=ids[1])
    assert not second.stops


@settings(deadline=None)
@given(ids=id_lists, pieces=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 8)), max_size=20))
def test_pieces_that_overlap_are_clipped_and_gaps_are_left_to_the_processor(
    ids: list[int], pieces: list[tuple[int, int]]
) -> None:
    detokenizer, choices = Detokenizer(), {0: Read()}
    detokenizer.read(engine_pb2.StepOutputs(opened=[opened()]), choices)
    received = 0
    for first, length in pieces:
        piece = ids[first : first + length]
        if piece:
            detokenizer.read(tokens(piece, first, scored_from=0), choices)
            if first <= received:
                received = max(received, first + len(piece))
    detokenizer.read(engine_pb2.StepOutputs(finished=[finish(received)]), choices)
    read = choices[0]
    assert read.ids == ids[:received]
    assert read.logprobs == [logprob(i, token) for i, token in enumerate(ids[:received])]
    assert read.end == ChoiceEnd(FinishReason.LENGTH, received)


def test_choices_are_decoded_apart_and_end_apart() -> None:
    detokenizer, choices = Detokenizer(), dict[int, Read]()
    frame = tokens(BYTES[5][:2], choice=2)
    frame.opened.append(opened(choices=(0, 2), stop_strings=["b"]))
    detokenizer.read(frame, choices)
    detokenizer.read(tokens([*BYTES[0], *BYTES[1]], choice=0), choices)
    assert choices[0].text == "a"
    assert choices[0].end is not None
    assert detokenizer.decoder.num_requests == 1
    frame = tokens(BYTES[5][2:], first=2, choice=2)
    frame.finished.append(finish(3, choice=2))
    detokenizer.read(frame, choices)
    assert choices[2].text == "€"
    assert detokenizer.decoder.num_requests == 0
    detokenizer.read(tokens(BYTES[0], first=2, choice=0), choices)
    assert choices[0].ids == [*BYTES[0], *BYTES[1]]


def test_only_the_present_epoch_is_heard() -> None:
    detokenizer, choices = Detokenizer(), {0: Read()}
    frame = engine_pb2.StepOutputs(opened=[opened(epoch=3, delivered={0: 1})])
    detokenizer.read(frame, choices)
    for epoch in (2, 4):
        assert detokenizer.frame(tokens(BYTES[0], epoch=epoch)) == []
        assert detokenizer.frame(engine_pb2.StepOutputs(finished=[finish(0, epoch=epoch)])) == []
    (update,) = detokenizer.frame(tokens([*BYTES[0], *BYTES[1]], epoch=3))
    assert (update.epoch, update.choices[0].first_position, update.choices[0].ids) == (3, 1, BYTES[1])
    closed = engine_pb2.StepOutputs(closed=[engine_pb2.Closed(request_id=NAME, epoch=2)])
    detokenizer.frame(closed)
    assert detokenizer.decoder.num_requests == 1
    closed.closed[0].epoch = 3
    detokenizer.frame(closed)
    assert detokenizer.decoder.num_requests == 0


def test_progress_and_scores_of_a_prompt_are_passed_on() -> None:
    detokenizer = Detokenizer()
    frame = engine_pb2.StepOutputs(opened=[opened()])
    frame.prefills.add(request_id=NAME, epoch=1, prompt_tokens=9, computed_tokens=4, cached_tokens=2)
    frame.prefills.add(request_id="5-2", epoch=1, prompt_tokens=9, computed_tokens=4)
    scores = [logprob(1, 7), logprob(2, 8)]
    write_logprobs(frame.prompt_logprobs.add(request_id=NAME, epoch=1).logprobs, packed(scores))
    (update,) = detokenizer.frame(frame)
    assert update.prefill is not None
    assert (update.prefill.prompt_tokens, update.prefill.computed_tokens, update.prefill.cached_tokens) == (9, 4, 2)
    assert (update.prompt_offset, update.prompt_logprobs) == (0, packed(scores))
    frame = engine_pb2.StepOutputs()
    write_logprobs(frame.prompt_logprobs.add(request_id=NAME, epoch=1, offset=2).logprobs, packed(scores[:1]))
    (update,) = detokenizer.frame(frame)
    assert (update.prompt_offset, update.prompt_logprobs) == (2, packed(scores[:1]))
    frame = engine_pb2.StepOutputs()
    frame.prefills.add(request_id=NAME, epoch=2, prompt_tokens=9, computed_tokens=5)
    write_logprobs(frame.prompt_logprobs.add(request_id=NAME, epoch=2).logprobs, packed(scores))
    assert detokenizer.frame(frame) == []


def test_ids_of_another_tokenizer_are_refused_choice_by_choice() -> None:
    detokenizer, choices = Detokenizer(), dict[int, Read]()
    frame = engine_pb2.StepOutputs(opened=[opened((0, 1), {1: 3}, tokenizer_digest="other")])
    for update in detokenizer.frame(frame):
        choices |= {choice: Read(end=part.end) for choice, part in update.choices.items()}
    assert choices.keys() == {0, 1}
    for choice, position in ((0, 0), (1, 3)):
        assert choices[choice].failed == (Code.FAILED_PRECONDITION, position), "where the processor's count is"
    assert detokenizer.decoder.num_requests == 0


@pytest.mark.parametrize("peer", [PeerId("processor-1", 5), PeerId("processor-0", 4), PeerId("processor-0", 6)])
def test_what_nobody_subscribed_for_is_let_go(peer: PeerId) -> None:
    detokenizer = Detokenizer()
    frame = tokens(BYTES[0])
    frame.opened.append(opened(reply_to=peer))
    assert detokenizer.frame(frame) == []
    assert detokenizer.decoder.num_requests == 0


def test_a_context_that_is_none_is_let_go() -> None:
    detokenizer = Detokenizer()
    broken = opened()
    broken.output_context = b"\xff\xff"
    assert detokenizer.frame(engine_pb2.StepOutputs(opened=[broken])) == []


def test_what_was_held_for_a_subscription_goes_with_it() -> None:
    detokenizer = Detokenizer()
    detokenizer.frame(engine_pb2.StepOutputs(opened=[opened()]))
    detokenizer.subscribers.remove(detokenizer.subscriber)
    assert detokenizer.decoder.num_requests == 0
    detokenizer.subscriber = detokenizer.subscribers.add(ME)
    assert detokenizer.frame(tokens(BYTES[0])) == []


def test_a_replay_takes_the_place_of_what_was_not_sent_yet() -> None:
    """The link to the engine was cut and came back, while the processor did not read."""
    detokenizer = Detokenizer()
    frame = tokens(BYTES[0])
    frame.opened.append(opened())
    detokenizer.decoder.frame(frame)
    detokenizer.decoder = EngineDecoder(TOKENIZER, detokenizer.subscribers)
    frame.token_ids.extend(BYTES[1])
    frame.token_counts[0] = 2
    (update,) = detokenizer.frame(frame)
    assert update.choices[0].ids == [*BYTES[0], *BYTES[1]]
    assert "".join(update.choices[0].texts) == "ab"


def test_what_an_engine_forgets_is_dropped_but_not_what_another_goes_on_with() -> None:
    detokenizer = Detokenizer()
    other = EngineDecoder(TOKENIZER, detokenizer.subscribers)
    detokenizer.frame(engine_pb2.StepOutputs(opened=[opened()]))
    detokenizer.decoder.frame(tokens(BYTES[0]))
    frame = tokens([*BYTES[0], *BYTES[1]], epoch=2)
    frame.opened.append(opened(epoch=2))
    other.frame(frame)
    closed = engine_pb2.StepOutputs(closed=[engine_pb2.Closed(request_id=NAME, epoch=1)])
    (update,) = detokenizer.frame(closed)
    assert (update.epoch, update.choices[0].ids) == (2, [*BYTES[0], *BYTES[1]])
    assert (detokenizer.decoder.num_requests, other.num_requests) == (0, 1)


def test_a_context_that_cannot_be_used_ends_its_request_and_no_other() -> None:
    detokenizer = Detokenizer()
    read: dict[int, Read] = {}
    detokenizer.read(engine_pb2.StepOutputs(opened=[opened(stop_strings=[""])]), read)
    assert read[0].failed == (Code.INVALID_ARGUMENT, 0)
    assert read[0].end.error.message.startswith("output_context: ")  # type: ignore[union-attr]
    assert detokenizer.decoder.num_requests == 0


def test_what_cannot_be_decoded_ends_alone() -> None:
    """Even if the tokenizer's library panics."""
    detokenizer, choices = Detokenizer(), {0: Read(), 1: Read()}
    own = detokenizer.decoder._tokenizer = TextTokenizer.from_files(files())
    detokenizer.read(engine_pb2.StepOutputs(opened=[opened(choices=(0, 1))]), choices)
    detokenizer.read(tokens(PARTS[:1]), choices)
    assert choices[0].ids == PARTS[:1]
    pieces = own.pieces(skip_special_tokens=True)
    library, pieces._tokenizer = pieces._tokenizer, Panicking()  # type: ignore[assignment]
    detokenizer.read(tokens(PARTS[1:2], first=1), choices)
    assert (choices[0].failed, choices[1].failed) == ((Code.INTERNAL, 1), (Code.INTERNAL, 0))
    assert detokenizer.decoder.num_requests == 0
    refused = {0: Read()}
    detokenizer.read(engine_pb2.StepOutputs(opened=[opened(epoch=2, prompt_tail=PARTS[2:3])]), refused)
    assert refused[0].failed == (Code.INTERNAL, 0)
    pieces._tokenizer = library
    goes_on = {0: Read()}
    detokenizer.read(engine_pb2.StepOutputs(opened=[opened(epoch=3)]), goes_on)
    detokenizer.read(tokens(PARTS[:2], epoch=3), goes_on)
    assert goes_on[0].ids


def test_a_stop_string_ends_a_choice_with_the_drafts_that_the_engine_told() -> None:
    detokenizer, choices = Detokenizer(), dict[int, Read]()
    ids = TOKENIZER.encode("ab", add_special_tokens=False)
    detokenizer.read(engine_pb2.StepOutputs(opened=[opened(choices=(0, 1), stop_strings=["ab"])]), choices)
    for choice in (0, 1):
        outputs = tokens(ids, choice=choice)
        if choice == 1:
            outputs.drafts.add(entry=0, accepted_draft_tokens=3, rejected_draft_tokens=2)
        detokenizer.read(outputs, choices)
    assert [choices[choice].end for choice in (0, 1)] == [
        ChoiceEnd(FinishReason.STOP, len(ids), stop_string="ab", drafts=drafts) for drafts in ((0, 0), (3, 2))
    ]
