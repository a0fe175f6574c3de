"""Commands beside a stack whose processor serves TLS and asks for tokens."""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from services.cli.commands.certs import ROLES
from services.cli.main import cli
from tests.programs import ringline
from tests.ring import Ring, running_ring
from tests.services.secured_ring import Certificates, user_token, write_tokens

pytestmark = pytest.mark.long

SECONDS = 60.0
"""For which a service may stand still before it is said to be unreachable."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured-stack")


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[Ring]:
    certificates = Certificates(folder)
    certificates.issue("processor")
    write_tokens(folder, {user_token("blue"): "blue"})
    (folder / "my-token").write_text(user_token("blue") + "\n")
    files = {"cert": "processor", "key": "processor-key"}
    flags = [f"--tls-{flag}-file={certificates.path(name)}" for flag, name in files.items()]
    with running_ring(folder, *flags, f"--auth-token-file={folder / 'tokens'}", http=True) as ring:
        yield ring


@pytest.fixture
def run(stack: Ring, folder: Path):
    """Runs a command with what it needs in its environment, as in a container."""

    def run(*arguments: str, **variables: str | None) -> Result:
        environment = {
            "RINGLINE_ADDRESS": stack.address,
            "RINGLINE_TLS_CA_FILE": str(folder / "ca.pem"),
            "RINGLINE_TOKEN_FILE": str(folder / "my-token"),
        }
        return CliRunner(env=environment | variables).invoke(cli, arguments, standalone_mode=False)

    return run


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.commands._diagnosis._SECONDS", SECONDS)


def test_commands_are_let_in(run, stack: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.commands.status._TIMEOUT", SECONDS)
    assert run("health", stack.address, "--timeout", str(SECONDS)).output == "SERVING\n"
    generated = run("generate", "Once", "--max-tokens", "4", "--ignore-eos", "--json")
    assert json.loads(generated.output)["usage"]["completion_tokens"] == 4
    load = run("bench", "--requests", "2", "--input-len", "4", "--output-len", "4", "--json")
    assert json.loads(load.output)["completed"] == 2
    (shown,) = json.loads(run("status", "--address", stack.address, "--json").output)["stacks"]
    services = {service["service"]: service for service in shown["services"]}
    assert {service["health"] for service in services.values()} == {"SERVING"}
    assert services["processor"]["models"][0]["max_model_len"] > 0


def test_the_token_may_be_in_the_environment_itself(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.commands.status._TIMEOUT", SECONDS)
    own = {"RINGLINE_TOKEN_FILE": None, "RINGLINE_TOKEN": user_token("blue")}
    generated = run("generate", "Once", "--max-tokens", "4", "--json", **own)
    assert json.loads(generated.stdout)["usage"]["completion_tokens"] <= 4
    assert not generated.stderr, "it is a known variable"
    (shown,) = json.loads(run("status", "--json", **own).output)["stacks"]
    assert "processor" in {service["service"] for service in shown["services"]}
    own["RINGLINE_TOKEN"] = user_token("red")
    assert "UNAUTHENTICATED" in str(run("generate", "Once", **own).exception)


def test_the_gateway_has_the_certificate_and_asks_the_processor_for_whom(stack: Ring, folder: Path) -> None:
    trusting = ssl.create_default_context(cafile=folder / "ca.pem")

    def status(tenant: str) -> int:
        asked = Request(f"{stack.http}/v1/models", headers={"authorization": f"Bearer {user_token(tenant)}"})
        try:
            return urlopen(asked, timeout=SECONDS, context=trusting).status
        except HTTPError as error:
            return error.code

    assert stack.http.startswith("https://")
    assert [status("blue"), status("red")] == [HTTPStatus.OK, HTTPStatus.UNAUTHORIZED]


def test_without_what_they_need_they_say_so(run, stack: Ring, folder: Path) -> None:
    without_token = run("health", stack.address, "--timeout", str(SECONDS), RINGLINE_TOKEN_FILE=None)
    assert without_token.output == "SERVING\n"
    refused = run("generate", "Once", RINGLINE_TOKEN_FILE=None)
    assert "UNAUTHENTICATED: authorization: missing" in str(refused.exception)
    in_clear = run("generate", "Once", "--address", "203.0.113.1:50051", RINGLINE_TLS_CA_FILE=None)
    assert "--token-file: it would be sent to 203.0.113.1:50051 unencrypted" in str(in_clear.exception)
    own = {"RINGLINE_TOKEN_FILE": None, "RINGLINE_TOKEN": "mine"}
    in_clear = run("generate", "Once", "--address", "203.0.113.1:50051", RINGLINE_TLS_CA_FILE=None, **own)
    assert "RINGLINE_TOKEN: it would be sent to 203.0.113.1:50051 unencrypted" in str(in_clear.exception)
    assert "RINGLINE_TOKEN: no token: " in str(
        run("generate", "Once", **own | {"RINGLINE_TOKEN": "two words"}).exception
    )
    for command in (
        ("health", "203.0.113.1:50051"),
        *((name, "--address", "203.0.113.1:50051") for name in ("status", "bench")),
    ):
        in_clear = run(*command, RINGLINE_TLS_CA_FILE=None)
        assert "--token-file: it would be sent to 203.0.113.1:50051 unencrypted" in str(in_clear.exception), command
    absent = run("generate", "Once", "--token-file", str(folder / "absent"))
    assert "--token-file: " in str(absent.exception)
    assert "cannot be read" in str(absent.exception)


HOSTS = ("127.0.0.1", "localhost")
COMMANDS = ("generate", "chat", "bench", "status", "health")
WRONG = [
    ({"RINGLINE_TLS_CA_FILE": None, "RINGLINE_TOKEN_FILE": None}, (), "the server requires TLS: give --tls if"),
    ({"RINGLINE_TLS_CA_FILE": None}, ("--tls",), "the server's certificate is not trusted ("),
    ({}, ("--tls-server-name", "other.test"), "--tls-server-name the name that it is issued for"),
]
DIAGNOSES = [
    pytest.param(command, host, *wrong, marks=pytest.mark.wide if (i + j + k) % 2 else ())
    for i, command in enumerate(COMMANDS)
    for j, host in enumerate(HOSTS)
    for k, wrong in enumerate(WRONG)
]
"""Each command with each mistake at one host of the two, and each mistake at both."""


@pytest.mark.parametrize(("command", "host", "variables", "flags", "expected"), DIAGNOSES)
def test_what_is_wrong_with_tls_is_named(run, stack: Ring, command, host, variables, flags, expected) -> None:
    address = f"{host}:{stack.address.rpartition(':')[2]}"
    arguments = {"generate": ("Once", "--address", address), "health": (address,)}.get(command, ("--address", address))
    failed = run(command, *arguments, *flags, **variables)
    assert expected in failed.output + str(failed.exception)


def test_a_server_without_tls_and_one_that_wants_a_certificate_are_told_apart(run, tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    certificates = Certificates(tmp_path)
    certificates.issue("processor")
    shown = [((tmp_path / "processor-key.pem").read_bytes(), (tmp_path / "processor.pem").read_bytes())]
    mutual = grpc.ssl_server_credentials(shown, (tmp_path / "ca.pem").read_bytes(), require_client_auth=True)
    ports = server.add_insecure_port("127.0.0.1:0"), server.add_secure_port("127.0.0.1:0", mutual)
    server.start()
    try:
        plain, strict = (
            run("health", f"127.0.0.1:{port}", RINGLINE_TLS_CA_FILE=str(tmp_path / "ca.pem")).output for port in ports
        )
    finally:
        server.stop(None).wait()
    assert "if the server does not use TLS, leave out --tls" in plain
    assert "which --tls-cert-file and --tls-key-file give" in strict


def test_failed_handshakes_print_nothing_of_grpcs_own(stack: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    command = ("health", stack.address, "--tls", "--timeout", "30")
    failed = ringline(*command)
    assert (failed.returncode, failed.stdout) == (1, "UNREACHABLE\n")
    assert "Handshake failed" not in failed.stderr
    assert "Handshake failed" in ringline(*command, env={"GRPC_VERBOSITY": "INFO"}).stderr


def test_certs_and_tokens_are_made(tmp_path: Path) -> None:
    runner = CliRunner()
    first = runner.invoke(cli, ["certs", str(tmp_path), "--host", "engine-1", "--days", "2"], standalone_mode=False)
    assert "certificates for 2 days" in first.output
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    files = {str(path.relative_to(tmp_path)) for path in before}
    own = {f"{role}/{name}" for role in ROLES for name in ("tls.crt", "tls.key", "ca.crt")}
    assert files == own | {"authority/ca.crt", "authority/ca.key"}
    keys = [text for path, text in before.items() if path.suffix == ".key"]
    assert len(set(keys)) == len(ROLES) + 1, "no two have the same, nor the authority's"
    assert {text for path, text in before.items() if path.name == "ca.crt"} == {before[tmp_path / "authority/ca.crt"]}
    runner.invoke(cli, ["certs", str(tmp_path), "--role", "engine"], standalone_mode=False)
    changed = {path for path, text in before.items() if path.read_bytes() != text}
    assert changed == {tmp_path / "engine/tls.crt", tmp_path / "engine/tls.key"}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*/*.key")} == {0o600}
    runner.invoke(cli, ["certs", str(tmp_path), "--role", "processor", "--name", "blue"], standalone_mode=False)
    blue = x509.load_pem_x509_certificate((tmp_path / "blue/tls.crt").read_bytes())
    names = blue.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://ringline/processor/blue"]
    for wrong in (("--name", "blue"), ("--role", "client", "--name", "blue"), ("--role", "operator", "--name", "a/b")):
        assert runner.invoke(cli, ["certs", str(tmp_path), *wrong]).exit_code == 2
    made = runner.invoke(cli, ["token", "blue"], standalone_mode=False)
    token, line = made.stderr.strip(), made.stdout.strip()
    assert token.startswith("rl-")
    tenant, digest = line.split(" ")
    write_tokens(tmp_path, {token: "blue"})
    assert (tmp_path / "tokens").read_text() == f"{tenant} {digest}"


PEERS = ("--engines=127.0.0.1:1", "--detokenizers=127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("processor", *PEERS, "--tls-cert-file=absent"), 2, "--tls-cert-file (RINGLINE_TLS_CERT_FILE): 'absent'"),
        (("processor", *PEERS, "--tls-cert-file=absent", "--tls-key-file=absent"), 3, "--tls-cert-file: absent cannot"),
        (("processor", *PEERS, "--auth-token-file=useless"), 3, "--auth-token-file: line 1 is not usable"),
        (("detokenizer", PEERS[0], "--service-token-file=useless"), 3, "--service-token-file: token 1 is not usable"),
    ],
)
def test_a_process_does_not_start_with_what_it_cannot_enforce(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "useless").write_text("too short")
    flags = (arguments[0], "--port=0", "--no-metrics", *arguments[1:])
    done = ringline(*flags, cwd=tmp_path, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.returncode, words in done.stderr, "too short" in done.stderr) == (code, True, False), done.stderr
