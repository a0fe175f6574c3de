"""Attacks by adapters: requests for ever other ones, and calls that load what is huge, broken or not allowed."""

from __future__ import annotations

import asyncio

from ringline.inference.v1 import inference_pb2

from tests.abuse.client import INFERENCE, Attack, HostileClient
from tests.abuse.memory_attacks import tenant_of
from tests.abuse.wire import message

HOARD = 300
"""Adapters that the watched folder has: small, and all different."""
STORE = "store"
GOOD = 4
"""Adapters in the store."""
BROKEN = ("huge", "header", "tensors", "names", "pipe", "regex", "deep", "away")
"""What else is in the store."""
_WRONG_PATHS = (
    *("../..", "/proc/self", "/dev", "none", STORE, f"{STORE}/good-0/../../..", f"{STORE}/away"),
    *("a/" * 2000, "\0"),
)
_NAMES = 20_000
"""That are loaded: more than an engine may know."""
_REQUESTS = 10
"""Of a round, each for another adapter."""


async def _ever_others(client: HostileClient) -> None:
    """Requests in parallel, each for another adapter."""
    async with client.connection() as connection:
        for _ in range(_REQUESTS):
            stream = await connection.call(INFERENCE + "Generate", tenant_of(client))
            asked = inference_pb2.GenerateRequest(
                request_id="0", text="Once", adapter=f"hoard-{client.rng.randrange(HOARD)}", requires=["adapters"]
            )
            asked.stopping.max_tokens = 4
            await connection.send(stream, message(asked.SerializeToString()), last=True)
        await connection.wait_streams_ended(_REQUESTS)


async def _calls(client: HostileClient) -> None:
    """Load what cannot be used, and ever other names; replace and unload all the time."""
    rng = client.rng
    good = f"{STORE}/good-{rng.randrange(GOOD)}"
    calls = (
        ("LoadAdapter", {"name": f"n{rng.randrange(_NAMES)}", "path": good, "replace": True}),
        ("LoadAdapter", {"name": f"turning-{rng.randrange(3)}", "path": good, "replace": True}),
        ("LoadAdapter", {"name": "broken", "path": f"{STORE}/{rng.choice(BROKEN)}"}),
        ("LoadAdapter", {"name": "wrong", "path": rng.choice(_WRONG_PATHS)}),
        ("UnloadAdapter", {"name": f"hoard-{rng.randrange(HOARD)}"}),
        ("LoadAdapter", {"name": (kept := f"hoard-{rng.randrange(HOARD)}"), "path": kept}),
        ("ListAdapters", {}),
    )
    await asyncio.gather(*(_call(client, *rng.choice(calls)) for _ in range(4)))


async def _call(client: HostileClient, method: str, fields: dict[str, object]) -> None:
    asked = getattr(inference_pb2, f"{method}Request")(**fields)
    async with client.connection() as connection:
        stream = await connection.call(INFERENCE + method, tenant_of(client))
        await connection.send(stream, message(asked.SerializeToString()), last=True)
        await connection.wait_streams_ended(1)


ADAPTER_ATTACKS = (
    Attack("adapters", "processor", _ever_others, fills=True),
    Attack("adapter calls", "processor", _calls),
)
