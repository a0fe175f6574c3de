"""The options of TLS and authentication, and checks that each of them can be enforced.

An option that would have no effect is refused before anything listens, so that it gives no false sense of security.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.common.config.options import SettingError, check_section, option
from services.ring.roles import SERVICE_IDENTITIES, Identities, Role

JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only asymmetric algorithms: a processor holds public keys, which cannot sign."""

HIDDEN = "..."
"""Of an option's value that must not be seen."""
_API_KEY = re.compile(r"[\x21-\x7e]{1,8192}")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS, for callers of a service and for its links to peers."""

    tls_cert_file: str | None = option(
        None,
        "PEM file of this service's certificate, followed by intermediate certificates if it has any. The "
        "service then accepts only TLS, and shows the certificate to its peers, too. Read again when it "
        "changes.",
    )
    tls_key_file: str | None = option(
        None, "PEM file of the certificate's private key, without a passphrase. Read again when it changes."
    )
    tls_ca_file: str | None = option(
        None,
        "PEM file of the trusted certificate authorities. Connections to peers then use TLS, except on unix "
        "sockets. Read again when it changes.",
    )
    tls_crl_file: str | None = option(
        None,
        "PEM file of the authorities' revocation lists. Callers with a revoked certificate are refused, and "
        "their running calls end. Read again when it changes.",
    )
    tls_client_auth: str | None = option(
        None,
        "Whether callers must show a certificate of an authority in --tls-ca-file (mutual TLS). Default: "
        "require for an engine or detokenizer that has --tls-ca-file, else none.",
        choices=("none", "require"),
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.tls_cert_file is not None and self.tls_key_file is None:
            raise SettingError("tls_cert_file", self.tls_cert_file, "--tls-key-file to be given, too")
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise SettingError("tls_key_file", self.tls_key_file, "--tls-cert-file to be given, too")
        if self.tls_client_auth == "require" and (self.tls_cert_file is None or self.tls_ca_file is None):
            raise SettingError(
                "tls_client_auth", "require", "--tls-cert-file, --tls-key-file and --tls-ca-file to be given, too"
            )


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Authentication between services."""

    service_token_file: str | None = option(
        None,
        "File of tokens, one per line, by which services authenticate to each other: the first is sent to "
        "peers; engines and detokenizers accept each of them. Read again when it changes.",
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class ServiceAuthSettings:
    """Which callers an engine or a detokenizer accepts."""

    service_identities: tuple[str, ...] = option(
        SERVICE_IDENTITIES,
        "With mutual TLS: which name in a caller's certificate (a URI or DNS name) has which role, each as "
        "ROLE=NAME. Callers without a role, such as clients of the same authority, and calls that the role "
        "may not make get PERMISSION_DENIED.",
    )

    def __post_init__(self) -> None:
        check_section(self)
        form = f"ROLE=NAME, where ROLE is one of {', '.join(Role)}"
        if not self.service_identities:
            raise SettingError("service_identities", "", form)
        try:
            Identities(self.service_identities)
        except ValueError as error:
            raise SettingError("service_identities", str(error), form) from None


@dataclass(frozen=True, slots=True)
class ClientAuthSettings:
    """Which clients a processor accepts, and what each tenant may do."""

    auth_token_file: str | None = option(
        None,
        "File of bearer tokens, one per line: the tenant, a space, and sha256: with the token's hash, as "
        "`ringline token` prints it. Clients must send one of these tokens; it determines their tenant. Read "
        "again when it changes.",
    )
    api_key: tuple[str, ...] = option(
        (),
        "Keys, separated by commas, one of which clients must send as their bearer token; all are those of the tenant "
        "api-key. Other users of the machine can see a flag's value, but not that of the variable.",
        secret=True,
    )
    auth_jwks_file: str | None = option(
        None,
        "File of the public keys (JWKS) by which JSON web tokens are verified. Clients must send such a "
        "token, or one of --auth-token-file. Read again when it changes.",
    )
    auth_jwt_issuer: str | None = option(None, "Issuer (iss) that JSON web tokens must name.")
    auth_jwt_audience: str | None = option(None, "Audience (aud) that JSON web tokens must name.")
    auth_jwt_algorithms: tuple[str, ...] = option(
        ("RS256", "ES256", "EdDSA"), f"Accepted signature algorithms: one or more of {', '.join(JWT_ALGORITHMS)}."
    )
    auth_jwt_tenant_claim: str = option("sub", "Claim of a JSON web token that names the tenant.")
    tenants_file: str | None = option(
        None,
        "TOML file of the tenants' limits: models, max_concurrent_requests, max_queued_tokens, "
        "max_requests_per_minute and max_tokens_per_minute, and adapter_control, in [tenants.NAME] or [default]. "
        "Read again when it changes.",
    )

    def __post_init__(self) -> None:
        check_section(self)
        if not all(map(_API_KEY.fullmatch, self.api_key)):
            raise SettingError("api_key", HIDDEN, "printable characters of ASCII, without spaces")
        for name, value in (("auth_jwt_issuer", self.auth_jwt_issuer), ("auth_jwt_audience", self.auth_jwt_audience)):
            if value is not None and self.auth_jwks_file is None:
                raise SettingError(name, value, "--auth-jwks-file to be given, too")
            if not value and self.auth_jwks_file is not None:
                flags = "--auth-jwt-issuer and --auth-jwt-audience"
                raise SettingError("auth_jwks_file", self.auth_jwks_file, f"{flags} to be given, too")
        if not self.auth_jwt_algorithms or not set(self.auth_jwt_algorithms) <= set(JWT_ALGORITHMS):
            given = ",".join(self.auth_jwt_algorithms)
            raise SettingError("auth_jwt_algorithms", given, f"one or more of {', '.join(JWT_ALGORITHMS)}")
        if not self.auth_jwt_tenant_claim:
            raise SettingError("auth_jwt_tenant_claim", "", "the name of a claim")


def requires_client_certificate(tls: TlsSettings, *, internal: bool) -> bool:
    """Whether callers must show a certificate. ``internal``: whether only services call this one."""
    if tls.tls_client_auth is not None:
        return tls.tls_client_auth == "require"
    return internal and tls.tls_cert_file is not None and tls.tls_ca_file is not None


def check_listening(
    tls: TlsSettings, host: str, uds: str | None, secrets: Mapping[str, str | None], *, internal: bool
) -> None:
    """Raise ``SettingError`` for options without effect, and for tokens that would cross a network unencrypted.

    ``secrets``: values of the options that require tokens of callers, keyed by name. ``internal``: whether only
    services call this one; with TLS it must then authenticate callers, or accept everybody explicitly.
    """
    if uds is not None and tls.tls_cert_file is not None:
        raise SettingError(
            "tls_cert_file", tls.tls_cert_file, "--host and --port instead of --uds: a unix socket has no TLS"
        )
    exposed = uds is None and tls.tls_cert_file is None and not is_loopback(host)
    for name, value in secrets.items():
        if value is not None and exposed:
            raise SettingError(
                name,
                value,
                f"--tls-cert-file to be given, too: without TLS, tokens would be sent to {host} unencrypted",
            )
    needed = (tls.tls_ca_file, tls.tls_client_auth, *secrets.values())
    if internal and tls.tls_cert_file is not None and all(value is None for value in needed):
        raise SettingError(
            "tls_cert_file",
            tls.tls_cert_file,
            "--tls-ca-file or --service-token-file to be given, too, or --tls-client-auth none to accept every caller",
        )
    if tls.tls_crl_file is not None and not requires_client_certificate(tls, internal=internal):
        raise SettingError(
            "tls_crl_file", tls.tls_crl_file, "--tls-client-auth require, without which callers show no certificate"
        )


def check_dialling(tls: TlsSettings, service_token_file: str | None, hosts: Iterable[str]) -> None:
    """Raise ``SettingError`` if a token would be sent unencrypted to other machines."""
    exposed = [host for host in hosts if not is_loopback(host)]
    if service_token_file is not None and tls.tls_ca_file is None and exposed:
        raise SettingError(
            "service_token_file",
            service_token_file,
            f"--tls-ca-file to be given, too: without TLS, the token would be sent to {exposed[0]} unencrypted",
        )


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
