"""Runs the model over a step: inputs from the batch, the forward pass, the head for rows that sample, the sampler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import AsyncCopy, upload
from engine_core.forward_context import Caches, Taps
from engine_core.logprobs import Logprobs
from engine_core.models.language_model import LanguageModel
from engine_core.sampling.logits_processors import SamplingRows
from engine_core.sampling.logprobs import LogprobsTensors, pack
from engine_core.sampling.metadata import PROMPT_LOGPROBS
from engine_core.sampling.sampler import Sampler, SamplerOutput
from engine_core.step import SLOW_GRAMMAR, Failure, StepPlan, StepResult
from engine_core.worker.adapters import LoadedAdapters
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.drafters.observed_steps import ObservedSteps
from engine_core.worker.drawing import Head, draw
from engine_core.worker.encoder_cache import EncoderCache
from engine_core.worker.forward import Forward, PendingTokens, Rows
from engine_core.worker.input_batch import InputBatch, StepInputs

PROMPT_LOGPROB_ROWS = 64
"""Prompt rows that go through the head at a time: bounds their logits' memory."""

_CAUSE = "its numbers overflow there, or its weights are damaged (--dtype float32 holds larger numbers)"
_NAN = Failure(f"the model's logits for the next token hold a NaN, so none can be sampled: {_CAUSE}")
_NOTHING = Failure(f"the model's logits for the next token are all −inf, so none can be sampled: {_CAUSE}")
_PROMPT = Failure(f"the model's logits for the prompt are not numbers: {_CAUSE}")

Propose = Callable[[Mapping[int, int]], dict[int, list[int]]]
"""``Drafter.propose``."""
PromptLogprobs = list[tuple[int, LogprobsTensors]]
"""Pairs of seq_id and log probabilities."""


class ComputedStep(Protocol):
    """A step that is computed, or queued on the device: a future of its result."""

    sampled: npt.NDArray[np.int64] | None
    """[R]: the tokens of the rows that sample, for ``ModelRunner.commit`` of other ranks; known after ``result``."""

    def result(self) -> StepResult:
        """Wait until the step is computed, and commit its tokens."""


class PendingStep:
    """A ``ComputedStep`` that samples."""

    def __init__(
        self,
        batch: InputBatch,
        plan: StepPlan,
        inputs: StepInputs,
        sampled: SamplerOutput,
        prompt_logprobs: PromptLogprobs,
        propose: Propose | None = None,
    ) -> None:
        """Start copying results to the host. ``result`` commits them to ``batch``, then calls ``propose``."""
        self.inputs = inputs
        self.token_ids = sampled.token_ids
        """[R] int64, on the device: the tokens of the rows that sample."""
        self.sampled: npt.NDArray[np.int64] | None = None
        self._batch = batch
        self._plan = plan
        self._logprobs = sampled.logprobs
        self._prompt_logprobs = prompt_logprobs
        self._propose = propose
        reports = [*self._logprobs, *(report for _, report in prompt_logprobs)]
        tensors = [tensor for report in reports for tensor in report.tensors()]
        self._copy = AsyncCopy([self.token_ids, sampled.greatest, *tensors])
        self._result: StepResult | None = None

    @property
    def committed(self) -> bool:
        """Whether the batch knows the tokens."""
        return self._result is not None

    def result(self) -> StepResult:
        """Wait until the step is computed, and commit its tokens."""
        if self._result is None:
            self._result = self._commit()
        return self._result

    def _commit(self) -> StepResult:
        token_ids, greatest, *tensors = self._copy.wait()
        arrived = iter(tensors)
        reports = [report.take_from(arrived) for report in self._logprobs]
        prompt_reports = [(seq_id, report.take_from(arrived)) for seq_id, report in self._prompt_logprobs]
        sampled = self.sampled = token_ids.numpy()
        accepted = self._batch.commit(self.inputs, sampled)
        failed = self._without_numbers(accepted, greatest.numpy(), prompt_reports)
        following = self._batch.follow_grammars(self.inputs, accepted)
        logprobs: dict[int, Logprobs] = {}
        for report in reports:
            for row, entry in zip(report.rows.tolist(), report.entries(), strict=True):
                seq_id = self._plan.seq_ids[self.inputs.sampled[row]]
                if accepted[row] and seq_id in logprobs:
                    logprobs[seq_id].extend(entry)
                elif accepted[row]:
                    logprobs[seq_id] = entry
        prompt_logprobs = {
            seq_id: pack(report.ranks, report.top_ids, report.values)
            for seq_id, report in prompt_reports
            if seq_id not in failed
        }
        seq_ids = self._plan.seq_ids
        for place, each in following.items():
            if each.failed_at is not None:
                failed[seq_ids[place]] = Failure(each.problem, "grammar")
        forced = {seq_ids[place]: each.drafts for place, each in following.items() if each.drafts}
        return StepResult(
            self._plan.step_id,
            self._by_sequence(sampled.tolist(), accepted),
            logprobs,
            prompt_logprobs,
            forced,
            self._proposed({*failed, *forced}),
            failed,
            {seq_ids[place]: each.seconds for place, each in following.items() if each.seconds > SLOW_GRAMMAR},
        )

    def _proposed(self, others: Container[int]) -> dict[int, list[int]]:
        """Drafts of the sequences that the plan asks for, are still here, and are not among the ``others``."""
        if self._propose is None or not self._plan.proposals:
            return {}
        slots = {
            seq_id: slot
            for seq_id in self._plan.proposals
            if seq_id not in others and (slot := self._batch.slot_of(seq_id)) is not None
        }
        proposed = self._propose({slot: self._plan.proposals[seq_id] for seq_id, slot in slots.items()})
        return {seq_id: proposed[slot] for seq_id, slot in slots.items() if slot in proposed}

    def _without_numbers(
        self,
        accepted: npt.NDArray[np.bool_],
        greatest: npt.NDArray[np.float32],
        prompt_reports: PromptLogprobs,
    ) -> dict[int, Failure]:
        """Sequences whose logits allow no sampling; from the first such row on, remove theirs from ``accepted``."""
        failed: dict[int, Failure] = {}
        usable = greatest > -np.inf
        rows = [] if usable.all() else np.flatnonzero(accepted & ~usable).tolist()
        for row in rows:
            place = self.inputs.sampled[row]
            failed.setdefault(self._plan.seq_ids[place], _NAN if np.isnan(greatest[row]) else _NOTHING)
            accepted[row:] &= self.inputs.sampled[row:] != place
        for seq_id, report in prompt_reports:
            if np.isnan(report.values.numpy()).any():  # from a row with a NaN, or with only −inf
                failed[seq_id] = _PROMPT
                accepted &= self.inputs.sampled != self._plan.seq_ids.index(seq_id)
        return failed

    def _by_sequence(self, sampled: list[int], accepted: npt.NDArray[np.bool_]) -> list[list[int]]:
        """The accepted tokens of each sequence of the plan."""
        if len(sampled) == len(self._plan.seq_ids) and not self._plan.draft_token_ids and accepted.all():
            return [[token] for token in sampled]
        token_ids: list[list[int]] = [[] for _ in self._plan.seq_ids]
        for place, token, kept in zip(self.inputs.sampled.tolist(), sampled, accepted.tolist(), strict=True):
            if kept:
                token_ids[place].append(token)
        return token_ids


class _NoSampler(Sampler):
    """Samples nothing, as another rank samples from the same logits."""

    def __init__(self) -> None:
        pass

    def sample(self, logits: torch.Tensor, rows: SamplingRows, *, reports: bool = True) -> SamplerOutput:
        return SamplerOutput(torch.empty(0, dtype=torch.int64), torch.empty(0), [])

    def prompt_logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, report: LogprobsTensors, first_row: int
    ) -> None:
        pass


_NO_SAMPLER = _NoSampler()


class ModelRunner:
    """Computes steps. Batch and pictures' embeddings are its only lasting state; the model writes the caches."""

    def __init__(self, model: LanguageModel, batch: InputBatch, forward: Forward, sampler: Sampler | None) -> None:
        """``batch`` is kept and advanced by each step; ``forward`` runs ``model``. Made by ``Platform.make_runner``.

        Without a ``sampler`` (another rank samples) it can only ``follow``.
        """
        self.batch = batch
        self.model = model
        self.forward = forward
        self.encoder_cache = EncoderCache(model.vision)
        self._drafter: Drafter | None = None
        self._propose: Propose | None = None
        self._observed: ObservedSteps | None = None
        self._adapters: LoadedAdapters | None = None
        self._sampler = sampler
        self._last: PendingStep | None = None
        self._followed: deque[tuple[int, StepInputs]] = deque()
        """Ids and inputs of followed steps that are not committed, oldest first."""

    @property
    def samples(self) -> bool:
        """Whether steps are launched; else they are followed."""
        return self._sampler is not None

    def use_drafter(
        self, drafter: Drafter, num_blocks: int, computing: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Let ``drafter`` propose from now on; ``num_blocks`` as in ``Drafter.allocate``.

        ``computing`` is that of the platform: results, behind which drafts are computed, may be asked for anywhere.
        """
        if self._sampler is None:
            raise RuntimeError("this rank has no sampler to draw drafts by: another one samples")
        drafter.allocate(num_blocks, self.batch, self._sampler)

        def propose(wanted: Mapping[int, int]) -> dict[int, list[int]]:
            with computing(), torch.inference_mode():
                return drafter.propose(wanted)

        self._drafter, self._propose = drafter, propose

    def use_adapters(self, adapters: LoadedAdapters) -> None:
        """Let plans name these ``adapters`` from now on."""
        self._adapters = adapters

    def compute_for_observer(self, tapped_layers: tuple[int, ...] = ()) -> None:
        """Compute what a drafter observes, on this rank or on another of its stage: the inputs of ``tapped_layers``, if
        any, else the final hidden states of all rows.
        """
        self._observed = ObservedSteps()
        self.forward.taps = Taps(tapped_layers) if tapped_layers else None

    @torch.inference_mode()
    def rehearse(self, drafter: Drafter) -> None:
        """Let ``drafter`` compute its largest step on a batch that this runner has filled."""
        assert self._sampler is not None
        drafter.rehearse(self.batch, self._sampler)

    @torch.inference_mode()
    def launch(self, plan: StepPlan, caches: Caches) -> ComputedStep:
        """Begin to compute a step; ``caches`` are those of the model's layers.

        The results of all previous steps but the last must have been asked for. If the sampler reads tokens, which must
        then be on the host, wait for the last step's result, while the device computes this step.
        """
        if self._sampler is None:
            raise RuntimeError("this rank has no sampler: another one samples")
        previous = None if self._last is None or self._last.committed else self._last
        inputs = self._prepare(plan)
        pending = None
        if previous is not None:
            rows, indices = self.batch.pending_tokens(inputs, previous.inputs)
            pending = PendingTokens(rows, indices, previous.token_ids) if len(rows) else None
        hidden, prompt_logprobs = self._compute(plan, inputs, caches, pending, self._sampler)
        if previous is not None and self.batch.sampling.reads_tokens(inputs.sampling_rows.slots):
            previous.result()
        sampled = self._sample(inputs, hidden, self._sampler)
        self.batch.advance(inputs)
        self._last = PendingStep(self.batch, plan, inputs, sampled, prompt_logprobs, self._propose)
        return self._last

    @torch.inference_mode()
    def follow(self, plan: StepPlan, caches: Caches) -> None:
        """Compute this rank's part of a step that another rank samples; ``commit`` brings its tokens.

        If the model has a head, compute it as the other rank does, since the ranks of a stage gather their parts of it.
        Every planned sequence's last token is committed.
        """
        inputs = self._prepare(plan)
        if self.model.has_head:
            hidden, _ = self._compute(plan, inputs, caches, None, _NO_SAMPLER)
            self._sample(inputs, hidden, _NO_SAMPLER)
        else:
            self.run_model(inputs, caches, None, None)
        self.batch.advance(inputs)
        self._followed.append((plan.step_id, inputs))

    def commit(self, step_id: int, sampled: npt.NDArray[np.int64]) -> None:
        """Record tokens of the oldest followed step: ``ComputedStep.sampled`` of the rank that samples."""
        due, inputs = self._followed.popleft()
        if step_id != due:
            raise RuntimeError(f"the tokens of step {step_id} came when those of step {due} were due")
        self.batch.commit(inputs, sampled)

    def update(self, plan: StepPlan) -> None:
        """Let sequences leave the batch, and the drafter forget them, and others come, without a step."""
        for seq_id in plan.released:
            if self._drafter is not None and (slot := self.batch.slot_of(seq_id)) is not None:
                self._drafter.forget(slot)
        self.batch.update(plan)

    def _prepare(self, plan: StepPlan) -> StepInputs:
        """The inputs of the step, after its pictures are encoded."""
        self.update(plan)
        if plan.encoder is not None:
            self.encoder_cache.update(plan.encoder)
        inputs = self.batch.prepare(plan)
        return replace(inputs, media=self.encoder_cache.rows(inputs.spans)) if inputs.spans else inputs

    def run_model(
        self, inputs: StepInputs, caches: Caches, pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        """As ``Forward``, with the adapters of the rows."""
        if self._adapters is None:
            return self.forward(inputs, caches, pending, rows)
        with self._adapters.computing(inputs.adapters, rows):
            return self.forward(inputs, caches, pending, rows)

    def _compute(
        self,
        plan: StepPlan,
        inputs: StepInputs,
        caches: Caches,
        pending: PendingTokens | None,
        sampler: Sampler,
    ) -> tuple[torch.Tensor, PromptLogprobs]:
        """Hidden states of the rows that sample (of an arbitrary row if none does), and prompt log probabilities."""
        wanted = inputs.sampled_rows if len(inputs.sampled) else np.zeros(1, np.int64)
        rows = wanted if len(wanted) < plan.total_tokens else None
        scores_prompts = self.batch.sampling.asked & PROMPT_LOGPROBS
        is_observed = self._observed is not None and self._observed.includes(plan)
        taps = self.forward.taps
        computes_all = scores_prompts or (is_observed and taps is None)
        hidden = self.run_model(inputs, caches, pending, None if computes_all else rows)
        if self._drafter is not None and is_observed:
            self._drafter.observe(inputs, hidden if taps is None else torch.cat(taps.hidden, 1))
        prompt_logprobs = self._prompt_logprobs(plan, inputs, hidden, sampler) if scores_prompts else []
        if rows is None or not computes_all:
            return hidden, prompt_logprobs
        return hidden.index_select(0, upload([rows], hidden.device)[0]), prompt_logprobs

    def _sample(self, inputs: StepInputs, hidden: torch.Tensor, sampler: Sampler) -> SamplerOutput:
        if not len(inputs.sampled):
            # On the device, so that asking for the result still waits for the step.
            nothing = torch.empty(0, device=hidden.device)
            return SamplerOutput(nothing.long(), nothing, [])
        head = self._head(inputs, inputs.sampled_rows)
        return draw(head, sampler, self.batch.sampling, inputs.sampling_rows, hidden)

    def _head(self, inputs: StepInputs, rows: Rows | slice) -> Head:
        """What makes logits of those rows of a step."""
        return self.forward if self._adapters is None else self._adapters.head(self.forward, inputs.adapters, rows)

    def _prompt_logprobs(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, sampler: Sampler
    ) -> PromptLogprobs:
        """Log probabilities of the prompt tokens after this step's rows, where asked for."""
        state = self.batch.sampling
        places = np.flatnonzero(state.asked_of[inputs.slots] & PROMPT_LOGPROBS).tolist()
        successors = [self._successors(inputs, place) for place in places]
        # Reports are allocated before the loop, so that each chunk reuses the memory of the last.
        counts = np.minimum(state.num_prompt_logprobs[inputs.slots[places]], self.model.vocab_size).tolist()
        reports = [
            LogprobsTensors.empty(len(each), count, hidden.device)
            for each, count in zip(successors, counts, strict=True)
        ]
        for place, token_ids, report in zip(places, successors, reports, strict=True):
            start = int(inputs.query_starts[place])
            for done in range(0, len(token_ids), PROMPT_LOGPROB_ROWS):
                (targets,) = upload([token_ids[done : done + PROMPT_LOGPROB_ROWS]], hidden.device)
                rows = slice(start + done, start + done + len(targets))
                logits = self._head(inputs, rows).logits(hidden[rows])
                sampler.prompt_logprobs(logits, targets, report, done)
        return [
            (plan.seq_ids[place], report) for place, report in zip(places, reports, strict=True) if len(report.rows)
        ]

    def _successors(self, inputs: StepInputs, place: int) -> npt.NDArray[np.int64]:
        """The prompt tokens after the rows of the sequence at ``place``, one per row, or fewer at the prompt's end."""
        first, (start, end) = int(inputs.first_positions[place]), inputs.query_starts[place : place + 2].tolist()
        prompt = self.batch.prompt_token_ids(int(inputs.slots[place]))
        return prompt[first + 1 : first + 1 + end - start].astype(np.int64)
