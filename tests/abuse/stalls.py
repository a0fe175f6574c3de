"""``python -m tests.abuse.stalls``: wide fields of every endpoint of a gateway at their largest, eight bodies at once.

Another client asks all the time: prints how long it waited, and exits 1 where that was too long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.ring import running_ring

LIMIT = 0.25
"""Seconds on a quiet machine."""
BODY_BYTES = (4 << 20) - 512
AT_ONCE = 8
_PAUSE = 0.005

_HI = '"messages":[{"role":"user","content":"a"}]'
_STRUCTURES, _TRIGGERS = ",".join(['{"begin":"b"}'] * 60_000), ",".join(['"a"'] * 400_000)
_TAGS = f'"structures":[{_STRUCTURES}],"triggers":[{_TRIGGERS}]'
_PROPERTIES = ",".join(f'"p{one}":{{"type":"string","description":"{"d" * 300}"}}' for one in range(100))


def _filled(head: str, item: str, tail: str) -> bytes:
    """A body with as many of ``item`` as there is room for."""
    count = (BODY_BYTES - len(head) - len(tail)) // (len(item) + 1)
    return (head + ",".join([item] * count) + tail).encode()


def _bias() -> bytes:
    return ("{" + _HI + ',"logit_bias":{' + ",".join(f'"{one}":1' for one in range(380_000)) + "}}").encode()


def _documents() -> bytes:
    return _filled('{"model":"tiny","query":"a","documents":[', '"a"', "]}")


_RERANKS = "/rerank", "/v1/rerank", "/reranking", "/v1/reranking", "/v2/rerank"
_CHAT, _TEXT, _RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_ANTHROPIC, _COUNT, _RPC = "/v1/messages", "/v1/messages/count_tokens", "/ringline.inference.v1.InferenceService/"
_MESSAGE, _PART = '{"role":"user","content":"a"}', '{"type":"text","text":"a"}'
_RESULT = '{"type":"tool_result","tool_use_id":"a","content":"b"}'
_OF_USER = '"messages":[{"role":"user","content":['
CASES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "chat: messages": (_CHAT, lambda: _filled('{"messages":[', _MESSAGE, "]}")),
    "chat: content": (_CHAT, lambda: _filled("{" + _OF_USER, _PART, "]}]}")),
    "chat: tool_calls": (
        _CHAT,
        lambda: _filled('{"messages":[{"role":"assistant","tool_calls":[', '{"function":{"name":"a"}}', "]}]}"),
    ),
    "chat: tools": (_CHAT, lambda: _filled("{" + _HI + ',"tools":[', '{"function":{"name":"a"}}', "]}")),
    "chat: logit_bias": (_CHAT, _bias),
    "chat: stop": (_CHAT, lambda: _filled("{" + _HI + ',"stop":[', '"a"', "]}")),
    "chat: stop_token_ids": (_CHAT, lambda: _filled("{" + _HI + ',"stop_token_ids":[', "1", "]}")),
    "chat: chat_template_kwargs": (_CHAT, lambda: _filled("{" + _HI + ',"chat_template_kwargs":{"a":[', "{}", "]}}")),
    "chat: numbers that are slow to read": (_CHAT, lambda: _filled("{" + _HI + ',"metadata":[', "9e300", "]}")),
    "chat: json_schema": (
        _CHAT,
        lambda: _filled("{" + _HI + ',"structured_outputs":{"json":{"enum":[', "123456", "]}}}"),
    ),
    "chat: structural_tag": (
        _CHAT,
        lambda: ("{" + _HI + ',"structured_outputs":{"structural_tag":{' + _TAGS + "}}}").encode(),
    ),
    "chat: structural_tag, a text": (
        _CHAT,
        lambda: _filled("{" + _HI + ',"structured_outputs":{"structural_tag":"[', "[]", ']"}}'),
    ),
    "chat: a text": (_CHAT, lambda: ('{"messages":[{"role":"user","content":"' + "a,{" * 1_390_000 + '"}]}').encode()),
    "completions: ids": (_TEXT, lambda: _filled('{"prompt":[', "123", "]}")),
    "completions: texts": (_TEXT, lambda: _filled('{"prompt":[', '"a"', "]}")),
    "completions: lists of ids": (_TEXT, lambda: _filled('{"prompt":[', "[1]", "]}")),
    "responses: input": (_RESPONSES, lambda: _filled('{"input":[', _MESSAGE, "]}")),
    "responses: tools": (_RESPONSES, lambda: _filled('{"input":"a","tools":[', '{"type":"function","name":"a"}', "]}")),
    "input_tokens: input": (_RESPONSES + "/input_tokens", lambda: _filled('{"input":[', _MESSAGE, "]}")),
    "messages: content": (_ANTHROPIC, lambda: _filled('{"max_tokens":1,' + _OF_USER, _PART, "]}]}")),
    "messages: tool_result": (_ANTHROPIC, lambda: _filled('{"max_tokens":1,' + _OF_USER, _RESULT, "]}]}")),
    "count_tokens: messages": (_COUNT, lambda: _filled('{"messages":[', _MESSAGE, "]}")),
    "tokenize: messages": ("/tokenize", lambda: _filled('{"messages":[', _MESSAGE, "]}")),
    "detokenize: tokens": ("/detokenize", lambda: _filled('{"tokens":[', "123", "]}")),
    "adapters: load": ("/v1/load_lora_adapter", lambda: _filled('{"lora_name":"a","lora_path":"a","a":[', "{}", "]}")),
    "adapters: unload": ("/v1/unload_lora_adapter", lambda: _filled('{"lora_name":"a","a":[', "{}", "]}")),
    "vectors: texts": ("/v1/embeddings", lambda: _filled('{"input":[', '"a"', "]}")),
    "vectors: lists of ids": ("/embeddings", lambda: _filled('{"input":[', "[1]", "]}")),
    "vectors, TEI: inputs": ("/embed", lambda: _filled('{"inputs":[', '"a"', "]}")),
    "vectors, TEI: inputs of tokens": ("/embed_all", lambda: _filled('{"inputs":[', '"a"', "]}")),
    "vectors, TEI: sentences": (
        "/similarity",
        lambda: _filled('{"inputs":{"source_sentence":"a","sentences":[', '"a"', "]}}"),
    ),
    "vectors, TEI: at the root": ("/", lambda: _filled('{"inputs":[', '"a"', "]}")),
    "vectors, Cohere's first: texts": ("/v1/embed", lambda: _filled('{"texts":[', '"a"', "]}")),
    "vectors, Cohere: texts": ("/v2/embed", lambda: _filled('{"model":"tiny","input_type":"x","texts":[', '"a"', "]}")),
    "vectors, llama.cpp: content": ("/embedding", lambda: _filled('{"content":[', '"a"', "]}")),
    "vectors, vLLM: input": ("/pooling", lambda: _filled('{"input":[', '"a"', "]}")),
    "vectors, vLLM: ids": ("/v1/pooling", lambda: _filled('{"input":[', "123", "]}")),
    **{f"{path}: documents": (path, _documents) for path in _RERANKS},
    "score: pairs": ("/score", lambda: _filled('{"text_1":"a","text_2":[', '"a"', "]}")),
    "score: queries": ("/v1/score", lambda: _filled('{"text_2":"a","text_1":[', '"a"', "]}")),
    "labels: texts": ("/classify", lambda: _filled('{"input":[', '"a"', "]}")),
    "labels: ids": ("/v1/classify", lambda: _filled('{"input":[', "[1]", "]}")),
    "labels, TEI: inputs": ("/predict", lambda: _filled('{"inputs":[', '["a","a"]', "]}")),
    "Tokenize by JSON: messages": (
        _RPC + "Tokenize",
        lambda: b'{"chat":{"messages":[%b]}}' % b",".join([b'{"role":"user","content":"a"}'] * 10_000),
    ),
    # Within the limits, so that all of it is done:
    "chat: 10,000 messages": (_CHAT, lambda: ('{"messages":[' + ",".join([_MESSAGE] * 10_000) + "]}").encode()),
    "chat: 120 tools": (
        _CHAT,
        lambda: _filled(
            "{" + _HI + ',"max_tokens":1,"tools":[',
            f'{{"function":{{"name":"a","parameters":{{"type":"object","properties":{{{_PROPERTIES}}}}}}}}}',
            "]}",
        ),
    ),
    "completions: a prompt in many choices": (
        _TEXT,
        lambda: b'{"prompt":[%b],"n":128,"max_tokens":1,"echo":true,"logprobs":20}' % b",".join([b"5"] * 1900),
    ),
    "completions: many log probabilities": (
        _TEXT,
        lambda: b'{"prompt":"a","n":12,"max_tokens":1900,"logprobs":20,"ignore_eos":true}',
    ),
}
"""What is asked, by what is wide in it."""


async def _ask(address: tuple[str, int], path: str, body: bytes) -> int:
    """The status of the answer, which is read to its end; 0 if there is none."""
    lines = ("host: localhost", "content-type: application/json", f"content-length: {len(body)}", "", "")
    head = f"POST {path} HTTP/1.0\r\n" + "\r\n".join(lines)
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            writer.write(head.encode() + body)
            first = await reader.readline()
            while await reader.read(1 << 20):
                pass
            return int(first.split()[1]) if first else 0
    return 0


async def _wait_longest(address: tuple[str, int], stop: asyncio.Event) -> float:
    """The longest time that another client, with one connection, waited for an answer of the gateway itself."""
    longest = 0.0
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        while not stop.is_set():
            begun = time.perf_counter()
            writer.write(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            longest = max(longest, time.perf_counter() - begun)
            await asyncio.sleep(_PAUSE)
    return longest


async def measure(url: str, name: str) -> tuple[float, list[int]]:
    """The longest wait, and the statuses of the wide requests."""
    parts = urlsplit(url)
    address, (path, make) = (parts.hostname or "", parts.port or 0), CASES[name]
    body, stop = make(), asyncio.Event()
    waiting = asyncio.create_task(_wait_longest(address, stop))
    statuses = await asyncio.gather(*(_ask(address, path, body) for _ in range(AT_ONCE)))
    stop.set()
    return await waiting, statuses


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse.stalls", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds (default: 0.25)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        slow = list(_table(Path(directory), given.only, given.limit))
    print(*(f"PROBLEM {name} made another client wait" for name in slow), sep="\n")
    return 1 if slow else 0


def _table(directory: Path, only: str, limit: float) -> Iterator[str]:
    with running_ring(directory, http=True) as ring:
        for name in CASES:
            if only in name:
                longest, statuses = asyncio.run(measure(ring.http, name))
                print(f"{name:40} {longest * 1000:6.0f} ms  {sorted(set(statuses))}", flush=True)
                if longest > limit or 0 in statuses:
                    yield name


if __name__ == "__main__":
    sys.exit(main())
