"""The process of all hostile clients, separate from the one that measures.

Each line of standard input is an ``Order`` as JSON, answered by a line with an ``AttackResult``. Lingering clients stay
connected until the next line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from tests.abuse.client import Attack, HostileClient
from tests.abuse.memory_attacks import MEMORY_ATTACKS
from tests.abuse.stuck_attacks import STUCK_ATTACKS

ATTACKS: tuple[Attack, ...] = (*MEMORY_ATTACKS, *STUCK_ATTACKS)
_LONGEST_LINE = 16 << 20
DISCONNECT = "disconnect"
"""Sent instead of an order: close all connections."""


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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.abuse.attackers", str(niceness)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, of = process.stdin, process.stdout

    async def carry_out(order: Order | None) -> AttackResult | None:
        to.write(json.dumps(DISCONNECT if order is None else asdict(order)).encode() + b"\n")
        await to.drain()
        if not (line := await of.readline()):
            raise RuntimeError(f"the process of the attackers ended with {await process.wait()}")
        return None if order is None else AttackResult(**json.loads(line))

    try:
        yield carry_out
    finally:
        to.close()
        process.kill()
        await process.wait()


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


async def _serve() -> None:
    """Carry out orders until standard input ends."""
    loop = asyncio.get_running_loop()
    clients: list[HostileClient] = []
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        for client in clients:
            await client.disconnect()
        answer: object = None
        if asked != DISCONNECT:
            asked["attacks"] = [tuple(one) for one in asked["attacks"]]
            made, clients = await _attack(Order(**asked))
            answer = asdict(made)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    os.nice(int(sys.argv[1]))
    asyncio.run(_serve())
