"""Requests for vectors for chaos runs, and the engines that make them, beside those that generate."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

from ringline import AsyncClient, FinishReason
from transformers import Qwen3Config

from tests.chaos.outcome import Answer, Outcome
from tests.chaos.workload import TOPICS, RequestSpec
from tests.engine_core.pooling.checkpoints import lay_out, random_model
from tests.ring import MODEL
from text_core.tokenizer import Tokenizer

KIND, NAME = "vectors", "vectors"
COUNT = 2
"""Engines that make vectors."""
_INPUTS = (1, 3, 20)
_CANCELLED_AFTER = 0.002
"""Seconds per token after which another request would be cancelled."""


def make(directory: Path) -> Path:
    """A random checkpoint of a decoder that pools its last token, with the bundled model's tokenizer."""
    vocab_size = Tokenizer.from_directory(MODEL).vocab_size
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(vocab_size=vocab_size, num_hidden_layers=4, head_dim=16, tie_word_embeddings=True, **sizes)
    config.max_position_embeddings = 512
    random_model(directory, config=config)
    lay_out(directory)
    for file in MODEL.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens")):
            shutil.copy(file, directory)
    return directory


def engines(directory: Path, before: int) -> dict[str, list[str]]:
    """Flags of the engines, by their names; ``before``: number of the other engines."""
    flags = ["--kv-cache-memory-bytes", "32MiB", "--served-model-name", NAME, "--model", str(make(directory))]
    return {f"engine-{before + number}": flags for number in range(COUNT)}


def pool(seed: int, count: int) -> list[RequestSpec]:
    """``count`` requests, of few and of many inputs."""
    random_ = random.Random(seed)
    return [RequestSpec(f"vectors-{index}", None, texts=_texts(random_)) for index in range(count)]


def _texts(random_: random.Random) -> tuple[str, ...]:
    topics = (random_.choice(TOPICS) for _ in range(random_.choice(_INPUTS)))
    return tuple(f"This is about {topic}. " * random_.randint(1, 20) for topic in topics)


async def ask(client: AsyncClient, spec: RequestSpec, outcome: Outcome, cancel_after: int | None) -> None:
    """Add a request's vectors, bit for bit, to ``outcome``: each input is a choice whose text is its vector."""
    asked = client.embed(spec.texts, model=NAME)
    if cancel_after is not None:
        try:
            async with asyncio.timeout(_CANCELLED_AFTER * cancel_after):
                await asked
        except TimeoutError:
            pass
        return
    found = await asked
    for choice, vector in enumerate(found):
        outcome.choices[choice] = Answer(text=vector.tobytes().hex(), end=(FinishReason.STOP, None, None))
    outcome.usage = found.usage
