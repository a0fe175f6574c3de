"""A gateway in this process, in front of a scripted processor, and a client that sends bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2, part_pb2

from services.common.config.addresses import host_and_port
from services.common.config.options import build
from services.common.config.settings import GatewaySettings
from services.gateway.main import GatewayProcess
from services.gateway.processors import Processors
from tests.clients.scripted_server import ScriptedInference, Served, admitted, delta, ended, serving, started

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
SECONDS = 20.0
"""For what takes a moment."""


async def hello(_request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
    """The answer of a processor: three tokens and an end."""
    yield admitted()
    yield started()
    for position, text in enumerate(("Hello", ", wor", "ld")):
        yield delta(position, [10 + position], text, parts=[part_pb2.Part(content=text)])
    for response in ended(output_pb2.FINISH_REASON_STOP, completion=3):
        yield response


async def begun(_request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
    """An answer that begins, and never goes on."""
    yield admitted()
    yield started()
    await asyncio.Event().wait()


@dataclass(frozen=True)
class Reply:
    """What came back for one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's object."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """In OpenAI's form."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


class Connection:
    """One connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *parts: bytes) -> None:
        """Send without waiting."""
        self.writer.write(b"".join(parts))

    async def reply(self) -> Reply:
        """The next one, whole."""
        async with asyncio.timeout(SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.partition(": ") for line in head[1:-2])
            headers = {name.lower(): value for name, _, value in pairs}
            if head[0].split()[1].startswith("1"):
                body = b""
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                body = await self._chunks()
            else:
                body = await self.reader.read()
            return Reply(int(head[0].split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return b"".join(parts)

    async def ended(self) -> bytes:
        """What comes until the other side closes."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@dataclass(frozen=True)
class Running:
    """A gateway that runs."""

    process: GatewayProcess
    processor: Served
    address: str

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A new one."""
        made = await asyncio.open_connection(*host_and_port(self.address), limit=1 << 16)
        with closing(made[1]):
            yield Connection(*made)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, version: str = "1.1"
    ) -> Reply:
        """One request on its own connection."""
        async with self.connection() as connection:
            connection.send(request(method, path, body, headers, version))
            return await connection.reply()


def request(
    method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, version: str = "1.1"
) -> bytes:
    """The bytes of a request; a ``body`` that is no bytes is sent as JSON. An empty header is left out."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    pairs = {"host": "gateway", **({} if body is None else {"content-type": "application/json"})}
    pairs |= {"content-length": str(len(data))} | (headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs.items() if value)
    return f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode("latin-1") + data


@asynccontextmanager
async def running(service: ScriptedInference | None = None, **options: Any) -> AsyncIterator[Running]:
    """``service``: the processor's; ``options``: of the gateway."""
    async with serving(service or ScriptedInference()) as processor:
        processor.plays(hello)
        given = {"port": 0, "metrics": False, "processors": (processor.address,), **options}
        settings = build(GatewaySettings(), given)
        processors = Processors(settings)
        async with processors.client() as client:
            process = GatewayProcess(settings, processors, client)
            await process.server.start()
            try:
                yield Running(process, processor, process.server.address)
            finally:
                await process.callers.close()
                await process.server.stop(1.0)
