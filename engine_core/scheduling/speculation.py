"""How many drafts of drafters a step computes: as many as raise the tokens per second that it is worth.

A draft costs its row, and its drafter's time; ``StepTimes`` knows both. It brings a token if it comes true, and so do
all before it. How probable that is follows from drafts of its kind so far, of all sequences, and from how often those
of its own sequence were wrong, compared to what was expected. Drafts of which the results say whether they came true
count, computed or not: what is looked up is tried without any row. Drafts of models are tried again now and then where
they did not pay.

A prompt's rows are worth the tokens that other steps would decode in their time. Drafts take no room that others need:
they come last, into the rows and blocks that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine_core.scheduling.ngram import STRONGEST, NgramDrafter
from engine_core.scheduling.stats import Counters
from engine_core.sequence import Sequence
from engine_core.speculation import SpeculativeConfig, StepTimes

MARGIN = 1.02
"""Drafts must raise the tokens per second by this factor: estimates are rough, and drafts cost the scheduler time."""
OVERLAP_MARGIN = 1.15
"""As ``MARGIN``, where steps would overlap without drafts. The times of steps do not say what that saves."""
PROBE_TOKENS = 128
"""Tokens after which a draft of a model is tried again where drafts did not pay."""
MOST_LACKING = 64
"""Times in a row that a model may be asked for drafts of a sequence in vain. From then on it is asked as seldom as for
drafts that do not pay."""
_DECAY = 0.9
"""Weight of what is known of a sequence's drafts after another round."""
_MOST_IDLE = 7
_PRIOR = 0.5
"""Wrong drafts, and expected ones, that every sequence begins with."""
_MEMORY = 500.0
"""Drafts of a kind after which old ones begin to count less."""
_LEAST_CHANCE = 0.02
"""Less probable drafts are not considered."""


class _Kind:
    """Drafts that come true about equally often: how often they were wrong."""

    __slots__ = ("_num", "_wrong")

    def __init__(self, miss: float, weight: float = 20.0) -> None:
        self._num = weight
        self._wrong = weight * miss

    @property
    def miss(self) -> float:
        return self._wrong / self._num

    def add(self, *, wrong: bool) -> None:
        self._num += 1.0
        self._wrong += wrong
        if self._num > _MEMORY:
            self._num /= 2
            self._wrong /= 2


def _kinds_of_runs() -> list[_Kind]:
    """By the length of the run that led to a draft, up to ``STRONGEST``."""
    return [_Kind(0.05 + 0.65 * 0.85**length) for length in range(STRONGEST + 1)]


@dataclass(slots=True)
class _Drafted:
    """What is known of the drafts of a sequence."""

    misses: float = _PRIOR
    expected: float = _PRIOR
    first: int = 0
    """Kind of its first draft; following ones are of the following kinds."""
    idle: int = 0
    """If a model computes drafts: steps without any, since the last was tried. Else steps until some are looked up."""
    failures: int = 0
    """Times in a row that nothing was found, or the first draft was wrong; if a model computes drafts, that it had
    none."""
    accepted: int = 0
    rejected: int = 0

    @property
    def ratio(self) -> float:
        """Wrong drafts for each expected one."""
        return self.misses / self.expected

    def look_up_later(self) -> None:
        """Look up less often where it keeps failing: it takes time, and a repetition lasts."""
        self.failures += 1
        self.idle = min(self.failures // 4, _MOST_IDLE)


@dataclass(frozen=True, slots=True)
class Offer:
    """Drafts of a sequence that a step may take."""

    place: int
    """The sequence's place in the step."""
    seq: Sequence
    room: int
    """The most drafts."""


class Speculation:
    """Proposes drafts for sequences, judges them, and decides how many a step takes."""

    def __init__(self, config: SpeculativeConfig, times: StepTimes, counters: Counters) -> None:
        self._times = times
        self._counters = counters
        self._most = config.num_speculative_tokens
        self._ngram = None if config.is_computed else NgramDrafter(config)
        self._kinds = [_Kind(0.3) for _ in range(2 * self._most)] if config.is_computed else _kinds_of_runs()
        self._drafted: dict[int, _Drafted] = {}
        """By seq_id, until the sequence ends."""
        self.overlaps = False
        """Whether steps overlap where there are no drafts."""
        counters.accepted_by_position = [0] * self._most

    @property
    def is_computed(self) -> bool:
        """Whether a model computes the drafts; else they are looked up."""
        return self._ngram is None

    def look_up(self, running: Items[Sequence]) -> None:
        """Look up drafts of the ``running`` sequences that decode, if any could pay."""
        if self._ngram is None:
            return
        self._ngram.begin_step()
        decoding = max(1, sum(seq.num_computed >= seq.num_known - 1 for seq in running))
        if not self._could_pay(decoding, decoding, self._most * decoding):
            return
        for seq in running:
            if not seq.group.speculates:
                continue
            if seq.num_computed < seq.num_known - 1:
                self._ngram.follow(seq)
                continue
            if seq.is_drafted or (seq.drafts and not seq.is_proposed):
                continue
            drafted = self._of(seq)
            if drafted.idle > 0 and not seq.drafts:
                drafted.idle -= 1
                continue
            # One more than a step takes, so that the token behind them is judged, too.
            seq.drafts, strength = self._ngram.look_up(seq, self._most + 1 + seq.num_pending)
            seq.is_proposed = bool(seq.drafts)
            if seq.drafts:
                drafted.first = strength
            else:
                drafted.look_up_later()

    def choose(self, offers: list[Offer], rows: int, decoding: int, most: int) -> list[tuple[Offer, int]]:
        """The numbers of drafts to take, where there are any, at most ``most`` together.

        ``rows``: of the step without drafts; ``decoding``: of these, those that sample.
        """
        if not offers or most <= 0 or not self._could_pay(rows, decoding, most):
            return []
        return self._choose(offers, rows, decoding, most, _free)

    def ask(self, offers: list[Offer], decoding: int, most: int) -> list[tuple[Offer, int]]:
        """The numbers of drafts that a model is to compute, where any, for a step of ``decoding`` sequences.

        At most ``most`` together. ``Offer.room`` is their room in that step.
        """
        if not offers or most <= 0 or not self._could_pay(decoding, decoding, most, self._times.draft(1)):
            return []
        for offer in offers:
            self._of(offer.seq).first = 0
        having = [offer for offer in offers if self._of(offer.seq).failures < MOST_LACKING]
        chosen = self._choose(having, decoding, decoding, most, self._times.draft)
        wanted = {offer.place for offer, _ in chosen}
        for offer in offers:
            if offer.place not in wanted:
                drafted = self._of(offer.seq)
                drafted.idle += 1
                if drafted.idle > PROBE_TOKENS and len(chosen) < most:
                    drafted.idle = 0
                    chosen.append((offer, 1))
        return chosen

    def take(self, seq: Sequence, drafts: list[int]) -> None:
        """Take ``drafts`` that a model computed for ``seq``; none: it will have some soon, and still reads the text."""
        seq.drafts, seq.is_proposed = drafts, bool(drafts)
        drafted = self._of(seq)
        drafted.first = drafted.failures = 0

    def lack(self, seq: Sequence) -> None:
        """Learn that the model which was asked for drafts of ``seq`` had none."""
        self._of(seq).failures += 1

    def judge(self, seq: Sequence, token_ids: list[int], num_computed: int) -> None:
        """Compare the drafts of ``seq`` with the tokens that came; ``num_computed`` of them were computed."""
        drafts, drafted = seq.drafts, self._drafted[seq.seq_id]
        judged = min(len(drafts), len(token_ids))
        right = 0
        while right < judged and drafts[right] == token_ids[right]:
            right += 1
        if num_computed:
            self._count(drafted, right, num_computed)
        if judged:
            self._learn(drafted, right, is_wrong=right < judged)
        if self._ngram is not None:
            self._ngram.judged(seq, right, all_right=right == len(token_ids))
        drafted.first += right
        seq.drafts = drafts[right:] if right == len(token_ids) else []
        seq.is_proposed = bool(seq.drafts)

    def totals(self, seq: Sequence) -> tuple[int, int]:
        """Drafts of ``seq`` that were computed and accepted, and those rejected."""
        drafted = self._drafted.get(seq.seq_id)
        return (0, 0) if drafted is None else (drafted.accepted, drafted.rejected)

    def end(self, seq: Sequence) -> None:
        """Forget ``seq``, which has ended."""
        self._drafted.pop(seq.seq_id, None)
        if self._ngram is not None:
            self._ngram.end(seq)

    def _of(self, seq: Sequence) -> _Drafted:
        return self._drafted.setdefault(seq.seq_id, _Drafted())

    def _count(self, drafted: _Drafted, right: int, num_computed: int) -> None:
        accepted, counters = min(right, num_computed), self._counters
        drafted.accepted += accepted
        drafted.rejected += num_computed - accepted
        counters.drafts += 1
        counters.draft_tokens += num_computed
        counters.accepted_draft_tokens += accepted
        for position in range(accepted):
            counters.accepted_by_position[position] += 1

    def _learn(self, drafted: _Drafted, right: int, *, is_wrong: bool) -> None:
        drafted.misses = _DECAY * drafted.misses + (1 - _DECAY) * _PRIOR + is_wrong
        drafted.expected = _DECAY * drafted.expected + (1 - _DECAY) * _PRIOR
        if right:
            drafted.failures = 0
        elif self._ngram is not None:
            drafted.look_up_later()
        if self.is_computed:
            # Where one came true, the next step tries another: some of these win a sequence back.
            drafted.idle = 0 if is_wrong else PROBE_TOKENS
        for position in range(right + is_wrong):
            kind = self._kind(drafted.first + position)
            drafted.expected += kind.miss
            kind.add(wrong=position == right)

    def _kind(self, number: int) -> _Kind:
        return self._kinds[min(number, len(self._kinds) - 1)]

    def _chances(self, offer: Offer) -> list[float]:
        """The chance of each draft that it and all before it come true, descending."""
        drafted, chances, chance = self._drafted[offer.seq.seq_id], list[float](), 1.0
        ratio = drafted.ratio
        for position in range(min(offer.room, self._most)):
            chance *= 1.0 - self._kind(drafted.first + position).miss * ratio
            if chance < _LEAST_CHANCE:
                break
            chances.append(chance)
        return chances

    @property
    def _margin(self) -> float:
        return OVERLAP_MARGIN if self.overlaps else MARGIN

    def _could_pay(self, rows: int, decoding: int, most: int, price: float = 0.0) -> bool:
        """Whether up to ``most`` drafts would pay if all came true; ``price``: seconds of each round of them."""
        value, rate = self._worth(rows, decoding)
        # Times are straight lines between those measured, so the best number is at an end of one.
        ends = [count for each in self._times.rows if 0 < (count := each - rows) < most]
        return any(
            value + count > self._margin * rate * (self._times.drafted(rows + count) + price * -(-count // decoding))
            for count in (*ends, min(decoding, most), most)
        )

    def _choose(
        self, offers: list[Offer], rows: int, decoding: int, most: int, price: Callable[[int], float]
    ) -> list[tuple[Offer, int]]:
        """As ``choose``; ``price``: seconds of computing one more draft for each of some sequences."""
        chances = sorted(
            (-chance, position, at)
            for at, offer in enumerate(offers)
            for position, chance in enumerate(self._chances(offer))
        )[:most]
        value, rate = self._worth(rows, decoding)
        best, least, seconds = 0, self._margin * rate, 0.0
        num_rounds = [0] * self._most
        for count, (chance, position, _) in enumerate(chances, 1):
            value -= chance
            num_rounds[position] += 1
            seconds += price(num_rounds[position]) - price(num_rounds[position] - 1)
            reached = value / (self._times.drafted(rows + count) + seconds)
            if reached > least:
                best, least = count, reached
        counts = [0] * len(offers)
        for _, _, at in chances[:best]:
            counts[at] += 1
        return [(offer, count) for offer, count in zip(offers, counts, strict=True) if count]

    def _worth(self, rows: int, decoding: int) -> tuple[float, float]:
        """What a step without drafts is worth, in tokens, and the tokens per second of steps that decode alone."""
        times = self._times
        rate = decoding / times.step(decoding)
        return rate * (times.step(rows) if rows == decoding else times.drafted(rows)), rate


def _free(sequences: int) -> float:
    return 0.0
