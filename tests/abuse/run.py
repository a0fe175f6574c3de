"""A whole run: the load alone, beside a full engine, under each attack, and under all attacks at once."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ringline
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.common.links.channels import Endpoint
from tests.abuse.adapter_files import MOST_LOADED, write_adapters
from tests.abuse.attackers import ATTACKS, AttackResult, Order, attackers
from tests.abuse.client import Attack
from tests.abuse.crowd import full_engine
from tests.abuse.load import LoadResult, OpenLoop
from tests.abuse.memory_attacks import honest_submit
from tests.abuse.pooling_attacks import PAIRS, honest_pooling_submit
from tests.abuse.report import Phase, Report, ServiceReading
from tests.abuse.service import Probe, Service, excess_over
from tests.chaos import vectors
from tests.chaos.load import record_answers
from tests.chaos.logs import read_logs
from tests.chaos.workload import RequestSpec, pool
from tests.pooling_models import embedder, reranker
from tests.processes import Process
from tests.ring import MODEL

BUDGET = 1 << 30
"""Bytes that a processor or a detokenizer may have in memory."""
ENGINE_SPARE = 512 << 20
"""Bytes that an engine may have beyond its size when ready, with all of its KV cache in memory."""
LINGER = 20.0
"""Seconds until the service has ended all calls of clients that stay connected: stalled, or without a first message."""
STALL = 5.0
BASELINE = 60.0
"""Seconds of each baseline, calm and beside a full engine, in a run of ten minutes."""
CONCURRENCY = 4
VECTORS_PER_TOKENS = 20
"""So many requests for tokens fill an engine as one for vectors does, whose tenant has as many tokens at a turn."""
_POLL = 0.25


@dataclass(frozen=True)
class Options:
    seed: int
    seconds: float
    """Of all attacks together."""
    clients: int = 100
    rate: float = 3.0
    """Requests per second of the load."""
    crowd: int = 300
    """Honest requests in flight that fill the engine."""
    kinds: int = 10
    """Kinds of requests in the load, and requests for vectors beside it."""
    attacks: tuple[Attack, ...] = ATTACKS
    release: float = 10.0
    """Seconds in which services must release everything of an attack."""
    together: bool = True
    """Whether all attacks run at once at the end."""
    keep: Path | None = None
    """Where logs are kept; by default they are deleted."""


@dataclass
class Target:
    """The services under attack, by kind."""

    services: dict[str, Service]
    logs: Sequence[Path]
    processes: dict[str, Process]
    """Empty if this run did not start them."""

    async def restart_dead(self, died: list[str]) -> None:
        """Restart processes that end, as a supervisor would, and add their names to ``died``."""
        while True:
            for name, process in self.processes.items():
                if not process.alive:
                    died.append(name)
                    process.start()
                    self.services[name].pid = process.pid
            await asyncio.sleep(_POLL)

    @property
    def addresses(self) -> dict[str, str]:
        return {name: service.address for name, service in self.services.items()}

    async def tokenizer(self) -> str:
        """Digest of the served tokenizer."""
        async with Endpoint(self.services["engine"].address).open() as channel:
            stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
            model = await stub.GetModel(engine_pb2.GetModelRequest(), timeout=60)
            return str(model.tokenizer_digest)


_NAMES = {
    "processor": "processor-0",
    "engine": "engine-0",
    "detokenizer": "detokenizer-0",
    "embedder": "engine-1",
    "reranker": "engine-2",
}
"""Of the processes, by the services' names here."""


@asynccontextmanager
async def fleet(directory: Path) -> AsyncIterator[Target]:
    """Start one process of each service, and engines that make vectors and scores, on ports of this machine."""
    addresses = {service: f"127.0.0.1:{_free_port()}" for service in _NAMES}
    ports = {service: _free_port() for service in addresses}
    memory = ["--kv-cache-memory-bytes", "32MiB"]
    models = {"embedder": embedder(directory / "embedder"), "reranker": reranker(directory / "reranker")}
    engines = ["--engines", ",".join(addresses[service] for service in ("engine", *models))]
    adapters = ["--enable-lora", "--max-cpu-loras", str(MOST_LOADED)]
    write_adapters(MODEL, directory / "adapters")
    flags = {
        "engine": ["--model", str(MODEL), *memory, *adapters, "--lora-dir", str(directory / "adapters")],
        "embedder": ["--model", str(models["embedder"]), "--served-model-name", vectors.NAME, *memory],
        "reranker": ["--model", str(models["reranker"]), "--served-model-name", PAIRS, *memory],
        "detokenizer": ["--engines", addresses["engine"]],
        "processor": [
            *(*engines, "--detokenizers", addresses["detokenizer"]),
            *("--max-connection-age", "5", "--enable-adapter-control"),
        ],
    }
    processes = {
        service: Process(
            _NAMES[service],
            address,
            directory / f"{service}.log",
            [*flags[service], "--stall-timeout", str(STALL), "--metrics-port", str(ports[service])],
        )
        for service, address in addresses.items()
    }
    try:
        for process in processes.values():
            process.start()
        for process in processes.values():
            await process.wait_serving()
        services = {
            service: Service(process.kind, process.address, process.pid, f"http://127.0.0.1:{ports[service]}/metrics")
            for service, process in processes.items()
        }
        yield Target(services, [process.log for process in processes.values()], processes)
    finally:
        for process in processes.values():
            process.kill()


async def run(options: Options, show: Callable[[Phase], None]) -> Report:
    """Start services and attack them; ``show`` is called with each phase as it ends."""
    async with AsyncExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringline-abuse-")))
        directory.mkdir(parents=True, exist_ok=True)
        return await run_on(await stack.enter_async_context(fleet(directory)), options, show)


async def run_on(target: Target, options: Options, show: Callable[[Phase], None]) -> Report:
    """Attack services that already run."""
    report = Report(options.seed)
    async with AsyncExitStack() as stack:
        load = await _load(stack, target, "load", pool(options.seed, per_kind=1), options)
        embedding = None
        if "embedder" in target.services:
            embedding = await _load(stack, target, "embeds", vectors.pool(options.seed, options.kinds), options)
        make = await stack.enter_async_context(attackers(19))
        probes = {name: await stack.enter_async_context(Probe(service)) for name, service in target.services.items()}
        runner = _PhaseRunner(target, options, load, embedding, make, probes, await target.tokenizer())
        rounds = [[attack] for attack in options.attacks] + ([list(options.attacks)] if options.together else [])
        seconds = options.seconds / (len(rounds) + 1)
        baseline = max(seconds, BASELINE * min(1.0, options.seconds / 600))

        async def measured(measure: Awaitable[Phase]) -> Phase:
            restarting = asyncio.create_task(target.restart_dead(report.died))
            try:
                phase = await measure
            finally:
                restarting.cancel()
            report.died = [name if "(" in name else f"{name} ({phase.name})" for name in report.died]
            show(phase)
            return phase

        report.calm = await measured(runner.calm(baseline))
        if any(attack.fills for attack in options.attacks):
            report.full = await measured(runner.beside_full_engine(baseline))
        for number, attacks in enumerate(rounds):
            report.phases.append(await measured(runner.attack(attacks, seconds, options.seed + number)))
        report.logs = read_logs(target.logs)
    return report


async def _load(
    stack: AsyncExitStack, target: Target, tenant: str, specs: Sequence[RequestSpec], options: Options
) -> OpenLoop:
    """A load of a tenant of its own, whose right answers are recorded."""
    metadata = {"x-ringline-tenant": tenant}
    client = ringline.AsyncClient(target.addresses["processor"], retry_overloaded=True, metadata=metadata)
    await stack.enter_async_context(client)
    some = specs[: options.kinds]
    answers = await record_answers(client, some, CONCURRENCY)
    return OpenLoop(client, some, answers, rate=options.rate, seed=options.seed)


class _PhaseRunner:
    def __init__(
        self,
        target: Target,
        options: Options,
        load: OpenLoop,
        embedding: OpenLoop | None,
        make: Callable[[Order | None], Awaitable[AttackResult | None]],
        probes: dict[str, Probe],
        tokenizer: str,
    ) -> None:
        self._target = target
        self._options = options
        self._load = load
        self._embedding = embedding
        self._make = make
        self._probes = probes
        self._tokenizer = tokenizer
        self._rest: dict[str, dict[str, int]] = {}
        services = target.services
        self._budgets = {
            name: each.resident() + ENGINE_SPARE if each.kind == "engine" else BUDGET for name, each in services.items()
        }

    async def calm(self, seconds: float) -> Phase:
        """The load alone. What services hold afterwards is what they hold at rest."""
        self._start_loads()
        await asyncio.sleep(seconds)
        results = await self._end_loads()
        await asyncio.sleep(1.0)
        self._rest = {name: await service.held() for name, service in self._target.services.items()}
        return Phase("calm", *results, self._readings({}))

    async def beside_full_engine(self, seconds: float) -> Phase:
        """The load beside more honest requests than an engine computes at a time: of tokens at first, then of vectors,
        which are larger.
        """
        options, of_vectors = self._options, None
        crowd = options.crowd
        result, _ = await self._beside_crowd("engine", crowd, lambda *of: honest_submit(*of, [7] * 8), seconds)
        if self._embedding is not None:
            crowd //= VECTORS_PER_TOKENS
            _, of_vectors = await self._beside_crowd("embedder", crowd, honest_pooling_submit, seconds)
        return Phase("a full engine", result, of_vectors, self._readings(await self._released(options.release)))

    async def _beside_crowd(
        self, service: str, requests: int, make: Callable[[str, str], engine_pb2.Submit], seconds: float
    ) -> tuple[LoadResult, LoadResult | None]:
        """What the loads get beside so many requests at an engine."""
        async with full_engine(self._target.addresses[service], requests, self._options.clients, make):
            self._start_loads()
            await asyncio.sleep(seconds)
            return await self._end_loads()

    async def attack(self, attacks: list[Attack], seconds: float, seed: int) -> Phase:
        """The load under ``attacks``, and what services still hold after them."""
        options = self._options
        name = f"{attacks[0].service}: {attacks[0].name}" if len(attacks) == 1 else "all together"
        self._start_loads()
        order = Order(
            self._target.addresses,
            [(attack.name, attack.service) for attack in attacks],
            options.clients if len(attacks) == 1 else 3 * options.clients,
            seconds,
            seed,
            self._tokenizer,
        )
        made = await self._make(order)
        results = await self._end_loads()
        lingering = {attack.service for attack in attacks if attack.lingers}
        kept: dict[str, dict[str, int]] = {}
        if len(attacks) == 1 and lingering:
            kept = await self._released(LINGER, connections=False)
        await self._make(None)
        start = time.monotonic()
        kept = kept or await self._released(options.release)
        seconds = time.monotonic() - start
        fills = any(attack.fills for attack in attacks)
        return Phase(name, *results, self._readings(kept), made, seconds, fills)

    def _start_loads(self) -> None:
        for service in self._target.services.values():
            service.reset_peak()
        for load in filter(None, (self._load, self._embedding)):
            load.start_phase()

    async def _end_loads(self) -> tuple[LoadResult, LoadResult | None]:
        """Results of the load and, if there is one, of that of vectors."""
        of_vectors = None if self._embedding is None else await self._embedding.end_phase()
        return await self._load.end_phase(), of_vectors

    async def _released(self, seconds: float, *, connections: bool = True) -> dict[str, dict[str, int]]:
        """Wait until services hold no more than at rest; returns the excess that is left after ``seconds``."""
        end = time.monotonic() + seconds
        while True:
            left = {}
            for name, service in self._target.services.items():
                if service.alive and (
                    more := excess_over(self._rest[name], await service.held(), connections=connections)
                ):
                    left[name] = more
            if not left or time.monotonic() > end:
                return left
            await asyncio.sleep(_POLL)

    def _readings(self, kept: dict[str, dict[str, int]]) -> dict[str, ServiceReading]:
        found = {}
        for name, service in self._target.services.items():
            slowest, failures = self._probes[name].take_readings()
            found[name] = ServiceReading(
                service.peak(), service.resident(), self._budgets[name], slowest, failures, kept.get(name, {})
            )
        return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
