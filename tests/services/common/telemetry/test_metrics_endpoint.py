"""The port that Prometheus asks: what it answers, and that nobody who asks can take it away from the others."""

import http.client
import socket
import urllib.error
import urllib.request

import pytest

from services.common.config.errors import FatalError
from services.common.config.settings import DetokenizerSettings, ServerSettings, TelemetrySettings
from services.common.telemetry.metrics_endpoint import MAX_CONNECTIONS, MetricsEndpoint, Page, start_metrics
from services.detokenizer.metrics import DetokenizerMetrics
from services.processor.metrics import ProcessorMetrics

PROMETHEUS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.fixture
def endpoint():
    pages = {"/": Page("text/html", lambda: b"<p>hello", {"X-Own": "1"})}
    running = MetricsEndpoint(ProcessorMetrics().registry, "127.0.0.1", 0, pages)
    yield running
    running.close()


def get(endpoint, path, method="GET", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{endpoint.port}{path}", headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers, answer.read()


def test_metrics_are_answered_where_the_settings_say_until_closed():
    metrics = DetokenizerMetrics()
    metrics.update(1, 4711, 1, 1, 1)
    endpoint = start_metrics(DetokenizerSettings(server=ServerSettings(port=0)), metrics.registry)
    url = f"http://127.0.0.1:{endpoint.port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert "ringline_decoded_tokens_total" in (text := answer.read().decode())
        assert "4711.0" in text
    endpoint.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_no_endpoint_where_none_is_wanted_and_a_taken_port_is_said_in_words():
    registry = DetokenizerMetrics().registry
    assert start_metrics(DetokenizerSettings(telemetry=TelemetrySettings(metrics=False)), registry) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = DetokenizerSettings(telemetry=TelemetrySettings(metrics_port=port))
        with pytest.raises(FatalError, match=f"metrics port {port} is in use: choose another with --metrics-port"):
            start_metrics(settings, registry)


def test_names_are_the_same_whatever_format_is_asked_for(endpoint):
    """Prometheus prefers OpenMetrics, in which a colon in a name becomes something else."""
    headers, body = get(endpoint, "/metrics", Accept=PROMETHEUS)
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"\nvllm:generation_tokens_total{" in body


def test_other_paths_are_answered_as_they_were_given(endpoint):
    headers, body = get(endpoint, "/?x=1")
    assert (headers["Content-Type"], headers["X-Own"], headers["Cache-Control"], body) == (
        "text/html",
        "1",
        "no-store",
        b"<p>hello",
    )
    headers, body = get(endpoint, "/", method="HEAD")
    assert (headers["Content-Length"], body) == ("8", b"")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(endpoint, "/etc/passwd")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        get(endpoint, "/", method="POST")


def test_connections_that_say_nothing_do_not_keep_others_out(endpoint):
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) for _ in range(2 * MAX_CONNECTIONS)]
    assert b"ringline_live_requests" in get(endpoint, "/metrics")[1]
    ended = sum(one.recv(1) == b"" for one in silent[: MAX_CONNECTIONS + 1])
    assert ended == MAX_CONNECTIONS + 1, "the oldest ones are cut"
    last = http.client.HTTPConnection("127.0.0.1", endpoint.port)
    last.sock = silent[-1]
    last.request("GET", "/")
    assert last.getresponse().read() == b"<p>hello", "the youngest goes on"
    for one in silent:
        one.close()
