"""The client for TypeScript before a server answers: whom it shows a token, and until when it waits."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.clients.scripted_server import Served, hello

pytestmark = [
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node and npm are not installed"),
    pytest.mark.usefixtures("ring"),
]

NO_TOKEN = "no token: expected printable ASCII characters without blanks"


async def test_tokens_and_time_limits_hold_before_a_server_answers(server: Served, typescript_programs: Path) -> None:
    server.plays(hello)
    environment = {"RINGLINE_ADDRESS": f" {server.address}", "RINGLINE_TOKEN": "of-environment\n"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = await asyncio.create_subprocess_exec(
            "node",
            str(typescript_programs / "connecting.js"),
            f"127.0.0.1:{silent.getsockname()[1]}",
            env=os.environ | environment,
            stdout=asyncio.subprocess.PIPE,
        )
        written, _ = await asyncio.wait_for(node.communicate(), 60)
    shown = json.loads(written)
    tokens = [metadata.get("authorization") for metadata in server.service.metadata]
    assert tokens == ["Bearer of-environment", "Bearer given", "Basic x", None, None]
    exposed = "it would be sent to {} unencrypted: add tls or ca"
    assert shown["refused"] == {
        "blank": ["token", f"token: {NO_TOKEN}"],
        "variable": ["RINGLINE_TOKEN", f"RINGLINE_TOKEN: {NO_TOKEN}"],
        "several": ["token", f"token: {exposed.format('ipv6:[::1]:1,[2001:db8::1]:1')}"],
        "portless": ["token", f"token: {exposed.format('ipv4:127.0.0.1:1,203.0.113.1')}"],
    }
    assert shown["drawn"] == f"token: {NO_TOKEN}"
    late, cancelled = ["DeadlineExceeded", True], ["Cancelled", True]
    assert shown["unanswered"] == {
        **dict.fromkeys(("call", "models", "session"), late),
        **dict.fromkeys(("cancelled", "cancelledModels", "closed"), cancelled),
    }
