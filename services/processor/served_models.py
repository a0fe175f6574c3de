"""The models that this processor serves, as engines tell them: one, or a few while a new one is rolled out.

Everything that a request is checked against and tokenized with belongs to a generation (``services.ring.generations``),
and a request keeps to the one that admitted it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from ringline.engine.v1 import engine_pb2

from services.peers.redial import LinkRefused
from services.peers.tokenizer_fetch import TokenizerFetches
from services.processor.admission.validation import UNKNOWN_MODEL, ModelLimits
from services.ring.errors import Code, Reason, Refused
from services.ring.generations import Generation, Generations
from services.ring.identity import CHAT_CAPABILITY, ENGINE_CAPABILITIES, PROCESSOR_CAPABILITIES, PeerId
from services.rpc.message_limits import MessageLimits
from services.text.chat import ChatTemplates
from services.text.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

MODEL_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Texts:
    """What turns texts into ids, and ids into texts."""

    tokenizer: Tokenizer
    chat: ChatTemplates


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Everything a request is checked against and turned into ids with."""

    model: engine_pb2.GetModelResponse
    tokenizer: Tokenizer
    chat: ChatTemplates
    limits: ModelLimits

    @property
    def capabilities(self) -> frozenset[str]:
        """What a request may require: of what the engine can do, only what this processor knows how to ask it for."""
        chat = (CHAT_CAPABILITY,) if self.chat.names else ()
        return frozenset(
            (*(name for name in self.model.capabilities if name in ENGINE_CAPABILITIES), *PROCESSOR_CAPABILITIES, *chat)
        )

    @property
    def generation(self) -> Generation:
        """Which requests and engines it is for."""
        return generation_of(self.model)


class ServedModels:
    """Learns them from engines; generations with the same tokenizer share it."""

    def __init__(self, most: int) -> None:
        """``most`` generations are held at a time."""
        self._most = most
        self._held: Generations[Generation, ServedModel] = Generations(most)
        self._fetches = TokenizerFetches(_texts_of)
        self.preferred: Callable[[], Sequence[Generation]] = list
        """The generations that new requests may belong to, the best first; set by the one who knows the routes."""

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    @property
    def request_limits(self) -> MessageLimits:
        """How large a message with a request may be: as large as any of the models allows."""
        return _widest(held.limits.request for held in self._held.values())

    @property
    def lookup_limits(self) -> MessageLimits:
        """How large a message to ``Tokenize`` or ``Detokenize`` may be."""
        return _widest(held.limits.lookup for held in self._held.values())

    async def learn(self, stub: Any) -> engine_pb2.GetModelResponse:
        """Ask an engine what it serves.

        Raises ``LinkRefused`` for an engine that cannot be served, ``grpc.aio.AioRpcError`` for one that does not
        answer.
        """
        model: engine_pb2.GetModelResponse = await stub.GetModel(engine_pb2.GetModelRequest(), timeout=MODEL_TIMEOUT)
        if generation_of(model) not in self._held:
            digest = model.tokenizer_digest
            await self._fetches.get(digest, stub, lambda: self._texts(model), lambda texts: self.add(model, texts))
            if (texts := self._texts(model)) is not None:
                self.add(model, texts)
        return model

    def add(self, model: engine_pb2.GetModelResponse, texts: Texts) -> None:
        """Hold what an engine serves; raises ``LinkRefused`` while there is no room for one model more."""
        generation = generation_of(model)
        if generation in self._held:
            return
        limits = ModelLimits(model.model, model.vocab_size, model.max_model_len, model.max_logprobs)
        vocabulary = ServedModel(model, texts.tokenizer, texts.chat, limits)
        if not self._held.learn(generation, PeerId(model.name, model.incarnation), vocabulary):
            raise LinkRefused(
                f"it serves another model than the {self._most} that engines and requests need here: --max-generations"
            )
        log.info(
            "learned model", model=model.model, model_digest=model.model_digest, tokenizer_digest=model.tokenizer_digest
        )

    def engine_up(self, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """An engine was linked; raises ``LinkRefused`` where what it serves was forgotten since it was asked."""
        if not self._held.engine_up(engine, generation_of(model)):
            raise LinkRefused(f"what it serves was forgotten: {self._most} other models were asked for meanwhile")

    def engine_down(self, engine: PeerId) -> None:
        """The link to an engine ended."""
        self._held.engine_down(engine)

    def served(self) -> list[ServedModel]:
        """What engines serve now, or served when there were any; the newest first."""
        served, held = set(self.preferred()), self._held.values()
        return [each for each in held if each.generation in served] or held

    @property
    def newest(self) -> ServedModel | None:
        """The first of these; None before the first engine."""
        return next(iter(self.served()), None)

    def for_new(self, name: str = "") -> ServedModel | None:
        """What a new request should belong to; None while no engine takes work."""
        return named(name, [held for generation in self.preferred() if (held := self._held.get(generation))])

    def of(self, digest: str) -> ServedModel | None:
        """The one that a request began on."""
        return next((held for held in self._held.values() if held.model.model_digest == digest), None)

    def holds(self, generation: Generation) -> bool:
        """Whether requests may belong to it."""
        return generation in self._held

    def enter(self, generation: Generation) -> None:
        """A request belongs to it: it is held until ``leave``."""
        self._held.enter(generation)

    def leave(self, generation: Generation) -> None:
        """The request has ended."""
        self._held.leave(generation)

    def _texts(self, model: engine_pb2.GetModelResponse) -> Texts | None:
        """Those of another generation that has the same tokenizer."""
        for held in self._held.values():
            if held.model.tokenizer_digest == model.tokenizer_digest:
                return Texts(held.tokenizer, held.chat)
        return None


def generation_of(model: engine_pb2.GetModelResponse) -> Generation:
    """The generation of an engine that says this of itself."""
    return Generation(model.model, model.model_digest)


def no_model() -> Refused:
    """Why nothing can be said of a request while no model is known."""
    return Refused(Code.UNAVAILABLE, "no engine has said yet what it serves", retry_after_ms=1000)


def no_route(served: Sequence[Generation], wanted: Generation | None, patience: float) -> Refused:
    """Why a request of a generation (None: of any) found no engine, while those ``served`` take work."""
    if served and wanted not in served:
        message = f"no engine serves the model that this request began on, within {patience:g} s: begin it anew"
        return Refused(Code.UNAVAILABLE, message, 0, reason=Reason.MODEL_GONE)
    message = f"no engine and detokenizer for this request within {patience:g} s"
    return Refused(Code.UNAVAILABLE, message, 1000, reason=Reason.NO_ROUTE)


def _texts_of(files: dict[str, bytes]) -> Texts:
    return Texts(Tokenizer.from_files(files), ChatTemplates.from_files(files))


def named(name: str, found: Sequence[ServedModel]) -> ServedModel | None:
    """The first of that name, else the first: what is wrong with the name is said of that."""
    return next((each for each in found if each.limits.name == name), found[0] if found else None)


def _widest(limits: Iterable[MessageLimits]) -> MessageLimits:
    """What any of ``limits`` allows; without any, what is allowed before a model is known."""
    known = list(limits) or [UNKNOWN_MODEL]
    return MessageLimits(max(each.max_bytes for each in known), max(each.max_fields for each in known))
