"""From drawn tokens to what the caller sees: when a sequence ends, and the news a step brings about it."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from engine_core.request import Finish, FinishCause
from engine_core.scheduling.sequence import Sequence, SequenceGroup
from engine_core.step import SequenceOutput, StepResult, TokenLogprobs

_LENGTH = Finish(FinishCause.LENGTH)


def end_of(group: SequenceGroup, output: Tokens[int]) -> Finish | None:
    """How the last token of a choice's non-empty output ends it, if it does: an eos or stop token, else a limit."""
    if output[-1] in group.stop_ids and len(output) > group.min_tokens:
        return Finish(FinishCause.STOP, output[-1])
    return _LENGTH if len(output) >= group.max_output else None


def output_of_step(seq: Sequence, num_computed: int, token_ids: list[int], result: StepResult) -> SequenceOutput | None:
    """Append what a step drew for ``seq``, up to the token that ends it, and say so; None when there is no news.

    ``num_computed`` tokens of ``seq`` are computed now.
    """
    group = seq.group
    first_position = len(seq.output)
    finish = None
    for drawn, token_id in enumerate(token_ids, start=1):
        seq.output.append(token_id)
        seq.num_tokens += 1
        finish = end_of(group, seq.output)
        if finish is not None:
            token_ids = token_ids[:drawn]
            break
    cached_tokens = prefilled_tokens = prompt_logprobs = None
    if group.has_news:
        if result.prompt_logprobs and group.prompt_logprobs is not None:
            group.prompt_logprobs += result.prompt_logprobs.get(seq.seq_id, ())
        cached_tokens, prefilled_tokens, prompt_logprobs = _prompt_news(group, num_computed)
    if not token_ids and cached_tokens is None and prefilled_tokens is None and prompt_logprobs is None:
        return None
    return SequenceOutput(
        group.request.request_id,
        seq.choice,
        first_position,
        token_ids,
        result.logprobs[seq.seq_id][: len(token_ids)] if seq.seq_id in result.logprobs else [],
        finish,
        cached_tokens,
        prefilled_tokens,
        prompt_logprobs,
    )


def output_of_end(group: SequenceGroup, choice: int, num_output_tokens: int, finish: Finish) -> SequenceOutput:
    """A choice ends without a step."""
    cached_tokens, group.cached_tokens = group.cached_tokens, None
    return SequenceOutput(group.request.request_id, choice, num_output_tokens, [], [], finish, cached_tokens)


def _prompt_news(group: SequenceGroup, num_computed: int) -> tuple[int | None, int | None, list[TokenLogprobs] | None]:
    """``cached_tokens``, ``prefilled_tokens`` and ``prompt_logprobs`` to report now; each is reported once."""
    cached, group.cached_tokens = group.cached_tokens, None
    length = group.num_prompt_tokens
    reached = min(num_computed, length)
    prefilled = None
    # A choice that computes the prompt again, after a preemption, makes no progress worth telling.
    if reached > group.prefilled_tokens:
        if reached < length or group.prefilled_tokens > 0:
            prefilled = reached
        group.prefilled_tokens = reached
    entries = group.prompt_logprobs
    if entries is not None:
        if len(entries) >= length - 1:
            group.prompt_logprobs = None
        else:
            entries = None
    group.has_news = group.prefilled_tokens < length or group.prompt_logprobs is not None
    return cached, prefilled, entries
