"""Doors for the tests of stock clients, and the table of what was tried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from ringline import Client, Generation

from tests.doors.clients import ASKED, Shown
from tests.doors.door import Door, running_door
from tests.doors.guarded_door import running_guarded_door
from tests.doors.pooling_models import write_classifier, write_embedder
from tests.doors.vectors import Vectors


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


@pytest.fixture(scope="session")
def vectors_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A door to a model that makes vectors."""
    directory = tmp_path_factory.mktemp("vectors")
    with running_door(directory, model=write_embedder(directory / "embedder")) as running:
        yield running


@pytest.fixture(scope="session")
def ranks_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A door to a model that scores pairs."""
    directory = tmp_path_factory.mktemp("ranks")
    with running_door(directory, model=write_classifier(directory / "reranker", "match")) as running:
        yield running


@pytest.fixture(scope="session")
def vectors(vectors_door: Door) -> Vectors:
    """What Ringline's own client is told by the same ring."""
    first = ASKED["texts"][0]
    cut: Any = {"max_input_tokens": 4, "truncate": True, "normalize": False}
    with Client(vectors_door.ring.address) as client:
        return Vectors(
            texts=list(map(list, client.embed(ASKED["texts"]))),
            query=list(client.embed(ASKED["query"])[0]),
            texts_as_queries=list(map(list, client.embed(ASKED["texts"], prompt_name="query"))),
            texts_as_passages=list(map(list, client.embed(ASKED["texts"], prompt_name="passage"))),
            of_ids=list(map(list, client.embed([[5, 6, 7], [8]]))),
            cut=list(client.embed(first, prompt_name="query", **cut)[0]),
            query_as_query=list(client.embed(ASKED["query"], prompt_name="query")[0]),
        )


@pytest.fixture(scope="session")
def ranking(ranks_door: Door) -> list[list[float]]:
    """The documents' indices and scores, as Ringline's own client is told."""
    with Client(ranks_door.ring.address) as client:
        return [[one.index, one.score] for one in client.rerank(ASKED["query"], ASKED["documents"])]


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
