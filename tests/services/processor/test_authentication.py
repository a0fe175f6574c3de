"""Unusable files of tokens and keys, and options without effect, end a processor at its start."""

from __future__ import annotations

import json
import time
from contextvars import copy_context
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from services.common.config.errors import FatalError
from services.common.config.options import SettingError, build
from services.common.config.security_settings import ClientAuthSettings
from services.common.config.settings import ProcessorSettings
from services.processor.authentication import client_authorizers
from services.processor.json_web_tokens import JsonWebTokens
from services.processor.principal import authenticated
from services.ring.errors import Refused

DIGEST = "0123456789abcdef" * 4
PUBLIC = {**ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True), "kid": "one"}
SECRET = {"kty": "oct", "kid": "two", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}
JWT = {"auth_jwks_file": "j", "auth_jwt_issuer": "i", "auth_jwt_audience": "a"}
CERT = {"tls_cert_file": "c", "tls_key_file": "k"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" \n", "is empty"),
        ("# nothing\n", "it names no token"),
        ("blue", "line 1 is not usable"),
        (f"# first\nblue {DIGEST}", "line 2 is not usable"),
        (f"blue sha256:{DIGEST[1:]}", "line 1 is not usable"),
        (f"{'b' * 129} sha256:{DIGEST}", "line 1 is not usable"),
        (f"blue sha256:{DIGEST}\nred sha256:{DIGEST.upper()}", "line 2 gives a token to a second tenant"),
    ],
)
def test_unusable_token_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(FatalError, match=f"^--auth-token-file: .*{words}") as caught:
        client_authorizers(ClientAuthSettings(auth_token_file=str(tmp_path / "t")))
    assert "0123456789" not in str(caught.value)


def test_a_key_is_a_token_of_one_tenant_beside_those_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"blue sha256:{sha256(b'sky').hexdigest()}")
    settings = ClientAuthSettings(auth_token_file=str(tmp_path / "t"), api_key=("one", "two"))
    (authenticate,) = client_authorizers(settings)

    def tenant(token: str) -> str:
        metadata = [("authorization", f"Bearer {token}")]
        call = copy_context()  # as each call has one of its own
        call.run(authenticate, SimpleNamespace(invocation_metadata=lambda: metadata), "")  # type: ignore[arg-type]
        principal = call[authenticated]
        assert principal is not None
        return principal.tenant

    assert [tenant(token) for token in ("one", "two", "sky")] == ["api-key", "api-key", "blue"]
    for token in ("three", "one,two"):
        with pytest.raises(Refused, match="the token is not known"):
            tenant(token)


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 8193])
def test_a_key_that_no_header_could_carry_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(SettingError, match="expected printable characters") as caught:
        ClientAuthSettings(api_key=("good", key))
    assert not key or key not in str(caught.value)


def test_keys_are_not_taken_where_others_could_read_them() -> None:
    with pytest.raises(SettingError, match="--tls-cert-file to be given, too") as caught:
        build(ProcessorSettings(), {"host": "0.0.0.0", "api_key": ("canary",)})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("hello", "it is not a JSON web key set"),
        ({"keys": {}}, "it holds no public key for signatures"),
        ({"keys": [SECRET]}, "it holds no public key for signatures"),
        ({"keys": [{**PUBLIC, "use": "enc"}]}, "it holds no public key for signatures"),
        ({"keys": [PUBLIC, PUBLIC]}, "two of its keys have the same name"),
        ({"keys": [{**PUBLIC, "crv": "P-1"}]}, "it holds no public key for signatures"),
        ([PUBLIC], "it is not a JSON web key set"),
    ],
)
def test_unusable_key_files_are_refused(keys: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "j").write_text(json.dumps(keys))
    with pytest.raises(FatalError, match=f"^--auth-jwks-file: .*{words}"):
        client_authorizers(ClientAuthSettings(**{**JWT, "auth_jwks_file": str(tmp_path / "j")}))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"auth_jwks_file": "j"}, "auth_jwks_file"),
        ({**JWT, "auth_jwt_audience": None}, "auth_jwks_file"),
        ({"auth_jwt_issuer": "i"}, "auth_jwt_issuer"),
        ({"auth_jwt_audience": "a"}, "auth_jwt_audience"),
        ({"auth_jwt_algorithms": ("none",)}, "auth_jwt_algorithms"),
        ({"auth_jwt_algorithms": ("ES256", "HS256")}, "auth_jwt_algorithms"),
        ({"auth_jwt_algorithms": ()}, "auth_jwt_algorithms"),
        ({"auth_jwt_tenant_claim": ""}, "auth_jwt_tenant_claim"),
        ({**JWT, "host": "0.0.0.0"}, "auth_jwks_file"),
        ({"auth_token_file": "t", "host": "10.0.0.1"}, "auth_token_file"),
    ],
)
def test_options_without_effect_are_refused(options: dict, named: str) -> None:
    with pytest.raises(SettingError) as caught:
        build(ProcessorSettings(), options)
    assert caught.value.option == named


@pytest.mark.parametrize(
    "options",
    [{"auth_token_file": "t"}, {"auth_token_file": "t", "uds": "/s"}, {**JWT, **CERT, "host": "0.0.0.0"}, JWT],
)
def test_usable_options_are_accepted(options: dict) -> None:
    build(ProcessorSettings(), options)


def test_without_files_there_is_no_authentication() -> None:
    assert client_authorizers(ClientAuthSettings()) == []


def signed_with(key: rsa.RSAPrivateKey, algorithm: str, kid: str = "rsa") -> str:
    claims = {"sub": "blue", "iss": "i", "aud": "a", "exp": time.time() + 3600}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid})


def test_foreign_keys_are_skipped_and_withdrawn_keys_are_not_trusted(tmp_path: Path) -> None:
    old, new = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    algorithms = ("RS512", "PS256")

    def write(key: rsa.RSAPrivateKey) -> None:
        public = {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "rsa"}
        foreign = [
            {**public, "kid": "two", "use": "enc", "alg": "RSA-OAEP"},
            {**public, "kid": "three", "alg": "RSA-OAEP"},
            {"kty": "AKP", "kid": "four", "pub": "x"},
        ]
        (tmp_path / "new").write_text(json.dumps({"keys": [*foreign, public]}))
        (tmp_path / "new").replace(tmp_path / "j")

    write(old)
    settings = ClientAuthSettings(**{**JWT, "auth_jwks_file": str(tmp_path / "j"), "auth_jwt_algorithms": algorithms})
    tokens = JsonWebTokens(settings)
    principals = [tokens.principal(signed_with(old, algorithm)) for algorithm in algorithms]
    assert [principal.tenant for principal in principals] == ["blue", "blue"]
    with pytest.raises(ValueError, match="signature algorithm is not accepted"):
        tokens.principal(signed_with(old, "RS256"))
    assert all(principal.is_valid() for principal in principals)
    write(new)
    assert not any(principal.is_valid() for principal in principals), "another key has the name now"
    with pytest.raises(ValueError, match="signature is not valid"):
        tokens.principal(signed_with(old, "PS256"))
    assert tokens.principal(signed_with(new, "PS256")).is_valid()
