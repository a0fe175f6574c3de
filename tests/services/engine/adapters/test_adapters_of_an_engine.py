"""Adapters in an engine that computes: every request has the tokens that PEFT gives with its adapter."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn

from engine_core.lora.adapter import open_adapter
from engine_core.startup import StartedEngine
from services.engine.adapters import control
from services.engine.async_engine import AsyncEngine
from services.engine.step_loop import StepLoop
from services.ring.identity import ADAPTERS, ENGINE_CAPABILITIES
from tests.engine_core.engines import started
from tests.engine_core.lora.adapters import save_adapter
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model
from tests.services.engine.test_async_engine_with_adapters import Peer, attached
from tests.waiting import until

ADAPTER_COUNT = 5
OPTIONS = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 16}
PROMPT = [3 + number * 7 % 180 for number in range(40)]
"""The same for all, and of more than two blocks: what an adapter computed must not be found by another."""
MAX_TOKENS = 8


@dataclass(frozen=True)
class Made:
    """A model, and adapters of it."""

    model: Path
    adapters: Path
    expected: dict[str | None, list[int]]
    """Tokens by the adapter's name; None: without one."""


@torch.inference_mode()
def tokens_of(model: nn.Module) -> list[int]:
    ids = list(PROMPT)
    for _ in range(MAX_TOKENS):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("adapters")
    base = make_model(configuration("llama-gqa"), seed=3)
    model = save_model(base, directory / "model")
    paths = [directory / "all" / f"a{number}" for number in range(ADAPTER_COUNT)]
    for number, path in enumerate(paths):
        save_adapter(deepcopy(base), path, r=1 + number, target_modules="all-linear")
    expected: dict[str | None, list[int]] = {None: tokens_of(base)}
    for path in paths:
        expected[path.name] = tokens_of(PeftModel.from_pretrained(deepcopy(base), path).eval())
    assert len({tuple(ids) for ids in expected.values()}) == ADAPTER_COUNT + 1, "each has others"
    return Made(model, directory / "all", expected)


@pytest.fixture(scope="module")
def computing(made: Made) -> Iterator[StartedEngine]:
    with started(made.model, max_num_batched_tokens=64, **OPTIONS) as engine:
        yield engine


@asynccontextmanager
async def serving(computing: StartedEngine, lora_dir: Path) -> AsyncIterator[AsyncEngine]:
    """As the engine's process sets it up."""
    engine, executor = AsyncEngine(orphan_grace=0.0, max_ledgers=1000), computing.executor
    engine.model, engine.capabilities = executor.model, (*ENGINE_CAPABILITIES, ADAPTERS)
    lora = executor.lora
    assert lora is not None
    engine.use_adapters(
        executor,
        lora,
        lambda path: open_adapter(Path(path), lora.targets, lora.limits),
        max_waiting=200,
        lora_dir=str(lora_dir),
    )
    failures: list[BaseException] = []
    loop = engine.step_loop = StepLoop(
        computing.core, asyncio.get_running_loop(), engine.report, failures.append, engine.starting
    )
    loop.start()
    watch = asyncio.create_task(engine.adapters.watch())
    try:
        await until(lambda: engine.adapters.registry.is_complete)
        yield engine
        assert not failures
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await asyncio.to_thread(loop.stop, 10.0)


def ids_of(peer: Peer) -> dict[str, list[int]]:
    """Every request's tokens so far."""
    outputs, ids, start = peer.read_frames.outputs, {}, 0
    for request_id, count in zip(outputs.request_ids, outputs.token_counts, strict=True):
        ids.setdefault(request_id, []).extend(outputs.token_ids[start : start + count])
        start += count
    return ids


def submit(peer: Peer, number: int, adapter: tuple[str, str] | None) -> None:
    fields = {"prompt_token_ids": PROMPT, "max_tokens": MAX_TOKENS, "ignore_eos": True, "sampling": {"temperature": 0}}
    if adapter is None:
        peer.submit("", number, **fields, adapter=None)
    else:
        peer.submit(adapter[0], number, adapter[1], **fields)


async def test_requests_of_more_adapters_than_fit_have_their_own_tokens(
    made: Made, computing: StartedEngine, tmp_path: Path
) -> None:
    shutil.copytree(made.adapters, tmp_path, dirs_exist_ok=True)
    async with serving(computing, tmp_path) as engine, attached(engine, ADAPTERS) as peer:
        await until(lambda: len(peer.told) == ADAPTER_COUNT)
        adapters = [*peer.told, None]
        asked = {f"1-{number}": random.Random(number).choice(adapters) for number in range(1, 61)}
        for request_id, adapter in asked.items():
            submit(peer, int(request_id.removeprefix("1-")), adapter)
        await until(lambda: len(peer.read_frames.outputs.finished) == len(asked))
        assert not peer.rejections
        found = ids_of(peer)
        for request_id, adapter in asked.items():
            assert found[request_id] == made.expected[adapter and adapter[0]], adapter
        queue = engine.adapter_queue
        assert (queue.num_active, queue.num_loaded, len(queue)) == (0, 3, 0)
        assert queue.counts.evictions >= 2
        assert queue.counts.loads == queue.counts.evictions + 3


async def test_what_a_replaced_adapter_serves_and_what_is_refused_as_its_files_are_gone(
    made: Made, computing: StartedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(control, "_POLL_SHARE", 0)
    for name in ("a0", "a1", "a2"):
        shutil.copytree(made.adapters / name, tmp_path / name)
    async with serving(computing, tmp_path) as engine, attached(engine, ADAPTERS) as peer:
        await until(lambda: len(peer.told) == 3)
        digests = dict(peer.told.keys())
        submit(peer, 1, ("a0", digests["a0"]))
        await until(lambda: len(peer.read_frames.outputs.finished) == 1)
        for name in ("a0", "a1"):
            shutil.copytree(made.adapters / "a4", tmp_path / name, dirs_exist_ok=True)
        await until(lambda: len(peer.told) == 5)
        new = next(digest for name, digest in peer.told if name == "a0" and digest != digests["a0"])
        submit(peer, 2, ("a0", new))
        submit(peer, 3, ("a0", digests["a0"]))
        submit(peer, 4, ("a1", digests["a1"]))
        await until(lambda: len(peer.read_frames.outputs.finished) == 3 and peer.rejections)
        found = ids_of(peer)
        assert found["1-2"] == made.expected["a4"]
        assert found["1-1"] == found["1-3"] == made.expected["a0"]
        [rejection] = peer.rejections
        assert rejection.request_id == "1-4", "its weights are nowhere any more"
        assert "cannot be loaded" in rejection.status.message
