"""A Submit, as far as the ring looks into it, and what is wrong with it by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.ring.events import Reason, invalid_field
from services.ring.identity import PeerId, is_ring_id_of
from services.ring.logprobs import memory_bytes

MAX_OUTPUT_CONTEXT_BYTES = 16 << 10
_ID_BYTES = 40
"""About what a token id takes in memory that a request brings: a number, and its place in a tuple."""
_COMPUTED_ID_BYTES = 5
"""And one that is computed: its place in an array, with what arrays keep ahead."""

Order = TypeVar("Order")
"""What an engine core takes; opaque to the ring."""


@dataclass(frozen=True, slots=True)
class Submission(Generic[Order]):
    """What a peer asks for."""

    request_id: str
    epoch: int
    deliver_to: str
    """Empty: the submitter."""
    output_context: bytes
    choices: Mapping[int, Sequence[int]]
    """Unfinished choices and the ids they already have."""
    max_tokens: int
    """Ids that a choice has at most, those it already has among them."""
    logprobs: int | None
    """Alternatives per output token, if their log probabilities are asked for."""
    prompt_tokens: int
    prompt_logprobs: int | None
    """Alternatives per prompt token, if their log probabilities are asked for."""
    num_ids: int
    """Token ids that it brings, of the prompt and whatever else."""
    tenant: str
    order: Order
    """What the engine core makes of it."""
    traceparent: str = ""
    """Its place in a trace, if it is traced."""

    @property
    def id_bytes(self) -> int:
        """About what its token ids may take in memory, of all that it brings and all that is still to be computed."""
        return _ID_BYTES * self.num_ids + _COMPUTED_ID_BYTES * self._tokens_to_come

    @property
    def logprob_bytes(self) -> int:
        """What its log probabilities may take, of the prompt and of all that is still to be computed."""
        size = 0 if self.prompt_logprobs is None else memory_bytes(self.prompt_tokens, self.prompt_logprobs)
        return size if self.logprobs is None else size + memory_bytes(self._tokens_to_come, self.logprobs)

    @property
    def _tokens_to_come(self) -> int:
        return sum(max(0, self.max_tokens - len(ids)) for ids in self.choices.values())

    def check(self, peer: PeerId) -> None:
        """Raise ``Refused`` for what ``peer`` may not submit."""
        if not is_ring_id_of(self.request_id, peer.incarnation):
            problem = f"{self.request_id[:80]!r} is not '<incarnation>-<counter>' of this peer's incarnation"
            raise invalid_field("request_id", f"{problem} {peer.incarnation}")
        if self.epoch < 1:
            raise invalid_field("epoch", "0 is not an epoch: expected at least 1")
        if len(self.output_context) > MAX_OUTPUT_CONTEXT_BYTES:
            problem = f"{len(self.output_context)} bytes: expected at most {MAX_OUTPUT_CONTEXT_BYTES}"
            raise invalid_field("output_context", problem, reason=Reason.TOO_LARGE)
