"""Drafts that are known to be right or wrong, put into the results of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine_core.executor.base import Executor, PendingResult
from engine_core.speculation import StepTimes
from engine_core.step import StepPlan, StepResult

WAYS = ("right", "wrong", "half", "none")


class ScriptedDrafter:
    """Proposes what follows in one of ``texts``, as far as that goes, then tokens behind its end."""

    def __init__(self, texts: Callable[[], Iterable[list[int]]], vocab_size: int, way: str) -> None:
        """``way`` is one of ``WAYS``, or ``mixed``: one after the other."""
        self._texts = texts
        self._vocab_size = vocab_size
        self._way = way
        self._calls = 0

    def propose(self, token_ids: Sequence[int]) -> list[int]:
        """Up to five tokens that may follow ``token_ids``, prompt and output."""
        self._calls += 1
        known = list(token_ids)
        count = 1 + self._calls % 5
        following = next((text[len(known) :] for text in self._texts() if text[: len(known)] == known), [])
        following = [*following, *(at % self._vocab_size for at in range(count))][:count]
        way = WAYS[self._calls % len(WAYS)] if self._way == "mixed" else self._way
        wrong = {"right": count, "wrong": 0, "half": count // 2, "none": count}[way]
        if way == "none":
            return []
        return [token if at < wrong else (token + 1) % self._vocab_size for at, token in enumerate(following)]


class DraftingExecutor:
    """Stands for a started executor, and adds drafts to what it returns: as a grammar does, after every token sampled,
    those of ``drafter``, and where plans ask for some those of ``proposer``.
    """

    def __init__(
        self, executor: Executor, drafter: ScriptedDrafter | None, proposer: ScriptedDrafter | None = None
    ) -> None:
        self._executor = executor
        self._drafter = drafter
        self._proposer = proposer
        self._token_ids: dict[int, list[int]] = {}
        """Prompt and output of each sequence since it was introduced last, by seq_id; without those of beams."""
        self.planned = 0
        """Drafts in plans."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._executor, name)

    def submit(self, plan: StepPlan) -> PendingResult:
        self.planned += sum(map(len, plan.draft_token_ids.values()))
        for seq_id in plan.released:
            self._token_ids.pop(seq_id, None)
        for new in plan.new:
            if new.params.beam_search is None:
                self._token_ids[new.seq_id] = list(new.token_ids)
        known = [self._token_ids.get(seq_id) for seq_id in plan.seq_ids]
        return _Drafted(self._executor.submit(plan), self._drafter, self._proposer, plan, known)


@dataclass
class _Drafted:
    pending: PendingResult
    drafter: ScriptedDrafter | None
    proposer: ScriptedDrafter | None
    plan: StepPlan
    known: list[list[int] | None]

    def result(self) -> StepResult:
        result = self.pending.result()
        forced, proposed = dict[int, list[int]](), dict[int, list[int]]()
        for seq_id, known, token_ids in zip(self.plan.seq_ids, self.known, result.token_ids, strict=True):
            if known is None or not token_ids or seq_id in result.failed:
                continue
            known += token_ids
            if self.drafter is not None and (drafts := self.drafter.propose(known)):
                forced[seq_id] = drafts
            elif self.proposer is not None and (most := self.plan.proposals.get(seq_id)):
                drafts = self.proposer.propose(known)[:most]
                proposed |= {seq_id: drafts} if drafts else {}
        return replace(result, draft_token_ids=forced, proposed_token_ids=proposed)


FREE_ROWS = StepTimes((1, 512), (1.0, 1.0), draft_seconds=(0.0, 0.0))
"""With these, drafts always pay."""


class EagerExecutor:
    """Stands for a started executor, of a machine on which drafts cost nothing; and counts them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.step_times = FREE_ROWS
        self.planned = self.accepted = 0
        """Drafts in plans, and those that were right, also behind a sequence's end."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._executor, name)

    def submit(self, plan: StepPlan) -> PendingResult:
        return _Counted(self._executor.submit(plan), self, plan)


@dataclass
class _Counted:
    pending: PendingResult
    executor: EagerExecutor
    plan: StepPlan

    def result(self) -> StepResult:
        result = self.pending.result()
        tokens = dict(zip(self.plan.seq_ids, result.token_ids, strict=True))
        for seq_id, drafts in self.plan.draft_token_ids.items():
            if seq_id not in result.failed:
                self.executor.planned += len(drafts)
                self.executor.accepted += len(tokens[seq_id]) - 1
        return result
