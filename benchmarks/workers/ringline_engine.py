"""The project's own engine, offline: no service, no tokenizer."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.work import Milestone, Outcome, Work
from benchmarks.worker import Engine, serve_rounds


class RinglineEngine(Engine):
    """``engine_core.llm.LLM``, started as ``ringline engine`` starts it."""

    def __init__(self, model: str, **options: Any) -> None:
        """``options``: the engine's options."""
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported, below
        from engine_core.llm import LLM
        from engine_core.progress import Stage, StartupProgress

        class Clock:
            """Records the stages of the start, and when each is finished."""

            def __init__(self) -> None:
                self.milestones = [Milestone("imports", time.monotonic())]
                self.stages: list[Stage] = []

            def stage_started(self, stage: Stage) -> None:
                return

            def stage_advanced(self, stage: Stage, done: int, total: int) -> None:
                return

            def stage_finished(self, stage: Stage) -> None:
                self.milestones.append(Milestone(stage.name, time.monotonic()))
                self.stages.append(stage)

        clock = Clock()
        self.llm = LLM(model, progress=StartupProgress(clock), **options)
        self.milestones = clock.milestones
        self.stages = clock.stages

    def run(self, work: Work) -> Outcome:
        from engine_core.llm import LoRARequest, SamplingParams

        schema = work.json_schema or None
        params = SamplingParams(
            temperature=work.temperature, max_tokens=work.output, ignore_eos=not work.ends, json_schema=schema
        )
        prompts, before = work.prompts(), self.llm.stats()
        adapters = [LoRARequest(path, 1, path) if path else None for path in work.adapters] or None
        begun = time.perf_counter()
        results = self.llm.generate(prompts, params, lora_request=adapters)
        seconds = time.perf_counter() - begun
        answers = [list(result.choices[0].token_ids) for result in results]
        if not work.ends and any(len(answer) != work.output for answer in answers):
            raise RuntimeError("a sequence did not get the tokens it asked for")
        times = [result.metrics for result in results if result.metrics is not None]
        decoded = max(each.last_token_ts or 0.0 for each in times) - max(each.first_token_ts or 0.0 for each in times)
        after, cached = self.llm.stats(), sum(result.cached_tokens for result in results)
        if not work.given:
            return Outcome(seconds, cached)
        drafts = after.draft_tokens - before.draft_tokens
        return Outcome(
            seconds,
            cached,
            answers,
            decoded,
            drafts,
            after.accepted_draft_tokens - before.accepted_draft_tokens,
        )


if __name__ == "__main__":
    serve_rounds(RinglineEngine)
