"""Runs the model over one step: inputs from the batch, the forward pass, the head for rows that sample, the sampler."""

from __future__ import annotations

import numpy as np
import torch

from engine_core.models.base import CausalLM
from engine_core.step import StepPlan, StepResult, TokenLogprobs
from engine_core.worker.batch import PersistentBatch, StepInputs
from engine_core.worker.logprobs import token_logprobs
from engine_core.worker.sampler import Sampler
from engine_core.worker.sampling_state import PROMPT_LOGPROBS

PROMPT_LOGPROB_ROWS = 64
"""Prompt rows that go through the head at a time: bounds the memory of their logits."""


class ModelRunner:
    """Owns nothing that lasts but the batch; the KV cache is written by the model."""

    def __init__(self, model: CausalLM, batch: PersistentBatch) -> None:
        """``batch`` is kept and advanced by each step."""
        self.batch = batch
        self._model = model
        self._sampler = Sampler(batch.sampling, model.vocab_size)

    @torch.inference_mode()
    def execute(self, plan: StepPlan, kv_caches: list[torch.Tensor]) -> StepResult:
        """Compute one step; ``kv_caches`` has one cache per layer of the model."""
        self.batch.update(plan)
        if not plan.seq_ids:
            return StepResult(plan.step_id, [])
        inputs = self.batch.prepare(plan)
        hidden = self._model.forward(inputs.input_ids, inputs.positions, kv_caches, inputs.metadata)
        prompt_logprobs = self._prompt_logprobs(plan, inputs, hidden)
        if not len(inputs.sampled):
            self.batch.advance(inputs, np.empty(0, np.int64))
            return StepResult(plan.step_id, [[] for _ in plan.seq_ids], {}, prompt_logprobs)
        if len(inputs.sampled) < len(hidden):
            hidden = hidden[torch.from_numpy(inputs.query_starts[inputs.sampled + 1] - 1)]
        output = self._sampler.sample(self._model.compute_logits(hidden).numpy(), inputs.sampling_rows)
        self.batch.advance(inputs, output.token_ids)
        logprobs = {plan.seq_ids[inputs.sampled[row]]: [entry] for row, entry in output.logprobs.items()}
        return StepResult(plan.step_id, _by_sequence(plan, output.token_ids.tolist()), logprobs, prompt_logprobs)

    def _prompt_logprobs(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor
    ) -> dict[int, list[TokenLogprobs]]:
        """Entries of the prompt tokens that follow this step's rows, by sequence, where asked for."""
        state = self.batch.sampling
        if not state.asked & PROMPT_LOGPROBS:
            return {}
        result: dict[int, list[TokenLogprobs]] = {}
        for place in np.flatnonzero(state.features[inputs.slots] & PROMPT_LOGPROBS).tolist():
            slot = int(inputs.slots[place])
            first = int(inputs.first_positions[place])
            start, end = inputs.query_starts[place : place + 2].tolist()
            successors = self.batch.prompt_token_ids(slot)[first + 1 : first + 1 + end - start]
            entries: list[TokenLogprobs] = []
            for done in range(0, len(successors), PROMPT_LOGPROB_ROWS):
                targets = successors[done : done + PROMPT_LOGPROB_ROWS].astype(np.int64)
                logits = self._model.compute_logits(hidden[start + done : start + done + len(targets)])
                entries += token_logprobs(
                    logits.numpy(), targets, [int(state.num_prompt_logprobs[slot])] * len(targets)
                )
            if entries:
                result[plan.seq_ids[place]] = entries
        return result


def _by_sequence(plan: StepPlan, drawn: list[int]) -> list[list[int]]:
    """The tokens drawn, for each sequence of the plan."""
    if len(drawn) == len(plan.seq_ids):
        return [[token] for token in drawn]
    tokens = iter(drawn)
    return [[next(tokens)] if samples else [] for samples in plan.samples]
