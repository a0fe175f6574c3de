"""Runs the model over one step: inputs from the batch, the forward pass, the head for rows that sample, the sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.logprobs import Logprobs
from engine_core.models.base import CausalLM
from engine_core.platforms.input_buffers import upload
from engine_core.sampling.logprobs import consecutive_logprobs
from engine_core.sampling.metadata import PROMPT_LOGPROBS
from engine_core.sampling.sampler import SamplerOutput, SamplingRows
from engine_core.step import StepPlan, StepResult
from engine_core.worker.forward import Awaited, Forward
from engine_core.worker.input_batch import InputBatch, StepInputs

Rows = npt.NDArray[np.int64]
"""[R] of a step."""
PROMPT_LOGPROB_ROWS = 64
"""Prompt rows that go through the head at a time: bounds the memory of their logits."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens of the rows that sample, R of them."""

    drawn: torch.Tensor
    """[R] int64, on the device."""
    read: Callable[[], SamplerOutput]
    """Waits until they are on the host."""

    @staticmethod
    def of(drawn: torch.Tensor) -> SampledTokens:
        """Of tokens alone; they are on their way to the host from now on."""
        fetched = Fetched.of([drawn])
        return SampledTokens(drawn, lambda: SamplerOutput(fetched.read()[0].numpy(), {}))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Tensors on their way from a device. Steps launched meanwhile are not waited for."""

    tensors: list[torch.Tensor]
    arrived: torch.cuda.Event | None
    """None where they were on the host."""

    @staticmethod
    def of(tensors: list[torch.Tensor]) -> Fetched:
        """Begin to copy ``tensors`` into memory that their device can write itself."""
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return Fetched(tensors, None)
        copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return Fetched(copies, arrived)

    def read(self) -> list[torch.Tensor]:
        """Wait until they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tensors


Sample = Callable[[torch.Tensor, SamplingRows], SampledTokens]
"""Draws one token for each row of logits [R, V], which may be changed; called where not all rows are greedy."""


class LaunchedStep:
    """A step that is computed, or will be when the device comes to it."""

    def __init__(self, inputs: StepInputs, drawn: torch.Tensor, collect: Callable[[], StepResult]) -> None:
        """``collect`` waits for the device, notes what was drawn and returns it; it is called once."""
        self.inputs = inputs
        self.drawn = drawn
        """[R] int64, on the device: what it draws for the sequences of ``inputs`` that sample."""
        self._collect = collect
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Wait until it is computed."""
        if self._result is None:
            self._result = self._collect()
        return self._result

    @property
    def settled(self) -> bool:
        """Whether the host knows what was drawn."""
        return self._result is not None


class ModelRunner:
    """Owns nothing that lasts but the batch; the KV cache is written by the model."""

    def __init__(self, model: CausalLM, batch: InputBatch, forward: Forward, sample: Sample) -> None:
        """``batch`` is kept and advanced by each step; ``forward`` runs ``model``."""
        self.batch = batch
        self.model = model
        self.forward = forward
        self._sample_rows = sample
        self._last: LaunchedStep | None = None

    @torch.inference_mode()
    def launch(self, plan: StepPlan, kv_caches: list[torch.Tensor]) -> LaunchedStep:
        """Begin to compute a step after those before it; ``kv_caches`` has one cache per layer of the model.

        The results of all steps but the last one must have been asked for. That one's is asked for here where the
        sampler reads tokens on the host, which then must be there; the device computes this step meanwhile.
        """
        self.batch.update(plan)
        unsettled = None if self._last is None or self._last.settled else self._last
        inputs = self.batch.prepare(plan)
        awaited = None
        if unsettled is not None:
            rows, places = self.batch.awaited(inputs, unsettled.inputs)
            awaited = Awaited(rows, places, unsettled.drawn) if len(rows) else None
        hidden, prompt_logprobs = self._compute(plan, inputs, kv_caches, awaited)
        if unsettled is not None and self.batch.sampling.reads_tokens(inputs.sampling_rows.slots):
            unsettled.result()
        draws = self._sample(inputs, hidden)
        self.batch.advance(inputs)

        def collect() -> StepResult:
            output = draws.read()
            self.batch.settle(inputs, output.token_ids)
            logprobs = {plan.seq_ids[inputs.sampled[row]]: entry for row, entry in output.logprobs.items()}
            return StepResult(plan.step_id, _by_sequence(plan, output.token_ids.tolist()), logprobs, prompt_logprobs)

        self._last = LaunchedStep(inputs, draws.drawn, collect)
        return self._last

    def _compute(
        self, plan: StepPlan, inputs: StepInputs, kv_caches: list[torch.Tensor], awaited: Awaited | None
    ) -> tuple[torch.Tensor, dict[int, Logprobs]]:
        """Hidden states of the rows that sample, or of any one if none does; and the prompts' log probabilities."""
        wanted = inputs.sampled_rows if len(inputs.sampled) else np.zeros(1, np.int64)
        rows = wanted if len(wanted) < plan.total_tokens else None
        if not self.batch.sampling.asked & PROMPT_LOGPROBS:
            return self.forward(inputs, kv_caches, awaited, rows), {}
        hidden = self.forward(inputs, kv_caches, awaited, None)
        prompt_logprobs = self._prompt_logprobs(plan, inputs, hidden)
        return hidden if rows is None else hidden.index_select(0, upload([rows], hidden.device)[0]), prompt_logprobs

    def _sample(self, inputs: StepInputs, hidden: torch.Tensor) -> SampledTokens:
        if not len(inputs.sampled):
            # On the device, so that whoever reads nothing still waits for the step.
            return SampledTokens.of(torch.empty(0, dtype=torch.int64, device=hidden.device))
        rows = inputs.sampling_rows
        if self.batch.sampling.greedy(rows.slots):
            return SampledTokens.of(self.model.argmax(hidden))
        return self._sample_rows(self.model.compute_logits(hidden), rows)

    def _prompt_logprobs(self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor) -> dict[int, Logprobs]:
        """Entries of the prompt tokens that follow this step's rows, by sequence, where asked for."""
        state = self.batch.sampling
        result: dict[int, Logprobs] = {}
        for place in np.flatnonzero(state.features[inputs.slots] & PROMPT_LOGPROBS).tolist():
            slot = int(inputs.slots[place])
            first = int(inputs.first_positions[place])
            start, end = inputs.query_starts[place : place + 2].tolist()
            successors = self.batch.prompt_token_ids(slot)[first + 1 : first + 1 + end - start]
            entries: Logprobs | None = None
            for done in range(0, len(successors), PROMPT_LOGPROB_ROWS):
                targets = successors[done : done + PROMPT_LOGPROB_ROWS].astype(np.int64)
                logits = self.model.compute_logits(hidden[start + done : start + done + len(targets)])
                part = consecutive_logprobs(logits.cpu().numpy(), targets, int(state.num_prompt_logprobs[slot]))
                if entries is None:
                    entries = part
                else:
                    entries.extend(part)
            if entries is not None:
                result[plan.seq_ids[place]] = entries
        return result


def _by_sequence(plan: StepPlan, drawn: list[int]) -> list[list[int]]:
    """The tokens drawn, for each sequence of the plan."""
    if len(drawn) == len(plan.seq_ids):
        return [[token] for token in drawn]
    tokens = iter(drawn)
    return [[next(tokens)] if samples else [] for samples in plan.samples]
