"""Checks callers' certificates during their calls: gRPC checks them only when a connection begins.

A certificate becomes invalid when it or an intermediate one expires or is revoked, or when its authority is removed
from the file of authorities. Then the caller's open calls end, and new ones on its open connections are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from services.common.rpc.handlers import Context
from services.common.rpc.open_calls import Call, current_call
from services.common.security.certificates import CA_FLAG, read_certificates
from services.common.security.file_reload import ReloadedFile, UnusableFile
from services.ring.errors import Code, Refused, Status

log = structlog.get_logger(__name__)

CRL_FLAG = "--tls-crl-file"
CHECK_INTERVAL = 1.0
"""Seconds between two checks of the certificates of open calls."""
_LEAF, _CHAIN = "x509_pem_cert", "x509_pem_cert_chain"
"""gRPC's keys for a caller's certificate, and for the chain that it sent."""
_LONGEST_CHAIN = 8
_MAX_CACHED = 1024
"""The most cached verdicts on certificates without an open call; they save a client's next call the verification."""
_CHECKS_PER_TURN = 32
"""Certificates verified before the event loop runs other tasks."""
_CRL_BEGINS = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True, slots=True)
class TrustedAuthorities:
    """The authorities of --tls-ca-file, with their revocation lists."""

    certificates: tuple[x509.Certificate, ...]
    revocations: tuple[x509.CertificateRevocationList, ...] = ()
    """Revocation lists signed by one of the authorities."""
    unknown_issuers: tuple[str, ...] = ()
    """Issuers of all other revocation lists, which have no effect."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a certificate is valid according to the current files."""

    serial_number: int
    problem: str | None
    """Why the certificate is invalid; None if it is valid until ``expires``."""
    expires: datetime
    """The earliest expiry in the chain to its authority."""


def reloaded_authorities(ca_file: str, crl_file: str | None) -> ReloadedFile[TrustedAuthorities]:
    """Raises ``FatalError`` for files that cannot be used."""
    files = {CA_FLAG: ca_file} if crl_file is None else {CA_FLAG: ca_file, CRL_FLAG: crl_file}
    return ReloadedFile(files, parse_authorities)


def parse_authorities(contents: Mapping[str, bytes]) -> TrustedAuthorities:
    """``contents``: keyed by flag. Raises ``UnusableFile``.

    Lists not signed by any authority have no effect: an authority may be removed before its list.
    """
    certificates = tuple(read_certificates(CA_FLAG, contents[CA_FLAG]))
    if CRL_FLAG not in contents:
        return TrustedAuthorities(certificates)
    lists = list(_parse_crls(contents[CRL_FLAG]))
    signed = tuple(one for one in lists if any(_is_list_of(one, authority) for authority in certificates))
    if not lists:
        raise UnusableFile(CRL_FLAG, "it holds no revocation list in PEM form")
    unknown_issuers = tuple(one.issuer.rfc4514_string() for one in lists if one not in signed)
    for issuer in unknown_issuers:
        log.warning("a revocation list has no effect: no authority signed it", issuer=issuer)
    return TrustedAuthorities(certificates, signed, unknown_issuers)


def check_chain(chain: Sequence[x509.Certificate], authorities: TrustedAuthorities) -> Verdict:
    """The verdict on the first certificate; the others may be intermediate ones."""
    certificate, expires, serial_number = chain[0], chain[0].not_valid_after_utc, chain[0].serial_number
    for _ in range(_LONGEST_CHAIN):
        expires = min(expires, certificate.not_valid_after_utc)
        if _is_revoked(certificate, authorities.revocations):
            return Verdict(serial_number, "was revoked", expires)
        if certificate in authorities.certificates:
            return Verdict(serial_number, None, expires)
        for candidates in (authorities.certificates, chain):
            if issuers := [one for one in candidates if _is_issued(certificate, one)]:
                certificate = max(issuers, key=lambda issuer: issuer.not_valid_after_utc)
                break
        else:
            break
    return Verdict(serial_number, "is not from a trusted authority", expires)


class CertificateChecker:
    """Authorizes the callers of one server by certificate, and ends their calls when it becomes invalid."""

    def __init__(
        self, authorities: ReloadedFile[TrustedAuthorities], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """``now``: the clock by which certificates expire."""
        self._now = now
        self._authorities = authorities
        self._version = authorities.version
        self._verdicts: dict[bytes, Verdict] = {}
        """Verdicts keyed by the PEM of certificate and chain; cached for this version of the files."""
        self._calls: dict[bytes, set[Call]] = {}
        """Open calls keyed in the same way."""
        self._watching: asyncio.Task[None] | None = None

    def authorize(self, context: Context, _: str) -> None:
        """Raise ``Refused`` for an invalid certificate; a valid one is checked again during the call."""
        if context.peer().startswith("unix:"):  # without TLS: the permissions of the socket's file decide
            return
        shown = context.auth_context()
        pem = b"".join((*shown.get(_LEAF, ()), *shown.get(_CHAIN, ())))
        if (status := self._refusal(pem)) is not None:
            raise Refused(status.code, status.message)
        call, handling = current_call(), asyncio.current_task()
        if call is None or handling is None:
            return
        self._calls.setdefault(pem, set()).add(call)
        handling.add_done_callback(partial(self._forget, pem, call))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def _forget(self, pem: bytes, call: Call, _: object) -> None:
        calls = self._calls[pem]
        calls.discard(call)
        if not calls:
            del self._calls[pem]

    async def _watch(self) -> None:
        """Check all certificates repeatedly while there are calls."""
        while self._calls:
            await asyncio.sleep(CHECK_INTERVAL)
            for number, pem in enumerate(list(self._calls), 1):
                if (status := self._refusal(pem)) is not None:
                    log.warning("calls end: a certificate is no longer valid", reason=status.message)
                    for call in self._calls.get(pem, ()):
                        call.evict(status)
                if number % _CHECKS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def _refusal(self, pem: bytes) -> Status | None:
        authorities = self._authorities.value
        if self._version != self._authorities.version:
            self._version = self._authorities.version
            self._verdicts.clear()
        if (verdict := self._verdicts.get(pem)) is None:
            if len(self._verdicts) >= _MAX_CACHED + len(self._calls):
                self._verdicts.clear()
            try:
                chain = x509.load_pem_x509_certificates(pem)
            except ValueError:
                return Status(Code.UNAUTHENTICATED, "the caller's certificate cannot be read")
            verdict = self._verdicts[pem] = check_chain(chain, authorities)
        problem = verdict.problem
        if problem is None and self._now() > verdict.expires:
            problem = f"expired on {verdict.expires:%Y-%m-%d %H:%M} UTC"
        if problem is None:
            return None
        shown = f"the caller's certificate, with the serial number {verdict.serial_number:x}"
        return Status(Code.UNAUTHENTICATED, f"{shown}, {problem}")


def _parse_crls(pem: bytes) -> Iterator[x509.CertificateRevocationList]:
    for text in pem.split(_CRL_BEGINS)[1:]:
        try:
            yield x509.load_pem_x509_crl(_CRL_BEGINS + text)
        except ValueError:
            raise UnusableFile(CRL_FLAG, "it holds a revocation list that is not in PEM form") from None


def _is_revoked(certificate: x509.Certificate, lists: Sequence[x509.CertificateRevocationList]) -> bool:
    return any(
        one.issuer == certificate.issuer and one.get_revoked_certificate_by_serial_number(certificate.serial_number)
        for one in lists
    )


def _is_list_of(one: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    try:
        return one.issuer == authority.subject and one.is_signature_valid(key)  # type: ignore[arg-type]  # any key
    except TypeError:  # a type of key that cannot sign
        return False


def _is_issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
