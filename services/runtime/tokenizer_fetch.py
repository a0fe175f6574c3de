"""Fetching the tokenizer's files from an engine, within bounds."""

from __future__ import annotations

from typing import Any

from ringline.engine.v1 import engine_pb2

from services.text.files import is_tokenizer_file

MAX_TOTAL_BYTES = 512 << 20
TIMEOUT = 60.0
"""Seconds for all files together."""


async def fetch_tokenizer(stub: Any) -> dict[str, bytes]:
    """The tokenizer's files by name; raises ``grpc.aio.AioRpcError``, or ``ValueError`` for what must not be sent."""
    files: dict[str, bytearray] = {}
    total = 0
    async for chunk in stub.GetTokenizer(engine_pb2.GetTokenizerRequest(), timeout=TIMEOUT):
        if not is_tokenizer_file(chunk.name):
            raise ValueError(f"the engine sent {chunk.name!r}, which is no tokenizer file")
        total += len(chunk.data)
        if total > MAX_TOTAL_BYTES:
            raise ValueError(f"the engine's tokenizer is larger than {MAX_TOTAL_BYTES} bytes")
        files.setdefault(chunk.name, bytearray()).extend(chunk.data)
    return {name: bytes(data) for name, data in files.items()}
