"""Writes the ring's answer as Anthropic's events: blocks of thinking, text and tool_use begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from ringline import Admitted, Content, Delta, Event, Finished, FinishReason, Part, Reasoning, Usage

from services.gateway.parts import StreamedCalls

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
SIGNATURE = "unsigned"
"""Of thinking: the API requires one, and clients return it."""
_encode = msgspec.json.Encoder().encode


def stop_of(
    finished_reason: FinishReason | None, stop: int | str | None, *, calls: bool, context_full: bool
) -> dict[str, str | None]:
    """Why a message ended.

    ``calls``: some are to be made; ``context_full``: the context had less room than max_tokens.
    """
    reason = "end_turn"
    if finished_reason is FinishReason.LENGTH:
        reason = "model_context_window_exceeded" if context_full else "max_tokens"
    elif calls:
        reason = "tool_use"
    elif isinstance(stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": reason, "stop_sequence": None}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Token counts; Anthropic's input tokens exclude cached ones."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


class MessageEvents:
    """Writes one message's events; call ``begin``, ``add`` per event of the ring, ``end``."""

    def __init__(self, message_id: str, *, max_tokens: int) -> None:
        """``max_tokens``: the request's."""
        self._id = message_id
        self._max_tokens = max_tokens
        self._context_full = False
        self._blocks = 0
        self._open: type[Part] | int | None = None
        """The open block: its parts' type, or a call's index."""
        self._head = b""
        """Start of the block's deltas, up to the text."""
        self._calls = StreamedCalls()
        self._stop: Mapping[str, str | None] = {}

    def begin(self, admitted: Admitted, model: str) -> bytes:
        """The first event."""
        self._context_full = (admitted.options.get("max_tokens") or self._max_tokens) < self._max_tokens
        usage = usage_of(Usage(admitted.prompt_tokens, 0, 0))
        head = {"id": self._id, "type": "message", "role": "assistant", "model": model}
        return _event(
            "message_start", message={**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        )

    def add(self, event: Event) -> bytes:
        """The events for the ring's next event; may be empty."""
        if isinstance(event, Delta):
            return b"".join(map(self._add_part, event.parts))
        if isinstance(event, Finished):
            calls = self._calls.any_to_be_made(event.reason)
            self._stop = stop_of(event.reason, event.stop, calls=calls, context_full=self._context_full)
        return b""

    def end(self, usage: Usage) -> bytes:
        """The last events."""
        delta = _event("message_delta", delta=self._stop, usage=usage_of(usage))
        return self._end_block() + delta + _event("message_stop")

    def _add_part(self, part: Part) -> bytes:
        if isinstance(part, Content):
            begun = b"" if self._open is Content else self._begin_block(Content, {"type": "text", "text": ""})
            return begun + self._head + _encode(part.text) + b"}}\n\n"
        if isinstance(part, Reasoning):
            thinking = {"type": "thinking", "thinking": "", "signature": ""}
            begun = b"" if self._open is Reasoning else self._begin_block(Reasoning, thinking)
            return begun + self._head + _encode(part.text) + b"}}\n\n"
        begun = b""
        self._calls.add(part)
        if self._open != part.index:
            begun = self._begin_block(part.index, {"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
        return begun + self._head + _encode(part.arguments) + b"}}\n\n"

    def _begin_block(self, kind: type[Part] | int, block: Mapping[str, Any]) -> bytes:
        begun = self._end_block() + _event("content_block_start", index=self._blocks, content_block=block)
        self._open = kind
        name, key = _DELTAS.get(kind, (b"input_json_delta", b"partial_json"))
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
            % (self._blocks, name, key)
        )
        return begun

    def _end_block(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open is Reasoning:
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            signed = _event("content_block_delta", index=self._blocks, delta=delta)
        ended = _event("content_block_stop", index=self._blocks)
        self._open, self._blocks = None, self._blocks + 1
        return signed + ended


_DELTAS: Mapping[type[Part] | int, tuple[bytes, bytes]] = {
    Content: (b"text_delta", b"text"),
    Reasoning: (b"thinking_delta", b"thinking"),
}


def _event(name: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode({"type": name, **fields}))
