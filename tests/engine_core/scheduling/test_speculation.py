"""How many drafts of drafters a step takes: by what they cost and how often they came true; and what is counted."""

from __future__ import annotations

import json
import random

import pytest

from engine_core.config import CacheConfig, SchedulerConfig
from engine_core.errors import ConfigError
from engine_core.kv_cache_interface import KVCacheConfig, group_layers
from engine_core.request import FinishReason, Request, SamplingParams
from engine_core.scheduling import Scheduler, speculation
from engine_core.speculation import StepTimes
from engine_core.step import StepResult

from .checked_executor import model_spec

FLAT = StepTimes((1, 64), (1.0, 1.0))
"""A row costs nothing."""
LINEAR = StepTimes((1, 64), (1.0, 64.0))
"""A row costs as much as in another step."""
LIKE_A_CPU = StepTimes((1, 4, 8, 16, 32, 64), (1.0, 1.05, 1.23, 2.0, 4.0, 8.0))
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
MODEL = {"method": "draft_model", "model": "scripted", "num_speculative_tokens": 4}


SOON = -1
"""In place of a draft: there is none yet."""


def repeating(position):
    return 5 + position % 8


def novel(position):
    """No run of two tokens comes twice within a thousand tokens."""
    return 100 + position


class Engine:
    """A scheduler whose requests have the outputs that a text says; ``proposes`` says what a drafter proposes."""

    def __init__(self, config=NGRAM, times=FLAT, proposes=None, **options):
        size = KVCacheConfig(1000, 16, 1, group_layers((None,)))
        options = {"max_num_seqs": 64, "max_num_batched_tokens": 64, **options}
        scheduler_config = SchedulerConfig(speculative_config=json.dumps(config), **options)
        model = model_spec(vocab_size=10_000, max_model_len=4000)
        self.scheduler = Scheduler(scheduler_config, CacheConfig(), size, model, step_times=times)
        self.proposes = proposes
        self.texts = {}
        self.lengths = {}
        self.tokens = {}
        self.ends = {}
        self.steps = []
        """Of each step: drafts by request."""
        self.asked = []
        """Of each step: drafts asked for, by request."""

    def add(self, name, text, tokens=64, prompt=(1, 2, 3), *, speculation=True, **params):
        self.texts[name], self.tokens[name] = text, []
        request = Request(
            name, tuple(prompt), SamplingParams(max_tokens=tokens, ignore_eos=True, **params), speculation=speculation
        )
        self.scheduler.add(request)

    def plan(self):
        plan = self.scheduler.schedule()
        for output in self.scheduler.take_ended():
            self.ends[output.request_id] = output
        return plan

    def take_in(self, plan):
        step = self.scheduler._lifecycle.in_flight[plan.step_id]
        token_ids, proposed = [], {}
        for seq, samples in zip(step.sequences, plan.samples, strict=True):
            text, drawn = self.texts[seq.group.request.request_id], []
            for draft in [*plan.draft_token_ids.get(seq.seq_id, ()), None] if samples else ():
                drawn.append(text(len(seq.output) + len(drawn)))
                if drawn[-1] != draft:
                    break
            token_ids.append(drawn)
            if count := plan.proposals.get(seq.seq_id):
                position = len(seq.output) + len(drawn)
                drafts = [self.proposes(text, position + at) for at in range(count)] if self.proposes else [None]
                proposed |= {} if None in drafts else {seq.seq_id: [draft for draft in drafts if draft is not SOON]}
        names = {seq.seq_id: seq.group.request.request_id for seq in step.sequences}
        self.steps.append({names[seq_id]: len(drafts) for seq_id, drafts in plan.draft_token_ids.items()})
        self.asked.append({names[seq_id]: count for seq_id, count in plan.proposals.items()})
        for output in self.scheduler.update(plan, StepResult(plan.step_id, token_ids, proposed_token_ids=proposed)):
            self.tokens[output.request_id] += output.token_ids
            if output.finish is not None:
                self.ends[output.request_id] = output

    def run(self, steps=10_000):
        """Up to so many steps; how many it took."""
        for count in range(steps):
            if (plan := self.plan()) is None:
                return count
            self.take_in(plan)
        return steps

    @property
    def stats(self):
        return self.scheduler.stats()


def right(text, position):
    return text(position)


def wrong(text, position):
    return text(position) + 1


def test_tokens_that_repeat_take_few_steps_and_are_counted():
    engine = Engine()
    engine.add("a", repeating, tokens=100)
    steps = engine.run()
    stats, end = engine.stats, engine.ends["a"]
    assert engine.tokens["a"] == [repeating(at) for at in range(100)]
    # The prompt, one round of eight, two more tokens that are looked up; then five at a time.
    assert steps <= 11 + 1 + 90 / 5
    assert stats.accepted_draft_tokens == end.accepted_drafts == 100 - steps
    assert stats.draft_tokens - stats.accepted_draft_tokens == end.rejected_drafts
    assert stats.drafts == sum(bool(drafts) for drafts in engine.steps)
    assert sum(stats.accepted_by_position) == stats.accepted_draft_tokens
    assert list(stats.accepted_by_position) == sorted(stats.accepted_by_position, reverse=True)
    assert len(stats.accepted_by_position) == 4


def test_no_drafts_without_repetition_or_if_the_request_wants_none():
    engine = Engine()
    engine.add("novel", novel)
    engine.add("declines", repeating, speculation=False)
    engine.run()
    assert engine.stats.drafts == 0
    engine = Engine(MODEL, proposes=right)
    engine.add("declines", repeating, speculation=False)
    engine.run()
    assert not any(engine.asked)


@pytest.mark.parametrize(
    ("times", "running", "drafted"),
    [(LINEAR, 1, False), (LIKE_A_CPU, 1, True), (LIKE_A_CPU, 16, False), (FLAT, 12, True)],
)
def test_drafts_are_taken_only_where_they_can_pay(times, running, drafted):
    """Each of these sequences repeats itself for ever."""
    for config in (NGRAM, MODEL):
        engine = Engine(config, times, proposes=right)
        for serial in range(running):
            engine.add(f"r{serial}", repeating, tokens=60)
        engine.run(40)
        assert bool(engine.stats.draft_tokens) == drafted
        assert any(engine.asked) == (drafted and config is MODEL)


def test_what_computing_drafts_costs_counts():
    cheap, dear = (StepTimes((1, 64), (1.0, 1.0), draft_seconds=(price, price)) for price in (0.05, 1.0))
    asked = []
    for times in (cheap, dear):
        engine = Engine(MODEL, times, proposes=right)
        engine.add("a", novel)
        engine.run()
        asked.append(sum(each.get("a", 0) for each in engine.asked))
    assert asked[0] > 40
    assert asked[1] == 0


def test_wrong_drafts_are_given_up_and_tried_again_at_little_cost():
    engine = Engine(MODEL, LIKE_A_CPU, proposes=wrong)
    engine.add("a", novel, tokens=3000)
    engine.run()
    asked = [each.get("a", 0) for each in engine.asked]
    assert sum(asked[:20]) > 4
    late = asked[200:]
    assert max(late) == 1
    assert 0 < sum(late) <= 0.01 * len(late)
    assert engine.stats.draft_tokens <= 60


def test_a_model_without_drafts_is_asked_as_seldom_as_one_with_wrong_ones():
    """As one whose context has ended; others' steps would not overlap for it."""
    engine = Engine(MODEL, FLAT)
    engine.add("a", novel, tokens=3000)
    engine.run()
    asked = [each.get("a", 0) for each in engine.asked]
    assert all(asked[: speculation.MOST_LACKING])
    assert 0 < sum(asked[speculation.MOST_LACKING :]) <= 3000 // speculation.PROBE_TOKENS
    engine = Engine(MODEL, FLAT, proposes=lambda text, at: text(at) if at > 100 else None)
    engine.add("a", novel, tokens=1000)
    engine.run()
    assert engine.steps[-5] == {"a": 4}, "it has read the text at last"
    engine = Engine(MODEL, FLAT, proposes=lambda text, at: SOON)
    engine.add("a", novel, tokens=300)
    engine.run()
    assert all("a" in each for each in engine.asked[:-2]), "one that still reads is asked all the same"


def test_a_sequence_recovers_when_its_drafts_come_true_again():
    engine = Engine(MODEL, LIKE_A_CPU, proposes=lambda text, at: text(at) + (at < 600))
    engine.add("a", novel, tokens=2000)
    engine.run()
    taken = [each.get("a", 0) for each in engine.steps]
    assert sum(taken[300:600]) == 0
    assert sum(taken[-20:]) >= 60


def test_looked_up_drafts_are_judged_without_rows():
    """After two tokens that always come together, a different one follows each time: a draft would always be wrong."""
    text = [token for at in range(400) for token in (7, 8, 100 + at)]
    engine = Engine(NGRAM, LIKE_A_CPU)
    engine.add("a", text.__getitem__, tokens=len(text))
    engine.run()
    assert 0 < engine.stats.draft_tokens < 60
    assert not any(engine.steps[200:])


def test_drafts_of_the_most_promising_sequences_come_first():
    """There are rows for four drafts."""
    rng = random.Random(0)
    mixed = [token for _ in range(400) for token in (7, 8, rng.randrange(100, 104))]
    engine = Engine(NGRAM, FLAT, max_num_seqs=6)
    engine.add("sure", repeating, tokens=400)
    engine.add("unsure", mixed.__getitem__, tokens=400)
    engine.run(80)
    sure, unsure = (sum(each.get(name, 0) for each in engine.steps[20:]) for name in ("sure", "unsure"))
    assert sure > 3 * unsure


def test_a_prompt_in_the_step_makes_rows_no_cheaper_than_they_are():
    """A chunk of a prompt fills the flat part of the times: a draft's row then costs in full."""
    times = StepTimes((1, 16, 64), (1.0, 1.0, 4.0))
    engine = Engine(NGRAM, times, max_num_batched_tokens=63)
    engine.add("a", repeating, tokens=200)
    engine.run(20)
    assert engine.steps[-1] == {"a": 4}
    engine.add("b", repeating, prompt=range(500, 540), tokens=1)
    engine.run(1)
    assert engine.steps[-1] == {"a": 4}, "the value of a token is that of a step that decodes: 1 second, for 4 × 1/16"
    dear = StepTimes((1, 16, 64), (1.0, 1.0, 64.0))
    engine = Engine(NGRAM, dear, max_num_batched_tokens=63)
    engine.add("a", repeating, tokens=200)
    engine.run(20)
    engine.add("b", repeating, prompt=range(500, 540), tokens=1)
    engine.run(1)
    assert engine.steps[-1] == {}


def test_drafts_behind_the_end_are_not_counted_as_accepted():
    engine = Engine()
    engine.add("a", repeating, tokens=200, stop_token_ids=frozenset({repeating(37)}), min_tokens=38)
    engine.run()
    end = engine.ends["a"]
    assert end.finish.finish_reason is FinishReason.STOP
    assert len(engine.tokens["a"]) == 46
    assert end.accepted_drafts == engine.stats.accepted_draft_tokens == 46 - len(engine.steps) + 1, (
        "the last one ends it"
    )
    assert end.rejected_drafts == engine.stats.draft_tokens - end.accepted_drafts


def test_a_cancelled_choice_reports_its_drafts():
    engine = Engine()
    engine.add("a", repeating, tokens=200)
    engine.run(30)
    accepted = engine.stats.accepted_draft_tokens
    engine.scheduler.cancel("a")
    engine.plan()
    assert engine.ends["a"].accepted_drafts == accepted > 40
    assert engine.scheduler._speculation._drafted == {}


def overlapping(engine, steps):
    """Plan while a step is in flight, as far as the scheduler does; the plans' numbers of sequences, None for none."""
    flights, planned = [], []
    for _ in range(steps):
        plan = engine.plan()
        planned.append(None if plan is None else len(plan.seq_ids))
        if plan is not None:
            flights.append(plan)
        if flights and (plan is None or len(flights) == 2):
            engine.take_in(flights.pop(0))
    for plan in flights:
        engine.take_in(plan)
    return planned


def test_steps_overlap_where_there_are_no_drafts_and_wait_where_they_pay():
    engine = Engine(NGRAM, FLAT)
    engine.add("a", novel, tokens=200)
    assert overlapping(engine, 60) == [1] * 60
    engine = Engine(NGRAM, FLAT)
    engine.add("a", repeating, tokens=400)
    engine.add("b", novel, tokens=200)
    planned = overlapping(engine, 80)
    assert sorted(planned[-20:], key=bool) == [None] * 10 + [2] * 10, "no sequence is left out of any step"
    assert engine.steps[-1] == {"a": 4}


def test_drafts_that_pay_less_than_overlap_are_left():
    times = StepTimes((1, 2, 64), (1.0, 1.8, 64.0))  # one draft raises the rate by 11 %
    engine = Engine(MODEL, times, proposes=right)
    engine.add("a", novel, tokens=200)
    overlapping(engine, 10)
    engine.asked.clear()
    assert overlapping(engine, 40) == [1] * 40
    assert not any(engine.asked)


def test_nothing_is_planned_while_drafts_are_computed():
    engine = Engine(MODEL, FLAT, proposes=right)
    engine.add("a", novel, tokens=200)
    engine.add("b", novel, tokens=200)
    assert sorted(overlapping(engine, 40)[-10:], key=bool) == [None] * 5 + [2] * 5
    assert engine.steps[-1] == {"a": 4, "b": 4}


@pytest.mark.parametrize("option", ["max_num_seqs", "max_num_batched_tokens"])
def test_more_drafts_than_a_step_has_rows_are_refused(option):
    with pytest.raises(ConfigError, match=r"speculative_config=.* at most 3: a step has 4 rows"):
        SchedulerConfig(speculative_config=json.dumps({"method": "ngram", "num_speculative_tokens": 4}), **{option: 4})
    fewer = SchedulerConfig(speculative_config='{"method": "ngram"}', **{option: 4})
    assert fewer.speculation is not None
    assert fewer.speculation.num_speculative_tokens == 3, "the default gives way"
    with pytest.raises(ConfigError, match="speculative_config"):
        SchedulerConfig(speculative_config='{"method": "ngram"}', **{option: 1})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"method": "mtp", "prompt_lookup_max": 3}, "no prompt_lookup_max, with the method mtp"),
        ({"method": "ngram", "revision": "main"}, "no revision, with the method ngram"),
        ({"method": "ngram", "model": "m"}, "no model, with the method ngram"),
        ({"model": ""}, "a model, the drafting checkpoint, with the method draft_model"),
        ({"method": "eagle3"}, "a model, the drafting checkpoint, with the method eagle3"),
    ],
)
def test_what_a_method_makes_no_use_of_is_refused(fields, problem):
    with pytest.raises(ConfigError, match=f"expected {problem}"):
        SchedulerConfig(speculative_config=json.dumps(fields))


def test_the_time_of_a_plan_is_not_spent_on_what_cannot_pay(monkeypatch):
    """Nothing is looked up."""
    monkeypatch.setattr(speculation.NgramDrafter, "look_up", None)
    engine = Engine(NGRAM, LINEAR)
    engine.add("a", repeating)
    engine.run()
    assert engine.stats.generated_tokens == 64
