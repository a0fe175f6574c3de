"""The models that this processor serves, as engines describe them: one for each name, or a few during a rollout.

Limits, tokenizer and chat templates belong to a generation (``services.ring.model_generations``). A request stays with
the generation that admitted it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from ringline.engine.v1 import engine_pb2

from services.common.links.redial import LinkRefused
from services.common.links.tokenizer_fetch import TokenizerFetcher
from services.common.rpc.message_limits import MessageLimits
from services.processor.checked_grammars import CheckedGrammars
from services.processor.suitability import Suits, generates
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import (
    ADAPTERS,
    CHAT_CAPABILITIES,
    ENGINE_CAPABILITIES,
    MEDIA,
    POOLING,
    PROCESSOR_CAPABILITIES,
    PeerId,
)
from services.ring.limits import MAX_CHOICES, max_pooled_tokens
from services.ring.model_generations import Generation, Generations
from text_core.chat_templates import ChatTemplates
from text_core.grammar.checker import GrammarChecker
from text_core.grammar.constraints import MAX_CHOICES as MAX_CONSTRAINT_CHOICES
from text_core.grammar.constraints import MAX_TEXT_BYTES
from text_core.pictures.base import PictureProcessor
from text_core.pictures.registry import parse_facts, processor_of, write_facts
from text_core.tokenizer import Tokenizer
from text_core.tokenizer_files import archive_of

log = structlog.get_logger(__name__)

MODEL_TIMEOUT = 10.0
"""Seconds for an engine to describe its model."""

BYTES_PER_TOKEN = 8
"""Maximum bytes of text per token, averaged over a whole context; text of any language takes 3 to 5."""
BYTES_PER_ID = 3
"""Maximum bytes of a packed token id, with the largest vocabularies."""
BASE_TEXT_BYTES = 64 << 10
BASE_MESSAGE_BYTES = 256 << 10
MIN_FIELDS, MAX_FIELDS = 8192, 32768
CONSTRAINT_BYTES = MAX_TEXT_BYTES + 4 * MAX_CONSTRAINT_CHOICES
"""Bytes of a constraint: its texts, and the length prefixes of many choices."""
MAX_MEDIA_BYTES = 256 << 20
"""Of the pictures of a message; --max-message-bytes, which is less unless it is raised, bounds them, too."""
CONSTRAINT_FIELDS = MAX_CONSTRAINT_CHOICES + 2048
_ADVICE = "`ringline status` shows what is missing; retry when it is there"
UNKNOWN_MODEL = MessageLimits(BASE_MESSAGE_BYTES, MIN_FIELDS)
"""Limits until a model is known."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of a model's requests."""

    name: str
    vocab_size: int
    max_model_len: int
    max_logprobs: int
    aliases: tuple[str, ...] = ()
    """Further names of the model."""
    takes_pictures: bool = False
    pools: bool = False

    def answers_to(self, name: str) -> bool:
        """Whether a request that asks for ``name`` means this model."""
        return name == self.name or name in self.aliases

    @property
    def max_text_bytes(self) -> int:
        """Of a text to tokenize or return: far more than the context holds."""
        return BASE_TEXT_BYTES + BYTES_PER_TOKEN * self.max_model_len

    @property
    def context(self) -> str:
        """The reason that errors give; gateways recognize prompts that are too long by it."""
        return f"for a context of {self.max_model_len} tokens"

    @property
    def lookup(self) -> MessageLimits:
        """Of a message to ``Tokenize`` or ``Detokenize``: a text or ids, and tools."""
        return MessageLimits(
            max_bytes=(MAX_MEDIA_BYTES if self.takes_pictures else 0)
            + BASE_MESSAGE_BYTES
            + 2 * BYTES_PER_TOKEN * self.max_model_len
            + 4 * self.vocab_size,
            max_fields=min(MIN_FIELDS + self.max_model_len, MAX_FIELDS),
            reason=self.context,
        )

    @property
    def request(self) -> MessageLimits:
        """Of a request's message: lists as long as the vocabulary, every choice's resumed ids, a constraint.

        Of a model that pools: all inputs of a request.
        """
        if self.pools:
            max_bytes = self.lookup.max_bytes + BYTES_PER_TOKEN * max_pooled_tokens(self.max_model_len)
            return MessageLimits(max_bytes, MAX_FIELDS)
        resumed = MAX_CHOICES * BYTES_PER_ID * self.max_model_len
        max_bytes = self.lookup.max_bytes + resumed + CONSTRAINT_BYTES
        return MessageLimits(max_bytes, self.lookup.max_fields + CONSTRAINT_FIELDS)


@dataclass(frozen=True, slots=True)
class ModelPictures:
    """How a model's pictures are prepared."""

    facts: bytes
    """The engine's ``picture_facts``, with the tokenizer's added tokens."""
    limit: int
    """Most pictures of a prompt."""
    processor: PictureProcessor


@dataclass(frozen=True, slots=True)
class TextCodec:
    """A tokenizer and its chat templates."""

    tokenizer: Tokenizer
    chat: ChatTemplates
    archive: bytes = b""
    """The tokenizer's files as a ZIP; empty unless they are served, too."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as an engine described it, with the limits, tokenizer and templates for its requests."""

    model: engine_pb2.GetModelResponse
    tokenizer: Tokenizer
    chat: ChatTemplates
    limits: ModelLimits
    grammars: CheckedGrammars
    tokenizer_archive: bytes = b""
    """The tokenizer's files as a ZIP; empty unless they are served, too."""
    pictures: ModelPictures | None = None
    """None: the model takes none."""

    @property
    def pools(self) -> bool:
        """Whether it makes vectors, scores or labels of inputs in place of tokens."""
        return self.model.HasField("pooling")

    @property
    def capabilities(self) -> frozenset[str]:
        """What a request may require: the engines' capabilities that this processor knows, and its own."""
        if self.pools:
            return frozenset(name for name in self.model.capabilities if name in (POOLING, ADAPTERS))
        chat = CHAT_CAPABILITIES if self.chat.names else ()
        known = (*ENGINE_CAPABILITIES, ADAPTERS, *(() if self.pictures is None else (MEDIA,)))
        return frozenset((*(name for name in self.model.capabilities if name in known), *PROCESSOR_CAPABILITIES, *chat))

    @property
    def generation(self) -> Generation:
        return generation_of(self.model)


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names of models that requests can use at one moment."""

    names: Sequence[str]
    num_missing_engines: int
    """Known addresses at which no engine is attached."""

    def refuse(self, name: str) -> Refused:
        """The error for another ``name``, which may be that of an engine that is not attached yet."""
        if missing := self.num_missing_engines:
            message = (
                f"model: {name[:200]!r} is not served by the engines that are attached, and {_not_attached(missing)}: "
                "retry later"
            )
            return Refused(Code.UNAVAILABLE, message, retry_after_ms=1000, field="model")
        return unknown_model(name, self.names)


@dataclass(frozen=True, slots=True)
class LookupModels:
    """The models of ``Tokenize`` and ``Detokenize`` at one moment."""

    served: Sequence[ServedModel]
    """Not empty; those that generate come first, as for requests without a name."""
    known: KnownNames

    def choose(self, name: str) -> tuple[ServedModel, Refused | None]:
        """The model of that name, or else the first and the error that there is none of that name."""
        model = find_model(name, self.served)
        return model, self.known.refuse(name) if name and not model.limits.answers_to(name) else None


class ServedModels:
    """The models that engines serve or requests still need; generations with the same tokenizer share it."""

    def __init__(
        self,
        max_generations: int,
        preferred: Callable[[], Sequence[Generation]],
        no_route_reason: Callable[[], str | None] = lambda: None,
        *,
        num_missing_engines: Callable[[], int] = lambda: 0,
        keeps_archives: bool = False,
        aliases: tuple[str, ...] = (),
    ) -> None:
        """``no_route_reason``: why no request can be routed; None if requests can be.

        ``num_missing_engines``: known addresses at which no engine is attached, of whose models nothing may be known.
        ``keeps_archives``: tokenizers' files are served, too. ``aliases``: further names of every model.
        """
        self._aliases = aliases
        self._max_generations = max_generations
        self.preferred = preferred
        """The generations that take new requests, the best first."""
        self._no_route_reason = no_route_reason
        self._num_missing_engines = num_missing_engines
        self.held: Generations[Generation, ServedModel] = Generations(max_generations, _kind_of)
        """Every model held; requests in flight enter and leave theirs."""
        self._fetches = TokenizerFetcher(_codec_with_archive if keeps_archives else _codec_of)

    @property
    def num_missing_engines(self) -> int:
        """Known addresses at which no engine is attached."""
        return self._num_missing_engines()

    @property
    def no_route_reason(self) -> str:
        """Why no new request can be routed; empty if requests can be."""
        return "" if self.preferred() else self._no_route_reason() or "no engine is attached"

    def refuse_without_model(self) -> Refused:
        """The error of requests while no model is known."""
        reason = self.no_route_reason or "no engine is attached"
        return Refused(Code.UNAVAILABLE, f"{reason}; {_ADVICE}", retry_after_ms=1000)

    @property
    def request_limits(self) -> MessageLimits:
        """Limits of a request's message: the widest of all models."""
        return _widest(held.limits.request for held in self.held.values())

    @property
    def lookup_limits(self) -> MessageLimits:
        """Limits of a message to ``Tokenize`` or ``Detokenize``: the widest of all models."""
        return _widest(held.limits.lookup for held in self.held.values())

    async def learn(self, stub: Any) -> engine_pb2.GetModelResponse:
        """Ask an engine for its model, and fetch the tokenizer if it is new.

        Raises ``LinkRefused`` for an engine that cannot be served, ``grpc.aio.AioRpcError`` for one that does not
        answer.
        """
        model: engine_pb2.GetModelResponse = await stub.GetModel(engine_pb2.GetModelRequest(), timeout=MODEL_TIMEOUT)
        if generation_of(model) not in self.held:
            digest = model.tokenizer_digest
            await self._fetches.get(digest, stub, lambda: self._codec(model), lambda codec: self.add(model, codec))
        if (codec := self._codec(model)) is not None:
            self.add(model, codec)
        return model

    def add(self, model: engine_pb2.GetModelResponse, codec: TextCodec) -> None:
        """Hold an engine's model; raises ``LinkRefused`` while there is no room for one more."""
        generation = generation_of(model)
        if (held := self.held.get(generation)) is not None:
            if model.picture_facts != held.model.picture_facts:  # of an engine whose digest does not tell
                raise LinkRefused("it prepares pictures otherwise than other engines of its model_digest")
            self._learn_more(held, model)
            return
        limits = ModelLimits(model.model, model.vocab_size, model.max_model_len, model.max_logprobs, self._aliases)
        checker = GrammarChecker(codec.tokenizer, model.vocab_size, model.eos_token_ids)
        pictures = _pictures_of(model, codec.tokenizer)
        limits = replace(limits, takes_pictures=pictures is not None, pools=model.HasField("pooling"))
        served_model = ServedModel(
            model, codec.tokenizer, codec.chat, limits, CheckedGrammars(checker), codec.archive, pictures
        )
        if not self.held.learn(generation, PeerId(model.name, model.incarnation), served_model):
            raise LinkRefused(f"its model is one too many: {self._limit()} reached, all in use")
        log.info(
            "learned model", model=model.model, model_digest=model.model_digest, tokenizer_digest=model.tokenizer_digest
        )

    def _learn_more(self, held: ServedModel, other: engine_pb2.GetModelResponse) -> None:
        """Another engine of the model may be a later version, with capabilities that earlier ones lack, and may compute
        fewer choices in a step: a search must not have more beams than any of its engines takes.
        """
        new = [name for name in other.capabilities if name not in held.model.capabilities]
        fewest = min(filter(None, (held.model.max_num_seqs, other.max_num_seqs)), default=0)
        if new or fewest != held.model.max_num_seqs:
            model = engine_pb2.GetModelResponse()
            model.CopyFrom(held.model)
            model.capabilities.extend(new)
            model.max_num_seqs = fewest
            self.held.replace(held.generation, replace(held, model=model))

    def engine_up(self, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """An engine was linked; raises ``LinkRefused`` if its model was dropped since it was learned."""
        if not self.held.engine_up(engine, generation_of(model)):
            raise LinkRefused(f"its model was dropped for later ones: {self._limit()} reached")

    def _limit(self) -> str:
        return f"limit of {self._max_generations} models (--max-generations)"

    def served(self) -> list[ServedModel]:
        """The models whose engines take work, the newest first; every model held if there are none."""
        preferred, held = set(self.preferred()), self.held.values()
        return [each for each in held if each.generation in preferred] or held

    @property
    def newest(self) -> ServedModel | None:
        """The first of ``served`` that generates, or the first; None before the first engine."""
        served = self.served()
        return next((each for each in served if not each.pools), served[0] if served else None)

    def choose(
        self, name: str, digest: str = "", *, suits: Suits = generates
    ) -> tuple[ServedModel | None, Refused | None]:
        """The model of a request, or its refusal; neither while the engines of its model take no work.

        ``digest``: of the model on which it began, if it is a resume. ``suits``: what the request asks of a model.
        """
        model = self.for_resume(name, digest) if digest else self.for_new(name, suits)
        if model is None:
            return None, self.refuse_without_model() if self.newest is None else None
        if name and not model.limits.answers_to(name):
            return None, self._names_now().refuse(name)
        if not name and not suits(model.model) and (missing := self._num_missing_engines()):
            message = f"no attached engine's model is for this request, and {_not_attached(missing)}: retry later"
            return None, Refused(Code.UNAVAILABLE, message, retry_after_ms=1000)
        return model, None

    def _names_now(self) -> KnownNames:
        return KnownNames(self.names(), self._num_missing_engines())

    def for_lookups(self) -> LookupModels:
        """The models as they are now, for ``Tokenize`` and ``Detokenize``, which run in threads.

        Raises ``Refused`` while no model is known.
        """
        if not (served := self.served()):
            raise self.refuse_without_model()
        return LookupModels(sorted(served, key=lambda each: each.pools), self._names_now())

    def for_new(self, name: str = "", suits: Suits = generates) -> ServedModel | None:
        """The model for a new request that asks for ``name``; None while no engine of it takes work.

        Without a name, and with an alias: the one that suits the request best. It is waited for while its engines are
        away, as another model's answer would be another one.
        The caller refuses a model that is not for the request, and one of another name.
        """
        taking = [held for generation in self.preferred() if (held := self.held.get(generation))]
        if (named := next((each for each in taking if each.limits.name == name), None)) is not None:
            return named
        known = self.held.values()
        best = max((suits(each.model) for each in known), default=0)
        there = [each for each in taking if best and suits(each.model) == best]
        if any(each.pools and each.limits.name == name for each in known) or (best and not there):
            return None
        candidates = there or taking
        return find_model(name, candidates) if candidates else None

    def names(self) -> list[str]:
        """Names that requests can use now."""
        return list(dict.fromkeys((*(each.limits.name for each in self.served()), *self._aliases)))

    def for_resume(self, name: str, digest: str) -> ServedModel | None:
        """The model with ``digest``, on which a request began; None if it is not held.

        Engines may serve one model under several names. Without a ``name``, one whose engines take work is preferred.
        """
        held = [each for each in self.held.values() if each.model.model_digest == digest]
        named = [each for each in held if not name or each.limits.answers_to(name)]
        preferred = self.preferred()
        return next((each for each in named if each.generation in preferred), named[0] if named else None)

    def _codec(self, model: engine_pb2.GetModelResponse) -> TextCodec | None:
        """The codec of another generation with the same tokenizer; None if there is none."""
        for held in self.held.values():
            if held.model.tokenizer_digest == model.tokenizer_digest:
                return TextCodec(held.tokenizer, held.chat, held.tokenizer_archive)
        return None


def _not_attached(missing: int) -> str:
    return f"{missing} {'is' if missing == 1 else 'are'} not attached"


def unknown_model(name: str, served: Sequence[str]) -> Refused:
    """The error of a request for a model that is not served; ``served``: names that are."""
    problem = f"{name[:200]!r} is not served here: expected {' or '.join(map(repr, served))}"
    return Refused(Code.NOT_FOUND, f"model: {problem}", reason=Reason.MODEL_NOT_FOUND, field="model")


def _kind_of(model: ServedModel) -> str:
    """Generating models take each other's place; of those that pool, several are served side by side, by name."""
    return model.limits.name if model.pools else ""


def generation_of(model: engine_pb2.GetModelResponse) -> Generation:
    """The generation of ``model`` and its engines."""
    return Generation(model.model, model.model_digest)


def no_route(
    served: Sequence[Generation], wanted: Generation | None, route_timeout: float, reason: str, adapter: str = ""
) -> Refused:
    """The error of a request for ``wanted`` (None: any) that found no engine; those of ``served`` take work.

    ``adapter``: words for the one that it needs and that no engine has, if so.
    """
    if served and adapter:
        message = f"no engine has had {adapter} for {route_timeout:g} s; send the request anew"
        return Refused(Code.UNAVAILABLE, message, 0, reason=Reason.ADAPTER_GONE)
    if served and wanted not in served:
        message = f"no engine has served the model that this request began on for {route_timeout:g} s; send it anew"
        return Refused(Code.UNAVAILABLE, message, 0, reason=Reason.MODEL_GONE)
    message = f"no engine and detokenizer took the request within {route_timeout:g} s: {reason}; {_ADVICE}"
    return Refused(Code.UNAVAILABLE, message, 1000, reason=Reason.NO_ROUTE)


def _codec_of(files: dict[str, bytes]) -> TextCodec:
    return TextCodec(Tokenizer.from_files(files), ChatTemplates.from_files(files))


def _pictures_of(model: engine_pb2.GetModelResponse, tokenizer: Tokenizer) -> ModelPictures | None:
    if MEDIA not in model.capabilities or not model.picture_facts:
        return None
    try:
        facts = replace(parse_facts(model.picture_facts), special_tokens=tokenizer.added_tokens())
        return ModelPictures(write_facts(facts), facts.limit, processor_of(facts))
    except ValueError as error:  # such as a family of a later version
        log.warning("this processor cannot prepare the model's pictures, which are refused", reason=str(error))
        return None


def _codec_with_archive(files: dict[str, bytes]) -> TextCodec:
    return replace(_codec_of(files), archive=archive_of(files))


def find_model(name: str, models: Sequence[ServedModel]) -> ServedModel:
    """The first model of that name, else the first, which has it as an alias, or which the error will quote."""
    return next((each for each in models if each.limits.name == name), models[0])


def _widest(limits: Iterable[MessageLimits]) -> MessageLimits:
    """The maximum of each limit; the limits of an unknown model if there are none."""
    known = list(limits) or [UNKNOWN_MODEL]
    largest = max(known, key=lambda each: each.max_bytes)
    return replace(largest, max_fields=max(each.max_fields for each in known))
