"""A whole ring in one process, for tests of the protocol: real state machines between lists of serialized frames.

Everything is the real thing but for the engine core (a function of seed, choice and position), the sockets and the
clock. Each movement of a frame is a call, so that a test decides who does what next.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers

from engine_core.config import ModelSpec
from engine_core.pooling.facts import PoolingFacts
from engine_core.pooling.params import PoolingRequest, PoolingTask
from engine_core.request import Request
from services.common.links.media_uploads import MediaUploads
from services.detokenizer.detokenizer_messages import outputs_of
from services.detokenizer.engines import Engines
from services.detokenizer.subscribers import Subscriber
from services.engine.adapters.messages import FindAdapter, no_adapter
from services.engine.engine_messages import response_of, submission_of
from services.engine.grammar_queue import EngineRequest
from services.engine.pooling_messages import facts_message
from services.processor.admission.pooling_resolution import PoolingResolution
from services.processor.admission.request_resolution import resolve_request
from services.processor.client_stream import ClientStream
from services.processor.link_events import LinkEvents
from services.processor.pooling.plan import PoolingMessage
from services.processor.request import Request as ClientRequest
from services.processor.served_models import ServedModel, ServedModels, TextCodec
from services.processor.suitability import SUITS
from services.ring.attach_registry import AttachRegistry, Submission
from services.ring.errors import Refused
from services.ring.events import ChoiceEnd, FinishReason, Pooled
from services.ring.identity import DETOKENIZER_CAPABILITIES, ENGINE_CAPABILITIES, POOLING, PeerId, ring_id
from services.ring.ledger import Ledgers
from services.ring.liveness import BEAT_LIMIT
from services.ring.outbound_link import OutboundLink, RejectedCommand
from services.ring.poison import MAX_CRASH_RESUBMITS
from tests.services.processor.processor_core import ProcessorCore
from tests.services.ring.token_logprobs import TokenLogprob, packed
from text_core.chat_templates import ChatTemplates
from text_core.pictures.prepared import PreparedItem
from text_core.tokenizer import Tokenizer

ALPHABET = "abc"
MAX_MODEL_LEN = 64
MAX_GENERATIONS = 3
ORPHAN_GRACE = 2.0
LARGE = 1 << 20
MODEL = ModelSpec("m", "M", 1 << 20, 1 << 20, (), "float32")
"""What the engines know of it; the processor knows its narrower limits."""
FACTS = PoolingFacts((PoolingTask.EMBED, PoolingTask.TOKEN_EMBED), dimensions=2)
POOLING_MODEL = replace(MODEL, name="vectors", pooling=FACTS)


def make_tokenizer(*, backwards: bool = False) -> Tokenizer:
    """Every byte is a token; the ids go the one way or the other."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=backwards)
    bpe = HFTokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return Tokenizer.from_files({"tokenizer.json": bpe.to_str().encode()})


@dataclass(frozen=True)
class Served:
    """A model: what an engine says of it, and what it computes with it."""

    digest: str
    tokenizer: Tokenizer
    weights: int
    """Other weights, other tokens."""
    spec: ModelSpec = MODEL

    @cached_property
    def message(self) -> engine_pb2.GetModelResponse:
        pooling = self.spec.pooling
        return engine_pb2.GetModelResponse(
            model=self.spec.name,
            capabilities=[] if pooling is None else [POOLING],
            pooling=None if pooling is None else facts_message(pooling),
            tokenizer_digest=self.tokenizer.fingerprint(),
            model_digest=self.digest,
            numerics="numerics",
            block_size=4,
            vocab_size=self.tokenizer.vocab_size,
            max_model_len=MAX_MODEL_LEN,
            max_logprobs=20,
        )

    @cached_property
    def letters(self) -> list[int]:
        return [self.tokenizer.encode(letter)[0] for letter in ALPHABET]

    @cached_property
    def eos(self) -> int:
        return self.tokenizer.encode("!")[0]

    def token_at(self, seed: int, choice: int, position: int) -> int:
        """What every engine that serves it computes there."""
        mixed = (seed * 1_000_003 + choice * 7_919 + position * 104_729 + self.weights) * 2_654_435_761 % 2**32
        mixed = (mixed ^ mixed >> 15) * 2_246_822_519 % 2**32 >> 7
        return self.eos if mixed % 29 == 0 else self.letters[mixed % len(self.letters)]

    def row_of(self, ids: Sequence[int], place: int = 0) -> bytes:
        """A row of what every engine that serves it computes of an input."""
        return struct.pack("<2f", sum(ids) + self.weights, place + len(ids))


PRESENT = Served("model", make_tokenizer(), 0)
"""Served unless it is said otherwise."""
NEXT = Served("the next model", make_tokenizer(backwards=True), 1)
SERVED = {served.digest: served for served in (PRESENT, NEXT)}
VECTORS = Served("vectors", PRESENT.tokenizer, 7, POOLING_MODEL)
TOKENIZER, MODEL_MESSAGE, EOS = PRESENT.tokenizer, PRESENT.message, PRESENT.eos
token_at = PRESENT.token_at


def logprob_at(position: int, token_id: int, alternatives: int) -> TokenLogprob:
    """A log probability that tells where it belongs."""
    tops = range(alternatives)
    return TokenLogprob(
        -position / 3, token_id + 1, tuple(token_id + i for i in tops), tuple(-position / (i + 7) for i in tops)
    )


def prompt_logprob_at(position: int, alternatives: int) -> TokenLogprob:
    """A log probability of a prompt's token that tells where it belongs."""
    return TokenLogprob(-float(position), position, (position,) * alternatives, (-float(position),) * alternatives)


class FakeCore:
    """Computes ``token_at``; the attach registry adds and cancels its requests, as for the step loop."""

    def __init__(self, served: Served) -> None:
        self.registry: AttachRegistry
        self.served = served
        self.running: dict[str, dict[int, int]] = {}
        self.requests: dict[str, Request | PoolingRequest] = {}
        self.scored: dict[str, int] = {}

    def add(self, core_id: str, core_request: object) -> None:
        assert isinstance(core_request, EngineRequest)
        assert core_id not in self.requests, "a submission's name is never used again"
        core = core_request.core
        if isinstance(core, PoolingRequest):
            starts: Mapping[int, Sequence[int]] = dict.fromkeys(core.inputs, ())
        else:
            starts = core.resume or dict.fromkeys(range(core.params.n), ())
        self.requests[core_id] = replace(core, request_id=core_id)
        self.running[core_id] = {choice: len(ids) for choice, ids in starts.items()}

    def cancel(self, core_id: str, choice: int | None) -> None:
        if choice is None:
            self.running.pop(core_id, None)
        elif core_id in self.running:
            self.running[core_id].pop(choice, None)

    def step(self, tokens: int) -> None:
        for core_id, choices in list(self.running.items()):
            self.registry.started(core_id)
            if isinstance(request := self.requests[core_id], PoolingRequest):
                self._pool(core_id, request, tokens)
                continue
            if not self._score(core_id, tokens):
                continue
            self.registry.prefilled(core_id, None, 0)
            for choice in list(choices):
                self._advance(core_id, choice, tokens)
            if not choices:
                del self.running[core_id]

    def _pool(self, core_id: str, request: PoolingRequest, count: int) -> None:
        """Compute the next inputs of a request."""
        for choice in list(self.running[core_id])[:count]:
            self.registry.input_begun(core_id, 1)
            ids = request.inputs[choice].token_ids
            rows = len(ids) if request.params.task.per_token else 1
            pooled = Pooled(b"".join(self.served.row_of(ids, place) for place in range(rows)), rows)
            self.registry.progress(core_id, choice, (), None, ChoiceEnd(FinishReason.STOP, 0, pooled=pooled))
            del self.running[core_id][choice]
        if not self.running[core_id]:
            del self.running[core_id]

    def _score(self, core_id: str, tokens: int) -> bool:
        """Whether the prompt has been scored, as far as that is asked for."""
        request = self.requests[core_id]
        assert isinstance(request, Request)
        alternatives = request.params.prompt_logprobs
        start = self.scored.get(core_id, 0)
        stop = min(start + tokens, len(request.prompt_token_ids) - 1)
        if alternatives is None or start == stop:
            return True
        self.scored[core_id] = stop
        self.registry.prompt_logprobs(
            core_id, packed(prompt_logprob_at(position, alternatives) for position in range(start + 1, stop + 1))
        )
        return False

    def _advance(self, core_id: str, choice: int, tokens: int) -> None:
        request, choices = self.requests[core_id], self.running[core_id]
        assert isinstance(request, Request)
        params, first = request.params, choices[choice]
        ids: list[int] = []
        end = self._end_at(params.max_tokens, first, request.resume.get(choice, ())[-1:])
        while end is None and len(ids) < tokens:
            ids.append(self.served.token_at(params.seed, choice, first + len(ids)))
            end = self._end_at(params.max_tokens, first + len(ids), ids[-1:])
        logprobs = None
        if (alternatives := params.logprobs) is not None:
            logprobs = packed(logprob_at(first + i, token, alternatives) for i, token in enumerate(ids))
        self.registry.progress(core_id, choice, ids, logprobs, end)
        choices[choice] = first + len(ids)
        if end is not None:
            del choices[choice]

    def _end_at(self, max_tokens: int, count: int, last: Sequence[int]) -> ChoiceEnd | None:
        """The end of a choice that has ``count`` tokens, ``last`` being the last of them."""
        if list(last) == [self.served.eos]:
            return ChoiceEnd(FinishReason.STOP, count, stop_token_id=self.served.eos)
        return ChoiceEnd(FinishReason.LENGTH, count) if count == max_tokens else None


class AttachStream:
    """One Attach stream, its two directions, and the dialling end as its owner sees it (an ``EngineLink``)."""

    def __init__(self, engine: Engine, peer: PeerId, link: OutboundLink, owner: LinkEvents | Engines) -> None:
        self.engine, self.peer, self.link, self.owner = engine, peer, link, owner
        self.address = engine.me.name
        self.max_command_bytes = 1 << 24
        self.zone = None
        self.commands: deque[bytes] = deque()
        self.responses: deque[bytes] = deque()
        self.media = MediaUploads()

    def __repr__(self) -> str:
        return f"{self.peer.name} at {self.engine.me.name}"

    def send(self, commands: Iterable[engine_pb2.Command], *, hurries: bool = True) -> None:
        request = engine_pb2.AttachRequest(commands=list(commands))
        if request.commands:
            self.commands.append(request.SerializeToString())

    def submit(self, submit: engine_pb2.Submit, pictures: Sequence[PreparedItem]) -> None:
        assert not pictures
        self.send((engine_pb2.Command(submit=submit),))

    def write(self, max_bytes: int = LARGE) -> None:
        """The engine writes everything new."""
        if (frame := self.link.take(max_bytes)) is not None:
            self.responses.append(response_of(frame).SerializeToString())

    def read(self) -> None:
        """The peer reads a frame."""
        if self.responses:
            frame = engine_pb2.AttachResponse.FromString(self.responses.popleft())
            self.owner.engine_frame(self, self.engine.me, frame)  # type: ignore[arg-type]

    def read_commands(self) -> None:
        """The engine reads a frame of commands."""
        if self.commands:
            for command in engine_pb2.AttachRequest.FromString(self.commands.popleft()).commands:
                self.engine.command(self, command)


class Engine:
    """One life of an engine."""

    def __init__(self, me: PeerId, served: Served) -> None:
        self.me = me
        self.core = FakeCore(served)
        self.find_adapter: FindAdapter = no_adapter
        self.capabilities = ENGINE_CAPABILITIES if served.spec.pooling is None else (POOLING,)
        self.registry = AttachRegistry(self.core, Ledgers(orphan_grace=ORPHAN_GRACE, max_entries=1000))
        self.core.registry = self.registry
        self.streams: dict[str, AttachStream] = {}

    def command(self, stream: AttachStream, command: engine_pb2.Command) -> None:
        registry, peer = self.registry, stream.peer
        kind = command.WhichOneof("command")
        try:
            match kind:
                case "submit":
                    registry.submit(peer, self._read(command.submit))
                case "stop":
                    stop = command.stop
                    registry.stop(peer, stop.request_id, stop.epoch, stop.choice, stop.position)
                case "redirect":
                    redirect = command.redirect
                    delivered = {one.choice: one.count for one in redirect.delivered}
                    registry.redirect(peer, redirect.request_id, redirect.epoch, redirect.deliver_to, delivered)
                case "done":
                    registry.done(peer, command.done.request_id, command.done.epoch)
                case other:
                    raise AssertionError(other)
        except Refused as refused:
            subject = getattr(command, kind or "")
            stream.link.reject(RejectedCommand(subject.request_id, subject.epoch, 1, refused.status))

    def _read(self, submit: engine_pb2.Submit) -> Submission[EngineRequest]:
        spec = self.core.served.spec
        return submission_of(submit, spec, 0.0, self.capabilities, find_adapter=self.find_adapter)


class Detokenizer:
    """One life of a detokenizer, and the processor's subscription to it."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.engines = Engines(MAX_GENERATIONS)
        self.subscriber: Subscriber | None = None
        self.texts: deque[bytes] = deque()

    def write(self, max_bytes: int = LARGE) -> None:
        """It writes everything new."""
        if self.subscriber is not None and self.subscriber.outbox.pending:
            self.texts.append(outputs_of(self.subscriber.outbox.take(max_bytes)).SerializeToString())


class RingSimulation(ProcessorCore):
    """One processor with one client, and as many engines and detokenizers as there are names."""

    def __init__(
        self,
        engines: Iterable[str],
        detokenizers: Iterable[str],
        max_crash_resubmits: int = MAX_CRASH_RESUBMITS,
        pooling: Iterable[str] = (),
    ) -> None:
        """``pooling``: names of engines that make vectors, besides the others."""
        self.lives = 1
        self.now = 0.0
        self.older: set[str] = set()
        """Names of detokenizers of a release without capabilities."""
        self._model: ServedModel | None = None
        super().__init__(
            lambda routes: ServedModels(MAX_GENERATIONS, routes.preferred),
            route_timeout=1e9,
            max_crash_resubmits=max_crash_resubmits,
        )
        self.client = ClientStream("")
        self.received: list[inference_pb2.GenerateResponse] = []
        self.history: list[bytes] = []
        """Every text frame that the processor has read."""
        self.engines = {name: Engine(self.new_life(name), PRESENT) for name in engines}
        self.detokenizers = {name: Detokenizer(self.new_life(name)) for name in detokenizers}
        self.described = dict.fromkeys(self.engines, MODEL_MESSAGE)
        for name in pooling:
            self.engines[name] = Engine(self.new_life(name), VECTORS)
            self.described[name] = VECTORS.message
        """By the engine's name: what it says of itself."""
        self.heal()
        self.flow()

    @property
    def model(self) -> ServedModel:
        """The model of requests: what the processor would choose, unless it was set."""
        known = self.models.for_new() or next((each for each in self.models.held.values() if not each.pools), None)
        model = self._model or known
        assert model is not None
        return model

    @model.setter
    def model(self, model: ServedModel) -> None:
        self._model = model

    def new_life(self, name: str) -> PeerId:
        self.lives += 1
        return PeerId(name, self.lives)

    def streams(self) -> Iterator[AttachStream]:
        for engine in self.engines.values():
            yield from list(engine.streams.values())

    # Lives and links

    def attach(self, engine: Engine, peer: PeerId, owner: LinkEvents | Engines) -> None:
        link, _ = engine.registry.attach(peer, self.now)
        stream = engine.streams[peer.name] = AttachStream(engine, peer, link, owner)
        model = engine_pb2.GetModelResponse()
        model.CopyFrom(self.described[engine.me.name])
        model.name, model.incarnation = engine.me.name, engine.me.incarnation
        tokenizer = engine.core.served.tokenizer
        if isinstance(owner, LinkEvents):
            self.models.add(model, TextCodec(tokenizer, ChatTemplates({})))
        elif model.tokenizer_digest not in owner._tokenizers:
            owner._learn(model, tokenizer)
        owner.engine_up(stream, engine.me, model)  # type: ignore[arg-type]

    def detach(self, stream: AttachStream) -> None:
        del stream.engine.streams[stream.peer.name]
        stream.engine.registry.detach(stream.link, self.now)
        stream.owner.engine_down(stream, stream.engine.me)  # type: ignore[arg-type]

    def unsubscribe(self, detokenizer: Detokenizer) -> None:
        if detokenizer.subscriber is not None:
            detokenizer.engines.subscribers.remove(detokenizer.subscriber)
            detokenizer.subscriber = None
            detokenizer.texts.clear()
            self.link_events.detokenizer_down(detokenizer.me)

    def kill_engine(self, name: str, served: Served | None = None) -> None:
        """It comes back with the model that it had, or with another."""
        for stream in list(self.engines[name].streams.values()):
            self.detach(stream)
        if served is not None:
            self.described[name] = served.message
        self.engines[name] = Engine(self.new_life(name), served or self.engines[name].core.served)

    def kill_detokenizer(self, name: str) -> None:
        for stream in self.streams():
            if stream.peer.name == name:
                self.detach(stream)
        self.unsubscribe(self.detokenizers[name])
        self.detokenizers[name] = Detokenizer(self.new_life(name))

    def heal(self) -> None:
        """Whoever lacks a link gets it."""
        for engine in self.engines.values():
            if self.me.name not in engine.streams:
                self.attach(engine, self.me, self.link_events)
            for name, detokenizer in self.detokenizers.items():
                if name not in engine.streams:
                    self.attach(engine, detokenizer.me, detokenizer.engines)
        for detokenizer in self.detokenizers.values():
            if detokenizer.subscriber is None:
                detokenizer.subscriber = detokenizer.engines.subscribers.add(self.me)
                known = () if detokenizer.me.name in self.older else DETOKENIZER_CAPABILITIES
                self.link_events.detokenizer_up(detokenizer.me, detokenizer.me.name, known)

    def suspect(self, name: str) -> None:
        """The processor has heard nothing of a peer for a while."""
        self.link_events.check_liveness(time.monotonic())  # time in which nobody looked does not count
        for node in self.peers.all():
            if node.peer.name == name:
                node.liveness.beat(time.monotonic() - 2 * BEAT_LIMIT)
        self._look()

    def trust(self) -> None:
        """The processor hears of everybody."""
        for node in self.peers.all():
            node.liveness.beat(time.monotonic())
        self._look()

    def _look(self) -> None:
        self.link_events.check_liveness(time.monotonic())
        self.tick()

    def tick(self, now: float | None = None) -> None:
        """What the process does a few times a second."""
        now = time.monotonic() if now is None else now
        self.failover.tick(now)
        self.admission.tick(now)

    # Movements

    def receive(self, message: inference_pb2.GenerateRequest | PoolingMessage, tenant: str = "") -> ClientRequest:
        """A request that is not admitted yet."""
        self.lives += 1
        name = ring_id(self.me.incarnation, self.lives)
        request = ClientRequest(name, message.request_id, 1, tenant, self.client, time.monotonic())
        self.client.add(request)
        return request

    def ask(self, message: inference_pb2.GenerateRequest, tenant: str = "") -> ClientRequest:
        """A request in flight."""
        resolved = resolve_request(message, self.model, tenant, self.me)
        request = self.receive(message, tenant)
        self.in_flight.start(request, resolved)
        return request

    def pool(self, message: PoolingMessage, tenant: str = "") -> ClientRequest:
        """A request in flight whose inputs are pooled."""
        model = self.models.for_new(message.model, SUITS[type(message)])
        model = model or next(each for each in self.models.held.values() if each.pools)
        resolution = PoolingResolution(message, model)
        while not resolution.advance(1):
            pass
        request = self.receive(message, tenant)
        self.in_flight.start(request, resolution.resolved(tenant, ""))
        return request

    def processor_reads(self, detokenizer: Detokenizer) -> None:
        if detokenizer.texts:
            self.history.append(detokenizer.texts.popleft())
            self.text_output.receive(detokenizer_pb2.TextOutputs.FromString(self.history[-1]))

    def client_reads(self) -> None:
        if (frame := self.client.take()) is not None:
            self.received += frame.responses

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for engine in self.engines.values():
            engine.registry.expire(self.now)

    def flow(self, tokens: int = 5, max_bytes: int = LARGE) -> None:
        """Everything moves one step on, and whatever lies around is read."""
        for engine in self.engines.values():
            engine.core.step(tokens)
        for stream in self.streams():
            stream.write(max_bytes)
            while stream.responses:
                stream.read()
            while stream.commands:
                stream.read_commands()
        for detokenizer in self.detokenizers.values():
            detokenizer.write(max_bytes)
            while detokenizer.texts:
                self.processor_reads(detokenizer)
        self.tick()

    @property
    def quiet(self) -> bool:
        """Whether nothing is left anywhere."""
        return (
            self.client.num_live == 0
            and not len(self.in_flight)
            and not self.routes.requests()
            and all(engine.registry.num_ledgers == 0 and not engine.core.running for engine in self.engines.values())
            and all(detokenizer.engines.num_requests == 0 for detokenizer in self.detokenizers.values())
        )
