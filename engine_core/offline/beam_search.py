"""Beam search with vLLM's names: ``LLM.beam_search``, its parameters and its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_core.errors import InvalidRequestError, written
from engine_core.offline.outputs import CompletionOutput, RequestOutput
from engine_core.offline.sampling_params import SamplingParams
from engine_core.request import BeamSearch, FinishReason

if TYPE_CHECKING:
    from engine_core.offline.text import Tokenizer


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """What a search keeps, and when it ends: ``engine_core.request.BeamSearch`` says how."""

    beam_width: int
    """In [1, 64], at most ``max_num_seqs``: the beams, and the sequences returned."""
    max_tokens: int
    """≥ 1; output tokens of a sequence."""
    ignore_eos: bool = False
    """Treat the model's eos tokens like any other."""
    temperature: float = 0.0
    """0: nothing is drawn."""
    length_penalty: float = 1.0
    """In [-5, 5]: scores are sums of log probabilities, divided by length to this power."""
    include_stop_str_in_output: bool = False
    """Keep the eos token that ended a sequence in its ``tokens``."""
    early_stopping: bool | None = False
    """True: end as soon as ``beam_width`` sequences have ended. None: only when none could become better."""

    def for_generate(self) -> SamplingParams:
        """The same for ``LLM.generate``. Raises ``InvalidRequestError`` for a temperature."""
        if self.temperature:
            problem = f"is {written(self.temperature)}; expected 0, as a beam search draws nothing"
            raise InvalidRequestError("params: temperature", problem)
        search = BeamSearch(self.beam_width, self.length_penalty, self.early_stopping)
        return SamplingParams(
            temperature=0.0,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            beam_search=search,
        )


@dataclass(slots=True)
class BeamSearchSequence:
    """A prompt and one of its best continuations."""

    tokens: list[int]
    """Of the prompt, then of the output."""
    cum_logprob: float
    """The sum of the output's log probabilities, with that of an eos token."""
    text: str | None
    """The text of ``tokens``; None if the prompt was token ids."""
    finish_reason: str | None
    """"stop" or "length"."""
    stop_reason: int | None
    """The eos token that ended it."""
    score: float
    """``cum_logprob``, divided by the number of output tokens to the power of ``length_penalty``."""


@dataclass(slots=True)
class BeamSearchOutput:
    """The result for one prompt."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)
    """As many as beams, the best first."""


def output_of(result: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer | None) -> BeamSearchOutput:
    """``result`` in vLLM's form; with texts if there is a ``tokenizer``."""
    return BeamSearchOutput([_sequence(result, each, params, tokenizer) for each in result.outputs if _is_found(each)])


def _is_found(choice: CompletionOutput) -> bool:
    """Whether the search found so many outputs."""
    return choice.finish is None or choice.finish.finish_reason is not FinishReason.ERROR


def _sequence(
    result: RequestOutput, choice: CompletionOutput, params: BeamSearchParams, tokenizer: Tokenizer | None
) -> BeamSearchSequence:
    output, score = choice.token_ids, choice.beam_score or 0.0
    eos = None if choice.finish is None else choice.finish.stop_token_id
    kept = output if eos is None or params.include_stop_str_in_output else output[:-1]
    tokens = [*result.prompt_token_ids, *kept]
    return BeamSearchSequence(
        tokens,
        score * len(output) ** params.length_penalty,
        None if tokenizer is None else tokenizer.decode(tokens),
        choice.finish_reason,
        eos,
        score,
    )
