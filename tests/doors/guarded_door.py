"""A door whose clients authenticate, with tenants that may do more or less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from tests.doors.door import Door, running_door

TENANTS = """
[tenants.free]

[tenants.elsewhere]
models = ["another"]

[tenants.slow]
max_requests_per_minute = 60

[tenants.slower]
max_requests_per_minute = 60
"""


def token(tenant: str) -> str:
    """Of a tenant, which an SDK takes for its API key."""
    return f"key-of-{tenant}"


@contextmanager
def running_guarded_door(directory: Path) -> Iterator[Door]:
    """A door that asks its clients for tokens. Slow tenants may send 60 requests at once, and then one a second."""
    tenants, tokens = directory / "tenants.toml", directory / "tokens"
    tenants.write_text(TENANTS)
    names = ("free", "elsewhere", "slow", "slower")
    hashes = {name: sha256(token(name).encode()).hexdigest() for name in names}
    tokens.write_text("".join(f"{name} sha256:{digest}\n" for name, digest in hashes.items()))
    with running_door(directory, f"--auth-token-file={tokens}", f"--tenants-file={tenants}") as door:
        yield door
