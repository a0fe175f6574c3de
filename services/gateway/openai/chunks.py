"""The events of a stream of chunks, and the usage in them: put together from bytes, for a token is a chunk."""

from __future__ import annotations

import msgspec
from ringline import Usage

from services.gateway.http.api_error import ApiError
from services.gateway.openai.errors import error_body
from services.gateway.openai.sampling_fields import UsageMode

encode = msgspec.json.encode
NULL = b"null"
DONE = b"data: [DONE]\n\n"


class Chunks:
    """Writes the chunks of one answer."""

    def __init__(
        self, kind: str, answer_id: str, created: int, model: str, mode: UsageMode, prompt_tokens: int
    ) -> None:
        """``kind``: the object's name; ``created``: seconds since 1970."""
        head = {"id": answer_id, "object": kind, "created": created, "model": model}
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._mode = mode
        self._prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        """So far, over all choices: the caller counts."""
        self._end = b'}],"usage":null}\n\n' if mode.last else b"}]}\n\n"
        self._heads: dict[int, bytes] = {}

    def chunk(self, index: int, body: bytes, logprobs: bytes = NULL, finish: bytes = NULL, more: bytes = b"") -> bytes:
        """A chunk of one choice.

        ``body``: its delta or text as a member of a JSON object, ``"text":"…"``; ``more``: further members, each with a
        comma before it; the others are JSON values.
        """
        if (head := self._heads.get(index)) is None:
            head = self._heads[index] = b'%b{"index":%d,' % (self._head, index)
        end = self._end
        if self._mode.always:
            end = b'}],"usage":%b}\n\n' % encode(usage_object(Usage(self._prompt_tokens, 0, self.completion_tokens)))
        return b'%b%b,"logprobs":%b,"finish_reason":%b%b%b' % (head, body, logprobs, finish, more, end)

    def end(self, usage: Usage) -> bytes:
        """What comes after all chunks of choices."""
        if not self._mode.last:
            return DONE
        return b'%b],"usage":%b}\n\n%b' % (self._head, encode(usage_object(usage)), DONE)


def usage_object(usage: Usage) -> dict[str, object]:
    """OpenAI's form of it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def error_event(error: ApiError, request_id: str) -> bytes:
    """The event of a failure after the response began; nothing comes after it."""
    return b"data: " + error_body(error, request_id) + b"\n\n"
