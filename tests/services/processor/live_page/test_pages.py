"""The live page in a real browser: of the running ring, and of one that is made up where it has to be out of order."""

from __future__ import annotations

import json
import math
import re
import statistics
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringline.inference.v1 import inference_pb2_grpc

from services.common.telemetry.drafts import acceptance
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
PHONE, DESKTOP, WIDE = (390, 844), (1180, 900), (1440, 900)


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
    nodes = browser.wait(NODES, lambda found: len(found) == 4)
    assert sorted(node.split(":")[0] for node in nodes) == [
        "detokenizer detokenizer-0",
        "engine engine-0",
        "gateway gateway-0",
        "processor processor-0",
    ]
    browser.wait(FIGURE, lambda figure: figure > 0)
    browser.wait("document.querySelectorAll('#ring .flow').length", lambda flows: flows == 1)
    told = browser.run("document.querySelector('#ring').ariaLabel")
    assert told.startswith("The ring: 1 gateway, processor-0, 1 engine, 1 detokenizer; ")
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
    browser.wait(NODES, lambda found: len(found) == 4)
    inner, outer = browser.run(WIDTHS)
    assert inner <= outer == size[0]
    texts = "[...document.querySelectorAll('#ring text')].map(text => text.getBoundingClientRect())"
    assert browser.run(f"{texts}.every(box => box.left >= 0 && box.right <= innerWidth)")


def test_it_follows_the_dark_colour_scheme(browser: Browser, ring: Ring) -> None:
    shades = {}
    for dark in (False, True):
        browser.look(*PHONE, dark=dark)
        browser.open(page_of(ring))
        browser.wait(NODES, lambda found: len(found) == 4)
        color = browser.run("getComputedStyle(document.body).backgroundColor")
        shades[dark] = sum(map(int, re.findall(r"\d+", color)))
    assert shades[True] < 100 < 600 < shades[False]


def made_up_ring(engines: int = 1, detokenizers: int = 1, gateways: int = 1) -> dict[str, Any]:
    """What the page gets of a ring of that size that has work."""
    now = time.time()
    engine = {
        "state": "serving",
        "tokens_per_second": 1234.5,
        "own": 1,
        "linked": ["detokenizer-0"],
        "running_choices": 2,
        "waiting_requests": 0,
        "kv_usage": 0.02,
        "kv_blocks": 64,
        "states": 0,
        "preemptions": 0,
        "prefix_hits": 0.5,
        "acceptance": None,
    }
    detokenizer = {"state": "serving", "tokens_per_second": 1234.5, "own": 1, "requests": 1, "linked": []}
    gateway = {"tokens_per_second": 1234.5, "live_requests": 2}
    return {
        "name": "processor-0",
        "model": "tiny",
        "started": now - 100,
        "serving": True,
        "live_requests": 3,
        "waiting_requests": 0,
        "tokens_per_second": 12345.0,
        "requests_per_second": 1.0,
        "first_token": {"p50": None, "p95": 0.2},
        "failovers": {"engine": 7},
        "history": {"interval": 1, "tokens_per_second": [10.0], "live_requests": [3]},
        "gateways": [{**gateway, "name": f"gateway-{i}"} for i in range(gateways)],
        "engines": [{**engine, "name": f"engine-{i}"} for i in range(engines)],
        "detokenizers": [{**detokenizer, "name": f"detokenizer-{i}"} for i in range(detokenizers)],
        "others": ["processor-1"],
        "events": [],
        "now": now,
    }


class MadeUp:
    """A ring that is what a test wants."""

    def __init__(self) -> None:
        self.answers = True
        self.ring = made_up_ring()

    def out_of_order(self) -> None:
        """Many engines, of which one is lost, one silent, and one has a name that would do harm; no detokenizer."""
        self.ring = made_up_ring(engines=12, detokenizers=0, gateways=0) | {"model": HOSTILE}
        self.ring["engines"][11]["name"] = HOSTILE
        self.ring["engines"][3]["state"] = "silent"
        lost = {"at": time.time() - 5, "service": "engine", "name": "engine-99", "what": "lost", "requests": 7}
        self.ring["events"] = [{**lost, "at": time.time() - 900, "name": "engine-0"}, lost]

    def json(self) -> bytes:
        assert self.answers
        return json.dumps({**self.ring, "now": time.time()}).encode()


@pytest.fixture
def made_up(browser: Browser) -> Iterator[tuple[MadeUp, str]]:
    ring = MadeUp()
    endpoint = MetricsEndpoint(DetokenizerMetrics().registry, "127.0.0.1", 0, pages(ring))  # type: ignore[arg-type]
    yield ring, f"http://127.0.0.1:{endpoint.port}/"
    browser.open("about:blank")  # so that nothing asks any more
    endpoint.close()


def test_lost_and_silent_peers_are_shown_and_names_are_escaped(
    browser: Browser, made_up: tuple[MadeUp, str], tmp_path: Path
) -> None:
    made_up[0].out_of_order()
    browser.look(*PHONE)
    browser.open(made_up[1])
    nodes = browser.wait(NODES, lambda found: len(found) == 14)
    assert "engine engine-99: lost" in nodes
    assert any(node.startswith("engine engine-3: silent") for node in nodes)
    assert any(HOSTILE in node for node in nodes)
    assert browser.run("document.images.length") == 0
    assert browser.run("document.querySelectorAll('#ring g.lost').length") == 1, "long ago is over"
    absent = "document.querySelector('#ring g.absent.detokenizer title').textContent"
    assert browser.run(absent) == "no detokenizer"
    assert "engine-99 was lost, with 7 requests" in browser.run("document.querySelector('#events').textContent")
    inner, outer = browser.run(WIDTHS)
    assert inner <= outer


def test_engines_show_the_blocks_and_the_states_that_they_have(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    ring, page = made_up
    ring.ring = made_up_ring(engines=4)
    counted = [(4097, 0), (4097, 422), (0, 1026), (0, 0)]
    for engine, (blocks, states) in zip(ring.ring["engines"], counted, strict=True):
        engine |= {"kv_blocks": blocks, "states": states}
    browser.look(*PHONE)
    browser.open(page)
    labels = "[...document.querySelectorAll('#rows .cell.last small')].map(label => label.textContent)"
    shown = browser.wait(labels, lambda found: len(found) == 4)
    assert [label.split(" of ")[1] for label in shown] == [
        "4,097 blocks",
        "4,097 blocks, 422 states",
        "1,026 states",
        "0 blocks",
    ]
    inner, outer = browser.run(WIDTHS)
    assert inner <= outer


def test_engines_show_how_many_of_their_guesses_are_right(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    ring, page = made_up
    ring.ring = made_up_ring(engines=3)
    found = acceptance(10, 30, 12, [7, 4, 1, 0, 0, 0, 0, 0])
    assert found is not None
    ring.ring["engines"][0]["acceptance"] = asdict(found)
    ring.ring["engines"][1]["acceptance"] = asdict(found) | {"drafts": 0}
    browser.look(*PHONE)
    browser.open(page)
    labels = "[...document.querySelectorAll('#rows .guesses')].map(label => label.textContent)"
    shares = "70 %, 40 %, 10 %, 0 %, 0 %, 0 %, 0 %, 0 %"
    assert browser.wait(labels, lambda shown: len(shown) == 2) == [
        f"40 % of 30 guessed tokens were right, 2.20 tokens a step; by position {shares}",
        "No tokens guessed yet",
    ]
    inner, outer = browser.run(WIDTHS)
    assert inner <= outer


def test_the_page_says_when_the_processor_is_gone(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    ring, page = made_up
    browser.look(*PHONE)
    browser.open(page)
    browser.wait(NODES, lambda found: len(found) == 4)
    ring.answers = False
    browser.wait("document.querySelector('#state').textContent", lambda text: text.startswith("no answer for"))
    assert browser.run("document.querySelector('main').classList.contains('stale')")
    browser.open("about:blank")
    browser.problems.clear()  # that nobody answers is an error in the console, too


CIRCLES = """[...document.querySelectorAll('#ring .rim')].map(rim => {
    const {x, y, width} = rim.getBoundingClientRect();
    return [rim.parentNode.classList[1], x + width / 2, y + width / 2, width / 2];
})"""
OUTSIDE = """(() => {
    const ring = document.querySelector('#ring').getBoundingClientRect();
    return [...document.querySelectorAll('#ring text, #ring circle')].filter(one => {
        const {left, right, top, bottom} = one.getBoundingClientRect();
        return left < ring.left - 1 || right > ring.right + 1 || top < ring.top - 1 || bottom > ring.bottom + 1;
    }).map(one => one.textContent || one.className.baseVal);
})()"""
LABELS = """(() => {
    const names = [...document.querySelectorAll('#ring g[class] > text:not(.in):not(.soft)')];
    const boxes = names.map(one => [one.textContent, one.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
    return boxes.flatMap(([text, a], i) =>
        boxes.slice(0, i).filter(([, b]) => meet(a, b)).map(([other]) => text + " on " + other));
})()"""


@pytest.mark.parametrize("size", [PHONE, WIDE])
@pytest.mark.parametrize(
    ("engines", "detokenizers", "gateways"),
    [(1, 1, 1), (1, 1, 0), (2, 2, 2), (3, 1, 1), (5, 4, 3), (8, 8, 6), (16, 9, 12), (40, 30, 64)],
)
def test_the_ring_is_balanced_with_one_and_with_many_of_each(
    browser: Browser, made_up: tuple[MadeUp, str], size: tuple[int, int], engines: int, detokenizers: int, gateways: int
) -> None:
    ring, page = made_up
    ring.ring = made_up_ring(engines, detokenizers, gateways)
    browser.look(*size)
    browser.open(page)
    browser.wait(NODES, lambda found: len(found) == engines + detokenizers + gateways + 1)
    circles = browser.run(CIRCLES)
    for index, (_, x, y, radius) in enumerate(circles):
        for other in circles[:index]:
            assert math.hypot(x - other[1], y - other[2]) >= radius + other[3]
    (center,) = (x for service, x, *_ in circles if service == "processor")
    middles = {
        service: [statistics.mean(one[axis] for one in circles if one[0] == service) for axis in (1, 2)]
        for service in {service for service, *_ in circles}
    }
    assert middles["engine"][1] == pytest.approx(middles["detokenizer"][1], abs=1)
    assert middles.get("gateway", [center])[0] == pytest.approx(center, abs=1)
    if engines == detokenizers:
        assert center - middles["detokenizer"][0] == pytest.approx(middles["engine"][0] - center, abs=1)
    assert browser.run(OUTSIDE) == []
    assert browser.run(LABELS) == []
    inner, outer = browser.run(WIDTHS)
    assert inner <= outer == size[0]


@pytest.mark.parametrize("dark", [False, True])
def test_every_circle_is_whole_and_stands_out_whatever_its_load(
    browser: Browser, made_up: tuple[MadeUp, str], dark: bool
) -> None:
    """By WCAG's contrast of 3 to 1 for graphics."""
    browser.look(*PHONE, dark=dark)
    browser.open(made_up[1])
    browser.wait(NODES, lambda found: len(found) == 4)
    card = browser.run("getComputedStyle(document.querySelector('.card')).backgroundColor")
    looks = (
        "[...document.querySelectorAll('#ring .rim')].map(one => getComputedStyle(one))"
        ".map(one => [one.stroke, one.strokeDasharray, one.opacity])"
    )
    for stroke, dashes, opacity in browser.run(looks):
        assert (dashes, opacity) == ("none", "1")
        assert contrast(stroke, card) >= 3


def contrast(*colors: str) -> float:
    """WCAG's contrast of two colours, as in ``rgb(1, 2, 3)``."""
    lights = []
    for color in colors:
        red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", color)[:3])
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)
