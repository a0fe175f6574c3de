"""Links to detokenizers: of several addresses of one detokenizer one is used, and another when that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import grpc
from ringline.detokenizer.v1 import detokenizer_pb2
from structlog.testing import capture_logs

from services.common.links.channels import Endpoint
from services.common.links.discovery import PeerDedup
from services.common.rpc.handlers import rpc_handlers
from services.detokenizer.main import DESCRIPTION
from services.detokenizer.service import DetokenizerService
from services.detokenizer.subscribers import Subscribers
from services.processor.detokenizer_link import DetokenizerLink
from services.ring.identity import PeerId

ME = PeerId("processor-0", 1)
DETOKENIZER = PeerId("detokenizer-0", 7)


class Owner:
    """Writes down what comes; a detokenizer is up once at a time."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.up = ""

    def detokenizer_up(
        self, detokenizer: PeerId, address: str, capabilities: Iterable[str] = (), zone: str | None = None
    ) -> None:
        assert (detokenizer, zone) == (DETOKENIZER, "rack-7")
        assert not self.up
        self.up = address
        self.news.put_nowait(("up", address))

    def detokenizer_frame(self, detokenizer: PeerId, frame: detokenizer_pb2.SubscribeResponse) -> None:
        assert self.up

    def detokenizer_down(self, detokenizer: PeerId) -> None:
        self.news.put_nowait(("down", self.up))
        self.up = ""


async def test_two_addresses_of_one_detokenizer_make_one_subscription(tmp_path: Path) -> None:
    server = grpc.aio.server()
    service = DetokenizerService(
        DETOKENIZER,
        Subscribers(lambda peer: None),
        detokenizer_pb2.Load,
        stall_timeout=600.0,
        max_message_bytes=1 << 22,
        drain_grace=1.0,
        zone="rack-7",
    )
    server.add_generic_rpc_handlers((rpc_handlers(DESCRIPTION, service),))
    addresses = [f"unix:{tmp_path}/{name}.sock" for name in ("one", "other")]
    for address in addresses:
        server.add_insecure_port(address)
    await server.start()
    owner, dedup = Owner(), PeerDedup()
    with capture_logs() as logs:
        subscriptions = {address: DetokenizerLink(Endpoint(address), ME, owner, dedup) for address in addresses}
        tasks = {address: asyncio.create_task(each.run()) for address, each in subscriptions.items()}
        async with asyncio.timeout(60):
            # At first they take it from each other, since nobody knows who is there. Soon one has it for good: as long
            # as both would need to try again is counted in turns of this loop, for if it stands still, so do they.
            quiet_turns = 0
            while quiet_turns < 30:
                await asyncio.sleep(0.05)
                quiet_turns = quiet_turns + 1 if owner.news.empty() and owner.up else 0
                while not owner.news.empty():
                    owner.news.get_nowait()
        used = owner.up
        assert [address for address, each in subscriptions.items() if each.up] == [used]
        (other,) = set(addresses) - {used}
        warnings = [entry for entry in logs if entry["log_level"] == "warning"]
        assert (other, used) in [(entry["address"], entry["used"]) for entry in warnings]
        tasks.pop(used).cancel()
        async with asyncio.timeout(20):
            assert await owner.news.get() == ("down", used)
            assert not subscriptions[used].up
            assert await owner.news.get() == ("up", other)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    await server.stop(0)
