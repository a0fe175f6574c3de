"""A snapshot of the scheduler's load and counters, for load reports and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    encoded_pictures: int = 0
    encoded_picture_tokens: int = 0
    encoder_cache_uses: int = 0
    encoder_cache_hits: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges at one moment, and counters since the start."""

    running_seqs: int
    waiting_reqs: int
    """Requests never admitted."""
    returning_reqs: int
    """Admitted requests with choices in the queue: preempted, or not started for lack of room."""
    waiting_seqs: int
    """Choices that do not run: of waiting requests, preempted, or waiting for their prompt."""
    queued_tokens: int
    """Tokens to compute until every queued sequence samples its next token, assuming no prefix hits."""
    kv_blocks: int
    kv_blocks_used: int
    """Blocks with holders; cached blocks without holders count as free."""
    steps: int
    computed_tokens: int
    """Rows of all completed forward passes."""
    generated_tokens: int
    """Tokens sampled and delivered."""
    preemptions: int
    prefix_query_tokens: int
    """Tokens looked up in the prefix cache, at each request's first admission."""
    prefix_hit_tokens: int
    """Tokens of these that were found."""
    state_slots: int = 0
    """Slots for the states of sequences; 0: no layer keeps a state."""
    state_slots_used: int = 0
    """Slots with holders; snapshots without holders count as free."""
    encoder_cache_tokens: int = 0
    """Tokens of pictures for whose embeddings there is room; 0: the model takes no pictures."""
    encoder_cache_tokens_held: int = 0
    """Of embeddings that sequences and steps in flight need; others are kept until their room is needed."""
    encoded_pictures: int = 0
    encoded_picture_tokens: int = 0
    encoder_cache_uses: int = 0
    """Pictures whose embeddings a sequence began to read."""
    encoder_cache_hits: int = 0
    """Of these, found: not encoded for that sequence."""
    drafts: int = 0
    """Times that a step computed drafts of a drafter for a sequence."""
    draft_tokens: int = 0
    """Drafts of drafters that were computed."""
    accepted_draft_tokens: int = 0
    """Of these, accepted."""
    accepted_by_position: tuple[int, ...] = ()
    """Accepted drafts by their position among those of their step; as many as ``num_speculative_tokens`` of
    ``speculative_config``, none without one."""

    @property
    def kv_usage(self) -> float:
        """Share in use of the KV blocks or of the slots for states, whichever is larger."""
        blocks = self.kv_blocks_used / self.kv_blocks if self.kv_blocks else 0.0
        return max(blocks, self.state_slots_used / self.state_slots) if self.state_slots else blocks
