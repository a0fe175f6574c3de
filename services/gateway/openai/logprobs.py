"""Translates the ring's log probabilities, by token id, to OpenAI's two forms and vLLM's."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from ringline import Admitted, Delta, Generation, TokenLogprob

from services.gateway.http.call import Call
from services.gateway.model_names import names_of_lookup
from services.gateway.openai.sampling_fields import SamplingFields
from services.gateway.token_texts import TokenTexts

_T = TypeVar("_T")
_LEAST = -9999.0
"""Replaces minus infinity, which JSON lacks."""
_MAX_WRITTEN = 16384
_SLICE = 256
"""Tokens written at a time on the event loop."""


def ids_in(token_ids: Sequence[int], logprobs: Iterable[TokenLogprob]) -> Iterator[int]:
    """The ids of tokens and of their alternatives, for ``TokenTexts.load``."""
    yield from token_ids
    for one in logprobs:
        for token_id, _ in one.top:
            yield token_id


@dataclass(frozen=True, slots=True)
class TokenNames:
    """Names tokens by their text, or as ``token_id:…``, also where they have none: without a tokenizer."""

    texts: TokenTexts
    as_ids: bool = False
    _written: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """Start and end of a token's entry in chats."""

    async def load(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        """Load the texts of tokens and their alternatives."""
        await self.texts.load(ids_in(token_ids, logprobs))

    def __getitem__(self, token_id: int) -> str:
        name = "" if self.as_ids else self.texts.name(token_id)
        return name or f"token_id:{token_id}"

    def written(self, token_id: int) -> tuple[bytes, bytes]:
        """The bytes before and after a token's log probability in chats."""
        if (around := self._written.get(token_id)) is None:
            if len(self._written) >= _MAX_WRITTEN:
                self._written.clear()
            head = b'{"token":%b,"logprob":' % msgspec.json.encode(self[token_id])
            tail = b',"bytes":%b}' % msgspec.json.encode(list(self.texts.raw(token_id)))
            around = self._written[token_id] = head, tail
        return around


async def write_whole(
    call: Call, names: TokenNames | None, generations: Sequence[Generation], write: Callable[[], _T]
) -> _T:
    """Load the tokens of whole answers, then return ``write()``; long answers use a thread."""
    entries = num_logprobs(generations)
    if names is not None:
        await names.texts.load(await call.aside(lambda: _ids_of(generations), entries))
    return await call.aside(write, entries)


def num_logprobs(generations: Sequence[Generation]) -> int:
    """The number of tokens and alternatives with log probabilities."""
    count = 0
    for one in generations:
        for logprobs in (one.prompt_logprobs, *(choice.logprobs for choice in one.choices)):
            if logprobs:
                count += len(logprobs) * (1 + len(logprobs[0].top))
    return count


def _ids_of(generations: Sequence[Generation]) -> set[int]:
    found: set[int] = set()
    for one in generations:
        if one.prompt_logprobs is not None:
            found.update(ids_in(one.request.prompt_token_ids or (), one.prompt_logprobs))
        for choice in one.choices:
            found.update(ids_in(choice.token_ids, choice.logprobs or ()))
    return found


async def token_names(call: Call, request: SamplingFields, admitted: Admitted, *, logprobs: bool) -> TokenNames | None:
    """Token names, if the answer has log probabilities: ``logprobs``, or those of the prompt."""
    if not logprobs and request.prompt_logprobs is None:
        return None
    texts = await TokenTexts.of_model(call.client, *names_of_lookup(admitted))
    return TokenNames(texts, bool(request.return_tokens_as_token_ids))


def chat_logprobs(names: TokenNames, token_ids: Sequence[int], logprobs: Iterable[TokenLogprob]) -> list[msgspec.Raw]:
    """The chat form: one encoded object per token; dicts would take ten times as much.

    Load the texts before.
    """
    entries = []
    for token_id, one in zip(token_ids, logprobs, strict=True):
        values = [max(one.logprob, _LEAST), *(max(logprob, _LEAST) for _, logprob in one.top)]
        numbers = msgspec.json.encode(values)[1:-1].split(b",")
        ids = (token_id, *(other for other, _ in one.top))
        own, *top = [
            b"%b%b%b" % (head, number, tail)
            for number, (head, tail) in zip(numbers, map(names.written, ids), strict=True)
        ]
        entries.append(msgspec.Raw(b'%b,"top_logprobs":[%b]}' % (own[:-1], b",".join(top))))
    return entries


async def loaded_chat_logprobs(names: TokenNames, event: Delta) -> list[msgspec.Raw]:
    """A delta's, in slices: if the gateway was busy, it has thousands of tokens."""
    logprobs = event.logprobs or ()
    await names.load(event.token_ids, logprobs)
    entries: list[msgspec.Raw] = []
    for start in range(0, len(logprobs), _SLICE):
        end = start + _SLICE
        entries += chat_logprobs(names, event.token_ids[start:end], logprobs[start:end])
        await asyncio.sleep(0)
    return entries


@dataclass(slots=True)
class CompletionLogprobs:
    """The form of completions: lists with an entry per token, and its offset in the text."""

    names: TokenNames
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    _offset: int = 0
    """Characters before the next token."""

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], text: str) -> dict[str, list[Any]]:
        """The lists for the next tokens, which complete ``text``. Load their texts before.

        None: a token without log probability.
        """
        tokens, values, tops, offsets, at = [], [], [], [], 0
        for token_id, one in zip(token_ids, logprobs, strict=True):
            tokens.append(self.names[token_id])
            values.append(None if one is None else max(one.logprob, _LEAST))
            tops.append(None if one is None else self._top(token_id, one))
            offsets.append(self._offset + at)
            at = self._end_in(text, at, self.names.texts.raw(token_id))
        self._offset += len(text)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _end_in(self, text: str, at: int, raw: bytes) -> int:
        """Where a token's bytes end in ``text`` from ``at``; ``at`` itself if the text omits them."""
        state = self._decoder.getstate()
        piece = self._decoder.decode(raw)
        if text.startswith(piece, at):
            return at + len(piece)
        own, begin = piece.lstrip("\ufffd "), at
        while text.startswith("\ufffd", begin):  # broken characters; Python may count more or fewer
            begin += 1
        if own and text.startswith(own, begin):
            return begin + len(own)
        self._decoder.setstate(state)  # such as a special token within a character
        return at

    def _top(self, token_id: int, one: TokenLogprob) -> dict[str, float]:
        """The most likely tokens, and the token itself."""
        top = {self.names[other]: max(logprob, _LEAST) for other, logprob in reversed(one.top)}
        top[self.names[token_id]] = max(one.logprob, _LEAST)
        return top


def prompt_logprobs(
    names: TokenNames, admitted: Admitted, logprobs: Sequence[TokenLogprob]
) -> list[dict[str, Any] | None]:
    """VLLM's form for a prompt, by id; the first token has none. Needs the prompt's ids; load the texts before."""
    token_ids, texts = admitted.prompt_token_ids or (), names.texts
    entries: list[dict[str, Any] | None] = [None]
    for token_id, one in zip(token_ids[1:], logprobs, strict=True):
        ranked = [(token_id, one.logprob, one.rank)]
        ranked += [(other, logprob, rank) for rank, (other, logprob) in enumerate(one.top, 1) if other != token_id]
        entries.append(
            {
                str(other): {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": texts.name(other)}
                for other, logprob, rank in ranked
            }
        )
    return entries
