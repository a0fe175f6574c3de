"""Bodies of all requests together have a limit, and who holds the most makes room."""

import asyncio

import pytest

from services.gateway.http.api_error import ApiError
from services.gateway.http.load import Load, Request


def load(**changed: int) -> Load:
    return Load(**{"max_requests": 100, "max_connections_per_client": 100, "max_body_bytes": 1000, **changed})


async def test_the_client_with_the_most_bytes_loses_its_largest_incomplete_body() -> None:
    taken = load()
    held: dict[str, Request] = {}

    async def receive(name: str, host: str, size: int, *, complete: bool = False) -> str:
        with taken.request((host, len(held))) as request:
            held[name] = request
            taken.hold(request, size)
            request.receiving = not complete
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "refused" if request.refused else "cancelled"
        return ""

    tasks = {
        name: asyncio.create_task(receive(name, *rest, complete=name == "whole"))
        for name, *rest in [
            ("whole", "hog", 400),
            ("small", "hog", 100),
            ("large", "hog", 300),
            ("other", "guest", 150),
        ]
    }
    await asyncio.sleep(0)
    tasks["late"] = asyncio.create_task(receive("late", "newcomer", 100))
    assert await tasks["large"] == "refused"
    assert not [name for name, task in tasks.items() if task.done() and name != "large"]
    with pytest.raises(ApiError, match="memory-budget") as refused:
        taken.hold(held["small"], 300)
    assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values())
    assert taken.num_requests == taken._bytes == 0
    assert not taken._busy
    assert not taken._of_client


async def test_a_connection_is_busy_while_it_has_requests() -> None:
    taken = load()
    with taken.request(("10.0.0.1", 5)), taken.request(("10.0.0.1", 5)):
        assert taken.is_busy("10.0.0.1", 5)
        assert not taken.is_busy("10.0.0.1", 6)
    assert not taken.is_busy("10.0.0.1", 5)
