"""The services' settings: names, addresses and ports that follow from them, and what is refused."""

import pytest

from services.common.config.options import SettingError
from services.common.config.settings import (
    EngineServiceSettings,
    ProcessorSettings,
    ServerSettings,
    TelemetrySettings,
)


@pytest.mark.parametrize(
    ("server", "address"),
    [
        (ServerSettings(host="0.0.0.0", port=7), "0.0.0.0:7"),
        (ServerSettings(host="::1", port=7), "[::1]:7"),
        (ServerSettings(port=7, uds="/run/x.sock"), "unix:/run/x.sock"),
    ],
)
def test_the_address_is_written_as_grpc_reads_it(server, address):
    assert server.address == address


@pytest.mark.parametrize(
    ("server", "telemetry", "address"),
    [
        (ServerSettings(port=50051), TelemetrySettings(), ("127.0.0.1", 60051)),
        (ServerSettings(host="0.0.0.0", port=60000), TelemetrySettings(), ("0.0.0.0", 50000)),
        (ServerSettings(port=0), TelemetrySettings(), ("127.0.0.1", 0)),
        (ServerSettings(port=50051), TelemetrySettings(metrics_port=9), ("127.0.0.1", 9)),
        (ServerSettings(uds="/x"), TelemetrySettings(), None),
        (ServerSettings(uds="/x", host="0.0.0.0"), TelemetrySettings(metrics_port=9), ("127.0.0.1", 9)),
        (ServerSettings(port=50051), TelemetrySettings(metrics=False, metrics_port=9), None),
    ],
)
def test_where_metrics_are_answered(server, telemetry, address):
    assert ProcessorSettings(server=server, telemetry=telemetry).metrics_address == address


def test_a_name_is_stable_and_differs_between_neighbours():
    first, second = (ProcessorSettings(server=ServerSettings(port=port)).name for port in (1, 2))
    assert first == ProcessorSettings(server=ServerSettings(port=1)).name
    assert first != second
    assert ProcessorSettings(server=ServerSettings(name="p-0")).name == "p-0"
    assert EngineServiceSettings(server=ServerSettings(uds="/run/a b/left.sock")).name.endswith("-left")


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 129, "a/b"])
def test_a_name_that_may_not_stand_in_a_hello_is_refused(name):
    with pytest.raises(SettingError, match="name="):
        ServerSettings(name=name)


def test_a_service_without_any_engine_is_refused():
    with pytest.raises(SettingError, match="at least one address"):
        ProcessorSettings(engines=())


def test_a_socket_path_that_the_kernel_would_cut_is_refused():
    ServerSettings(uds="/" + "x" * 106)
    with pytest.raises(SettingError, match="uds="):
        ServerSettings(uds="/" + "x" * 107)
