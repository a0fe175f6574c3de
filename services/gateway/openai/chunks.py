"""Writes streamed chunks and their usage, from bytes for speed: each token is a chunk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from ringline import Usage

from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Call
from services.gateway.openai.errors import error_body
from services.gateway.openai.sampling_fields import UsageMode

encode = msgspec.json.encode
NULL = b"null"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The first members of every response and chunk."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str

    @classmethod
    def new(cls, prefix: str, call: Call, model: str) -> ResponseHead:
        """For the answer to ``call``, created now."""
        return cls(prefix + call.request_id, int(time.time()), model)

    def members(self, kind: str) -> dict[str, Any]:
        """The members of an object of that kind."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Chunks:
    """Writes the chunks of one answer."""

    def __init__(self, head: Mapping[str, Any], mode: UsageMode, prompt_tokens: int) -> None:
        """``head``: members that every chunk has."""
        self._head = b"data: " + encode(head)[:-1]
        self._mode = mode
        self._prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        """So far, over all choices; the caller counts."""
        self._end = b'}],"usage":null}\n\n' if mode.last else b"}]}\n\n"
        self._heads: dict[int, bytes] = {}
        self.once = b""
        """Further members of the first chunk, each preceded by a comma."""

    def chunk(self, index: int, body: bytes, logprobs: bytes = NULL, finish: bytes = NULL, more: bytes = b"") -> bytes:
        """A chunk of one choice.

        ``body``: its delta or text as a JSON member, like ``"text":"…"``; ``more``: further members, each preceded by a
        comma; the others are JSON values.
        """
        if (head := self._heads.get(index)) is None:
            head = self._heads[index] = b'%b,"choices":[{"index":%d,' % (self._head, index)
        if self.once:
            head, self.once = b'%b%b,"choices":[{"index":%d,' % (self._head, self.once, index), b""
        end = self._end
        if self._mode.always:
            usage = Usage(self._prompt_tokens, 0, self.completion_tokens)
            end = b'}],"usage":%b}\n\n' % encode(usage_object(usage))
        return b'%b%b,"logprobs":%b,"finish_reason":%b%b%b' % (head, body, logprobs, finish, more, end)

    def end(self, usage: Usage) -> bytes:
        """The bytes after all choices' chunks."""
        if not self._mode.last:
            return DONE
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (self._head, encode(usage_object(usage)), DONE)


def usage_object(usage: Usage) -> dict[str, object]:
    """OpenAI's form."""
    of_prompt = {"cached_tokens": usage.cached_tokens}
    if usage.media_tokens:
        of_prompt["image_tokens"] = usage.media_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": of_prompt,
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_draft_tokens,
            "rejected_prediction_tokens": usage.rejected_draft_tokens,
        },
    }


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a response that fails after it began."""
    return b"data: " + error_body(error, request_id) + b"\n\n"
