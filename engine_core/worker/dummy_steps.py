"""Steps made up to measure and to warm up: the largest a scheduler may plan, small ones, and a short generation."""

from __future__ import annotations

from engine_core.layers.linear import padded_rows
from engine_core.request import SamplingParams
from engine_core.step import NewSequence, StepPlan
from engine_core.worker.batch import BatchLimits
from engine_core.worker.model_runner import PROMPT_LOGPROB_ROWS

_WARM_UP_PROMPT = 64
_WARM_UP_STEPS = 3
_TOP_LOGPROBS = 20
_DEMANDING_SEQS = 64
"""Sequences that ask for everything, where the sampler works on fewer rows at a time: they tell its time."""
GREEDY = SamplingParams(temperature=0.0)


def largest_step(limits: BatchLimits, vocab_size: int, sampler_rows: int) -> StepPlan:
    """As many rows and sequences as there may be, all of them sampling, with every feature of the sampler.

    The second sequence takes all rows that the others leave; the first asks for prompt log probabilities, for which
    all rows go through all of every layer; the last is as long as any may become. Every block table names block 0
    alone, so that one block of cache is enough.

    The sampler works on ``sampler_rows`` rows at a time. All of these are demanding, and all but the last draw from a
    nucleus, which takes most; that one, drawn in another way, makes it copy the others' logits.
    """
    seqs = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    demanding, at_once = min(seqs, max(sampler_rows, _DEMANDING_SEQS)), min(seqs, sampler_rows)
    rows_left = limits.max_num_batched_tokens
    new: list[NewSequence] = []
    num_tokens: list[int] = []
    for seq in range(seqs):
        spare = rows_left - (seqs - 1 - seq)
        wanted = PROMPT_LOGPROB_ROWS + 2 if seq == 0 else spare
        rows = max(1, min(wanted, spare, limits.max_model_len - 1))
        rows_left -= rows
        num_tokens.append(rows)
        computed = max(0, limits.max_model_len - 1 - rows) if seq == seqs - 1 else 0
        tokens = [(seq + position) % vocab_size for position in range(computed + rows)]
        blocks = [0] * -(-len(tokens) // limits.block_size)
        another_way = at_once > 1 and seq % at_once == at_once - 1
        params = _demanding(seq, vocab_size, top_k=another_way) if seq < demanding else GREEDY
        new.append(NewSequence(seq, 0, tokens, len(tokens), computed, blocks, params))
    ids = list(range(seqs))
    return StepPlan(0, [], new, ids, num_tokens, [True] * seqs, {})


def row_counts(limits: BatchLimits) -> list[int]:
    """The numbers of rows for which ``Linear`` has kernels of their own, ascending, up to the largest step's."""
    largest = limits.max_rows
    return sorted({min(padded_rows(rows), largest) for rows in range(1, largest + 1)})


def small_step(limits: BatchLimits, vocab_size: int, rows: int, released: list[int]) -> StepPlan:
    """A step of ``rows`` rows, after releasing sequences of another: greedy decoding, as far as there may be so many
    sequences, else parts of prompts, which do not sample.

    It fits into block 0, as ``largest_step`` does.
    """
    seqs = min(rows, limits.max_num_seqs)
    num_tokens = [rows // seqs + (seq < rows % seqs) for seq in range(seqs)]
    decodes = rows == seqs
    new = []
    for seq, count in enumerate(num_tokens):
        tokens = [seq % vocab_size] * (count if decodes else count + 1)
        new.append(NewSequence(seq, 0, tokens, len(tokens), 0, [0] * limits.max_blocks_per_seq, GREEDY))
    ids = list(range(seqs))
    return StepPlan(0, released, new, ids, num_tokens, [decodes] * seqs, {})


def _demanding(seq: int, vocab_size: int, *, top_k: bool) -> SamplingParams:
    """Parameters that use everything but one of the ways of drawing, which exclude each other."""
    return SamplingParams(
        temperature=1.0,
        top_k=min(1000, vocab_size) if top_k else None,
        top_p=0.99,
        min_p=1e-6,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias={0: 1.0},
        bad_words_token_ids=((0, 1),),
        min_tokens=1,
        logprobs=min(_TOP_LOGPROBS, vocab_size),
        prompt_logprobs=min(_TOP_LOGPROBS, vocab_size) if seq == 0 else None,
    )


def warm_up_steps(limits: BatchLimits, vocab_size: int) -> list[StepPlan]:
    """A short prompt and a few greedy tokens, in the first blocks of the cache; the last plan releases it."""
    longest = min(_WARM_UP_PROMPT, limits.max_num_batched_tokens, limits.max_model_len - 1)
    steps = min(_WARM_UP_STEPS, limits.max_model_len - longest)
    prompt = [position % vocab_size for position in range(longest)]
    blocks = list(range(-(-(longest + steps) // limits.block_size)))
    new = NewSequence(0, 0, prompt, longest, 0, blocks[: limits.max_blocks_per_seq], GREEDY)
    plans = [StepPlan(0, [], [new], [0], [longest], [True], {})]
    plans += [StepPlan(step, [], [], [0], [1], [True], {}) for step in range(1, steps)]
    plans.append(StepPlan(steps, [0], [], [], [], [], {}))
    return plans
