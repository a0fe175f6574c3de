"""The rings that are fuzzed, one of each kind of model: what serves them, and what their well-behaved client asks."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringline import AsyncClient
from transformers import BertConfig, Qwen3Config

from tests.engine_core.pooling.checkpoints import lay_out, random_model
from tests.fuzz.http_requests import posted, streamed
from tests.ring import MODEL, Ring, running_ring
from text_core.tokenizer import Tokenizer

PROMPT = "Once upon a time"
DOCUMENTS = ("A dog ran home.", "The king of the hill slept " + "very " * 20 + "well.")
DIMENSIONS = 8
"""Numbers to which vectors can be cut."""
_ASKED: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


def _tokens(_directory: Path) -> Path:
    return MODEL


def _vectors(directory: Path) -> Path:
    """A random encoder whose vectors can be cut, with prompts."""
    config = BertConfig(**_SIZES, vocab_size=_take_tokenizer(directory), max_position_embeddings=512)
    config.matryoshka_dimensions = [DIMENSIONS, 32]
    random_model(directory, "BertModel", config)
    lay_out(directory, {"pooling_mode": "mean"}, prompts={"query": "query: ", "document": ""})
    return directory


def _scores(directory: Path) -> Path:
    """A random decoder that reads pairs."""
    config = Qwen3Config(**_SIZES, vocab_size=_take_tokenizer(directory), num_key_value_heads=2, head_dim=16)
    config.num_labels, config.pad_token_id, config.max_position_embeddings = 1, 0, 512
    random_model(directory, "Qwen3ForSequenceClassification", config)
    return directory


def _take_tokenizer(directory: Path) -> int:
    """The bundled model's, put into ``directory``; returns the size of its vocabulary."""
    directory.mkdir(exist_ok=True)
    for file in MODEL.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens")):
            shutil.copy(file, directory)
    return Tokenizer.from_directory(MODEL).vocab_size


async def _generated(client: AsyncClient) -> object:
    return (await client.generate(PROMPT, **_ASKED)).text


async def _embedded(client: AsyncClient) -> object:
    return [vector.tobytes() for vector in await client.embed(DOCUMENTS)]


async def _scored(client: AsyncClient) -> object:
    return list(await client.score(PROMPT, DOCUMENTS))


async def _embedded_by_http(host: str, port: int) -> str:
    return await posted(host, port, "/embed", {"inputs": DOCUMENTS})


async def _scored_by_http(host: str, port: int) -> str:
    return await posted(host, port, "/rerank", {"query": PROMPT, "texts": DOCUMENTS})


async def _streamed(host: str, port: int) -> str:
    return await streamed(host, port, PROMPT)


@dataclass(frozen=True)
class RingKind:
    """What serves a ring, and a request with one right answer."""

    make: Callable[[Path], Path]
    """The checkpoint, in a directory if it is made."""
    services: Sequence[str]
    """Those that are fuzzed."""
    ask: Callable[[AsyncClient], Awaitable[object]]
    ask_by_http: Callable[[str, int], Awaitable[object]]
    """At a host and a port."""


_POOLING = ("processor", "engine", "gateway")
"""Of models that pool: their detokenizer has nothing to do."""
KINDS: Mapping[str, RingKind] = {
    "tokens": RingKind(_tokens, ("processor", "engine", "detokenizer", "gateway"), _generated, _streamed),
    "vectors": RingKind(_vectors, _POOLING, _embedded, _embedded_by_http),
    "scores": RingKind(_scores, _POOLING, _scored, _scored_by_http),
}
"""By what their engine makes, which is also the model's name; that of tokens is called tiny."""


@contextmanager
def running(kind: str, directory: Path) -> Iterator[Ring]:
    """A ring of that kind, with a gateway."""
    checkpoint = KINDS[kind].make(directory / kind)
    with running_ring(directory, "--vllm-engine-api", model=checkpoint, http=True) as ring:
        yield ring
