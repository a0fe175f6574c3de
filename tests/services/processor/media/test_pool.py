"""Pictures are decoded in confined processes, and one that ends its process fails alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from services.processor.media.pool import MIN_CHARGE, PicturePool
from services.ring.errors import Code, Reason, Refused
from tests.ring import ROOT
from tests.text_core.pictures.samples import facts_of, noise, saved
from tests.waiting import until
from text_core.pictures.decode import prepare
from text_core.pictures.limits import PictureLimits
from text_core.pictures.registry import processor_of, write_facts

QWEN = facts_of("Qwen3VLForConditionalGeneration", max_tokens=64)
FACTS = write_facts(QWEN)
SMALL = saved(noise(64, 48))
SLOW = saved(Image.new("RGBA", (3800, 3800), (1, 2, 3, 99)))
"""Takes most of a second, and is 57 kB."""


@pytest.fixture
async def pool():
    one = PicturePool(PictureLimits())
    yield one
    one.close()


def process_of(pool: PicturePool) -> int:
    process = pool._workers[0].process
    assert process is not None
    return process._process.pid


async def decoding(pool: PicturePool) -> None:
    """Until a process has begun to work."""
    await until(lambda: pool._workers[0].process is not None)


async def test_pictures_are_those_that_decoding_here_makes(pool) -> None:
    for architecture in ("Qwen3VLForConditionalGeneration", "SmolVLMForConditionalGeneration"):
        facts = facts_of(architecture, {"size": {"longest_edge": 1024}})
        for data in (SMALL, saved(noise(300, 200, "L"), "JPEG")):
            assert await pool.prepare("t", write_facts(facts), data, "") == prepare(processor_of(facts), data)
    assert (pool.counts.started, pool.counts.prepared, pool.counts.refused) == (1, 4, 0)
    assert pool.waiting == pool._bytes.total == 0


async def test_a_picture_that_cannot_be_used_is_refused_with_its_field(pool) -> None:
    with pytest.raises(Refused) as refused:
        await pool.prepare("t", FACTS, SMALL[:100], "image/png", "messages[1].content_parts[0]")
    status = refused.value.status
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "messages[1].content_parts[0]")
    assert status.message.startswith("messages[1].content_parts[0]: its PNG data is damaged")
    with pytest.raises(Refused, match=r"more than 200 times the shorter one"):
        await pool.prepare("t", FACTS, saved(Image.new("L", (100_000, 1))), "")
    with pytest.raises(Refused, match=r"its file has \d+ bytes, more than the 20971520") as refused:
        await pool.prepare("t", FACTS, b"\0" * ((20 << 20) + 1), "")
    assert refused.value.status.reason is Reason.TOO_LARGE
    await pool.prepare("t", FACTS, SMALL, "image/png")
    assert pool.counts.started == 1


async def test_facts_that_are_unusable_are_refused_without_a_process(pool) -> None:
    with pytest.raises(Refused, match=r"pictures cannot be prepared here: .*is not JSON") as refused:
        await pool.prepare("t", b"{", SMALL, "")
    assert refused.value.status.code is Code.FAILED_PRECONDITION
    assert pool.counts.started == 0


async def test_the_process_is_confined(pool, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RINGLINE_SECRET", "of the processor")
    (tmp_path / "secret").write_text("of the processor")
    with (tmp_path / "secret").open() as file:
        os.set_inheritable(file.fileno(), True)
        await pool.prepare("t", FACTS, SMALL, "")
    process = Path(f"/proc/{process_of(pool)}")
    assert b"RINGLINE" not in (process / "environ").read_bytes()
    assert sorted(file.name for file in (process / "fd").iterdir()) == ["0", "1", "2"]
    assert process.joinpath("cwd").resolve() == Path("/")
    limits = {line[:25].strip(): line[25:].split()[:2] for line in (process / "limits").read_text().splitlines()}
    for name in ("Max open files", "Max file size", "Max core file size", "Max processes"):
        assert limits[name] == ["0", "0"]
    soft, hard = map(int, limits["Max address space"])
    assert soft == hard < 2 << 30
    assert (process / "cmdline").read_bytes().startswith(b"ringline pictures")


async def test_a_process_that_dies_fails_its_picture_alone(pool) -> None:
    first = asyncio.create_task(pool.prepare("t", FACTS, SLOW, ""))
    second = asyncio.create_task(pool.prepare("t", FACTS, SMALL, ""))
    await decoding(pool)
    os.kill(process_of(pool), signal.SIGSEGV)
    with pytest.raises(Refused, match=r"it ended the process that read it \(SIGSEGV\)") as refused:
        await first
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    assert (await second).items[0].plan.num_tokens > 0
    assert pool.counts.started == 2


async def test_a_process_that_died_while_idle_is_replaced(pool) -> None:
    await pool.prepare("t", FACTS, SMALL, "")
    os.kill(process_of(pool), signal.SIGKILL)
    await until(lambda: not pool._workers[0].process.is_alive)
    await pool.prepare("t", FACTS, saved(noise(9, 9)), "")
    assert pool.counts.started == 2


async def test_a_picture_has_its_own_time(monkeypatch) -> None:
    monkeypatch.setattr("services.processor.media.process.WALL_FACTOR", 400.0)
    pool = PicturePool(PictureLimits(max_seconds=0.15))
    with pytest.raises(Refused, match=r"could not be decoded within 0\.15 s of computing; make it smaller") as refused:
        await pool.prepare("t", FACTS, SLOW, "")
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    for seed in range(20):  # together they take longer
        await pool.prepare("t", FACTS, saved(noise(100, 100, seed=seed)), "")
    assert pool.counts.started == 2
    pool.close()


async def test_a_process_that_stands_still_is_ended(monkeypatch) -> None:
    monkeypatch.setattr("services.processor.media.process.WALL_FACTOR", 0.05)
    pool = PicturePool(PictureLimits())
    await pool.prepare("t", FACTS, SMALL, "")
    os.kill(process_of(pool), signal.SIGSTOP)
    with pytest.raises(Refused, match=r"^here: it could not be decoded within 0\.5 s, because this machine") as refused:
        await pool.prepare("t", FACTS, saved(noise(9, 9)), "", "here")
    assert (refused.value.status.code, refused.value.status.field) == (Code.RESOURCE_EXHAUSTED, "here")
    assert refused.value.status.retry_after_ms
    monkeypatch.undo()
    await pool.prepare("t", FACTS, saved(noise(9, 9)), "")
    assert pool.counts.started == 2
    pool.close()


async def test_a_picture_that_is_sent_again_is_not_decoded_again(pool) -> None:
    first = await pool.prepare("t", FACTS, SMALL, "")
    assert await pool.prepare("t", FACTS, SMALL, "") is first
    many = await asyncio.gather(*(pool.prepare("t", FACTS, SMALL[:-1] + b"\x82", "") for _ in range(10)))
    assert all(one is many[0] for one in many)
    await pool.prepare("another tenant", FACTS, SMALL, "")
    await pool.prepare("t", write_facts(facts_of("Gemma3ForConditionalGeneration")), SMALL, "")
    assert pool.counts.prepared + pool.counts.from_cache == 14
    assert pool.counts.prepared <= 4


async def test_the_cache_is_bounded() -> None:
    pool = PicturePool(PictureLimits(), max_cached_bytes=3 * 64 * 64 * 3)
    for seed in [0, 1, 2, 3, 4, 0, 4]:
        await pool.prepare("t", FACTS, saved(noise(64, 64, seed=seed)), "")
    assert pool.counts.from_cache == 1
    assert pool._cache._bytes <= 3 * 64 * 64 * 3
    pool.close()


async def test_a_tenant_with_many_pictures_holds_up_no_other(pool) -> None:
    order: list[str] = []

    async def send(tenant: str, seed: int) -> None:
        await pool.prepare(tenant, FACTS, saved(noise(200, 200, seed=seed)), "")
        order.append(tenant)

    many = [asyncio.create_task(send("many", seed)) for seed in range(20)]
    await decoding(pool)
    await send("one", 99)
    assert len(order) <= 5
    await asyncio.gather(*many)


async def test_what_waits_is_bounded_and_fair() -> None:
    pool = PicturePool(PictureLimits(), max_waiting_bytes=8 * MIN_CHARGE)
    waiting = [asyncio.create_task(pool.prepare("many", FACTS, saved(noise(8, 8, seed=seed)), "")) for seed in range(9)]
    refused = [one for one in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(one, Refused)]
    assert len(refused) == 5  # a tenant alone gets half of the room
    status = refused[0].status
    assert (status.code, status.reason) == (Code.RESOURCE_EXHAUSTED, Reason.QUOTA)
    assert status.retry_after_ms
    assert pool._bytes.total == 0
    pool.close()


async def test_a_picture_that_nobody_waits_for_is_given_up(pool) -> None:
    first = asyncio.create_task(pool.prepare("t", FACTS, SLOW, ""))
    second = asyncio.create_task(pool.prepare("t", FACTS, saved(noise(9, 9)), ""))
    await decoding(pool)
    second.cancel()
    first.cancel()
    assert [type(one) for one in await asyncio.gather(first, second, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    assert pool.waiting == pool._bytes.total == 0
    await pool.prepare("t", FACTS, SMALL, "")
    assert pool.counts.prepared == 1


async def test_closing_ends_processes_and_refuses_what_waits(pool) -> None:
    tasks = [asyncio.create_task(pool.prepare("t", FACTS, data, "")) for data in (SLOW, SMALL)]
    await decoding(pool)
    process = pool._workers[0].process
    pool.close()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, Refused)
    assert process is not None
    await until(lambda: not process.is_alive)
    with pytest.raises(Refused, match="shutting down"):
        await pool.prepare("t", FACTS, SMALL, "")


async def test_a_process_is_replaced_after_many_pictures(monkeypatch) -> None:
    monkeypatch.setattr("services.processor.media.pool.MAX_PICTURES", 3)
    pool = PicturePool(PictureLimits())
    for seed in range(7):
        await pool.prepare("t", FACTS, saved(noise(8, 8, seed=seed)), "")
    assert pool.counts.started == 3
    pool.close()


async def test_a_process_that_cannot_start_is_no_fault_of_the_picture(monkeypatch) -> None:
    monkeypatch.setattr("services.processor.media.process._BOOT", "raise SystemExit(3)")
    pool = PicturePool(PictureLimits())
    with pytest.raises(Refused, match=r"pictures cannot be decoded now") as refused:
        await pool.prepare("t", FACTS, SMALL, "")
    assert refused.value.status.code is Code.UNAVAILABLE
    pool.close()


async def test_several_processes_work_at_a_time() -> None:
    pool = PicturePool(PictureLimits(), 2)
    await asyncio.gather(*(pool.prepare("t", FACTS, saved(noise(50, 50, seed=seed)), "") for seed in range(12)))
    assert (pool.counts.started, pool.counts.prepared) == (2, 12)
    pool.close()


def test_the_processor_itself_loads_no_decoder() -> None:
    """The process that holds clients' connections and keys never runs Pillow."""
    program = """
import asyncio, json, sys
from services.processor.media.pool import PicturePool
from text_core.pictures.limits import PictureLimits
facts, data = json.load(sys.stdin)
async def main():
    pool = PicturePool(PictureLimits())
    print((await pool.prepare("t", facts.encode(), bytes.fromhex(data), "")).items[0].plan.num_tokens)
    pool.close()
asyncio.run(main())
assert not {"PIL", "numpy", "torch", "transformers"} & sys.modules.keys()
"""
    given = json.dumps([FACTS.decode(), SMALL.hex()])
    path = f"{ROOT}:{ROOT / 'clients/python'}"
    run = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, env={"PYTHONPATH": path}
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(prepare(processor_of(QWEN), SMALL).items[0].plan.num_tokens)


async def test_damaged_pictures_of_several_tenants_need_one_process(pool) -> None:
    """``damaged_pictures`` sends others by the thousand."""
    outcomes = await asyncio.gather(
        *(pool.prepare(f"t{n % 7}", FACTS, SMALL[: 40 + 60 * n], "image/png") for n in range(80)),
        return_exceptions=True,
    )
    assert all(isinstance(one, Refused) and one.status.code is Code.INVALID_ARGUMENT for one in outcomes)
    assert pool.counts.started == 1
