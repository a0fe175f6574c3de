from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ringline

from tests.clients import npm_package
from tests.clients.either_client import answer, connected, events
from tests.clients.processor_processes import Processors
from tests.clients.scripted_server import Clock, ScriptedInference, Served, serving
from tests.ring import Ring


@pytest.fixture(scope="module")
def both_processors(ring: Ring, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processors]:
    made = Processors(ring, tmp_path_factory.mktemp("processors"))
    yield made
    made.stop()


@pytest.fixture
async def processors(both_processors: Processors) -> Processors:
    """Both serve, whatever another test has done to them."""
    await both_processors.start()
    return both_processors


@pytest.fixture(scope="session")
def typescript_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tarball for npm."""
    return npm_package.packed(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="session")
def typescript_programs(ring: Ring, typescript_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs that have the package installed, and are compiled."""
    return npm_package.compiled_programs(typescript_package, tmp_path_factory.mktemp("programs"), ring)


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with serving(ScriptedInference()) as served:
        yield served


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which the client sees how long it has tried."""
    clock = Clock()
    monkeypatch.setattr("ringline.retry.time", clock)
    return clock


@dataclass
class Outcome:
    """All that one request showed its client."""

    events: list[ringline.Event]
    generation: ringline.Generation | None
    error: ringline.RingError | None

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ringline.Delta))


Ask = Callable[..., Awaitable[Outcome]]


@pytest.fixture(params=[ringline.Client, ringline.AsyncClient], ids=["blocking", "session"])
def ask(request: pytest.FixtureRequest, server: Served) -> Ask:
    """One request by either client: Generate calls of the blocking one, the Session of the other."""

    async def run(prompt="Hi", client_options=None, **options) -> Outcome:
        seen: list[ringline.Event] = []
        async with connected(request.param, server.address, **(client_options or {})) as client:
            stream = client.stream(prompt, **options)
            try:
                async for event in events(stream):
                    seen.append(event)  # noqa: PERF401 (what came before an error is kept)
                return Outcome(seen, await answer(client, stream.result), None)
            except ringline.RingError as error:
                return Outcome(seen, None, error)

    return run


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between attempts."""
    monkeypatch.setattr("ringline.retry._FIRST_DELAY", 0.01)
