"""Traces: what is asked for is had or refused, and nothing of it is there where it is not asked for."""

from __future__ import annotations

import time

import pytest

from services.common.config.options import SettingError
from services.common.config.settings import DetokenizerSettings, TelemetrySettings
from services.common.telemetry.tracing import Tracing, WallClock, carrier_of, collector_options, start_tracing
from tests.programs import python


def settings(**telemetry: object) -> DetokenizerSettings:
    return DetokenizerSettings(telemetry=TelemetrySettings(**telemetry))  # type: ignore[arg-type]


def test_services_that_do_not_trace_import_nothing_for_it() -> None:
    code = "import sys, services.processor.main, services.detokenizer.main, services.engine.async_engine\n"
    code += "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert python(code).returncode == 0
    assert start_tracing(settings()) is None


def test_where_opentelemetry_is_not_installed_it_is_named() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from services.common.config.settings import DetokenizerSettings, TelemetrySettings
from services.common.telemetry.tracing import start_tracing
start_tracing(DetokenizerSettings(telemetry=TelemetrySettings(otlp_traces_endpoint="http://127.0.0.1:1")))
"""
    result = python(code)
    assert "--otlp-traces-endpoint needs opentelemetry" in result.stderr
    assert "pip install 'ringline-server[tracing]'" in result.stderr


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "grpc://collector", ""])
def test_an_endpoint_says_whether_it_is_tls(endpoint: str) -> None:
    with pytest.raises(SettingError, match="http://host:port"):
        TelemetrySettings(otlp_traces_endpoint=endpoint)


@pytest.mark.parametrize(
    ("endpoint", "proxied"),
    [
        ("http://127.0.0.1:4317", 0),
        ("http://LOCALHOST:4317/", 0),
        ("https://[::1]:4317", 0),
        ("http://collector:4317", 1),
    ],
)
def test_a_collector_on_this_machine_is_dialled_without_a_proxy(endpoint: str, proxied: int) -> None:
    assert collector_options(endpoint) == (("grpc.enable_http_proxy", proxied),)


@pytest.fixture
def tracing():
    made = Tracing(settings(otlp_traces_endpoint="http://127.0.0.1:1", traces_sample_ratio=0.0))
    yield made
    made.close()


def test_the_caller_decides_and_else_the_ratio(tracing: Tracing) -> None:
    ids = f"00-{'1' * 32}-{'2' * 16}"
    assert tracing.begin("request", {}, 0.0) is None
    assert tracing.begin("request", {"traceparent": f"{ids}-00"}, 0.0) is None
    span = tracing.begin("request", {"traceparent": f"{ids}-01", "tracestate": "a=b"}, 0.0)
    assert span is not None
    own = tracing.traceparent(span)
    assert own.startswith(f"00-{'1' * 32}-")
    assert own.endswith("-01")
    assert "2" * 16 not in own


def test_a_monotonic_time_is_a_time_on_the_wall() -> None:
    clock = WallClock()
    before = time.time_ns()
    between = clock.nanoseconds(time.monotonic())
    after = time.time_ns()
    assert before - 1e9 < between < after + 1e9
    assert clock.nanoseconds(12.5) - clock.nanoseconds(10.0) == 2_500_000_000


def test_of_a_calls_metadata_only_its_trace_is_taken() -> None:
    metadata = (("traceparent", "a"), ("authorization", "secret"), ("tracestate", "b"), ("traceparent", b"bytes"))
    assert carrier_of(metadata) == {"traceparent": "a", "tracestate": "b"}
