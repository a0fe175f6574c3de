"""Damaged pictures by the thousand, sent to the pool: ``python -m tests.services.processor.media.damaged_pictures``.

Whatever is in a file, its sender gets the picture or a reason, other pictures are decoded, and memory stays in bounds.
``damaged(count, seed)`` makes the files alone, to send them elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from PIL import Image

from services.common.process.memory import resident_memory
from services.processor.media.pool import PicturePool
from services.ring.errors import Code, Refused
from tests.text_core.pictures.samples import facts_of, noise, saved
from text_core.pictures.limits import PictureLimits
from text_core.pictures.registry import write_facts

TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "TIFF": "image/tiff",
}
ARCHITECTURES = ("Qwen3VLForConditionalGeneration", "SmolVLMForConditionalGeneration", "DeepseekOCRForCausalLM")
CONCURRENT = 32
TENANTS = 5


@dataclass(frozen=True, slots=True)
class Damaged:
    """One file."""

    name: str
    """The damage, and what was damaged."""
    data: bytes = field(repr=False)
    mime: str


@cache
def whole() -> tuple[Damaged, ...]:
    """Sound files of all formats, in the forms that take other ways through a decoder."""
    made = []

    def add(name: str, kind: str, image: Image.Image, **options: object) -> None:
        made.append(Damaged(f"{name} {kind}", saved(image, kind, **options), TYPES[kind]))

    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "described"
    palette = noise(90, 70).convert("P", palette=Image.Palette.ADAPTIVE)
    for mode in ("1", "L", "LA", "RGB", "RGBA"):
        image = noise(80, 60, "L").convert("1") if mode == "1" else noise(80, 60, mode)
        add(mode, "PNG", image)
        add(mode, "TIFF", image)
    add("palette", "PNG", palette, transparency=bytes(range(200)))
    add("EXIF", "PNG", noise(50, 40), exif=exif)
    add("deep", "PNG", Image.new("I;16", (40, 40), 30_000))
    for mode in ("L", "RGB", "CMYK"):
        add(mode, "JPEG", noise(120, 90, mode))
    add("progressive", "JPEG", noise(200, 150), progressive=True, exif=exif)
    add("lossy", "WEBP", noise(100, 80))
    add("lossless", "WEBP", noise(100, 80, "RGBA"), lossless=True, exif=exif)
    add("animated", "WEBP", noise(60, 60), save_all=True, append_images=[noise(60, 60, seed=1)])
    add("palette", "GIF", palette)
    add("animated", "GIF", palette, save_all=True, append_images=[noise(90, 70, "L")] * 3, duration=10)
    for mode in ("L", "RGB"):
        add(mode, "BMP", noise(70, 50, mode))
    for codec in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        add(codec, "TIFF", noise(90, 60), compression=codec)
    add("group4", "TIFF", noise(90, 60, "L").convert("1"), compression="group4")
    add("pages", "TIFF", noise(30, 30), save_all=True, append_images=[noise(30, 30, seed=1)])
    return tuple(made)


def damaged(count: int, seed: int = 0) -> Iterator[Damaged]:
    """``count`` files, the same for the same seed."""
    rng = random.Random(seed)
    kinds = list(_DAMAGE)
    for index in range(count):
        kind = kinds[index % len(kinds)]
        sound = rng.choice(whole())
        data, mime = _DAMAGE[kind](rng, sound)
        yield Damaged(f"{index} {kind}: {sound.name}", data, mime)


def _cut(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    return sound.data[: rng.randrange(len(sound.data))], sound.mime


def _flipped(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    data = bytearray(sound.data)
    for _ in range(rng.choice([1, 2, 8, 64])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data), sound.mime


def _head_changed(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    """Where sizes, depths and offsets stand."""
    data = bytearray(sound.data)
    for _ in range(rng.choice([1, 2, 4])):
        place = rng.randrange(4, min(80, len(data)))
        data[place] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(data), sound.mime


def _numbers_changed(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    """Lengths anywhere become extreme."""
    data = bytearray(sound.data)
    for _ in range(rng.choice([1, 3])):
        place = rng.randrange(8, len(data) - 4)
        value = rng.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(data)])
        data[place : place + 4] = struct.pack(rng.choice(["<I", ">I"]), value)
    return bytes(data), sound.mime


def _moved(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    """A part is left out, or comes again elsewhere."""
    data = sound.data
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    place = rng.randrange(len(data))
    if rng.random() < 0.5:
        return data[:start] + data[end:], sound.mime
    return data[:place] + data[start:end] + data[place:], sound.mime


def _mixed(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    """One file's beginning before another's end."""
    other = rng.choice(whole()).data
    return sound.data[: rng.randrange(1, len(sound.data))] + other[rng.randrange(len(other)) :], sound.mime


def _mislabelled(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    return sound.data, rng.choice([*TYPES.values(), "image/svg+xml", "text/html", "\udcff" * 300, "a/b;" * 99])


def _noise(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    """The beginning of a format, then anything."""
    return sound.data[: rng.choice([0, 4, 16, 64])] + rng.randbytes(rng.choice([0, 1, 100, 5000])), sound.mime


def _polyglot(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    tails = [b"PK\x03\x04" + b"\0" * 26, b"<script>alert(1)</script>", b"%PDF-1.7\n", b"#!/bin/sh\n", b"MZ\x90\0"]
    tail = rng.choice(tails)
    return (sound.data + tail, sound.mime) if rng.random() < 0.5 else (tail + sound.data, sound.mime)


def _text(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    entities = b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><svg>&b;</svg>'
    return rng.choice([svg, entities, b"", b"\0" * rng.randrange(5000), b"P6 9999 9999 255\n", b"%!PS\n"]), sound.mime


@cache
def _zeros(count: int) -> bytes:
    return zlib.compress(bytes(count))


def _bomb(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    """Few bytes that become, or say that they become, very many."""
    width, height = rng.choice([(60_000, 60_000), (8000, 8000), (100_000, 1), (1, 65_000), (7999, 8000), (3000, 3000)])

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 1, rng.choice([0, 3]), 0, 0, rng.choice([0, 1]))
    rows = _zeros(min(width * height // 8 + height, 20_000_000))
    text = chunk(b"zTXt", b"Comment\0\0" + _zeros(50_000_000)) if rng.random() < 0.2 else b""
    palette = chunk(b"PLTE", bytes(6))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + text + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return data, "image/png"


def _endless(rng: random.Random, sound: Damaged) -> tuple[bytes, str]:
    """Structures that refer to themselves, or repeat: directories of TIFF, frames of GIF, segments of JPEG."""
    pick = rng.randrange(3)
    if pick == 0:
        entry = struct.pack("<HHII", rng.choice([0x8769, 0x014A, 256, 273]), 4, 1, 8)
        return b"II*\0" + struct.pack("<IH", 8, 200) + entry * 200 + struct.pack("<I", 8), "image/tiff"
    if pick == 1:
        head = b"GIF89a" + struct.pack("<HH", 30_000, 2000) + b"\x80\0\0" + bytes(6)
        frame = b"!\xf9\x04\0\0\0\0\0," + struct.pack("<HHHH", 0, 0, 30_000, 2000) + b"\0\x02\x02D\x01\0"
        return head + frame * rng.choice([1, 2000]) + b";", "image/gif"
    return b"\xff\xd8" + b"\xff\xe1\x00\x08Exif\0\0" * 5000 + sound.data, "image/jpeg"


_DAMAGE: dict[str, Callable[[random.Random, Damaged], tuple[bytes, str]]] = {
    "cut": _cut,
    "flipped": _flipped,
    "head changed": _head_changed,
    "numbers changed": _numbers_changed,
    "moved": _moved,
    "mixed": _mixed,
    "mislabelled": _mislabelled,
    "noise": _noise,
    "polyglot": _polyglot,
    "text": _text,
    "bomb": _bomb,
    "endless": _endless,
}


@dataclass(slots=True)
class Report:
    """What became of the pictures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    crashes: Counter[str] = field(default_factory=Counter)
    largest_child: int = 0
    """Bytes."""
    largest_gap: float = 0.0
    """Seconds that the event loop stood still."""


async def send(count: int, seed: int, limits: PictureLimits, processes: int = 1) -> Report:
    """Send damaged pictures to a pool, and now and then a sound one."""
    pool = PicturePool(limits, processes)
    report, room = Report(), asyncio.Semaphore(CONCURRENT)
    facts = [write_facts(facts_of(one, max_tokens=1024)) for one in ARCHITECTURES]
    sound = saved(noise(40, 30))

    async def one(index: int, picture: Damaged) -> None:
        async with room:
            begun = time.monotonic()
            try:
                await pool.prepare(f"t{index % TENANTS}", facts[index % len(facts)], picture.data, picture.mime)
                report.outcomes["prepared"] += 1
            except Refused as refused:
                status = refused.status
                report.outcomes[status.code.name] += 1
                if status.code not in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED):
                    report.unexpected.append(f"{picture.name}: {status.message}")
                if "ended the process" in status.message or "could not be decoded within" in status.message:
                    report.crashes[status.message[-160:]] += 1
            except Exception as error:
                report.unexpected.append(f"{picture.name}: {error!r}")
            report.seconds.append(time.monotonic() - begun)
            report.largest_child = max([report.largest_child, *_peaks(pool)])
            if index % 100 == 0:
                await pool.prepare("sound", facts[0], sound, "image/png")

    watch = asyncio.create_task(_watch(report))
    async with asyncio.TaskGroup() as group:
        files = damaged(count, seed)
        for index in range(count):
            while room.locked():  # noqa: ASYNC110 - files are made as they are sent
                await asyncio.sleep(0.002)
            group.create_task(one(index, await asyncio.to_thread(next, files)))
    watch.cancel()
    report.outcomes["processes"] = pool.counts.started
    pool.close()
    return report


def _peaks(pool: PicturePool) -> Iterator[int]:
    """Most memory of each process so far."""
    for worker in pool._workers:
        if worker.process is not None:
            try:
                with open(f"/proc/{worker.process._process.pid}/status") as file:  # noqa: PTH123
                    yield from (int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
            except OSError:
                continue


async def _watch(report: Report) -> None:
    """Measure how long the loop stands still; a busy machine adds to it."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.005)
        now = time.monotonic()
        report.largest_gap, last = max(report.largest_gap, now - last), now


def main() -> int:
    """Send them, and print what became of them; 1 if anything but a picture or a reason came back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    before, begun = resident_memory(), time.monotonic()
    report = asyncio.run(send(options.count, options.seed, PictureLimits(), options.processes))
    seconds = sorted(report.seconds)
    print(f"{options.count} pictures of seed {options.seed} in {time.monotonic() - begun:.0f} s")
    print("outcomes:", dict(report.outcomes))
    print("ended their process:", dict(report.crashes) or "none")
    print(
        f"seconds of a picture, {CONCURRENT} at a time: median {seconds[len(seconds) // 2]:.3f}, most {seconds[-1]:.2f}"
    )
    more = (resident_memory() - before) >> 20
    print(f"memory: a process at most {report.largest_child >> 20} MiB, this one {more} MiB more")
    print(f"the event loop stood still for at most {1000 * report.largest_gap:.0f} ms")
    for line in report.unexpected[:20]:
        print("UNEXPECTED", line)
    return 1 if report.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
