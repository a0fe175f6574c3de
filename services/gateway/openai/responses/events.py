"""Writes the ring's answer as a response: its items, and their events as they grow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from ringline import Content, Delta, Event, Finished, FinishReason, Part, Reasoning, ToolCallPiece, Usage

from services.gateway.http.api_error import ApiError
from services.gateway.openai.responses.tools import Function
from services.gateway.parts import Run, is_whole, kind_of

_encode = msgspec.json.Encoder().encode
Logprobs = Sequence[msgspec.Raw]
"""Encoded entries, as up to four events repeat them."""


class _OpenItem(Run):
    """The growing item: reasoning, message or call."""

    def __init__(self, part: Part, item_id: str, functions: Mapping[str, Function]) -> None:
        """``functions``: by the ring's names."""
        super().__init__(part)
        self.item_id = item_id
        self._functions = functions
        self.logprobs: list[msgspec.Raw] = []

    def content(self, text: str) -> dict[str, Any] | None:
        """Its only part; None for calls."""
        if self.kind is Content:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs}
        return {"type": "reasoning_text", "text": text} if self.kind is Reasoning else None

    def item(self, status: str) -> dict[str, Any]:
        """The item in the API's form."""
        begun = status == "in_progress"
        part = self.first
        if isinstance(part, ToolCallPiece):
            called = {"name": part.name}
            if (function := self._functions.get(part.name)) is not None and function.namespace is not None:
                called = {"name": function.name, "namespace": function.namespace}
            call = {"call_id": part.id, **called, "arguments": "" if begun else self.text}
            return {"id": self.item_id, "type": "function_call", "status": status, **call}
        content = [] if begun else [self.content(self.text)]
        if self.kind is Reasoning:
            return {"id": self.item_id, "type": "reasoning", "status": status, "summary": [], "content": content}
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": content}


class ResponseEvents:
    """Writes one response's events; call ``begin``, ``add`` per event of the ring, ``end`` or ``fail``."""

    def __init__(self, response_id: str, fields: Mapping[str, Any], functions: Sequence[Function] = ()) -> None:
        """``fields``: the response's constant ones; ``functions``: that may be called."""
        self._id = response_id
        self._head = _encode({"id": f"resp_{response_id}", "object": "response", **fields})[:-1]
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._index = 0
        """Of the open item, or the next."""
        self._open: _OpenItem | None = None
        self._delta = b""
        """Start of the item's deltas, before the sequence number."""
        self._logprobs: deque[msgspec.Raw] = deque()
        """Of tokens not yet matched to content."""
        self._first = 0
        """The first one's token position."""
        self._is_cut = False
        self._functions = {function.ring_name: function for function in functions}

    def begin(self) -> bytes:
        """The first events."""
        running = self._response("in_progress")
        return self._event("response.created", response=running) + self._event("response.in_progress", response=running)

    def add(self, event: Event, logprobs: Logprobs = ()) -> bytes:
        """The events for the ring's next event; may be empty. ``logprobs``: of its tokens."""
        self._logprobs.extend(logprobs)
        if isinstance(event, Delta):
            return b"".join(map(self._add_part, event.parts))
        if isinstance(event, Finished):
            self._is_cut = event.reason is FinishReason.LENGTH
        return b""

    def end(self, usage: Usage) -> bytes:
        """The last events."""
        status = "incomplete" if self._is_cut else "completed"
        return self._end_item(status) + self._event(f"response.{status}", response=self.response(usage))

    def fail(self, error: ApiError) -> bytes:
        """The event for a late failure."""
        code = "rate_limit_exceeded" if error.type == "rate_limit_error" else "server_error"
        failed = self._response("failed", error={"code": code, "message": error.message})
        return self._event("response.failed", response=failed)

    def response(self, usage: Usage) -> msgspec.Raw:
        """The whole response, after ``end``."""
        of_input = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0}
        if usage.media_tokens:
            of_input["image_tokens"] = usage.media_tokens
        counts = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": of_input,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if self._is_cut:
            return self._response("incomplete", usage=counts, incomplete_details={"reason": "max_output_tokens"})
        return self._response("completed", usage=counts, completed_at=int(time.time()))

    def _response(self, status: str, **fields: Any) -> msgspec.Raw:
        changing = {"status": status, "output": self._items, "error": None, "incomplete_details": None, "usage": None}
        return msgspec.Raw(self._head + b"," + _encode({**changing, **fields})[1:])

    def _add_part(self, part: Part) -> bytes:
        item, begun = self._open, b""
        if item is None or item.kind != kind_of(part):
            begun = self._end_item("completed")
            item = self._open = _OpenItem(part, f"{_PREFIXES[type(part)]}_{self._id}_{self._index}", self._functions)
            begun += self._begin_item(item, _DELTAS[type(part)])
        text = part.arguments if isinstance(part, ToolCallPiece) else part.text
        if not text:
            return begun
        item.texts.append(text)
        tail = b"}\n\n"
        if isinstance(part, Content):
            logprobs = self._logprobs_of(part.tokens)
            item.logprobs += logprobs
            tail = b',"logprobs":%s}\n\n' % _encode(logprobs)
        self._sequence += 1
        return begun + self._delta + b'%d,"delta":' % (self._sequence - 1) + _encode(text) + tail

    def _logprobs_of(self, positions: Sequence[int]) -> Logprobs:
        """Pop the entries at ``positions``; drop earlier ones, which belong to no content."""
        found = []
        for position in positions:
            for _ in range(self._first, position):
                self._logprobs.popleft()
            found.append(self._logprobs.popleft())
            self._first = position + 1
        return found

    def _begin_item(self, item: _OpenItem, name: str) -> bytes:
        begun = self._event("response.output_item.added", output_index=self._index, item=item.item("in_progress"))
        if (content := item.content("")) is not None:
            begun += self._event("response.content_part.added", **self._place(item), part=content)
        head = _encode({"type": f"{name}.delta", **self._place(item)})
        self._delta = b"event: %s.delta\ndata: %s" % (name.encode(), head[:-1] + b',"sequence_number":')
        return begun

    def _end_item(self, status: str) -> bytes:
        item = self._open
        if item is None:
            return b""
        text, place, content = item.text, self._place(item), item.content(item.text)
        done = f"{_DELTAS[item.kind if isinstance(item.kind, type) else ToolCallPiece]}.done"
        if content is None:
            if not is_whole(text):  # must not be made
                status = "incomplete"
            ended = self._event(done, **place, name=item.item(status)["name"], arguments=text)
        else:
            logprobs = {"logprobs": item.logprobs} if item.kind is Content else {}
            ended = self._event(done, **place, text=text, **logprobs)
            ended += self._event("response.content_part.done", **place, part=content)
        self._open = None
        self._index += 1
        whole = item.item(status)
        if content is not None or self._is_cut or status == "completed":
            self._items.append(whole)
        return ended + self._event("response.output_item.done", output_index=place["output_index"], item=whole)

    def _place(self, item: _OpenItem) -> dict[str, Any]:
        place = {"item_id": item.item_id, "output_index": self._index}
        return place if isinstance(item.kind, int) else {**place, "content_index": 0}

    def _event(self, name: str, /, **fields: Any) -> bytes:
        data = _encode({"type": name, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


_PREFIXES: Mapping[type[Part], str] = {Content: "msg", Reasoning: "rs", ToolCallPiece: "fc"}
_DELTAS: Mapping[type[Part], str] = {
    Content: "response.output_text",
    Reasoning: "response.reasoning_text",
    ToolCallPiece: "response.function_call_arguments",
}
