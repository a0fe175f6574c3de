"""The ports of a stack: one that is chosen brings no other into conflict."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from services.cli.commands.serve import ENGINE_SETTINGS
from services.cli.supervise import stack
from services.cli.supervise.runtime_directory import RuntimeDirectory
from services.cli.supervise.stack import (
    StackOptions,
    child_specs,
    choose_http_port,
    choose_ports,
    service_addresses,
)
from tests.ports import HeldPort

HOST = "127.0.0.1"


def test_what_is_given_is_taken_as_it_is() -> None:
    assert choose_ports(HOST, 50051, None) == (50051, 60051)
    assert choose_ports(HOST, 60000, None) == (60000, 50000)
    assert choose_ports(HOST, 50051, 9090) == (50051, 9090)
    assert choose_ports(HOST, 0, 9090)[1] == 9090


def test_the_next_http_port_is_taken_only_where_none_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(stack, "GATEWAY_PORT", port)
        assert choose_http_port(HOST, None) > port
        assert choose_http_port(HOST, port) == port
        assert choose_http_port(HOST, 0) not in (0, port)
        following = choose_http_port(HOST, None)
        assert choose_http_port(HOST, None, {following}) > following
        with socket.create_connection((HOST, port)), taken.accept()[0] as accepted:
            accepted.shutdown(socket.SHUT_WR)  # so that the server's side lingers
    assert choose_http_port(HOST, None) == port


@pytest.mark.parametrize("with_certificate", [True, False])
def test_the_gateway_speaks_to_the_processor_as_that_listens(with_certificate: bool, tmp_path: Path) -> None:
    files = {"tls_ca_file": "ca", **({"tls_cert_file": "cert", "tls_key_file": "key"} if with_certificate else {})}
    options = StackOptions("0.0.0.0", 7, 10, (), {**files, "cors_origins": ("https://a.example",)}, http_port=9)
    *_, gateway = child_specs(options, RuntimeDirectory(tmp_path))
    assert options.http_url == f"http{'s' if with_certificate else ''}://127.0.0.1:9"
    told = dict(flag.split("=", 1) for flag in gateway.argv if "=" in flag)
    assert (told["--host"], told["--port"], told["--processors"]) == ("0.0.0.0", "9", "127.0.0.1:7")
    assert (told["--metrics-port"], told["--cors-origins"]) == ("40", "https://a.example")
    trusted = [told.get(flag) for flag in ("--processor-cert-file", "--tls-cert-file", "--tls-ca-file")]
    assert trusted == (["cert", "cert", "ca"] if with_certificate else [None, None, None])


def test_a_key_is_on_no_command_line(tmp_path: Path) -> None:
    specs = child_specs(
        StackOptions(HOST, 7, None, (), {"api_key": ("one", "two")}, http_port=9), RuntimeDirectory(tmp_path)
    )
    assert not [spec.name for spec in specs if "one" in " ".join(spec.argv)]
    assert {spec.name for spec in specs if "one,two" in spec.env.values()} == {"processor"}


@pytest.mark.parametrize("offset", [0, 10, 20, 30])
@pytest.mark.parametrize("metrics_port", [None, 0])
def test_a_port_is_chosen_again_where_metrics_of_a_service_would_find_theirs_taken(
    offset: int, metrics_port: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = HeldPort()
    bad = taken.number - offset
    if metrics_port is None:
        bad += -10000 if bad > 20000 else 10000
    offered = iter([bad, bad] if metrics_port == 0 else [bad])
    free = stack._free_port
    monkeypatch.setattr(stack, "_free_port", lambda host: next(offered, None) or free(host))
    _, metrics = choose_ports(HOST, 0, metrics_port)
    assert taken.number not in (metrics, metrics + 10, metrics + 20, metrics + 30)
    taken.release()


def test_engines_and_detokenizers_of_a_number_are_linked_to_all_others(tmp_path: Path) -> None:
    values, counts = {"data_parallel_size": 2, "num_threads": 1}, {"engine": 2, "detokenizer": 3}
    options = StackOptions(HOST, 7, 10, ENGINE_SETTINGS, values, counts=counts)
    children = child_specs(options, directory := RuntimeDirectory(tmp_path))
    names = ["engine-0", "engine-1", "detokenizer-0", "detokenizer-1", "detokenizer-2", "processor"]
    assert [child.name for child in children] == [each.name for each in options.instances] == names
    assert [child.needed for child in children] == [False] * 5 + [True]
    told = {child.name: dict(flag.split("=", 1) for flag in child.argv if "=" in flag) for child in children}
    engines, detokenizers = (
        ",".join(f"unix:{directory.socket(name)}" for name in names if name.startswith(service))
        for service in ("engine", "detokenizer")
    )
    assert [told[f"engine-{number}"]["--data-parallel-rank"] for number in (0, 1)] == ["0", "1"]
    assert {told[name]["--data-parallel-size"] for name in names[:2]} == {"2"}
    assert {told[name]["--engines"] for name in names[2:]} == {engines}
    assert told["processor"]["--detokenizers"] == detokenizers
    assert [told[name]["--uds"] for name in names[:5]] == [directory.socket(name) for name in names[:5]]
    assert [told[name]["--metrics-port"] for name in names] == ["20", "21", "30", "31", "32", "10"]
    assert list(service_addresses(options, directory)) == names


@pytest.mark.parametrize("files", [{}, {"tls_cert_file": "cert", "tls_key_file": "key"}])
def test_doors_of_a_number_share_their_ports_and_have_sockets_of_their_own(
    files: dict[str, str], tmp_path: Path
) -> None:
    counts = {"processor": 2, "gateway": 3}
    options = StackOptions(HOST, 7, 10, ENGINE_SETTINGS, files, http_port=9, counts=counts)
    children = child_specs(options, directory := RuntimeDirectory(tmp_path))
    told = {child.name: dict(flag.partition("=")[::2] for flag in child.argv) for child in children}
    assert [child.name for child in children if child.needed] == ["engine", "detokenizer"]
    processors, gateways = ["processor-0", "processor-1"], ["gateway-0", "gateway-1", "gateway-2"]
    for names, port in ((processors, "7"), (gateways, "9")):
        assert {(told[name]["--host"], told[name]["--port"]) for name in names} == {(HOST, port)}
        assert [told[name]["--uds"] for name in names] == [directory.socket(name) for name in names]
        assert all("--share-port" in told[name] for name in names)
    links = ",".join(f"unix:{directory.socket(name)}" for name in processors)
    assert {told[name]["--processors"] for name in gateways} == {links}
    assert not any("--processor-cert-file" in told[name] for name in gateways)
    assert service_addresses(options, directory)["gateway-2"] == f"unix:{directory.socket('gateway-2')}"
    assert [told[name]["--metrics-port"] for name in (*processors, *gateways)] == ["10", "11", "40", "41", "42"]


def test_the_ports_of_all_engines_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = HeldPort()
    offered = iter([taken.number - 11])
    free = stack._free_port
    monkeypatch.setattr(stack, "_free_port", lambda host: next(offered, None) or free(host))
    assert choose_ports(HOST, 50051, 0, {"engine": 2})[1] != taken.number - 11
    taken.release()
