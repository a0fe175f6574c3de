"""``ringline token``: a bearer token, and the line by which a processor knows it."""

from __future__ import annotations

import secrets
from hashlib import sha256

import click

from services.common.config.flags import Command

_BYTES = 32


@click.command(cls=Command)
@click.argument("tenant")
def token(tenant: str) -> None:
    """Make a token for TENANT: standard output gets the line for --auth-token-file, standard error the token.

    The processor needs only the line. The token is shown once, and cannot be computed from the line.
    """
    if not tenant.isprintable() or not tenant or " " in tenant:
        raise click.BadParameter(
            f"{tenant!r} cannot be the name of a tenant: expected printable characters without spaces",
            param_hint="TENANT",
        )
    made = "rl-" + secrets.token_urlsafe(_BYTES)
    click.echo(made, err=True)
    click.echo(f"{tenant} sha256:{sha256(made.encode()).hexdigest()}")
