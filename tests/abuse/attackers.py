"""The process in which all hostile clients run, apart from the one that measures.

A line of JSON on its standard input says which attacks to make, for how long; one on its standard output what came of
them. Clients that linger stay connected until the next line.
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
LET_GO = "let go"
"""Instead of an order: close all connections."""


@dataclass(frozen=True, slots=True)
class Order:
    """Attacks to make at once."""

    addresses: dict[str, str]
    attacks: list[tuple[str, str]]
    """Names and services; clients are spread over them."""
    clients: int
    seconds: float
    seed: int
    tokenizer: str
    """The fingerprint of the one that is served."""


@dataclass(frozen=True, slots=True)
class Made:
    """What came of them."""

    rounds: int
    sent: int
    """Bytes on connections of one round."""
    lost: int
    """Connections that were refused or closed."""
    errors: list[str]
    """Mistakes in the attacks themselves."""


@asynccontextmanager
async def attackers(niceness: int) -> AsyncIterator[Callable[[Order | None], Awaitable[Made | None]]]:
    """A process that carries out one order after the other; None has its clients let go."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.abuse.attackers", str(niceness)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, of = process.stdin, process.stdout

    async def carry_out(order: Order | None) -> Made | None:
        to.write(json.dumps(LET_GO if order is None else asdict(order)).encode() + b"\n")
        await to.drain()
        if not (line := await of.readline()):
            raise RuntimeError(f"the process of the attackers ended with {await process.wait()}")
        return None if order is None else Made(**json.loads(line))

    try:
        yield carry_out
    finally:
        to.close()
        process.kill()
        await process.wait()


def find(name: str, service: str) -> Attack:
    """The attack of this name on a service."""
    return next(attack for attack in ATTACKS if (attack.name, attack.service) == (name, service))


async def _attack(order: Order) -> tuple[Made, list[HostileClient]]:
    attacks = [find(name, service) for name, service in order.attacks]
    spread = [attacks[number % len(attacks)] for number in range(order.clients)]
    clients = [
        HostileClient(number, order.addresses, attack.service, order.seconds, order.seed, order.tokenizer)
        for number, attack in enumerate(spread)
    ]
    runs = [client.run(attack.act, attack.rounds) for client, attack in zip(clients, spread, strict=True)]
    results = await asyncio.gather(*runs, return_exceptions=True)
    errors = [repr(result) for result in results if isinstance(result, BaseException)]
    made = Made(
        sum(client.rounds for client in clients),
        sum(client.sent for client in clients),
        sum(client.lost for client in clients),
        errors[:5],
    )
    for client, attack in zip(clients, spread, strict=True):
        if not attack.lingers:
            await client.let_go()
    return made, clients


async def _serve() -> None:
    """Carry out what standard input asks for, until it ends."""
    loop = asyncio.get_running_loop()
    clients: list[HostileClient] = []
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        for client in clients:
            await client.let_go()
        answer: object = None
        if asked != LET_GO:
            asked["attacks"] = [tuple(one) for one in asked["attacks"]]
            made, clients = await _attack(Order(**asked))
            answer = asdict(made)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    os.nice(int(sys.argv[1]))
    asyncio.run(_serve())
