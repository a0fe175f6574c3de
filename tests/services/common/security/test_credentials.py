"""What is asked for and cannot be enforced ends a process that starts, with the flag's name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ringline.engine.v1 import engine_pb2

from services.common.config.errors import FatalError
from services.common.config.options import SettingError, build
from services.common.config.settings import (
    DetokenizerSettings,
    EngineServiceSettings,
    GatewaySettings,
    ProcessorSettings,
)
from services.common.security.certificate_authority import CertificateAuthority
from services.common.security.credentials import dialling_credentials, listening_credentials, service_authorizers
from services.common.security.file_reload import RETRY_INTERVAL, ReloadedFile, UnusableFile
from services.engine.service import METHOD_ROLES

ENGINE = engine_pb2.DESCRIPTOR.services_by_name["EngineService"]
HOUR = timedelta(hours=1)
CERT = {"tls_cert_file": "c", "tls_key_file": "k"}
MUTUAL = {**CERT, "tls_ca_file": "a"}
ELSEWHERE = {"engines": ("engine-1:50061",)}


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (EngineServiceSettings, {"tls_cert_file": "c"}, "tls_cert_file"),
        (EngineServiceSettings, {"tls_key_file": "k"}, "tls_key_file"),
        (EngineServiceSettings, {"tls_ca_file": "a"}, "tls_ca_file"),
        (EngineServiceSettings, CERT, "tls_cert_file"),
        (EngineServiceSettings, {**MUTUAL, "uds": "/s"}, "tls_cert_file"),
        (EngineServiceSettings, {"service_token_file": "t", "host": "0.0.0.0"}, "service_token_file"),
        (EngineServiceSettings, {**MUTUAL, "service_identities": ()}, "service_identities"),
        (EngineServiceSettings, {**MUTUAL, "service_identities": ("spiffe://x/y",)}, "service_identities"),
        (EngineServiceSettings, {**MUTUAL, "service_identities": ("client=spiffe://x/y",)}, "service_identities"),
        (EngineServiceSettings, {**MUTUAL, "service_identities": ("processor=",)}, "service_identities"),
        (DetokenizerSettings, {"service_token_file": "t", **ELSEWHERE}, "service_token_file"),
        (ProcessorSettings, {"service_token_file": "t", **ELSEWHERE}, "service_token_file"),
        (GatewaySettings, {"service_token_file": "t"}, "service_token_file"),
        (ProcessorSettings, {"tls_client_auth": "require"}, "tls_client_auth"),
        (ProcessorSettings, {**MUTUAL, "tls_crl_file": "r"}, "tls_crl_file"),
        (EngineServiceSettings, {**MUTUAL, "tls_client_auth": "none", "tls_crl_file": "r"}, "tls_crl_file"),
        (ProcessorSettings, {**CERT, "tls_client_auth": "require"}, "tls_client_auth"),
    ],
)
def test_options_that_would_be_in_vain_are_refused(kind, options, named) -> None:
    with pytest.raises(SettingError) as caught:
        build(kind(), options)
    assert caught.value.option == named


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (EngineServiceSettings, MUTUAL),
        (EngineServiceSettings, {**CERT, "service_token_file": "t"}),
        (EngineServiceSettings, {**CERT, "tls_client_auth": "none"}),
        (EngineServiceSettings, {"service_token_file": "t"}),
        (EngineServiceSettings, {"service_token_file": "t", "uds": "/s"}),
        (DetokenizerSettings, {"service_token_file": "t", "engines": ("unix:/s", "localhost:1", "[::1]:1")}),
        (ProcessorSettings, {**CERT, "host": "0.0.0.0", **ELSEWHERE}),
        (ProcessorSettings, {"tls_ca_file": "a", "service_token_file": "t", **ELSEWHERE}),
    ],
)
def test_others_are_not(kind, options) -> None:
    build(kind(), options)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A certificate, its key and its authority, as options."""
    authority, now = CertificateAuthority.make("test", valid=HOUR), datetime.now(UTC)
    issued = authority.issue("engine", hosts=["localhost"], uri="spiffe://x/y", begin=now, end=now + HOUR)
    past = authority.issue("engine", hosts=["localhost"], uri="spiffe://x/y", begin=now - 3 * HOUR, end=now - HOUR)
    contents = {
        "tls_cert_file": issued.certificate,
        "tls_key_file": issued.key,
        "tls_ca_file": authority.certificate,
        "expired": past.certificate,
        "expired_key": past.key,
        "empty": b"\n",
        "text": b"hello",
        "short": b"0123456789abcdef",
        "spaced": b"0123456789abcdef 0123456789abcdef",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in contents}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tls_cert_file": "absent"}, "--tls-cert-file: .*/absent cannot be read: No such file"),
        ({"tls_cert_file": "empty"}, "--tls-cert-file: .*/empty is empty"),
        ({"tls_cert_file": "text"}, "--tls-cert-file: it holds no certificate"),
        ({"tls_cert_file": "expired", "tls_key_file": "expired_key"}, "--tls-cert-file: the certificate expired on"),
        ({"tls_key_file": "text"}, "--tls-key-file: it holds no private key"),
        ({"tls_key_file": "expired_key"}, "--tls-key-file: the key is not that of the certificate"),
        ({"tls_ca_file": "text"}, "--tls-ca-file: it holds no certificate"),
        ({"tls_ca_file": "empty"}, "--tls-ca-file: .*/empty is empty"),
        ({"service_token_file": "empty"}, "--service-token-file: .*/empty is empty"),
        ({"service_token_file": "short"}, "--service-token-file: token 1 is not usable: expected 32 to"),
        ({"service_token_file": "spaced"}, "--service-token-file: token 1 is not usable"),
    ],
)
def test_files_that_cannot_be_used_end_a_process_with_their_flag(files, wrong, words, tmp_path) -> None:
    own = {name: files[name] for name in ("tls_cert_file", "tls_key_file", "tls_ca_file")}
    changed = {name: str(tmp_path / file) for name, file in wrong.items()}
    engine = build(EngineServiceSettings(), own | changed)
    with pytest.raises(FatalError, match=words) as caught:  # noqa: PT012  # whichever of the two meets it
        listening_credentials(engine, internal=True)
        service_authorizers(engine, ENGINE, METHOD_ROLES)
    assert "0123456789" not in str(caught.value)
    with pytest.raises(FatalError, match=words):
        dialling_credentials(build(DetokenizerSettings(), own | changed))


def test_where_nothing_is_required_nothing_is_checked_and_there_is_no_tls() -> None:
    engine = EngineServiceSettings()
    assert (listening_credentials(engine, internal=True), service_authorizers(engine, ENGINE, METHOD_ROLES)) == (
        None,
        [],
    )


def test_a_file_is_read_again_when_it_changed_and_kept_when_it_cannot_be_used(tmp_path: Path) -> None:
    path, reads = tmp_path / "f", []

    def parse(contents):
        reads.append(contents["--f"])
        return contents["--f"]

    path.write_bytes(b"one")
    watched = ReloadedFile({"--f": str(path)}, parse)
    assert (watched.value, watched.value, len(reads)) == (b"one", b"one", 1)
    (tmp_path / "new").write_bytes(b"two and more")
    (tmp_path / "new").replace(path)
    assert (watched.value, watched.version) == (b"two and more", 1)
    path.write_bytes(b"")
    assert (watched.value, watched.version) == (b"two and more", 1)
    path.unlink()
    assert (watched.value, watched.version) == (b"two and more", 1)
    path.write_bytes(b"three")
    assert (watched.value, watched.version) == (b"three", 2)


def test_a_file_that_could_not_be_used_is_tried_again_without_another_change(tmp_path: Path) -> None:
    path, now, reads, usable = tmp_path / "f", [100.0], [], [True]

    def parse(contents):
        reads.append(contents["--f"])
        if not usable[0]:
            raise UnusableFile("--f", "not yet")
        return contents["--f"]

    path.write_bytes(b"one")
    watched = ReloadedFile({"--f": str(path)}, parse, now=lambda: now[0])
    usable[0] = False
    path.write_bytes(b"two and more")
    assert [watched.value for _ in range(5)] == [b"one"] * 5
    assert len(reads) == 2, "not for every call"
    now[0] += RETRY_INTERVAL
    assert (watched.value, len(reads)) == (b"one", 3)
    usable[0] = True
    assert watched.value == b"one"
    now[0] += RETRY_INTERVAL
    assert (watched.value, watched.version) == (b"two and more", 1)
    now[0] += RETRY_INTERVAL
    assert (watched.value, len(reads)) == (b"two and more", 4)
