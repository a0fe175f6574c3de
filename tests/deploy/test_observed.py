"""What the dashboard and the alerts ask, Prometheus can answer: it scrapes real services under load here."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from ringline.inference.v1 import inference_pb2_grpc

from tests.deploy.prometheus import Prometheus, scraping
from tests.deploy.test_alerts import RULES
from tests.docs.documents import ROOT
from tests.ring import Ring
from tests.services.streams import ask, generate

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "ringline.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TENANTS = ("north", "south")
TIMEOUT = 150.0
_SERIES = re.compile(r"\b(?:vllm:|ringline_|process_)\w+(?:\{[^}]*\})?|\bup(?:\{[^}]*\})?")


def dashboard_queries() -> dict[str, str]:
    """By panel and letter, as Grafana would ask while every model is chosen."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$__rate_interval", "1m")
        .replace('=~"$model"', '=~".*"')
        for panel in PANELS
        for target in panel["targets"]
    }


def alert_series() -> set[str]:
    """Every series that an alert reads: whether it fires is another matter."""
    return set(_SERIES.findall(re.sub(r"#.*|annotations:\n.*\n.*", "", RULES.read_text())))


async def _load(ring: Ring) -> None:
    """Requests of each tenant and one that is refused, over two scrapes at least."""
    async with grpc.aio.insecure_channel(ring.address) as channel:
        front = inference_pb2_grpc.InferenceServiceStub(channel)
        for tenant in TENANTS:
            call = front.Generate(ask("load", max_tokens=64), metadata=(("x-ringline-tenant", tenant),), timeout=60)
            assert [response async for response in call]
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(front, ask("hot", temperature=-1.0))


@pytest.fixture(scope="module")
def prometheus(ring: Ring, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with scraping(ring, tmp_path_factory.mktemp("prometheus")) as running:
        yield running


def answers(prometheus: Prometheus, ring: Ring, queries: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What each query brings once all bring something, under load; what still brings nothing after a while is empty."""
    end = time.monotonic() + TIMEOUT
    found: dict[str, list[dict[str, Any]]] = {}
    while True:
        asyncio.run(_load(ring))
        for name in [name for name in queries if not found.get(name)]:
            found[name] = [one for one in prometheus.query(queries[name]) if one["value"][1] != "NaN"]
        if all(found.values()) or time.monotonic() > end:
            return found
        time.sleep(0.5)


def test_every_panel_has_data(prometheus: Prometheus, ring: Ring) -> None:
    queries = dashboard_queries()
    assert len(queries) > 40
    for tenant in TENANTS:
        queries[tenant] = f'rate(ringline_tenant_generation_tokens_total{{tenant="{tenant}"}}[1m])'
    found = answers(prometheus, ring, queries)
    assert [name for name, series in found.items() if not series] == []


def test_every_series_that_an_alert_reads_is_there(prometheus: Prometheus, ring: Ring) -> None:
    series = alert_series()
    assert len(series) > 15
    found = answers(prometheus, ring, {name: name for name in series})
    assert [name for name, values in found.items() if not values] == []


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(titles) == len(set(titles))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(titles)
