"""A certificate authority for development: it issues certificates for the services of a ring and their clients.

All cryptography is the ``cryptography`` package's; keys are on the curve P-256, which every TLS stack supports.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from this much earlier, because clocks differ between machines."""


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate and its private key, in PEM form."""

    certificate: bytes
    key: bytes


class CertificateAuthority:
    """Signs certificates."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Load certificate and key from PEM; raises ``ValueError`` if they cannot be read."""
        private = load_pem_private_key(key, password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the authority is not on an elliptic curve")
        self.certificate = certificate
        self.key = key
        self._parsed = x509.load_pem_x509_certificate(certificate)
        self._private = private

    @classmethod
    def make(cls, name: str, *, valid: timedelta) -> CertificateAuthority:
        """A new authority, valid from now on."""
        private = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(subject, subject, private, datetime.now(UTC) - _CLOCK_SKEW, datetime.now(UTC) + valid)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
            .sign(private, hashes.SHA256())
        )
        return cls(certificate.public_bytes(Encoding.PEM), _pem(private))

    def issue(self, name: str, *, hosts: Iterable[str], uri: str, begin: datetime, end: datetime) -> IssuedCertificate:
        """A certificate for both ends of connections: ``hosts`` are names or addresses, ``uri`` names the role."""
        private = ec.generate_private_key(ec.SECP256R1())
        names = [*map(_host, hosts), x509.UniformResourceIdentifier(uri)]
        roles = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._private.public_key())
        certificate = (
            _builder(_name(name), self._parsed.subject, private, begin - _CLOCK_SKEW, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(roles), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._private, hashes.SHA256())
        )
        return IssuedCertificate(certificate.public_bytes(Encoding.PEM), _pem(private))


def _builder(
    subject: x509.Name, issuer: x509.Name, private: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
