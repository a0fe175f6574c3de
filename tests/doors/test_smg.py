"""The Shepherd Model Gateway (SMG), as it is, with a processor in the place of vLLM's engine."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, OpenAI
from ringline import Client, Generation

from benchmarks.guard import end_with_this_program
from tests.doors.clients import ASKED, versions
from tests.doors.environments import of_python
from tests.doors.pooling_models import write_embedder
from tests.doors.vectors import same
from tests.ports import HeldPort
from tests.ring import START_TIMEOUT, Ring, running_ring
from tests.waiting import until

pytestmark = pytest.mark.doors
LONG = {"max_tokens": 1200, "temperature": 0.0, "ignore_eos": True}
"""Seconds of work for the engine."""


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """With processors that answer vLLM's contract; its engine is killed."""
    with running_ring(tmp_path_factory.mktemp("ring"), "--vllm-engine-api") as running:
        yield running


@pytest.fixture(scope="module")
def smg(ring: Ring, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an SMG that knows the processor's address, and nothing else."""
    question = "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}
    with running_smg(ring, tmp_path_factory.mktemp("smg") / "smg.log", *question) as url:
        yield url


@contextmanager
def running_smg(ring: Ring, log: Path, path: str, body: Mapping[str, Any]) -> Iterator[str]:
    """The URL of an SMG in front of a ring, once it answers a question at ``path``."""
    environment = of_python("smg")
    assert environment.is_made, "SMG is not installed: run `python -m tests.doors smg`, which does that"
    port, metrics = HeldPort(), HeldPort()
    command = [environment.python, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(port.number)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics.number)]
    command += ["--worker-urls", f"grpc://{ring.address}", "--worker-startup-check-interval", "1"]
    url = f"http://127.0.0.1:{port.number}"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT)
    end_with_this_program(process)
    try:
        end = time.monotonic() + START_TIMEOUT
        while not _answers(url + path, body):
            waiting = process.poll() is None and time.monotonic() < end
            assert waiting, f"SMG did not start:\n{log.read_text()[-4000:]}"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        port.release()
        metrics.release()


def _answers(url: str, body: Mapping[str, Any]) -> bool:
    """Whether it has a worker and, which it fetches from that, the model's tokenizer."""
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        urllib.request.urlopen(asked, timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture
def client(smg: str, tried: Callable[[str], None]) -> OpenAI:
    tried(versions(of_python("smg")))
    return OpenAI(base_url=f"{smg}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def native(ring: Ring) -> Iterator[Client]:
    with Client(ring.address) as client:
        yield client


@pytest.fixture(scope="module")
def answer(native: Client) -> Generation:
    return native.generate(messages=ASKED["messages"], temperature=0.0, max_tokens=ASKED["max_tokens"], logprobs=3)


GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}


def test_chat(client: OpenAI, answer: Generation) -> None:
    chat = client.chat.completions.create(messages=ASKED["messages"], max_tokens=ASKED["max_tokens"], **GREEDY)
    assert chat.choices[0].message.content == answer.text
    assert chat.choices[0].finish_reason == answer.finish_reason
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == answer.usage.prompt_tokens
    assert chat.usage.completion_tokens == answer.usage.completion_tokens


def test_chat_stream(client: OpenAI, answer: Generation) -> None:
    stream = client.chat.completions.create(
        messages=ASKED["messages"],
        max_tokens=ASKED["max_tokens"],
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    *chunks, last = stream
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == answer.text
    assert chunks[-1].choices[0].finish_reason == answer.finish_reason
    assert last.usage is not None
    assert last.usage.completion_tokens == answer.usage.completion_tokens


def test_chat_logprobs(client: OpenAI, answer: Generation) -> None:
    chat = client.chat.completions.create(
        messages=ASKED["messages"], max_tokens=ASKED["max_tokens"], logprobs=True, top_logprobs=3, **GREEDY
    )
    assert chat.choices[0].logprobs is not None
    shown, expected = chat.choices[0].logprobs.content or (), answer.logprobs or ()
    for token, native in zip(shown, expected, strict=False):  # SMG leaves out the eos token
        assert math.isclose(token.logprob, native.logprob, abs_tol=1e-5)
        assert [top.logprob for top in token.top_logprobs] == pytest.approx([lp for _, lp in native.top], abs=1e-5)
    assert len(shown) >= len(expected) - 1 > 0


def test_chat_choices(client: OpenAI, native: Client) -> None:
    chat = client.chat.completions.create(
        messages=ASKED["messages"], max_tokens=16, seed=7, n=3, model="tiny", temperature=1, top_p=1
    )
    expected = native.generate(messages=ASKED["messages"], max_tokens=16, seed=7, n=3, temperature=1.0, top_p=1.0)
    assert [choice.message.content for choice in chat.choices] == [choice.text for choice in expected.choices]


def test_tools(client: OpenAI) -> None:
    tools: Any = [{"type": "function", "function": ASKED["tool"]}]
    named: Any = {"type": "function", "function": {"name": "add"}}
    chat = client.chat.completions.create(
        messages=ASKED["messages"], tools=tools, tool_choice=named, max_tokens=64, **GREEDY
    )
    (call,) = chat.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "add"
    assert set(json.loads(call.function.arguments)) == {"a", "b"}


def test_json_schema(client: OpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": ASKED["schema"]}}
    chat = client.chat.completions.create(messages=ASKED["messages"], response_format=schema, max_tokens=64, **GREEDY)
    assert set(json.loads(chat.choices[0].message.content or "")) == {"unit", "count"}


def test_completions(client: OpenAI, native: Client) -> None:
    expected = native.generate(ASKED["prompt"], temperature=0.0, max_tokens=12)
    assert client.completions.create(prompt=ASKED["prompt"], max_tokens=12, **GREEDY).choices[0].text == expected.text
    stream = client.completions.create(prompt=ASKED["prompt"], max_tokens=12, stream=True, **GREEDY)
    assert "".join(choice.text for chunk in stream for choice in chunk.choices) == expected.text


def test_stop(client: OpenAI, native: Client) -> None:
    expected = native.generate(ASKED["prompt"], temperature=0.0, max_tokens=40, stop=["happy"])
    completion = client.completions.create(prompt=ASKED["prompt"], max_tokens=40, stop=["happy"], **GREEDY)
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason) == (expected.text, "stop")
    assert choice.model_extra == {"matched_stop": "happy"}


def test_forms(client: OpenAI) -> None:
    """SMG's own fields for a regular expression and a grammar."""
    asked = {"prompt": ASKED["prompt"], "max_tokens": 16, **GREEDY}
    assert client.completions.create(**asked, extra_body={"regex": "[0-9]{4}"}).choices[0].text.isdigit()
    grammar = {"ebnf": 'root ::= "yes" | "no"'}
    assert client.completions.create(**asked, extra_body=grammar).choices[0].text in ("yes", "no")


def test_responses(client: OpenAI, answer: Generation) -> None:
    question = ASKED["messages"][0]["content"]
    response = client.responses.create(input=question, max_output_tokens=ASKED["max_tokens"], **GREEDY)
    assert response.output_text == answer.text
    with client.responses.stream(input=question, max_output_tokens=ASKED["max_tokens"], **GREEDY) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.text


def test_refusals(client: OpenAI) -> None:
    """What a processor refuses has its status and text."""
    for asked, problem in (
        ({"stop": ["x" * 2000]}, r"sampling_params\.stop\[0\]: 2000 bytes: expected 1 to 1024"),
        ({"logit_bias": {}, "extra_body": {"regex": "(?=a)b"}}, r"sampling_params\.regex: "),
    ):
        with pytest.raises(APIStatusError, match=problem) as refused:
            client.completions.create(prompt="a", **asked, **GREEDY)
        assert refused.value.status_code == 400


async def test_disconnect(client: OpenAI, ring: Ring) -> None:
    stream = client.completions.create(
        model="tiny", prompt=ASKED["prompt"], stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert ring.load().running_choices == 1
    stream.close()
    await until(lambda: ring.load().running_choices == 0 and ring.load().blocks_used == 0)
    assert ring.load().generated_tokens < 1500


def test_a_killed_engine_goes_unnoticed(client: OpenAI, native: Client, ring: Ring) -> None:
    """By streams and by whole answers alike: kill -9, in the middle of both."""
    expected = native.generate(ASKED["prompt"], **LONG).text
    asked: Any = {"prompt": ASKED["prompt"], "max_tokens": LONG["max_tokens"], "extra_body": {"ignore_eos": True}}
    whole: list[str] = []
    beside = threading.Thread(target=lambda: whole.append(client.completions.create(**asked, **GREEDY).choices[0].text))
    beside.start()
    with client.completions.create(**asked, stream=True, **GREEDY) as stream:
        chunks = iter(stream)
        texts = [next(chunks).choices[0].text for _ in range(20)]
        assert ring.load().ledgers == 2  # they may pause: the gateway reads slowly on a busy machine
        os.kill(ring.pid("engine"), signal.SIGKILL)
        texts += [choice.text for chunk in chunks for choice in chunk.choices]
    beside.join(120)
    assert not ring.process_lives("engine")
    assert "".join(texts) == expected
    assert whole == [expected]


def test_vectors(tmp_path: Path, tried: Callable[[str], None]) -> None:
    """Of a model that makes them, in a ring of its own."""
    tried(versions(of_python("smg")))
    model = write_embedder(tmp_path / "embedder")
    asked = {"model": "embedder", "input": ASKED["texts"][0]}
    with (
        running_ring(tmp_path, "--vllm-engine-api", model=model) as ring,
        running_smg(ring, tmp_path / "smg.log", "/v1/embeddings", asked) as url,
        Client(ring.address) as native,
    ):
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for text in ASKED["texts"]:
            found = client.embeddings.create(model="embedder", input=text, encoding_format="float").data
            assert same([one.embedding for one in found], [list(native.embed(text)[0])])
