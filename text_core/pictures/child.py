"""A process that decodes pictures for another one, confined: ``python -m text_core.pictures.child LIMITS``.

It reads requests on its standard input, answers on its standard output (``frames``), and ends with its input. Before it
reads the first one, it gives up opening files and connections, writing files, and memory beyond what a picture within
the limits needs; each picture has its own time of the CPU, after which the system ends the process. So a file that
exploits a decoder reaches no secret, no file and no network, and one that takes too much ends only this process. Other
processes come before it where cores are scarce.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from setproctitle import setproctitle

from text_core.pictures.base import PictureError, PictureProcessor
from text_core.pictures.decode import make_views, open_picture, prepare_process
from text_core.pictures.frames import ANSWER, MAX_ERROR_BYTES, MIME, REQUEST, Answer, Request
from text_core.pictures.limits import PictureLimits
from text_core.pictures.registry import parse_facts, processor_of

BYTES_PER_PIXEL = 20
"""Memory to decode a pixel: with transparency, a few copies of 4 bytes; a WebP has four of them."""
BYTES_FOR_VIEWS = 384 << 20
"""Memory for a picture's views, of which one is made at a time."""
_NICENESS = 5
"""The process gets a third of the time of one that it competes with for a core: streams come before new pictures."""
_REQUESTS, _ANSWERS = 0, 1
_PAGE = resource.getpagesize()


class _Ended(Exception):
    """Nobody reads or writes any more."""


def main(limits: PictureLimits) -> NoReturn:
    """Run the process."""
    setproctitle("ringline pictures")
    confine(limits)
    with suppress(_Ended, BrokenPipeError):
        _Server(limits).run()
    os._exit(0)  # nothing here needs to be put away


def confine(limits: PictureLimits) -> None:
    """Give up what decoding does not need, for good."""
    os.nice(_NICENESS)
    prepare_process()
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib takes a while to load
        used = int(file.read().split()[0]) * _PAGE
    memory = used + BYTES_PER_PIXEL * limits.max_pixels + 3 * limits.max_bytes + BYTES_FOR_VIEWS
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))


class _Server:
    def __init__(self, limits: PictureLimits) -> None:
        self._limits = limits
        self._processor: PictureProcessor | None = None

    def run(self) -> None:
        self._write(ANSWER.pack(Answer.READY, 0, 0))
        while (payload := self._next_picture()) is not None:
            signal.setitimer(signal.ITIMER_PROF, self._limits.max_seconds)  # SIGPROF ends the process
            self._answer(payload)
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _next_picture(self) -> bytearray | None:
        while True:
            kind, length = REQUEST.unpack(self._read(REQUEST.size))
            payload = self._read(length)
            if kind == Request.PICTURE:
                return payload
            try:
                self._processor = processor_of(parse_facts(bytes(payload)))
            except ValueError as error:
                self._write_text(Answer.FAILED, str(error))
                return None

    def _answer(self, payload: bytearray) -> None:
        processor = self._processor
        assert processor is not None
        (length,) = MIME.unpack_from(payload)
        mime = payload[MIME.size : MIME.size + length].decode("ascii", "replace")
        data = bytes(memoryview(payload)[MIME.size + length :])
        payload.clear()
        try:
            image = open_picture(data, mime, self._limits, processor.alpha)
            plan = processor.plan(*image.size)
        except PictureError as error:
            self._write_text(Answer.ERROR, str(error))
            return
        del data
        self._write(ANSWER.pack(Answer.PICTURE, *image.size))
        for view in make_views(image, plan):
            self._write(view.pixels)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = os.readv(_REQUESTS, [rest])
            if not count:
                raise _Ended
            rest = rest[count:]
        rest.release()
        return data

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(_ANSWERS, rest) :]

    def _write_text(self, kind: Answer, text: str) -> None:
        data = text.encode()[:MAX_ERROR_BYTES]
        self._write(ANSWER.pack(kind, len(data), 0) + data)


def run(argument: str) -> NoReturn:
    """Run the process with its command line's argument."""
    main(PictureLimits(**json.loads(argument)))


if __name__ == "__main__":
    run(sys.argv[1])
