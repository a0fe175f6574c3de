"""Chaos in a ring whose requests name adapters, which change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from ringline import AsyncClient

from tests.chaos.adapters import names, requests
from tests.chaos.adapters.changes import Operator
from tests.chaos.adapters.judge import Judge
from tests.chaos.adapters.names import NAMES, OPERATOR, TENANTS
from tests.chaos.adapters.requests import AdapterSpec
from tests.chaos.adapters.sightings import Sightings
from tests.chaos.fleet import Fleet
from tests.chaos.outcome import Outcome
from tests.chaos.report import AdapterCounts

KIND = "adapters"
PATIENCE = 40.0
"""Seconds of processors: so long a request waits for a replaced adapter that no engine has any more."""
TENANT_HEADER = "x-ringline-tenant"


class AdapterChaos:
    """The adapters of a run, from before its ring is started until its end."""

    def __init__(self, directory: Path, model: Path, seed: int) -> None:
        self._model, self._seed = model, seed
        self._folder = directory / "adapters"
        names.write_all(model, self._folder)
        self.engine_flags = [*names.FLAGS, "--lora-dir", str(self._folder)]
        policies = names.write_policies(directory / "tenants.toml")
        self.processor_flags = ["--enable-adapter-control", "--tenants-file", str(policies)]
        self.specs = requests.pool(seed)
        self._digests: dict[str, str] = {}
        self._answers: requests.Answers = {}

    async def record(self, client: AsyncClient, concurrency: int) -> dict[str, Outcome]:
        """Record the right answers; returns one of each request, of those that it may get."""
        operator = client.with_metadata({TENANT_HEADER: OPERATOR})
        self._digests, self._answers = await requests.record(operator, self._seed, concurrency)
        await operator.close()
        await asyncio.to_thread(requests.check, self._model, self._folder, self._digests, self._answers)
        return {spec.name: self._some_answer(spec) for spec in self.specs}

    def _some_answer(self, spec: AdapterSpec) -> Outcome:
        contents = NAMES[spec.adapter].contents
        return self._answers[spec.kind, self._digests[contents[0]]] if contents else Outcome()

    @asynccontextmanager
    async def clients(self, clients: Sequence[AsyncClient]) -> AsyncIterator[dict[str, list[AsyncClient]]]:
        """By tenant, on the connections of ``clients``."""
        async with AsyncExitStack() as stack:
            yield {
                tenant: [
                    await stack.enter_async_context(each.with_metadata({TENANT_HEADER: tenant})) if tenant else each
                    for each in clients
                ]
                for tenant in (*TENANTS, OPERATOR)
            }

    @asynccontextmanager
    async def changing(
        self, fleet: Fleet, operator: AsyncClient, plain: dict[str, Outcome]
    ) -> AsyncIterator[tuple[Judge, AdapterCounts]]:
        """Adapters change meanwhile. At the end all engines must have what they should have."""
        sightings = Sightings(fleet.processes[name] for name in fleet.names["engine"])
        at_work = Operator(operator, self._folder, sightings, self._seed)
        judge = Judge(plain, self._answers, self._digests, sightings)
        counts = AdapterCounts(judge.counts, at_work.done)
        async with sightings.watched():
            async with at_work.at_work():
                yield judge, counts
            counts.problems += await at_work.settle(self._digests)
