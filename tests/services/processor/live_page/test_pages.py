"""The live page in a real browser: of the running ring, and of one that is made up where it has to be out of order."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringline.inference.v1 import inference_pb2_grpc

from services.common.telemetry.metrics_endpoint import MetricsEndpoint
from services.detokenizer.metrics import DetokenizerMetrics
from services.processor.live_page.pages import pages
from services.ring.identity import GATEWAY_HEADER
from tests.browser import Browser, browsing
from tests.ring import Ring
from tests.services.streams import ask

pytestmark = pytest.mark.usefixtures("ring")

PROMPT = "unmistakable beginning"
TENANT = "somebody"
HOSTILE = '<img src=x onerror="document.title=1">'
NODES = "[...document.querySelectorAll('#ring g.node title')].map(title => title.textContent)"
FIGURE = "parseFloat(document.querySelector('#speed').textContent.replace(',', ''))"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
PHONE, DESKTOP = (390, 844), (1180, 900)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(autouse=True)
def _clean(browser: Browser) -> Iterator[None]:
    browser.problems.clear()
    browser.asked.clear()
    yield
    assert browser.problems == []


@pytest.fixture
def load(ring: Ring) -> Iterator[None]:
    """Answers that are being written for as long as the test lasts."""
    ended = threading.Event()

    def work() -> None:
        with grpc.insecure_channel(ring.address) as channel:
            front = inference_pb2_grpc.InferenceServiceStub(channel)
            while not ended.is_set():
                request = ask("load", text=PROMPT, max_tokens=300)
                request.stopping.ignore_eos = True
                for _ in front.Generate(request, metadata=(("x-ringline-tenant", TENANT),), timeout=100):
                    if ended.is_set():
                        break

    thread = threading.Thread(target=work)
    thread.start()
    yield
    ended.set()
    thread.join()


def page_of(ring: Ring) -> str:
    return (ring.state.services["processor"].metrics or "").removesuffix("metrics")


def test_the_page_shows_the_ring_at_work_by_itself(browser: Browser, ring: Ring, load: None) -> None:
    page = page_of(ring)
    browser.look(*DESKTOP)
    browser.open(page)
    nodes = browser.wait(NODES, lambda found: len(found) == 3)
    assert sorted(node.split(":")[0] for node in nodes) == [
        "detokenizer detokenizer-0",
        "engine engine-0",
        "processor processor-0",
    ]
    browser.wait(FIGURE, lambda figure: figure > 0)
    browser.wait("document.querySelectorAll('#ring .flow').length", lambda flows: flows == 4)
    browser.wait("document.querySelector('#state').textContent", lambda state: state == "serving")
    shown = browser.run("document.querySelector('#rows').textContent")
    assert "running" in shown
    assert "blocks" in shown
    assert {urllib.parse.urlsplit(url).path for url in browser.asked} == {"/", "/ring.json"}
    assert all(url.startswith(page) for url in browser.asked)
    asked = len(browser.asked)
    browser.wait("1", lambda _: len(browser.asked) > asked + 1)


def test_it_shows_no_prompt_and_no_tenant_and_loads_nothing_else(ring: Ring, load: None) -> None:
    page = page_of(ring)
    while True:  # until the request is there
        with urllib.request.urlopen(page + "ring.json", timeout=30) as answer:
            text = answer.read().decode()
        if json.loads(text)["live_requests"]:
            break
        time.sleep(0.05)
    assert PROMPT not in text
    assert TENANT not in text
    with urllib.request.urlopen(page, timeout=30) as answer:
        policy, html = answer.headers["Content-Security-Policy"], answer.read().decode()
    assert policy.startswith("default-src 'none'; connect-src 'self'")
    assert "unsafe" not in policy
    addresses = set(re.findall(r"""(?:https?:)?//[\w.-]+""", html))
    assert addresses <= {"http://www.w3.org"}, "that is a name, not an address"
    assert len(html) < 64 << 10


def snapshot_of(ring: Ring) -> dict[str, Any]:
    with urllib.request.urlopen(page_of(ring) + "ring.json", timeout=30) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def wait_gateways(ring: Ring, until: Callable[[dict[str, dict[str, float]]], bool]) -> None:
    end = time.monotonic() + 60
    while not until(gateways := {each["name"]: each for each in snapshot_of(ring)["gateways"]}):
        assert time.monotonic() < end, gateways
        time.sleep(0.1)


def test_gateways_are_known_from_their_start_to_their_end_with_what_they_ask_for(ring: Ring) -> None:
    wait_gateways(ring, lambda gateways: set(gateways) == {"gateway-0"})
    with grpc.insecure_channel(ring.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(  # type: ignore[attr-defined]
            health_pb2.HealthCheckRequest(), metadata=((GATEWAY_HEADER, "gateway-9"),)
        )
        wait_gateways(ring, lambda gateways: set(gateways) == {"gateway-0", "gateway-9"})
        watch.cancel()
    wait_gateways(ring, lambda gateways: set(gateways) == {"gateway-0"})
    body = {"messages": [{"role": "user", "content": "load"}], "max_tokens": 1500, "ignore_eos": True, "stream": True}
    asked = urllib.request.Request(
        ring.http + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60):
        wait_gateways(
            ring, lambda of: of["gateway-0"]["live_requests"] == 1 and of["gateway-0"]["tokens_per_second"] > 0
        )
    wait_gateways(ring, lambda gateways: gateways["gateway-0"]["live_requests"] == 0)


@pytest.mark.parametrize("size", [(320, 568), DESKTOP])
def test_it_fits_every_screen(browser: Browser, ring: Ring, size: tuple[int, int]) -> None:
    browser.look(*size)
    browser.open(page_of(ring))
    browser.wait(NODES, lambda found: len(found) == 3)
    inner, outer = browser.run(WIDTHS)
    assert inner <= outer == size[0]
    texts = "[...document.querySelectorAll('#ring text')].map(text => text.getBoundingClientRect())"
    assert browser.run(f"{texts}.every(box => box.left >= 0 && box.right <= innerWidth)")


def test_it_follows_the_dark_colour_scheme(browser: Browser, ring: Ring) -> None:
    shades = {}
    for dark in (False, True):
        browser.look(*PHONE, dark=dark)
        browser.open(page_of(ring))
        browser.wait(NODES, lambda found: len(found) == 3)
        color = browser.run("getComputedStyle(document.body).backgroundColor")
        shades[dark] = sum(map(int, re.findall(r"\d+", color)))
    assert shades[True] < 100 < 600 < shades[False]


class MadeUp:
    """A ring of many engines, of which one is lost, one silent, and one has a name that would do harm."""

    def __init__(self) -> None:
        self.answers = True

    def json(self) -> bytes:
        assert self.answers
        now = time.time()
        names = [HOSTILE, *(f"engine-{i}" for i in range(11))]
        engine = {
            "tokens_per_second": 1234.5,
            "own": 1,
            "linked": ["detokenizer-0"],
            "running": 2,
            "waiting": 0,
            "kv_usage": 0.97,
            "kv_blocks": 64,
            "preemptions": 0,
            "prefix_hits": 0.5,
        }
        engines = [{**engine, "name": name, "state": "silent" if name == "engine-3" else "serving"} for name in names]
        lost = {"at": now - 5, "service": "engine", "name": "engine-99", "what": "lost", "requests": 7}
        ring = {
            "name": "processor-0",
            "model": HOSTILE,
            "started": now - 100,
            "serving": True,
            "live": 3,
            "waiting": 0,
            "tokens_per_second": 10.0,
            "requests_per_second": 1.0,
            "first_token": {"p50": None, "p95": 0.2},
            "failovers": {"engine": 7},
            "history": {"interval": 1, "tokens_per_second": [10.0], "live": [3]},
            "engines": engines,
            "detokenizers": [],
            "others": ["processor-1"],
            "events": [{**lost, "at": now - 900, "name": "engine-0"}, lost],
            "now": now,
        }
        return json.dumps(ring).encode()


@pytest.fixture
def made_up() -> Iterator[tuple[MadeUp, str]]:
    ring = MadeUp()
    endpoint = MetricsEndpoint(DetokenizerMetrics().registry, "127.0.0.1", 0, pages(ring))  # type: ignore[arg-type]
    yield ring, f"http://127.0.0.1:{endpoint.port}/"
    endpoint.close()


def test_lost_and_silent_peers_are_shown_and_names_are_escaped(
    browser: Browser, made_up: tuple[MadeUp, str], tmp_path: Path
) -> None:
    browser.look(*PHONE)
    browser.open(made_up[1])
    nodes = browser.wait(NODES, lambda found: len(found) == 14)
    assert "engine engine-99: lost" in nodes
    assert any(node.startswith("engine engine-3: silent") for node in nodes)
    assert any(HOSTILE in node for node in nodes)
    assert browser.run("document.images.length") == 0
    assert browser.run("document.querySelectorAll('#ring g.lost').length") == 1, "long ago is over"
    assert "engine-99 was lost, with 7 requests" in browser.run("document.querySelector('#events').textContent")
    inner, outer = browser.run(WIDTHS)
    assert inner <= outer


def test_the_page_says_when_the_processor_is_gone(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    ring, page = made_up
    browser.look(*PHONE)
    browser.open(page)
    browser.wait(NODES, lambda found: len(found) == 14)
    ring.answers = False
    browser.wait("document.querySelector('#state').textContent", lambda text: text.startswith("no answer for"))
    assert browser.run("document.querySelector('main').classList.contains('stale')")
    browser.open("about:blank")
    browser.problems.clear()  # that nobody answers is an error in the console, too
