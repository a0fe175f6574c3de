"""Servers that accept connections and never answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ringline import AsyncClient, session
from ringline.errors import Unavailable


def test_silent_servers_are_not_all_tried_once_patience_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tried = [1.0], []

    async def never_answers(call: Any, pool: Any, server: Any, names: Any) -> None:
        call.cancel()
        tried.append(server.address)
        now[0] += 3.0
        raise Unavailable("failed to connect to all addresses; last error: Timeout occurred")

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(session.SessionStream, "open", never_answers)

    async def ask() -> None:
        async with AsyncClient([f"unix:/nonexistent/{number}" for number in range(50)], patience=7.0) as client:
            with pytest.raises(Unavailable, match="Connection timed out"):
                await client._session._open_somewhere(None)

    asyncio.run(ask())
    assert len(tried) == 3
