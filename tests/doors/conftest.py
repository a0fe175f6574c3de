"""Doors for the tests of stock clients, and the table of what was tried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown
from tests.doors.door import Door, running_door
from tests.doors.guarded_door import running_guarded_door


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One door for all tests that leave it as they found it."""
    with running_door(tmp_path_factory.mktemp("door")) as running:
        yield running


@pytest.fixture(scope="session")
def guarded_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A door that asks its clients for tokens (guarded_door.py)."""
    with running_guarded_door(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture(scope="session")
def native(door: Door) -> Iterator[Client]:
    """Ringline's own client of the same ring, by gRPC: what stock clients are shown must be what it is."""
    with Client(door.ring.address) as client:
        yield client


@pytest.fixture(scope="session")
def answer(native: Client) -> Generation:
    """To the question that every client asks."""
    return native.generate(
        messages=ASKED["messages"], temperature=0.0, max_tokens=ASKED["max_tokens"], parse=True, logprobs=3
    )


@pytest.fixture
def tried(record_property, request: pytest.FixtureRequest):
    """Call it with a client and its version: the test's line in the table."""

    def note(client: str) -> None:
        record_property("client", client)
        record_property("tried", request.node.name.removeprefix("test_").replace("_", " "))

    return note


@pytest.fixture
def shown(program: Shown, tried) -> Shown:
    """What the module's ``program`` showed, noted for the table."""
    tried(program.client)
    return program


def pytest_terminal_summary(terminalreporter) -> None:
    """Each client with its version, and what was tried with it."""
    table: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            noted = dict(report.user_properties)
            if "client" in noted:
                table[noted["client"]][outcome].append(noted["tried"])
    if table:
        terminalreporter.section("stock clients", sep="=")
    for client, outcomes in sorted(table.items()):
        terminalreporter.line(client)
        for outcome, names in outcomes.items():
            terminalreporter.line(f"  {outcome}: {', '.join(names)}")
