"""The protocol, whole, over a network that loses, repeats, delays and cuts.

Everything of the ring is the real thing but for the engine core (a function of seed, choice and position), the
sockets (lists of serialized frames) and the clock. Hypothesis chooses who does what next; at the end everything heals,
and every request must have exactly one terminal per choice, with exactly the ids and text of an undisturbed run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers

from engine_core.request import Request
from services.detokenizer.engines import Engines
from services.detokenizer.frames import outputs_of
from services.detokenizer.subscribers import Subscriber
from services.engine.frames import response_of
from services.engine.wire import submission_of
from services.processor.admission import admit
from services.processor.client import ClientRequest, ClientStream, LiveRequest
from services.processor.peers import Peers
from services.processor.ring import Ring
from services.processor.validation import ModelLimits
from services.processor.vocabulary import Vocabulary, VocabularySource
from services.ring.cursor import OutboundLink, RejectedCommand
from services.ring.events import Cause, ChoiceEnd, Refused
from services.ring.identity import PeerId, ring_id
from services.ring.request import RingRequest
from services.ring.switchboard import Switchboard
from services.runtime.metrics import ProcessorMetrics
from services.text.chat import ChatTemplates
from services.text.tokenizer import Tokenizer

ALPHABET = "abc"
MAX_MODEL_LEN = 64


def make_tokenizer() -> Tokenizer:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = HFTokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return Tokenizer.from_files({"tokenizer.json": bpe.to_str().encode()})


TOKENIZER = make_tokenizer()
LETTERS = [TOKENIZER.encode(letter)[0] for letter in ALPHABET]
EOS = TOKENIZER.encode("!")[0]


def token_at(seed: int, choice: int, position: int) -> int:
    """What every engine computes there."""
    mixed = (seed * 1_000_003 + choice * 7_919 + position * 104_729) * 2_654_435_761 % 2**32
    return EOS if mixed % 29 == 0 else LETTERS[mixed % len(LETTERS)]


def undisturbed(request: inference_pb2.GenerateRequest, choice: int) -> tuple[list[int], str, Cause]:
    """Ids, text and cause of a choice that nothing happens to."""
    ids: list[int] = []
    while len(ids) < request.stopping.max_tokens:
        ids.append(token_at(request.sampling.seed, choice, len(ids)))
        text = TOKENIZER.decode([i for i in ids if i != EOS])
        # Of several that end here, the one that begins first wins.
        for stop in sorted(request.stopping.stop, key=len, reverse=True):
            if text.endswith(stop) and ids[-1] != EOS:
                return ids, text[: -len(stop)], Cause.STOP
        if ids[-1] == EOS:
            return ids, text, Cause.STOP
    return ids, text, Cause.LENGTH


class FakeCore:
    """Computes ``token_at``; told what to do by the switchboard, as the step loop is."""

    def __init__(self) -> None:
        self.board: Switchboard
        self.running: dict[str, dict[int, int]] = {}
        self.requests: dict[str, Request] = {}

    def add(self, core_id: str, order: object) -> None:
        assert isinstance(order, Request)
        starts = order.resume or dict.fromkeys(range(order.params.n), ())
        self.requests[core_id] = order
        self.running[core_id] = {choice: len(ids) for choice, ids in starts.items()}

    def cancel(self, core_id: str, choice: int | None) -> None:
        if choice is None:
            self.running.pop(core_id, None)
        elif core_id in self.running:
            self.running[core_id].pop(choice, None)

    def step(self, tokens: int) -> None:
        for core_id, choices in list(self.running.items()):
            params = self.requests[core_id].params
            self.board.prefilled(core_id, None, 0)
            for choice, position in list(choices.items()):
                ids: list[int] = []
                end = None
                while len(ids) < tokens and end is None:
                    ids.append(token_at(params.seed, choice, position + len(ids)))
                    count = position + len(ids)
                    if ids[-1] == EOS:
                        end = ChoiceEnd(Cause.STOP, count, stop_token_id=EOS)
                    elif count == params.max_tokens:
                        end = ChoiceEnd(Cause.LENGTH, count)
                self.board.progress(core_id, choice, ids, (), end)
                choices[choice] = position + len(ids)
                if end is not None:
                    del choices[choice]
            if not choices:
                del self.running[core_id]


class Wire:
    """One direction of a stream: frames under way, serialized, in order."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()


class FakeEngineLink:
    """The dialling end of Attach, without a socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.commands = Wire()

    def send(self, commands: Iterable[engine_pb2.Command]) -> None:
        request = engine_pb2.AttachRequest(commands=list(commands))
        if request.commands:
            self.commands.frames.append(request.SerializeToString())


class Attached:
    """One Attach stream: who dialled, and what is under way on it."""

    def __init__(self, peer: PeerId, link: OutboundLink, client: FakeEngineLink) -> None:
        self.peer, self.link, self.client = peer, link, client
        self.responses = Wire()


class Engine:
    """One life of an engine."""

    def __init__(self, incarnation: int) -> None:
        self.me = PeerId("engine", incarnation)
        self.core = FakeCore()
        self.board = Switchboard(self.core, orphan_grace=2.0, max_ledgers=1000)
        self.core.board = self.board
        self.streams: dict[str, Attached] = {}

    def command(self, stream: Attached, command: engine_pb2.Command) -> None:
        board, peer = self.board, stream.peer
        try:
            match command.WhichOneof("command"):
                case "submit":
                    board.submit(peer, submission_of(command.submit, 0.0))
                case "stop":
                    stop = command.stop
                    board.stop(peer, stop.request_id, stop.epoch, stop.choice, stop.position)
                case "redirect":
                    redirect = command.redirect
                    delivered = {one.choice: one.count for one in redirect.delivered}
                    board.redirect(peer, redirect.request_id, redirect.epoch, redirect.deliver_to, delivered)
                case "done":
                    board.done(peer, command.done.request_id, command.done.epoch)
                case other:
                    raise AssertionError(other)
        except Refused as refused:
            subject = getattr(command, command.WhichOneof("command") or "")
            stream.link.reject(RejectedCommand(subject.request_id, subject.epoch, 1, refused.status))


class ProtocolMachine(RuleBasedStateMachine):
    """One processor, one detokenizer and one engine, any of whose links and lives may end."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = 1
        self.now = 0.0
        vocabulary = VocabularySource()
        vocabulary.current = Vocabulary(
            engine_pb2.GetModelResponse(model="m", tokenizer_fingerprint=TOKENIZER.fingerprint()),
            TOKENIZER,
            ChatTemplates({}),
            ModelLimits("m", TOKENIZER.vocab_size, MAX_MODEL_LEN, 0),
        )
        self.vocabulary = vocabulary.current
        self.peers = Peers(vocabulary)
        self.peers._fingerprints["engine"] = "numerics"
        self.ring = Ring(self.peers, ProcessorMetrics(), patience=1e9)
        self.peers.events = self.ring
        self.me = PeerId("processor", 1)
        self.client = ClientStream("")
        self.asked: dict[str, inference_pb2.GenerateRequest] = {}
        self.cancelled: set[str] = set()
        self.received: list[inference_pb2.GenerateResponse] = []
        self.history: list[bytes] = []
        self.start_engine()
        self.start_detokenizer()
        self.heal()

    # Lives and links

    def start_engine(self) -> None:
        self.lives += 1
        self.engine = Engine(self.lives)

    def start_detokenizer(self) -> None:
        self.lives += 1
        self.detokenizer_me = PeerId("detokenizer", self.lives)
        self.engines = Engines()
        self.engines._tokenizer = TOKENIZER
        self.subscriber: Subscriber | None = None
        self.texts = Wire()

    def attach(self, name: str) -> None:
        peer = self.me if name == "processor" else self.detokenizer_me
        owner = self.peers if name == "processor" else self.engines
        client = FakeEngineLink("engine")
        link, _ = self.engine.board.attach(peer)
        self.engine.streams[name] = Attached(peer, link, client)
        owner.engine_up(client, self.engine.me)  # type: ignore[arg-type]

    def detach(self, name: str) -> None:
        stream = self.engine.streams.pop(name)
        self.engine.board.detach(stream.link, self.now)
        owner = self.peers if name == "processor" else self.engines
        owner.engine_down(stream.client, self.engine.me)  # type: ignore[arg-type]

    def subscribe(self) -> None:
        self.subscriber = self.engines.subscribers.add(self.me)
        self.texts = Wire()
        self.peers.detokenizer_up(self.detokenizer_me, "detokenizer")

    def unsubscribe(self) -> None:
        assert self.subscriber is not None
        self.engines.subscribers.remove(self.subscriber)
        self.subscriber = None
        self.peers.detokenizer_down(self.detokenizer_me)

    def heal(self) -> None:
        for name in ("processor", "detokenizer"):
            if name not in self.engine.streams:
                self.attach(name)
        if self.subscriber is None:
            self.subscribe()

    # What may happen

    @rule(
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 20),
        seed=st.integers(0, 2**32),
        stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=2),
    )
    def ask(self, n: int, max_tokens: int, seed: int, stops: list[str]) -> None:
        name = f"r{len(self.asked)}"
        request = inference_pb2.GenerateRequest(request_id=name, text="ab")
        request.sampling.n, request.sampling.seed = n, seed
        request.stopping.max_tokens = max_tokens
        request.stopping.stop.extend(stops)
        self.asked[name] = request
        admission = admit(request, self.vocabulary, "", self.me)
        call = ClientRequest(ring_id(1, len(self.asked)), name, len(self.asked), self.client, time.monotonic(), None)
        self.client.add(call)
        call.live = LiveRequest(call, admission, RingRequest(call.ring_id, 2, admission.choices))
        self.ring.start(call.live)

    @rule(tokens=st.integers(1, 5))
    def compute(self, tokens: int) -> None:
        self.engine.core.step(tokens)

    @rule(name=st.sampled_from(["processor", "detokenizer"]), max_bytes=st.sampled_from([1, 300, 1 << 20]))
    def engine_writes(self, name: str, max_bytes: int) -> None:
        if (stream := self.engine.streams.get(name)) and (frame := stream.link.take(max_bytes)):
            stream.responses.frames.append(response_of(frame).SerializeToString())

    @rule(name=st.sampled_from(["processor", "detokenizer"]))
    def engine_reads(self, name: str) -> None:
        if (stream := self.engine.streams.get(name)) and stream.client.commands.frames:
            for command in engine_pb2.AttachRequest.FromString(stream.client.commands.frames.popleft()).commands:
                self.engine.command(stream, command)

    @rule(name=st.sampled_from(["processor", "detokenizer"]))
    def peer_reads(self, name: str) -> None:
        if (stream := self.engine.streams.get(name)) and stream.responses.frames:
            frame = engine_pb2.AttachResponse.FromString(stream.responses.frames.popleft())
            owner = self.peers if name == "processor" else self.engines
            owner.engine_frame(stream.client, self.engine.me, frame)  # type: ignore[arg-type]

    @rule(max_bytes=st.sampled_from([1, 1 << 20]))
    def detokenizer_writes(self, max_bytes: int) -> None:
        if self.subscriber is not None and self.subscriber.outbox.pending:
            outputs = outputs_of(self.subscriber.outbox.take(max_bytes))
            self.texts.frames.append(outputs.SerializeToString())

    @rule()
    def processor_reads(self) -> None:
        if self.subscriber is not None and self.texts.frames:
            self.history.append(self.texts.frames.popleft())
            self.ring.text(detokenizer_pb2.TextOutputs.FromString(self.history[-1]))

    @rule()
    def client_reads(self) -> None:
        self.received += self.client.take()

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def text_comes_again(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(self.history[-5:]))
        self.ring.text(detokenizer_pb2.TextOutputs.FromString(frame))

    @precondition(lambda self: self.texts.frames and self.losses_left)
    @rule()
    def text_is_lost(self) -> None:
        self.losses_left -= 1
        self.texts.frames.popleft()

    @rule(name=st.sampled_from(["processor", "detokenizer"]))
    def link_breaks(self, name: str) -> None:
        if name in self.engine.streams:
            self.detach(name)

    @precondition(lambda self: self.subscriber is not None)
    @rule()
    def subscription_breaks(self) -> None:
        self.unsubscribe()

    @precondition(lambda self: self.crashes_left)
    @rule()
    def engine_dies(self) -> None:
        self.crashes_left -= 1
        for name in list(self.engine.streams):
            self.detach(name)
        self.start_engine()

    @rule()
    def detokenizer_dies(self) -> None:
        if "detokenizer" in self.engine.streams:
            self.detach("detokenizer")
        if self.subscriber is not None:
            self.unsubscribe()
        self.start_detokenizer()

    @rule()
    def things_heal(self) -> None:
        self.heal()

    @rule(seconds=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.engine.board.expire(self.now)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def client_cancels(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        call = self.client.find(name)
        if call is not None and not call.ended:
            self.cancelled.add(name)
            self.ring.end(call, Cause.CANCELLED)

    losses_left = 5  # a request that is replayed more often fails, as it should
    crashes_left = 2  # and one that more engines died of

    # What must hold

    @invariant()
    def detokenizer_keeps_only_what_goes_on(self) -> None:
        assert self.engines.num_requests <= len(self.asked)

    def teardown(self) -> None:
        for _ in range(400):
            self.heal()
            self.now += 0.1
            self.engine.board.expire(self.now)
            self.engine.core.step(5)
            for name in ("processor", "detokenizer"):
                self.engine_writes(name, 1 << 20)
                self.peer_reads(name)
                self.engine_reads(name)
            self.detokenizer_writes(1 << 20)
            self.processor_reads()
            self.ring.tick(time.monotonic())
            self.client_reads()
        self.check_streams()
        assert self.client.num_live == 0
        assert self.ring.num_live == 0
        assert self.engine.board.num_ledgers == 0
        assert not self.engine.core.running
        assert self.engines.num_requests == 0

    def check_streams(self) -> None:
        ids: dict[tuple[str, int], list[int]] = {}
        texts: dict[tuple[str, int], str] = {}
        ends: dict[tuple[str, int], inference_pb2.Terminal] = {}
        for response in self.received:
            name = response.request_id
            if response.HasField("delta"):
                key = (name, response.delta.choice)
                assert key not in ends, "nothing follows a terminal"
                assert response.delta.first_position == len(ids.setdefault(key, []))
                ids[key] += response.delta.token_ids
                texts[key] = texts.get(key, "") + response.delta.text
            elif response.HasField("terminal"):
                key = (name, response.terminal.choice)
                assert key not in ends, "one terminal per choice"
                ends[key] = response.terminal
        for name, request in self.asked.items():
            choices = range(request.sampling.n)
            usages = [ends[name, c].usage for c in choices if ends[name, c].HasField("usage")]
            assert len(usages) == 1, "the last terminal carries the usage"
            total = sum(len(ids.get((name, choice), ())) for choice in choices)
            assert usages[0].completion_tokens == total
            assert usages[0].prompt_tokens == 2
            for choice in choices:
                self.check_choice(name, request, choice, ids, texts, ends[name, choice])

    def check_choice(
        self,
        name: str,
        request: inference_pb2.GenerateRequest,
        choice: int,
        ids: dict[tuple[str, int], list[int]],
        texts: dict[tuple[str, int], str],
        end: inference_pb2.Terminal,
    ) -> None:
        expected_ids, expected_text, cause = undisturbed(request, choice)
        got_ids, got_text = ids.get((name, choice), []), texts.get((name, choice), "")
        if end.cause == Cause.CANCELLED:
            assert name in self.cancelled
            assert got_ids == expected_ids[: len(got_ids)]
            assert expected_text.startswith(got_text)
        else:
            assert end.cause == cause, end
            assert got_ids == expected_ids
            assert got_text == expected_text


ProtocolMachine.TestCase.settings = settings(
    max_examples=400, stateful_step_count=100, deadline=None, suppress_health_check=list(HealthCheck)
)
TestProtocol = pytest.mark.long(pytest.mark.timeout(300)(ProtocolMachine.TestCase))
