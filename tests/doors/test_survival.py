"""Streams through the gateway while services are killed: what an HTTP client reads is what it would have read."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.cli.supervise.runtime_directory import running_stacks
from tests.ring import Ring, running_ring

pytestmark = pytest.mark.doors
STREAMS = 8
TOKENS = 500
SECONDS = 120.0


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A ring whose services may be killed."""
    with running_ring(tmp_path_factory.mktemp("mortal"), http=True) as running:
        yield running


def body(number: int) -> dict[str, Any]:
    """Half of them are greedy chats, half are sampled completions with two choices."""
    common = {
        "model": "tiny",
        "stream": True,
        "seed": number,
        "ignore_eos": True,
        "max_tokens": TOKENS,
        "stream_options": {"include_usage": True},
    }
    if number % 2:
        return common | {"prompt": "Once upon a time", "n": 2, "temperature": 0.9, "logprobs": 1}
    return common | {"messages": [{"role": "user", "content": f"Tell me {number} stories."}], "temperature": 0}


def read(ring: Ring, number: int, began: threading.Barrier | None) -> dict[str, Any]:
    """An answer as its client sees it: the texts of its choices, whatever the events that brought them."""
    asked = body(number)
    path = "/v1/completions" if "prompt" in asked else "/v1/chat/completions"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(ring.http + path, json.dumps(asked).encode(), headers)
    seen: dict[str, Any] = {"texts": {}, "ends": {}, "logprobs": {}, "usage": None, "done": False}
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        for line in answer:
            if not line.startswith(b"data: "):
                assert line.strip() == b"" or line.startswith(b":"), line
                continue
            if (data := line.removeprefix(b"data: ").strip()) == b"[DONE]":
                seen["done"] = True
                continue
            chunk = json.loads(data)
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                index = choice["index"]
                text = choice["text"] if "text" in choice else choice["delta"].get("content")
                if text and began is not None:
                    began, waiting = None, began
                    waiting.wait(SECONDS)
                seen["texts"][index] = seen["texts"].get(index, "") + (text or "")
                seen["ends"][index] = choice["finish_reason"] or seen["ends"].get(index)
                if choice.get("logprobs"):
                    seen["logprobs"].setdefault(index, []).extend(choice["logprobs"]["token_logprobs"])
            if chunk.get("usage"):
                seen["usage"] = {name: chunk["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return seen


def read_or_say(ring: Ring, number: int, began: threading.Barrier) -> dict[str, Any]:
    """Like ``read``; a failure before it began ends the wait of all."""
    try:
        return read(ring, number, began)
    except BaseException:
        began.abort()
        raise


def read_all(ring: Ring, victim: str | None = None) -> list[dict[str, Any]]:
    """All answers at once; when each has begun, ``victim`` is killed."""
    began = threading.Barrier(STREAMS + 1)
    with ThreadPoolExecutor(STREAMS) as threads:
        answers = [threads.submit(read_or_say, ring, number, began) for number in range(STREAMS)]
        with contextlib.suppress(threading.BrokenBarrierError):  # the answer that failed says why
            began.wait(SECONDS)
        if victim is not None:
            victim_pid = pid_of(ring, victim)
            assert victim_pid is not None
            os.kill(victim_pid, signal.SIGKILL)
        return [answer.result(SECONDS) for answer in answers]


def pid_of(ring: Ring, service: str) -> int | None:
    """Its process, which was perhaps restarted; None while it is."""
    state = next(state for state in running_stacks() if state.pid == ring.process.pid)
    process = state.services.get(service)
    return None if process is None else process.pid


def wait_restarted(ring: Ring, service: str, killed: int | None) -> None:
    end = time.monotonic() + SECONDS
    while pid_of(ring, service) in (killed, None):
        assert time.monotonic() < end, "it was not restarted"
        time.sleep(0.1)


def wait_until_it_serves(url: str) -> object:
    end = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(url + "/v1/models", timeout=SECONDS) as answer:
                return json.load(answer)
        except OSError:
            assert time.monotonic() < end, "it does not serve"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def calm(mortal: Ring) -> list[dict[str, Any]]:
    """The answers when nothing goes wrong."""
    return read_all(mortal)


def test_calm_answers_are_whole(calm: list[dict[str, Any]]) -> None:
    for number, seen in enumerate(calm):
        choices = 2 if number % 2 else 1
        assert seen["done"]
        assert seen["ends"] == dict.fromkeys(range(choices), "length")
        assert seen["usage"]["completion_tokens"] == choices * TOKENS


@pytest.mark.parametrize("victim", ["engine", "detokenizer", "processor"])
def test_nothing_is_seen_of_a_killed(victim: str, mortal: Ring, calm: list[dict[str, Any]]) -> None:
    before = pid_of(mortal, victim)
    assert read_all(mortal, victim) == calm
    wait_restarted(mortal, victim, before)


def test_a_killed_gateway_ends_its_answers_visibly_and_serves_again(mortal: Ring) -> None:
    """Its clients hold the connection, so they must ask again; an answer that was cut never looks whole."""
    before = pid_of(mortal, "gateway")
    with contextlib.suppress(OSError, http.client.HTTPException):
        assert not any(seen["done"] for seen in read_all(mortal, "gateway"))
    wait_restarted(mortal, "gateway", before)
    wait_until_it_serves(mortal.http)
