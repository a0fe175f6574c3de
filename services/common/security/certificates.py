"""Checks and parses certificate and key files.

gRPC reports an unusable file only when a peer connects, and without the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from services.common.security.file_reload import UnusableFile

CERT_FLAG, KEY_FLAG, CA_FLAG = "--tls-cert-file", "--tls-key-file", "--tls-ca-file"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM contents, checked together; None for a file that is not given."""

    chain: bytes | None
    """The process's own certificate, followed by intermediate ones."""
    key: bytes | None
    authorities: bytes | None


def parse_tls_files(contents: Mapping[str, bytes]) -> TlsFiles:
    """``contents``: keyed by flag. Raises ``UnusableFile``."""
    chain, key, authorities = (contents.get(flag) for flag in (CERT_FLAG, KEY_FLAG, CA_FLAG))
    if chain is not None and key is not None:
        own = read_certificates(CERT_FLAG, chain)[0]
        _check_valid_now(own)
        _check_key(own, key)
    if authorities is not None:
        read_certificates(CA_FLAG, authorities)
    return TlsFiles(chain, key, authorities)


def removes_any(now: bytes, before: bytes) -> bool:
    """Whether the new contents of a file lack a certificate of the old ones."""
    present = x509.load_pem_x509_certificates(now)
    return any(one not in present for one in x509.load_pem_x509_certificates(before))


def certificate_host(chain: bytes) -> str:
    """A name or address that the certificate is valid for; "localhost" if it names none."""
    own = x509.load_pem_x509_certificates(chain)[0]
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "localhost"
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return hosts[0].replace("*", "any", 1) if hosts else "localhost"


def read_certificates(flag: str, pem: bytes) -> list[x509.Certificate]:
    """``flag`` names the file in errors; raises ``UnusableFile``."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise UnusableFile(flag, "it holds no certificate in PEM form") from None


def _check_valid_now(certificate: x509.Certificate) -> None:
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise UnusableFile(CERT_FLAG, f"the certificate expired on {end:%Y-%m-%d %H:%M} UTC")
    if now < begin:
        raise UnusableFile(CERT_FLAG, f"the certificate is not valid before {begin:%Y-%m-%d %H:%M} UTC")


def _check_key(certificate: x509.Certificate, pem: bytes) -> None:
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError:
        raise UnusableFile(KEY_FLAG, "the key is encrypted: expected one without a passphrase") from None
    except ValueError:
        raise UnusableFile(KEY_FLAG, "it holds no private key in PEM form") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise UnusableFile(KEY_FLAG, f"the key is not that of the certificate in {CERT_FLAG}")
