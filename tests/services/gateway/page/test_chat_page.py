"""The chat page in a real browser: with the running ring, and with made-up answers where they have to be bad."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from http import HTTPStatus

import pytest
import uvicorn
from ringline import AsyncClient
from starlette.responses import Response

from services.gateway.app import Gateway
from services.gateway.callers import Callers
from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Call, Endpoint
from services.gateway.http.event_stream import EventStream
from services.gateway.http.load import Load
from services.gateway.metrics import GatewayMetrics
from services.gateway.openai.errors import OPENAI
from services.gateway.page import page
from tests.browser import Browser, browsing
from tests.ring import Ring

pytestmark = pytest.mark.usefixtures("ring")

HOSTILE = '<img src=x onerror="document.title=1">'
MARKDOWN = f"A **bold** word\n\n- one `code`\n\n```html\n{HOSTILE}\n```\nand {HOSTILE}"
TOOLS = '[{"type": "function", "function": {"name": "weather"}}]'
NEVER_END = """{
    const real = fetch, changed = (body) => JSON.stringify({...JSON.parse(body), ignore_eos: true});
    window.fetch = (url, {body, ...rest}) => real(url, {body: changed(body), ...rest});
}"""
"""The tiny model would end too soon to be stopped."""
TEXT = "[...document.querySelectorAll('.answer > .text')].map(text => text.textContent)"
FOOT = "document.querySelector('.answer:last-child .foot')?.textContent || ''"
IDLE = "document.querySelector('#stop').hidden"
ACTIVE = "document.activeElement.id || document.activeElement.textContent"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
PHONE, DESKTOP = (390, 844), (1280, 800)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(autouse=True)
def _clean(browser: Browser) -> Iterator[None]:
    browser.problems.clear()
    browser.asked.clear()
    browser.look(*DESKTOP)
    yield
    assert browser.problems == []


def open_page(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait("document.querySelector('#model')?.textContent", lambda name: name == "tiny")


def click(browser: Browser, text: str) -> None:
    """The last button of that text or label."""
    buttons = "[...document.querySelectorAll('button')]"
    browser.run(f"{buttons}.findLast(one => [one.textContent, one.ariaLabel].includes({json.dumps(text)})).click()")


def fill(browser: Browser, field: str, value: str) -> None:
    browser.run(
        f"{{const one = document.querySelector('#{field}'); one.value = {json.dumps(value)};"
        "one.dispatchEvent(new Event('change'))}"
    )


def answers(browser: Browser, number: int) -> list[str]:
    """The texts of so many answers, once the last one is whole."""
    browser.wait(f"{TEXT}.length == {number} && {IDLE}")
    texts: list[str] = browser.run(TEXT)
    return texts


def say(browser: Browser, text: str) -> None:
    browser.run("document.querySelector('#input').focus()")
    browser.write(text)
    browser.press("Enter")


def test_a_chat_with_the_ring_by_keyboard_alone(browser: Browser, ring: Ring) -> None:
    url = ring.http + "/"
    open_page(browser, url)
    assert browser.run(ACTIVE) == "input"
    fill(browser, "temperature", "0")
    say(browser, "Hello!")
    (first,) = answers(browser, 1)
    assert first.startswith("Hello")
    foot = browser.run(FOOT)
    assert re.search(r"first token [\d.]+ m?s( · [\d.,]+ tokens/s)? · \d+ in, \d+ out", foot)

    browser.write("two")
    browser.press("Enter", shift=True)
    browser.write("lines")
    assert browser.run("document.querySelector('#input').value") == "two\nlines"
    browser.press("Tab")
    assert browser.run(ACTIVE) == "send"
    browser.press("Enter")
    answers(browser, 2)
    browser.press("Tab", shift=True)
    browser.press("Tab", shift=True)
    assert "Regenerate" in browser.run("document.activeElement.parentElement.textContent"), "what was said is in reach"
    assert browser.run("document.querySelector('[role=status]').textContent").startswith("Answer: ")

    open_page(browser, url)
    assert browser.run(TEXT)[0] == first, "the chat is there again"
    assert len(browser.run(TEXT)) == 2
    assert set(browser.asked) == {url, url + "v1/models", url + "v1/chat/completions"}


def test_an_answer_is_stopped_and_made_again(browser: Browser, ring: Ring) -> None:
    open_page(browser, ring.http + "/")
    click(browser, "New chat")
    browser.run(NEVER_END)
    say(browser, "Tell me a long story.")
    browser.wait(TEXT, lambda texts: texts and texts[0])
    assert not browser.run(IDLE), "it is shown while it is written"
    browser.press("Escape")
    browser.wait(IDLE)
    assert browser.run(FOOT).endswith("stopped")
    end = time.monotonic() + 30
    while ring.load().running_choices:
        assert time.monotonic() < end, "the request goes on"
    fill(browser, "max_tokens", "1")
    click(browser, "Regenerate")
    browser.wait(FOOT, lambda foot: "ended at the limit of tokens" in foot)
    assert len(browser.run(TEXT)) == 1
    click(browser, "Edit")
    assert browser.run("document.querySelector('#input').value").startswith("Tell me")
    browser.run("document.querySelector('#input').select()")
    say(browser, "Hello!")
    browser.wait("document.querySelectorAll('.user').length == 1 && " + IDLE)
    click(browser, "Delete Tell me a long story.")
    assert browser.run("document.querySelectorAll('article').length") == 0


PLACEHOLDERS = "['temperature', 'top_p', 'max_tokens'].map(name => document.getElementById(name).placeholder)"
SAMPLES = "[...document.querySelectorAll('.samples button')].map(one => one.textContent)"
TOY = "!document.querySelector('#toy').hidden"


def test_an_empty_chat_offers_what_a_toy_can_do_and_settings_show_their_defaults(browser: Browser, ring: Ring) -> None:
    open_page(browser, ring.http + "/")
    click(browser, "New chat")
    browser.wait(TOY)
    assert "toy model of 2.7 million parameters" in browser.run("document.querySelector('.empty').textContent")
    assert browser.run(PLACEHOLDERS) == ["0.8 (default)", "0.95 (default)", "rest of 2,048"]
    samples = browser.run(SAMPLES)
    assert len(samples) == 3
    fill(browser, "temperature", "0")
    click(browser, samples[-1])
    (answer,) = answers(browser, 1)
    assert answer == "17 + 25 = 42."
    assert browser.run("document.querySelector('.user .text').textContent") == samples[-1]
    assert browser.run(SAMPLES) == []


class MadeUp:
    """A gateway without a ring: it wants a token, and its answers are written here."""

    def __init__(self) -> None:
        self.token = ""
        self.is_starting = False
        self.model: dict[str, object] = {"id": "tiny"}
        self.others: list[dict[str, object]] = []
        self.asked: list[dict[str, object]] = []
        self.endpoints = [
            *page.ENDPOINTS,
            Endpoint("GET", "/v1/models", self.models, OPENAI),
            Endpoint("POST", "/v1/chat/completions", self.chat, OPENAI),
        ]

    def check(self, call: Call) -> None:
        if self.token and call.headers.get("authorization") != f"Bearer {self.token}":
            raise ApiError(HTTPStatus.UNAUTHORIZED, "the token is missing")

    async def models(self, call: Call) -> Response:
        self.check(call)
        if self.is_starting:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "no model is served yet", retry_after=1.0)
        return Response(json.dumps({"data": [*self.others, self.model]}))

    async def chat(self, call: Call) -> Response:
        self.check(call)
        self.asked.append(json.loads(call.body))
        text = self.asked[-1]["messages"][-1]["content"]  # type: ignore[index]
        if text == "refuse":
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too many", retry_after=3.0)
        return EventStream(self.events(text))

    async def events(self, text: str) -> AsyncGenerator[bytes, None]:
        deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
        if text == "call":
            function = {"name": "weather", "arguments": ""}
            deltas += [{"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}]
            deltas += [
                {"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"city":', '"Ulm"}')
            ]
        elif text == "long":
            deltas += [{"content": f"word {i} " + "\n\n" * (i % 50 == 49)} for i in range(2000)]
        else:
            deltas += [{"reasoning_content": "so "}, {"reasoning_content": HOSTILE}]
            deltas += [{"content": MARKDOWN[i : i + 3]} for i in range(0, len(MARKDOWN), 3)]
        for i, delta in enumerate(deltas):
            if i % 100 == 0:
                await asyncio.sleep(0.005)
            yield b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
        if text == "fail":
            yield b'data: {"error": {"message": "the engine is gone"}}\n\n'
        elif text != "cut":
            yield b"data: [DONE]\n\n"


@pytest.fixture
def made_up() -> Iterator[tuple[MadeUp, str]]:
    gateway = MadeUp()
    callers = Callers(AsyncClient("127.0.0.1:1"), "x-ringline-tenant")
    load = Load(max_requests=100, max_connections_per_client=100, max_body_bytes=16 << 20)
    app = Gateway(callers, load, GatewayMetrics(), max_body_bytes=16 << 20).application(gateway.endpoints, {})
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield gateway, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def test_hostile_text_stays_text_and_tools_go_round(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    gateway, url = made_up
    open_page(browser, url)
    fill(browser, "system", "Be brief.")
    fill(browser, "tools", TOOLS[:-1])
    assert "Not used" in browser.run("document.querySelector('#toolsProblem').textContent")
    say(browser, HOSTILE)
    answers(browser, 1)
    assert browser.run("document.querySelector('.user .text').textContent") == HOSTILE
    assert browser.run("document.querySelector('.answer pre').textContent") == HOSTILE + "\n"
    assert browser.run("document.querySelector('.answer b').textContent") == "bold"
    assert browser.run("document.querySelector('.item code').textContent") == "code"
    assert browser.run("document.querySelector('details').open") is False
    assert browser.run("document.querySelector('.reasoning .text').textContent") == "so " + HOSTILE
    assert browser.run("[document.images.length, document.title]") == [0, "Ringline chat"]
    assert "tools" not in gateway.asked[-1]

    fill(browser, "tools", TOOLS)
    say(browser, "call")
    browser.wait("document.querySelector('.call pre')?.textContent", lambda text: text == '{\n  "city": "Ulm"\n}')
    browser.run("document.querySelector('.call textarea').value = '18 degrees'")
    click(browser, "Send result")
    answers(browser, 3)
    roles = ["system", "user", "assistant", "user", "assistant", "tool"]
    messages = gateway.asked[-1]["messages"]
    assert [message["role"] for message in messages] == roles  # type: ignore[attr-defined]
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
    assert messages[4] == {"role": "assistant", "content": None, "tool_calls": [call]}  # type: ignore[index]
    assert messages[5] == {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"}  # type: ignore[index]
    assert gateway.asked[-1]["tools"] == json.loads(TOOLS)


def test_a_large_model_is_no_toy_and_what_is_not_told_is_not_made_up(
    browser: Browser, made_up: tuple[MadeUp, str]
) -> None:
    gateway, url = made_up
    open_page(browser, url)
    assert browser.run(PLACEHOLDERS) == ["default"] * 3
    samples = browser.run(SAMPLES)
    for parameters, toy in ((49_999_999, True), (50_000_000, False)):
        sampling = {"temperature": 0, "top_p": 1}
        gateway.model |= {"default_sampling": sampling, "num_parameters": parameters, "max_model_len": 131072}
        open_page(browser, url)
        browser.wait(PLACEHOLDERS, lambda shown: shown == ["0 (default)", "1 (default)", "rest of 131,072"])
        assert browser.run(TOY) is toy
        assert ("toy" in browser.run("document.querySelector('#log').textContent")) is toy
        assert (browser.run(SAMPLES) != samples) is toy


def test_models_that_make_no_text_are_not_offered(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    gateway, url = made_up
    gateway.others = [{"id": "embedder", "pooling": {"dimensions": 4}}]
    open_page(browser, url)
    assert browser.run("document.querySelector('#models').hidden"), "there is one to chat with"
    gateway.model = {"id": "moods", "pooling": {"labels": ["good"]}, "num_parameters": 9}
    browser.open(url)
    name = "document.querySelector('#model')?.textContent"
    browser.wait(name, lambda shown: shown == "embedder, moods: for vectors, scores or labels, not for chats")
    assert not browser.run(TOY)


def test_a_page_that_is_opened_early_waits_for_the_model(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    gateway, url = made_up
    gateway.is_starting = True
    name = "document.querySelector('#model')?.textContent"
    browser.open(url)
    browser.wait(name, lambda shown: shown == "no model is served yet (Retry in 1 s.)")
    gateway.is_starting = False
    browser.wait(name, lambda shown: shown == "tiny")
    browser.problems[:] = [one for one in browser.problems if "status of 503" not in one]  # the console says so, too


def test_failures_are_told_and_can_be_tried_again(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    gateway, url = made_up
    told = "document.querySelector('.problem span')?.textContent"
    open_page(browser, url)
    for text, problem in (
        ("refuse", "too many (Retry in 3 s.)"),
        ("fail", "the engine is gone"),
        ("cut", "The answer was cut off: the connection ended before it did."),
    ):
        click(browser, "New chat")
        say(browser, text)
        browser.wait(told, lambda shown, problem=problem: shown == problem)
    asked = len(gateway.asked)
    click(browser, "Retry")
    browser.wait(IDLE, lambda idle: idle and len(gateway.asked) > asked)
    assert len(gateway.asked[-1]["messages"]) == 1, "what was cut off is not sent"  # type: ignore[arg-type]

    gateway.token = "secret"
    click(browser, "New chat")
    say(browser, "hello")
    browser.wait("document.querySelector('#ask').open")
    assert browser.run(ACTIVE) == "askToken"
    browser.write("secret")
    browser.press("Enter")
    browser.wait(FOOT, lambda foot: foot and browser.run(IDLE))
    assert browser.run(told) is None
    assert "secret" not in browser.run("JSON.stringify(localStorage)")
    browser.problems[:] = [one for one in browser.problems if "status of 4" not in one]  # the console says so, too


def test_it_fits_a_phone_by_day_and_night_and_bears_long_answers(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    shades = {}
    for dark in (False, True):
        browser.look(*PHONE, dark=dark)
        open_page(browser, made_up[1])
        color = browser.run("getComputedStyle(document.body).backgroundColor")
        shades[dark] = sum(map(int, re.findall(r"\d+", color)))
    assert shades[True] < 100 < 600 < shades[False]
    say(browser, "long")
    browser.wait(FOOT, lambda foot: browser.run(IDLE))
    assert browser.run(TEXT)[0].count("word") == 2000
    assert browser.run("document.querySelectorAll('.answer .text *').length") < 200
    for opened in ("Chats", "Settings"):
        click(browser, opened)
        inner, outer = browser.run(WIDTHS)
        assert inner <= outer == PHONE[0]
    assert browser.run(ACTIVE) == "close"
    click(browser, "Close the settings")
    assert browser.run("document.querySelector('#panel').hidden")
    assert browser.run(ACTIVE) == "settings"


def test_nothing_but_the_page_is_allowed_and_it_is_sent_once(ring: Ring) -> None:
    with urllib.request.urlopen(ring.http, timeout=30) as answer:
        policy, etag, html = answer.headers["Content-Security-Policy"], answer.headers["ETag"], answer.read().decode()
    assert policy.startswith("default-src 'none'; connect-src 'self'")
    assert "unsafe" not in policy
    assert "innerHTML" not in html
    assert set(re.findall(r"""https?://[\w.-]+""", html)) <= {"http://www.w3.org"}, "that is a name, not an address"
    again = urllib.request.Request(ring.http, headers={"If-None-Match": etag})
    with pytest.raises(urllib.error.HTTPError) as unchanged:
        urllib.request.urlopen(again, timeout=30)
    assert unchanged.value.code == HTTPStatus.NOT_MODIFIED
    with urllib.request.urlopen(urllib.request.Request(ring.http, method="HEAD"), timeout=30) as head:
        assert (head.headers["ETag"], head.read()) == (etag, b"")


def test_what_is_kept_and_is_no_chat_breaks_nothing(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    open_page(browser, made_up[1])
    for number, kept in enumerate(
        (
            {"messages": []},
            {"messages": [None]},
            {"title": HOSTILE, "options": {}, "messages": [{"role": "assistant", "content": "a"}]},
            {"title": HOSTILE, "options": None, "messages": []},
            {"title": HOSTILE, "options": {}, "messages": [{"role": "user", "content": HOSTILE}]},
        )
    ):
        key, text = f"ringline.chat.{number}", json.dumps({"id": str(number), **kept})
        browser.run(f"localStorage.setItem({json.dumps(key)}, {json.dumps(text)})")
        browser.run(f"sessionStorage.setItem('ringline.open', '{number}')")
        open_page(browser, made_up[1])
        say(browser, "hello")
        browser.wait(FOOT, lambda foot: foot and browser.run(IDLE))
    assert browser.run("document.querySelector('.user .text').textContent") == HOSTILE


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PIXEL_URL = f"data:image/png;base64,{PIXEL}"
GIVE = """((pixel, how, name, size, type) => {
    const bytes = Uint8Array.from(atob(pixel), (one) => one.charCodeAt(0)), data = new DataTransfer();
    const init = {dataTransfer: data, clipboardData: data, bubbles: true, cancelable: true};
    data.items.add(new File([bytes, new Uint8Array(size)], name, {type}));
    const files = document.querySelector("#files");
    if (how === "choose") { files.files = data.files; files.dispatchEvent(new Event("change")); }
    if (how === "paste") document.dispatchEvent(new ClipboardEvent("paste", init));
    if (how === "drop") for (const name of ["dragover", "drop"]) document.dispatchEvent(new DragEvent(name, init));
})"""
THUMBNAILS = "[...document.querySelectorAll('#pictures img')].filter(one => one.naturalWidth === 1).map(one => one.alt)"
SHOWN = "[...document.querySelectorAll('article.user img')].map(one => one.src)"
PROBLEM = "document.querySelector('#pictureProblem').textContent"


def give(browser: Browser, how: str, name: str, size: int = 0, kind: str = "image/png") -> None:
    """A file to the page: chosen, pasted or dropped; a picture of one pixel, and as many bytes more."""
    browser.run(f"{GIVE}(...{json.dumps([PIXEL, how, name, size, kind])})")


def test_pictures_are_chosen_pasted_and_dropped(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    gateway, url = made_up
    gateway.model["architecture"] = {"input_modalities": ["text", "image"]}
    open_page(browser, url)
    browser.wait("!document.querySelector('#attach').disabled")
    for how in ("choose", "paste", "drop"):
        give(browser, how, f"{how}.png")
        browser.wait(THUMBNAILS, lambda names, how=how: names and names[-1] == f"{how}.png")
    click(browser, "Remove paste.png")
    assert browser.run(THUMBNAILS) == ["choose.png", "drop.png"]
    give(browser, "drop", "a.pdf", kind="application/pdf")
    browser.wait(PROBLEM, lambda text: text == "a.pdf is no PNG, JPEG, WebP, GIF, BMP or TIFF.")
    give(browser, "paste", "large.png", 20 << 20)
    browser.wait(PROBLEM, lambda text: text == "large.png has 20.0 MiB: at most 20 MiB can be sent.")
    assert browser.run(THUMBNAILS) == ["choose.png", "drop.png"]

    say(browser, "What is it?")
    answers(browser, 1)
    picture = {"type": "image_url", "image_url": {"url": PIXEL_URL}}
    message = gateway.asked[-1]["messages"][0]  # type: ignore[index]
    assert message == {"role": "user", "content": [picture, picture, {"type": "text", "text": "What is it?"}]}
    assert browser.run(SHOWN) == [PIXEL_URL] * 2
    assert browser.run(THUMBNAILS) == []
    open_page(browser, url)
    assert browser.run(SHOWN) == [PIXEL_URL] * 2, "they are kept with the chat"
    say(browser, "And now?")
    answers(browser, 2)
    assert gateway.asked[-1]["messages"][0] == message  # type: ignore[index]

    click(browser, "New chat")
    give(browser, "choose", "big.png", 3 << 20)
    browser.wait(THUMBNAILS, lambda names: names == ["big.png"])
    click(browser, "Send")
    answers(browser, 1)
    assert len(gateway.asked[-1]["messages"][0]["content"][0]["image_url"]["url"]) > 4 << 20  # type: ignore[index]
    open_page(browser, url)
    browser.wait("document.querySelector('article.user').textContent", lambda text: "big.png (not kept)" in text)


def test_a_model_that_takes_no_pictures_says_so(browser: Browser, made_up: tuple[MadeUp, str]) -> None:
    open_page(browser, made_up[1])
    assert browser.run("[document.querySelector('#attach').disabled, document.querySelector('#attach').title]") == [
        True,
        "This model takes no pictures",
    ]
    give(browser, "paste", "a.png")
    browser.wait(PROBLEM, lambda text: text == "This model takes no pictures.")
    assert browser.run(THUMBNAILS) == []
