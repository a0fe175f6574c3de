"""``ringline token``: a bearer token, and the line by which a processor knows it."""

from __future__ import annotations

import secrets
from hashlib import sha256

import click

from services.config.flags import Command

_BYTES = 32


@click.command(cls=Command)
@click.argument("tenant")
def token(tenant: str) -> None:
    """Make a token for TENANT: on standard output the line for --auth-token-file, on standard error the token.

    The processor needs only the line; the token cannot be recovered from it, and is shown only this once.
    """
    if not tenant.isprintable() or not tenant or " " in tenant:
        raise click.BadParameter(f"{tenant!r} is not the name of a tenant: expected no spaces", param_hint="TENANT")
    made = "rl-" + secrets.token_urlsafe(_BYTES)
    click.echo(made, err=True)
    click.echo(f"{tenant} sha256:{sha256(made.encode()).hexdigest()}")
