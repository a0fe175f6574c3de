"""``ringline health``: for container health checks."""

from __future__ import annotations

import asyncio

import click

from services.cli.commands._connection import Connection
from services.cli.commands._diagnosis import connection_trouble
from services.cli.commands._options import DEFAULT_ADDRESS, ClientCommand, connection_options
from services.common.config.addresses import valid_address
from services.common.config.errors import ExitCode
from services.common.config.variable_names import ADDRESS_VARIABLE
from services.common.links.channels import Endpoint, check_health


@click.command(cls=ClientCommand)
@click.argument("address", required=False)
@click.option(
    "--address",
    "named",
    metavar="HOST:PORT",
    default=DEFAULT_ADDRESS,
    envvar=ADDRESS_VARIABLE,
    show_default=True,
    show_envvar=True,
    help="The server, where ADDRESS does not name it.",
)
@click.option("--service", default="", help="Full name of a gRPC service; default: the whole server.")
@click.option("--timeout", type=click.FloatRange(min=0.01), default=2.0, show_default=True, help="Seconds to wait.")
@connection_options
def health(address: str | None, named: str, service: str, timeout: float, connection: Connection) -> int:
    """Print whether the server at ADDRESS (host:port or unix:path) is serving; the exit code is 0 if it is, else 1."""
    address = address or named
    if not valid_address(address):
        raise click.BadParameter(f"{address!r} is not an address such as host:port or unix:path", param_hint="ADDRESS")

    credentials = connection.credentials(address)

    async def ask() -> str:
        async with Endpoint(address, credentials, connection.tls_server_name).open() as channel:
            return await check_health(channel, service, timeout)

    status = asyncio.run(ask())
    click.echo(status)
    if status == "UNREACHABLE" and (trouble := connection_trouble(address, connection)):
        click.echo(trouble, err=True)
    return ExitCode.OK if status == "SERVING" else ExitCode.FAILURE
