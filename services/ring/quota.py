"""What the requests of an engine hold together of one thing, within a size."""

from __future__ import annotations

from services.ring.events import Code, Refused

MAX_PROMPT_LOGPROB_BYTES = 256 << 20
"""Of log probabilities of prompts, in an engine."""
MAX_ID_BYTES = 512 << 20
"""Of token ids of prompts, and whatever other ids requests bring."""
RETRY_AFTER_MS = 1000


class Quota:
    """Counts bytes. A request that alone takes more than there may be is taken while nobody else holds any."""

    def __init__(self, field: str, what: str, most: int) -> None:
        """``field`` of a Submit that asks for it; ``what`` is held, in words; ``most`` bytes together."""
        self._field, self._what, self._most = field, what, most
        self._held = 0

    def check(self, wanted: int, freed: int) -> None:
        """Raise ``Refused`` unless there is room for ``wanted`` bytes, once ``freed`` are given back."""
        held = self._held - freed
        if wanted and held and held + wanted > self._most:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{self._field}: this engine holds {held} bytes of {self._what} for other requests, and these take "
                f"{wanted}: expected at most {self._most} together",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def take(self, size: int) -> None:
        """A request holds so many bytes."""
        self._held += size

    def give_back(self, size: int) -> None:
        """It is gone."""
        self._held -= size
