"""Log probabilities in OpenAI's two forms and vLLM's, from the ring's, which name tokens by their ids."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringline import Admitted, TokenLogprob

from services.gateway.http.call import Call
from services.gateway.openai.sampling_fields import SamplingFields
from services.gateway.token_texts import TokenTexts

_LEAST = -9999.0
"""In place of minus infinity, which JSON does not have."""


def ids_in(token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> Iterator[int]:
    """The ids of tokens and of their alternatives, for ``TokenTexts.load``."""
    yield from token_ids
    for one in logprobs:
        for token_id, _ in one.top:
            yield token_id


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How tokens are named: by their text, or as ``token_id:…``."""

    texts: TokenTexts
    as_ids: bool = False

    async def load(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        """Learn the texts of tokens and of their alternatives."""
        await self.texts.load(ids_in(token_ids, logprobs))

    def __getitem__(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.as_ids else self.texts.name(token_id)


async def token_names(call: Call, request: SamplingFields, admitted: Admitted, *, logprobs: bool) -> TokenNames | None:
    """The names of the model's tokens, if the answer has log probabilities: ``logprobs``, or those of the prompt."""
    if not logprobs and request.prompt_logprobs is None:
        return None
    texts = await TokenTexts.of_model(call.client, admitted.model)
    return TokenNames(texts, bool(request.return_tokens_as_token_ids))


def chat_logprobs(
    names: TokenNames, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
) -> list[dict[str, Any]]:
    """The form of chats: one object for each token. Their texts are loaded."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = list(names.texts.raw(token_id))
        return {"token": names[token_id], "logprob": max(logprob, _LEAST), "bytes": raw}

    return [
        entry(token_id, one.logprob) | {"top_logprobs": [entry(*alternative) for alternative in one.top]}
        for token_id, one in zip(token_ids, logprobs, strict=True)
    ]


@dataclass(slots=True)
class CompletionLogprobs:
    """The form of completions: lists with one entry for each token, and where each begins in the text."""

    names: TokenNames
    _decode: Callable[[bytes], str] = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    )
    _offset: int = 0
    """Characters before the next token."""

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> dict[str, list[Any]]:
        """The lists for the next tokens, whose texts are loaded. None: a token that has no log probability."""
        tokens, values, tops, offsets = [], [], [], []
        for token_id, one in zip(token_ids, logprobs, strict=True):
            tokens.append(self.names[token_id])
            values.append(None if one is None else max(one.logprob, _LEAST))
            tops.append(None if one is None else self._top(token_id, one))
            offsets.append(self._offset)
            self._offset += len(self._decode(self.names.texts.raw(token_id)))
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _top(self, token_id: int, one: TokenLogprob) -> dict[str, float]:
        """The most likely tokens, and the token itself."""
        top = {self.names[other]: max(logprob, _LEAST) for other, logprob in reversed(one.top)}
        top[self.names[token_id]] = max(one.logprob, _LEAST)
        return top


async def loaded_prompt_logprobs(
    names: TokenNames, admitted: Admitted, logprobs: Sequence[TokenLogprob]
) -> list[dict[str, Any] | None]:
    """VLLM's form for a prompt, whose ids were asked for: by id; the first token has none."""
    token_ids, texts = admitted.prompt_token_ids or (), names.texts
    await names.load(token_ids, logprobs)
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
