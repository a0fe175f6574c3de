"""Requests for vectors for chaos runs, and the engines that make them, beside those that generate."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from ringline import AsyncClient, FinishReason

from tests.chaos.outcome import Answer, Outcome
from tests.chaos.workload import TOPICS, RequestSpec
from tests.pooling_models import embedder

KIND, NAME = "vectors", "vectors"
COUNT = 2
"""Engines that make vectors."""
_INPUTS = (1, 3, 20)
_CANCELLED_AFTER = 0.002
"""Seconds per token after which another request would be cancelled."""


def engines(directory: Path, before: int) -> dict[str, list[str]]:
    """Flags of the engines, by their names; ``before``: number of the other engines."""
    flags = ["--kv-cache-memory-bytes", "32MiB", "--served-model-name", NAME, "--model", str(embedder(directory))]
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
