"""``ringline certs``: a certificate authority for development, and a certificate for each role in a ring."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from services.common.config.errors import FatalError
from services.common.config.flags import Command
from services.common.security.certificate_authority import CertificateAuthority
from services.ring.identity import PEER_NAME
from services.ring.roles import Role

ROLES = ("processor", "engine", "detokenizer", "gateway", "operator", "client")
AUTHORITY = "authority"
CA_FILE = "ca.crt"
"""File names are those of Kubernetes' TLS secrets, so that a role's directory can become one."""
_LOCAL = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3650


@click.command(cls=Command)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Another name or address of the services, besides their roles and localhost. Can be repeated.",
)
@click.option(
    "--role",
    "roles",
    type=click.Choice(ROLES),
    multiple=True,
    help="Make a certificate for this role only. Can be repeated.",
)
@click.option(
    "--name", help="Make the certificate for the one service of --role that has this --name, in DIRECTORY/NAME."
)
@click.option(
    "--days",
    type=click.FloatRange(min=0.01),
    default=90,
    show_default=True,
    help="Days for which the certificates are valid.",
)
def certs(directory: Path, hosts: tuple[str, ...], roles: tuple[str, ...], name: str | None, days: float) -> None:
    """Write a certificate for each role: tls.crt, tls.key and ca.crt in DIRECTORY/ROLE.

    The authority's own key stays in DIRECTORY/authority; give it to no service. An existing authority is kept;
    certificates are replaced, and running services reload them. This is for development: in production use the tool
    that issues your other certificates.
    """
    if name is not None:
        _check_name(name, roles)
    try:
        authority = _authority(directory / AUTHORITY)
        now = datetime.now(UTC)
        for role in roles or ROLES:
            issued = authority.issue(
                role,
                hosts=dict.fromkeys((role, *_LOCAL, *hosts)),
                uri=f"spiffe://ringline/{role}" + (f"/{name}" if name is not None else ""),
                begin=now,
                end=now + timedelta(days=days),
            )
            own = directory / (name or role)
            own.mkdir(parents=True, exist_ok=True)
            replace_file(own / CA_FILE, authority.certificate, 0o644)
            replace_file(own / "tls.key", issued.key, 0o600)
            replace_file(own / "tls.crt", issued.certificate, 0o644)
    except OSError as error:
        raise FatalError(f"{error.filename or directory} cannot be written: {error.strerror}") from None
    except ValueError as error:
        raise FatalError(f"{directory}: {error}") from None
    click.echo(f"{name or ', '.join(roles or ROLES)}: certificates for {days:g} days, by {directory / AUTHORITY}")


def _check_name(name: str, roles: tuple[str, ...]) -> None:
    if len(roles) != 1 or roles[0] not in set(Role):
        raise click.UsageError(f"--name needs exactly one --role, out of {', '.join(Role)}.")
    if PEER_NAME.fullmatch(name) is None or name in (AUTHORITY, *ROLES):
        raise click.BadParameter(
            f"{name!r} cannot be the name of a service: expected 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and "
            f"'-', and none of {', '.join((AUTHORITY, *ROLES))}",
            param_hint="--name",
        )


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically, with its mode from the start."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    draft.replace(path)


def _authority(directory: Path) -> CertificateAuthority:
    directory.mkdir(parents=True, exist_ok=True)
    certificate, key = directory / CA_FILE, directory / "ca.key"
    if certificate.exists() and key.exists():
        return CertificateAuthority(certificate.read_bytes(), key.read_bytes())
    authority = CertificateAuthority.make("ringline development", valid=timedelta(days=_AUTHORITY_DAYS))
    replace_file(key, authority.key, 0o600)
    replace_file(certificate, authority.certificate, 0o644)
    return authority
