"""The model and tokenizer that this processor serves, as an engine tells it; the same for every engine of the ring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from ringline.engine.v1 import engine_pb2

from services.processor.validation import UNKNOWN_MODEL, ModelLimits
from services.ring.capabilities import CHAT, PROCESSOR
from services.runtime.parsing import MessageLimits
from services.runtime.redial import LinkRefused
from services.runtime.tokenizer_fetch import fetch_tokenizer
from services.text.chat import ChatTemplates
from services.text.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

MODEL_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything a request is checked against and turned into ids with."""

    model: engine_pb2.GetModelResponse
    tokenizer: Tokenizer
    chat: ChatTemplates
    limits: ModelLimits

    @property
    def capabilities(self) -> frozenset[str]:
        """What a request may require."""
        chat = (CHAT,) if self.chat.names else ()
        return frozenset((*self.model.capabilities, *PROCESSOR, *chat))


class VocabularySource:
    """Learns the vocabulary from the first engine, and refuses engines that have another."""

    def __init__(self) -> None:
        self.current: Vocabulary | None = None
        self._lock = asyncio.Lock()

    @property
    def message_limits(self) -> MessageLimits:
        """How large a client's message may be."""
        return UNKNOWN_MODEL if self.current is None else self.current.limits.message

    async def learn(self, stub: Any, *, free: Callable[[], bool]) -> engine_pb2.GetModelResponse:
        """Ask an engine; ``free()`` says whether nothing holds on to the present vocabulary.

        Raises ``LinkRefused`` for an engine that serves something else, ``grpc.aio.AioRpcError`` for one that
        does not answer.
        """
        model: engine_pb2.GetModelResponse = await stub.GetModel(engine_pb2.GetModelRequest(), timeout=MODEL_TIMEOUT)
        async with self._lock:
            if self.current is not None and _same(self.current.model, model):
                return model
            if not free():
                self.check(model)
            fetched = await self._fetch(stub, model)
            if not free():  # somebody came meanwhile
                self.check(model)
            self.current = fetched
        log.info("learned model", model=model.model, tokenizer=model.tokenizer_digest)
        return model

    def check(self, model: engine_pb2.GetModelResponse) -> None:
        """Raise ``LinkRefused`` for an engine that serves something else than is served here."""
        if self.current is not None and not _same(self.current.model, model):
            raise LinkRefused(_difference(self.current.model, model))

    async def _fetch(self, stub: Any, model: engine_pb2.GetModelResponse) -> Vocabulary:
        try:
            files = await fetch_tokenizer(stub)
            tokenizer = await asyncio.to_thread(Tokenizer.from_files, files)
            chat = ChatTemplates.from_files(files)
        except ValueError as error:
            raise LinkRefused(f"its tokenizer cannot be used: {error}") from error
        fingerprint = tokenizer.fingerprint()
        if fingerprint != model.tokenizer_digest:
            raise LinkRefused(
                f"its tokenizer's fingerprint is {model.tokenizer_digest}, that of the files it sent {fingerprint}"
            )
        limits = ModelLimits(model.model, model.vocab_size, model.max_model_len, model.max_logprobs)
        return Vocabulary(model, tokenizer, chat, limits)


def _same(one: engine_pb2.GetModelResponse, other: engine_pb2.GetModelResponse) -> bool:
    return _identity(one) == _identity(other)


def _identity(model: engine_pb2.GetModelResponse) -> tuple[Any, ...]:
    return (
        model.model,
        model.vocab_size,
        model.max_model_len,
        tuple(model.eos_token_ids),
        model.tokenizer_digest,
    )


def _difference(ours: engine_pb2.GetModelResponse, theirs: engine_pb2.GetModelResponse) -> str:
    names = ("model", "vocab_size", "max_model_len", "eos_token_ids", "tokenizer_digest")
    differing = [
        f"{name} is {theirs_!r}, expected {ours_!r}"
        for name, ours_, theirs_ in zip(names, _identity(ours), _identity(theirs), strict=True)
        if ours_ != theirs_
    ]
    return "it serves something else: " + "; ".join(differing)
