"""What a client shows to whom, and what it refuses to send."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import ringline
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.runtime.authority import Authority

HOUR = timedelta(hours=1)


class Mirror(inference_pb2_grpc.InferenceServiceServicer):
    """Tells callers, as the name of its one model, what they showed."""

    async def ListModels(self, request, context):
        shown = dict(context.invocation_metadata()).get("authorization", "nothing")
        (name,) = context.auth_context().get("x509_common_name", [b"nobody"])
        return inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name=f"{name.decode()} with {shown}")])


def write(folder: Path, authority: Authority, name: str) -> None:
    now = datetime.now(UTC)
    issued = authority.issue(name, hosts=["localhost"], uri="spiffe://ringline/client", begin=now, end=now + HOUR)
    (folder / "key.pem").write_bytes(issued.key)
    (folder / "cert.pem").write_bytes(issued.certificate)


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_a_token_is_asked_for_with_each_call(kind: str, tmp_path: Path) -> None:
    authority = Authority.make("test", valid=HOUR)
    write(tmp_path, authority, "first")
    pair = [((tmp_path / "key.pem").read_bytes(), (tmp_path / "cert.pem").read_bytes())]
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Mirror(), server)
    if kind == "tls":
        credentials = grpc.ssl_server_credentials(pair, authority.certificate, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tokens = iter(["one", "two", "three"])
    files = {"ca": authority.certificate, "cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    options = files if kind == "tls" else {}
    async with ringline.AsyncClient(f"localhost:{port}", token=lambda: next(tokens), timeout=30, **options) as client:
        told = [(await client.models())[0].name for _ in range(2)]
        write(tmp_path, authority, "second")
        told.append((await client.models())[0].name)
    await server.stop(None)
    names = ["first", "first", "second"] if kind == "tls" else ["nobody"] * 3
    assert told == [f"{name} with Bearer {token}" for name, token in zip(names, ("one", "two", "three"), strict=True)]


@pytest.mark.parametrize(
    ("address", "options", "field"),
    [
        ("10.0.0.1:50051", {"token": "t"}, "token"),
        ("localhost:1,dns:///elsewhere:50051", {"token": "t"}, "token"),
        ("localhost:1", {"ca": b"x", "cert": b"x"}, "cert"),
        ("localhost:1", {"ca": b"x", "key": b"x"}, "key"),
        ("localhost:1", {"server_name": "x"}, "server_name"),
        ("localhost:1", {"tls": True, "credentials": grpc.ssl_channel_credentials()}, "credentials"),
        ("localhost:1", {"ca": "no/such/file"}, "ca"),
    ],
)
def test_what_does_not_go_together_is_refused(address: str, options: dict, field: str) -> None:
    with pytest.raises(ringline.InvalidRequest) as caught:
        ringline.Client(address, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "[::1]:1", "unix:/x.sock", "localhost:1", "ipv4:127.0.0.1:1", "dns:///localhost:1"]
)
def test_a_token_may_stay_on_this_machine(address: str) -> None:
    ringline.Client(address, token="t").close()
