"""Damaged messages to every service: none fails, none hangs, and whoever behaves is answered as before."""

from __future__ import annotations

import pytest
import ringline

from tests.fuzz.targets import fuzzing
from tests.ring import Ring

INPUTS = 500


@pytest.mark.parametrize("service", ["processor", "engine", "detokenizer"])
async def test_no_message_fails_a_service(service: str, ring: Ring) -> None:
    asked = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    async with ringline.AsyncClient(ring.address) as client:
        before = await client.generate("Once upon a time", **asked)
        async with fuzzing(ring.state.services[service].address, seed=1) as fuzzer:
            await fuzzer.run(service, INPUTS)
        assert fuzzer.broken == []
        assert {"OK", "INVALID_ARGUMENT"} <= fuzzer.codes.keys()
        after = await client.generate("Once upon a time", **asked)
    assert after.text == before.text
