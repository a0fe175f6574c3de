"""What the requests of a process hold together of one thing, within a size."""

from __future__ import annotations

from services.ring.events import Code, Refused

MAX_PROMPT_LOGPROB_BYTES = 256 << 20
"""Of log probabilities of prompts, in an engine."""
MAX_ID_BYTES = 512 << 20
"""Of token ids of prompts, and whatever other ids requests bring, in an engine."""
RETRY_AFTER_MS = 1000


class Quota:
    """Counts bytes. A request that alone takes more than there may be is taken while nobody else holds any."""

    def __init__(self, field: str, who: str, what: str, most: int) -> None:
        """``field`` that asks for it; ``who`` holds ``what``, in words; ``most`` bytes together."""
        self._field, self._who, self._what, self._most = field, who, what, most
        self._held = 0

    def check(self, wanted: int, freed: int = 0) -> None:
        """Raise ``Refused`` unless there is room for ``wanted`` bytes, once ``freed`` are given back."""
        held = self._held - freed
        if wanted and held and held + wanted > self._most:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{self._field}: {self._who} holds {held} bytes of {self._what} for other requests, and these take "
                f"{wanted}: expected at most {self._most} together",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def take(self, size: int) -> None:
        """A request holds so many bytes."""
        self._held += size

    def give_back(self, size: int) -> None:
        """It is gone."""
        self._held -= size
