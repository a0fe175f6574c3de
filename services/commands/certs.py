"""``ringline certs``: a certificate authority for development, and a certificate for each role in a ring."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from services.runtime.authority import Authority
from services.runtime.errors import FatalError

ROLES = ("processor", "engine", "detokenizer", "operator", "client")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3650


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="A name or address that the services are dialled at, besides their roles and localhost. Can be repeated.",
)
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, help="Only these. Can be repeated.")
@click.option("--days", type=click.FloatRange(min=0.01), default=90, show_default=True, help="Valid for so long.")
def certs(directory: Path, hosts: tuple[str, ...], roles: tuple[str, ...], days: float) -> None:
    """Write ca.pem and ca-key.pem into DIRECTORY, and ROLE.pem and ROLE-key.pem for each role.

    An authority that is there already is kept, and the certificates are replaced: running services take the new ones.
    For development: real ones are best made by what makes your other certificates.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority = _authority(directory)
        now = datetime.now(UTC)
        for role in roles or ROLES:
            issued = authority.issue(
                role,
                hosts=dict.fromkeys((role, *_LOCAL, *hosts)),
                uri=f"spiffe://ringline/{role}",
                begin=now,
                end=now + timedelta(days=days),
            )
            replace_file(directory / f"{role}-key.pem", issued.key, 0o600)
            replace_file(directory / f"{role}.pem", issued.certificate, 0o644)
    except OSError as error:
        raise FatalError(f"{error.filename or directory} cannot be written: {error.strerror}") from None
    except ValueError as error:
        raise FatalError(f"{directory}: {error}") from None
    click.echo(f"{', '.join(roles or ROLES)}: certificates for {days:g} days, by {directory / 'ca.pem'}")


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file such that no reader sees half of it, or what it is not to see."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    draft.replace(path)


def _authority(directory: Path) -> Authority:
    certificate, key = directory / "ca.pem", directory / "ca-key.pem"
    if certificate.exists() and key.exists():
        return Authority(certificate.read_bytes(), key.read_bytes())
    authority = Authority.make("ringline development", valid=timedelta(days=_AUTHORITY_DAYS))
    replace_file(key, authority.key, 0o600)
    replace_file(certificate, authority.certificate, 0o644)
    return authority
