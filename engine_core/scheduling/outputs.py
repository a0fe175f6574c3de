"""Processing of sampled tokens: whether a sequence ends, and its ``SequenceOutput`` of a step."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from engine_core.logprobs import Logprobs
from engine_core.request import Finish, FinishReason
from engine_core.sequence import Sequence, SequenceGroup
from engine_core.step import SequenceOutput, StepResult

_LENGTH = Finish(FinishReason.LENGTH)
_POOLED = Finish(FinishReason.STOP)


def end_of(group: SequenceGroup, output: Tokens[int]) -> Finish | None:
    """How the last token of a non-empty output ends it (eos or stop token, else a limit); None: not at all."""
    token_id = output[-1]
    if _stops(group, token_id, len(output)):
        return Finish(FinishReason.STOP, token_id)
    return _LENGTH if len(output) >= group.max_output else None


def ends(group: SequenceGroup, token_id: int, length: int) -> bool:
    """Whether a token ends an output that has ``length`` tokens with it."""
    return length >= group.max_output or _stops(group, token_id, length)


def _stops(group: SequenceGroup, token_id: int, length: int) -> bool:
    return token_id in group.final_ids or (token_id in group.stop_ids and length > group.min_tokens)


def output_of_step(seq: Sequence, num_computed: int, token_ids: list[int], result: StepResult) -> SequenceOutput | None:
    """Append a step's tokens for ``seq``, up to one that ends it; None if there is no news.

    ``num_computed``: computed tokens of ``seq`` after the step. A failed sequence ends with ERROR, unless its last
    token ends it; one that is pooled ends with its result.
    """
    group = seq.group
    first_position = len(seq.output)
    finish = None
    for count, token_id in enumerate(token_ids, start=1):
        seq.output.append(token_id)
        finish = end_of(group, seq.output)
        if finish is not None:
            token_ids = token_ids[:count]
            break
    pooled = None
    if group.pooled is not None and (pooled := result.pooled.get(seq.seq_id)) is not None:
        finish = _POOLED
    if finish is None and seq.seq_id in result.failed:
        failure = result.failed[seq.seq_id]
        finish = Finish(FinishReason.ERROR, error=failure.problem, error_field=failure.field)
    cached_tokens = queue_seconds = prefilled_tokens = prompt_logprobs = None
    if group.has_news:
        prompt_logprobs = _fresh_logprobs(group, result.prompt_logprobs.get(seq.seq_id))
        cached_tokens, queue_seconds = _take_admission(group)
        prefilled_tokens = _progress(group, num_computed)
        group.has_news = group.prefilled_tokens < group.num_prompt_tokens or group.scores_prompt
    news = finish, cached_tokens, prefilled_tokens, prompt_logprobs
    if not token_ids and all(each is None for each in news):
        return None
    logprobs = result.logprobs.get(seq.seq_id) if token_ids else None
    if logprobs is not None and len(logprobs) != len(token_ids):
        logprobs = logprobs[: len(token_ids)]
    return SequenceOutput(
        group.request_id,
        group.reported(seq.choice),
        first_position,
        token_ids,
        logprobs,
        finish,
        cached_tokens,
        prefilled_tokens,
        queue_seconds,
        prompt_logprobs,
        pooled=pooled,
    )


def output_of_end(
    group: SequenceGroup, choice: int, num_output_tokens: int, finish: Finish, drafts: tuple[int, int] = (0, 0)
) -> SequenceOutput:
    """The output for a choice that ends without a step; ``drafts``: accepted and rejected ones."""
    cached_tokens, queue_seconds = _take_admission(group)
    return SequenceOutput(
        group.request_id,
        group.reported(choice),
        num_output_tokens,
        [],
        None,
        finish,
        cached_tokens,
        queue_seconds=queue_seconds,
        accepted_drafts=drafts[0],
        rejected_drafts=drafts[1],
    )


def _take_admission(group: SequenceGroup) -> tuple[int | None, float | None]:
    """``cached_tokens`` and ``queue_seconds``, reported once."""
    news = group.cached_tokens, group.queue_seconds
    group.cached_tokens = group.queue_seconds = None
    return news


def _progress(group: SequenceGroup, num_computed: int) -> int | None:
    """``prefilled_tokens`` to report now; None for a prompt that takes a single step."""
    length = group.num_prompt_tokens
    reached = min(num_computed, length)
    # Recomputing the prompt after a preemption is no progress that is new to the caller.
    if reached <= group.prefilled_tokens:
        return None
    prefilled = reached if reached < length or group.prefilled_tokens > 0 else None
    group.prefilled_tokens = reached
    return prefilled


def _fresh_logprobs(group: SequenceGroup, entries: Logprobs | None) -> Logprobs | None:
    """The prompt's log probabilities not reported yet; None if there are none."""
    if entries is None:
        return None
    start = group.num_prompt_logprobs
    group.num_prompt_logprobs += len(entries)
    fresh = entries[max(0, group.reported_prompt_logprobs - start) :]
    group.reported_prompt_logprobs += len(fresh)
    return fresh if len(fresh) else None
