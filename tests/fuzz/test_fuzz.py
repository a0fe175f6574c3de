"""Mutated messages fail or hang no service, and a well-behaved client is answered as before."""

from __future__ import annotations

import pytest
import ringline

from tests.fuzz.targets import fuzzing
from tests.ring import Ring


@pytest.mark.parametrize(("service", "inputs"), [("processor", 500), ("engine", 500), ("detokenizer", 200)])
async def test_no_message_fails_a_service(service: str, inputs: int, ring: Ring) -> None:
    asked = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    async with ringline.AsyncClient(ring.address) as client:
        before = await client.generate("Once upon a time", **asked)
        async with fuzzing(ring.addresses, seed=1) as fuzzer:
            await fuzzer.run(service, inputs)
        assert fuzzer.failures == []
        assert ring.process_lives(service), "the service was restarted"
        assert {"OK", "INVALID_ARGUMENT"} <= fuzzer.codes.keys()
        after = await client.generate("Once upon a time", **asked)
    assert after.text == before.text
