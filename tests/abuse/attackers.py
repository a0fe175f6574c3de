"""The process of all hostile clients, separate from the one that measures.

It carries out an ``Order``, answered by an ``AttackResult``. Lingering clients stay connected until the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tests.abuse.adapter_attacks import ADAPTER_ATTACKS
from tests.abuse.client import Attack, HostileClient
from tests.abuse.memory_attacks import MEMORY_ATTACKS
from tests.abuse.pooling_attacks import POOLING_ATTACKS
from tests.abuse.stuck_attacks import STUCK_ATTACKS
from tests.orders import carrying_out, serve

ATTACKS: tuple[Attack, ...] = (*MEMORY_ATTACKS, *POOLING_ATTACKS, *STUCK_ATTACKS, *ADAPTER_ATTACKS)


@dataclass(frozen=True, slots=True)
class Order:
    """Attacks that run at the same time."""

    addresses: dict[str, str]
    attacks: list[tuple[str, str]]
    """Names and services; clients are distributed over them."""
    clients: int
    seconds: float
    seed: int
    tokenizer: str
    """Digest of the served tokenizer."""


@dataclass(frozen=True, slots=True)
class AttackResult:
    rounds: int
    sent: int
    """Bytes, without those on lasting connections."""
    lost: int
    """Connections that the server refused or closed."""
    errors: list[str]
    """Bugs of the attacks themselves."""


@asynccontextmanager
async def attackers(niceness: int) -> AsyncIterator[Callable[[Order | None], Awaitable[AttackResult | None]]]:
    """Run the process; yields a function that carries out an order, or for None closes all connections."""
    async with carrying_out("tests.abuse.attackers", niceness) as send:

        async def carry_out(order: Order | None) -> AttackResult | None:
            made = await send(order and asdict(order))
            return made and AttackResult(**made)

        yield carry_out


def find(name: str, service: str) -> Attack:
    return next(attack for attack in ATTACKS if (attack.name, attack.service) == (name, service))


async def _attack(order: Order) -> tuple[AttackResult, list[HostileClient]]:
    attacks = [find(name, service) for name, service in order.attacks]
    spread = [attacks[number % len(attacks)] for number in range(order.clients)]
    clients = [
        HostileClient(number, order.addresses, attack.service, order.seconds, order.seed, order.tokenizer)
        for number, attack in enumerate(spread)
    ]
    runs = [client.run(attack.act, attack.rounds) for client, attack in zip(clients, spread, strict=True)]
    results = await asyncio.gather(*runs, return_exceptions=True)
    errors = [repr(result) for result in results if isinstance(result, BaseException)]
    made = AttackResult(
        sum(client.rounds for client in clients),
        sum(client.sent for client in clients),
        sum(client.lost_connections for client in clients),
        errors[:5],
    )
    for client, attack in zip(clients, spread, strict=True):
        if not attack.lingers:
            await client.disconnect()
    return made, clients


async def main() -> None:
    clients: list[HostileClient] = []

    async def carry_out(asked: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal clients
        for client in clients:
            await client.disconnect()
        if asked is None:
            return None
        made, clients = await _attack(Order(**asked))
        return asdict(made)

    await serve(carry_out)


if __name__ == "__main__":
    asyncio.run(main())
