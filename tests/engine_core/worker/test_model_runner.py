"""What the runner computes of a step, and when it waits for the one before."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine_core.async_copy import AsyncCopy
from engine_core.forward_context import Caches
from engine_core.ops.base import Greatest
from engine_core.request import SamplingParams
from engine_core.sampling.logits_processors import SamplingRows
from engine_core.sampling.logprobs import LogprobsTensors
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.sampler import Sampler, SamplerOutput
from engine_core.step import NewSequence, StepPlan
from engine_core.worker.forward import PendingTokens
from engine_core.worker.input_batch import BatchLimits, InputBatch, StepInputs
from engine_core.worker.model_runner import ModelRunner, PendingStep

LIMITS = BatchLimits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, block_size=16)
VOCAB = 8
EOS = 0


class Device:
    """A device that computes by itself: notes what it is told to do, and when the host waits for it."""

    vocab_size = VOCAB
    vision = None

    def __init__(self) -> None:
        self.taps = None
        self.events: list[str] = []
        self.rows: list[int | None] = []
        """Of each forward pass, how many were asked for; None for all."""
        self.batch = InputBatch(LIMITS, VOCAB, [EOS])
        self.runner = ModelRunner(self, self.batch, self, self)  # type: ignore[arg-type]
        self.last: PendingStep | None = None
        self.steps = 0
        self.greatest_logits = [0.0] * LIMITS.max_num_seqs
        """Of the rows that a greedy step samples."""

    def __call__(
        self,
        inputs: StepInputs,
        caches: Caches,
        pending: PendingTokens | None,
        rows: npt.NDArray[np.int64] | None,
    ) -> torch.Tensor:
        self.events.append("forward")
        self.rows.append(None if rows is None else len(rows))
        return torch.zeros(len(inputs.input_ids) if rows is None else len(rows), 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), VOCAB)

    def greatest(self, hidden: torch.Tensor) -> Greatest:
        self.events.append("greatest")
        return Greatest(torch.ones(len(hidden), dtype=torch.int64), torch.tensor(self.greatest_logits[: len(hidden)]))

    def sample(self, logits: torch.Tensor, rows: SamplingRows, *, reports: bool = True) -> SamplerOutput:
        self.events.append("sample")
        return SamplerOutput(torch.ones(len(logits), dtype=torch.int64), torch.zeros(len(logits)), [])

    def prompt_logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, report: LogprobsTensors, first_row: int
    ) -> None:
        Sampler(self.batch.sampling, NumpyOps(VOCAB)).prompt_logprobs(logits, token_ids, report, first_row)

    def launch(self, *params: SamplingParams, prompt: int = 4, computed: int = 0) -> None:
        """Bring sequences of ``prompt`` tokens, one for each of ``params``, and compute them in one step."""
        new = [NewSequence(seq, 0, [1] * prompt, prompt, computed, [[seq]], each) for seq, each in enumerate(params)]
        ids = list(range(len(params)))
        self.run(StepPlan(0, [], new, ids, [prompt - computed] * len(ids), [True] * len(ids), {}))

    def decode(self, *seq_ids: int) -> None:
        """Compute a token of each, and sample the next one."""
        ones = [1] * len(seq_ids)
        self.run(StepPlan(self.steps, [], [], list(seq_ids), ones, [True] * len(seq_ids), {}))

    def run(self, plan: StepPlan) -> None:
        self.events.clear()
        before, self.last = self.last, self.runner.launch(plan, Caches([]))
        self.steps += 1
        if before is not None:
            before.result()  # as the engine core does, which has two steps in flight at most


class Follower(Device):
    """A rank that follows: it is brought what another one sampled, some steps later."""

    def __init__(self, late: int, head: bool = True) -> None:
        super().__init__()
        self.late = late
        """Steps after which tokens are brought."""
        self.has_head = head
        self.due: list[tuple[int, npt.NDArray[np.int64]]] = []

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.events.append(f"logits {len(hidden)}")
        return super().logits(hidden)

    def run(self, plan: StepPlan) -> None:
        self.events.clear()
        if len(self.due) > self.late:
            self.runner.commit(*self.due.pop(0))
        self.runner.follow(plan, Caches([]))
        self.due.append((plan.step_id, np.full(sum(plan.samples), 5)))
        self.steps += 1


GREEDY = SamplingParams(temperature=0.0)
RANDOM = SamplingParams()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()

    class NotedCopy(AsyncCopy):
        def wait(self) -> list[torch.Tensor]:
            device.events.append("wait")
            return super().wait()

    monkeypatch.setattr("engine_core.worker.model_runner.AsyncCopy", NotedCopy)
    return device


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(min_tokens=20),
        SamplingParams(bad_words_token_ids=((2,),)),
        SamplingParams(allowed_token_ids=(1, 2)),
        SamplingParams(logit_bias={1: 1.0}),
    ],
    ids=["minimum", "bad token", "allowed", "bias"],
)
def test_what_does_not_depend_on_the_tokens_before_does_not_wait_for_them(
    params: SamplingParams, device: Device
) -> None:
    device.launch(params, RANDOM)
    device.decode(0, 1)
    assert device.events == ["forward", "sample", "wait"]


@pytest.mark.parametrize(
    "params",
    [SamplingParams(presence_penalty=0.5), SamplingParams(bad_words_token_ids=((1, 2),))],
    ids=["penalty", "bad word"],
)
def test_what_depends_on_earlier_tokens_waits_while_the_model_is_computed(
    params: SamplingParams, device: Device
) -> None:
    device.launch(params, RANDOM)
    device.decode(0, 1)
    assert device.events == ["forward", "wait", "sample"]
    device.decode(1)
    assert device.events == ["forward", "sample", "wait"], "who is not in the step waits for nothing"


def test_once_it_has_its_minimum_a_greedy_sequence_is_computed_without_logits(device: Device) -> None:
    device.launch(SamplingParams(temperature=0.0, min_tokens=2), GREEDY)
    assert device.events == ["forward", "sample"]
    device.decode(0, 1)
    assert "sample" in device.events
    device.decode(0, 1)
    assert "greatest" in device.events


def test_all_rows_are_computed_only_while_log_probabilities_of_a_prompt_are_due(device: Device) -> None:
    device.launch(SamplingParams(temperature=0.0, prompt_logprobs=0))
    device.run(StepPlan(1, [], [NewSequence(1, 0, [1] * 9, 9, 0, [[1]], GREEDY)], [0, 1], [1, 9], [True] * 2, {}))
    assert device.rows == [None, 2]


@pytest.mark.parametrize(
    ("params", "calls"),
    [
        (GREEDY, ["greatest"]),
        (RANDOM, ["logits 1"]),
        (SamplingParams(temperature=0.0, logprobs=1), ["logits 1"]),
        (SamplingParams(temperature=0.0, prompt_logprobs=1), ["logits 64", "logits 5", "greatest"]),
        (SamplingParams(prompt_logprobs=0), ["logits 64", "logits 5", "logits 1"]),
    ],
    ids=["greedy", "random", "logprobs", "greedy with prompt", "random with prompt"],
)
def test_who_follows_computes_the_head_as_who_samples_and_samples_nothing(
    params: SamplingParams, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.LIMITS", BatchLimits(4, 128, max_model_len=128, block_size=16))
    follower, samples = Follower(late=0), Follower(late=0)
    follower.launch(params, prompt=70)
    assert follower.events == ["forward", *calls]
    new = [NewSequence(0, 0, [1] * 70, 70, 0, [[0]], params)]
    samples.runner.launch(StepPlan(0, [], new, [0], [70], [True], {}), Caches([])).result()
    assert [event for event in samples.events if event != "sample"] == follower.events
    assert samples.rows == follower.rows


def test_a_stage_before_the_last_computes_all_rows_and_no_head() -> None:
    follower = Follower(late=0, head=False)
    follower.launch(SamplingParams(prompt_logprobs=0), RANDOM)
    assert (follower.events, follower.rows) == (["forward"], [None])


def test_tokens_of_another_step_than_the_one_that_is_due_are_an_error() -> None:
    follower = Follower(late=3)
    follower.launch(RANDOM)
    with pytest.raises(RuntimeError, match="step 7 came when those of step 0 were due"):
        follower.runner.commit(7, np.zeros(1, np.int64))


def test_who_samples_hands_on_the_raw_tokens_of_all_rows(device: Device) -> None:
    device.launch(RANDOM, GREEDY)
    assert device.last is not None
    assert device.last.sampled is None
    device.last.result()
    assert device.last.sampled is not None
    assert (device.last.sampled.dtype, device.last.sampled.tolist()) == (np.int64, [1, 1])


@pytest.mark.parametrize(("value", "why"), [(math.nan, "hold a NaN"), (-math.inf, "are all −inf")])
def test_from_logits_that_are_no_numbers_nothing_is_sampled(value: float, why: str, device: Device) -> None:
    """What was sampled before stays, and of drafts those that came true; a row behind a wrong draft decides nothing."""
    device.greatest_logits = [0.0, value]
    device.launch(GREEDY, GREEDY)
    assert device.last is not None
    result = device.last.result()
    assert result.token_ids == [[1], []]
    assert why in result.failed.pop(1).problem
    assert not result.failed
    for drafts, expected in (([1, 1], [1, 1]), ([2, 1], [1])):  # 1 is sampled in each row
        device.greatest_logits = [0.0, 0.0, value]
        device.batch.update(StepPlan(0, [0], [], [], [], [], {}))
        new = NewSequence(0, 0, [1] * 4, 4, 3, [[0]], GREEDY)
        device.run(StepPlan(1, [], [new], [0], [1 + len(drafts)], [True], {}, {0: drafts}))
        result = device.last.result()
        assert result.token_ids == [expected]
        assert set(result.failed) == ({0} if len(expected) == 2 else set())
