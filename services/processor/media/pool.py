"""Processes that decode pictures: bounded in number, memory and time, and fair between tenants."""

from __future__ import annotations

from text_core.pictures.limits import PictureLimits
from text_core.pictures.prepared import PreparedPicture

FIELD = "media"


class PicturePool:
    """Prepares pictures in child processes, which it starts when they are needed first."""

    def __init__(self, limits: PictureLimits, processes: int = 1) -> None:
        self._limits = limits
        self._processes = processes

    async def close(self) -> None:
        """End the processes; pictures that wait are refused with UNAVAILABLE."""

    async def prepare(self, tenant: str, facts: bytes, data: bytes, mime: str, field: str = FIELD) -> PreparedPicture:
        """Decode a picture and make its views. Cancellation gives up its place, or ends its process.

        ``facts``: content of the model's ``FACTS_FILE``. ``mime``: declared type, such as image/png; empty if none is
        known. ``field``: names the picture in errors. Raises ``Refused``: INVALID_ARGUMENT if it cannot be used,
        RESOURCE_EXHAUSTED while too much waits.
        """
        raise AssertionError
