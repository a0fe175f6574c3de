"""Load on an OpenAI-compatible server: ``/v1/completions`` over server-sent events. Runs in the peers' interpreter."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from benchmarks.served.per_request_load_stream import UNKNOWN_TARGET, PerRequestLoadStream
from benchmarks.work import text_of
from services.cli.bench.load_stream import LoadError, Target

_PREFIX = b"data: "
_DONE = b"[DONE]"


class GatewayLoadStream(PerRequestLoadStream):
    """Requests are greedy and ignore eos. Prompts are text, which the server tokenizes."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__()
        self._url = f"{url}/v1/completions"
        self._model = model
        self._prepared: list[bytes] = []

    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        common = {
            "model": self._model,
            "max_tokens": output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._prepared = [json.dumps(common | {"prompt": text_of(prompt)}).encode() for prompt in prompts]

    async def _connect(self) -> Target:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return UNKNOWN_TARGET

    async def _disconnect(self) -> None:
        await self._session.close()

    async def _request(self, number: int) -> None:
        """Count each chunk as one token, and the last one as all others: the server reports the total at the end."""
        chunks, tokens, last = 0, 0, 0.0
        async for event, now in self._events(number):
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if event.get("choices"):
                if chunks and self.listener is not None:
                    self.listener.on_tokens(number, chunks - 1, 1, last)
                chunks, last = chunks + 1, now
        if self.listener is not None:
            self.listener.on_tokens(number, chunks - 1, tokens - chunks + 1, last)
            self.listener.on_finished(number, time.perf_counter(), None)

    async def _events(self, number: int) -> AsyncIterator[tuple[dict[str, Any], float]]:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=self._prepared[number], headers=headers) as answer:
            if answer.status != 200:
                raise LoadError(f"HTTP {answer.status}: {(await answer.text())[:300]}")
            async for line in answer.content:
                if line.startswith(_PREFIX) and not line.startswith(_DONE, len(_PREFIX)):
                    yield json.loads(line[len(_PREFIX) :]), time.perf_counter()
