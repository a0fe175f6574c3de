"""The sampler against transformers' logits processors plus reference noise, and its independence of the batch."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from engine_core.logprobs import Logprobs
from engine_core.request import SamplingParams
from engine_core.sampling.base import SamplingOps
from engine_core.sampling.logits_processors import ProcessorSetup, SamplingRows
from engine_core.sampling.metadata import PROCESSORS, SamplingMetadata
from engine_core.sampling.noise import gumbel, position_keys, sequence_key
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.sampler import Sampler

EOS = 2


class Sampled:
    """What a sampler made of rows, on the host."""

    def __init__(self, sampler: Sampler, logits: torch.Tensor, rows: SamplingRows) -> None:
        raw = logits.numpy().max(axis=1)
        output = sampler.sample(logits, rows)
        np.testing.assert_array_equal(output.greatest.numpy(), raw)  # NaN where one is, banned or not
        self.token_ids = output.token_ids.numpy()
        self.logprobs: dict[int, Logprobs] = {}
        """By row."""
        for part in output.logprobs:
            self.logprobs |= dict(zip(part.rows.tolist(), part.entries(), strict=True))


class Rows:
    """Sequences with their parameters, and the logits that a model might have made for them."""

    def __init__(self, params: list[SamplingParams], vocab: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.params, self.vocab, count = params, vocab, len(params)
        self.choices = [i % 3 for i in range(count)]
        self.prompts = rng.integers(5, 15, count)
        self.lengths = self.prompts + rng.integers(0, 12, count)
        # Few distinct tokens, so that penalties and bad words have something to find.
        self.tokens = rng.integers(0, 12, (count, 40)).astype(np.int32)
        generator = torch.Generator().manual_seed(seed)
        self.logits = (torch.randn(count, vocab, generator=generator) * 3).bfloat16().float()

    def sample(self, order: list[int], ops: SamplingOps | None = None) -> Sampled:
        """Sample the rows of ``order``, as a batch in slots of their own."""
        state = SamplingMetadata(ProcessorSetup(len(order), self.vocab, (EOS,)))
        tokens = self.tokens[order]
        for slot, row in enumerate(order):
            state.add(slot, self.params[row], self.choices[row], int(self.lengths[row] - self.prompts[row]))
        none = np.zeros(len(order), np.int64)
        rows = SamplingRows(np.arange(len(order)), tokens, self.lengths[order], self.prompts[order], none)
        return Sampled(Sampler(state, ops or NumpyOps(self.vocab)), self.logits[order].clone(), rows)

    def expected(self, row: int) -> int:
        """The draw for one row by transformers' processors, in the documented order, and the noise added to it."""
        params, prompt = self.params[row], int(self.prompts[row])
        ids = torch.from_numpy(self.tokens[row, : self.lengths[row]].astype(np.int64)).unsqueeze(0)
        scores = self.logits[row : row + 1].clone()
        for processor in processors(params, ids, prompt):
            scores = processor(ids, scores)
        if params.greedy:
            return int(scores.argmax())
        keys = np.array([sequence_key(params.seed, self.choices[row])], np.uint64)
        key = position_keys(keys, self.lengths[row : row + 1])[:, np.newaxis]
        return int((scores.numpy() + gumbel(key, np.arange(self.vocab))).argmax())


class OutputPenalties:
    """OpenAI's frequency and presence penalties, which transformers has no processor for."""

    def __init__(self, prompt: int, frequency: float, presence: float) -> None:
        self.prompt, self.frequency, self.presence = prompt, frequency, presence

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for token in ids[0, self.prompt :].tolist():
            scores[0, token] -= self.frequency
        for token in set(ids[0, self.prompt :].tolist()):
            scores[0, token] -= self.presence
        return scores


def processors(params: SamplingParams, ids: torch.Tensor, prompt: int) -> list:
    chain: list = []
    if params.allowed_token_ids is not None:
        chain.append(hf.PrefixConstrainedLogitsProcessor(lambda *_: list(params.allowed_token_ids), 1))
    if params.bad_words_token_ids:
        chain.append(hf.NoBadWordsLogitsProcessor([list(w) for w in params.bad_words_token_ids], eos_token_id=None))
    if params.min_tokens:
        stops = sorted({*params.stop_token_ids, EOS})
        chain.append(hf.MinNewTokensLengthLogitsProcessor(prompt, params.min_tokens, stops, device="cpu"))
    if params.logit_bias:
        chain.append(hf.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.logit_bias.items()]))
    if params.repetition_penalty != 1.0:
        chain.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    chain.append(OutputPenalties(prompt, params.frequency_penalty, params.presence_penalty))
    if params.greedy:
        return chain
    chain.append(hf.TemperatureLogitsWarper(float(params.temperature)))
    if params.min_p:
        chain.append(hf.MinPLogitsWarper(params.min_p))
    if params.top_k is not None:
        chain.append(hf.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        chain.append(hf.TopPLogitsWarper(params.top_p))
    return chain


def random_params(rng: random.Random) -> SamplingParams:
    def maybe(value: object, default: object) -> object:
        return value if rng.random() < 0.4 else default

    return SamplingParams(
        temperature=rng.choice([0.0, 0.5, 0.7, 1.0, 1.3]),
        top_k=maybe(rng.choice([1, 4, 20, 100]), None),
        top_p=maybe(rng.choice([0.2, 0.7, 0.95]), 1.0),
        min_p=maybe(rng.choice([0.02, 0.2]), 0.0),
        frequency_penalty=maybe(rng.choice([-0.5, 0.3, 1.5]), 0.0),
        presence_penalty=maybe(rng.choice([-0.5, 0.3, 1.5]), 0.0),
        repetition_penalty=maybe(rng.choice([0.8, 1.2, 2.0]), 1.0),
        logit_bias=maybe({3: 4.0, 5: -100.0, 7: 2.5}, {}),
        bad_words_token_ids=maybe(((4,), (1, 6), (8, 9, 10), (*range(12), 0)), ()),
        allowed_token_ids=maybe(tuple(range(0, 200, 2)), None),
        min_tokens=maybe(rng.choice([1, 6, 30]), 0),
        stop_token_ids=frozenset([6, 10]),
        seed=rng.getrandbits(64),
        logprobs=maybe(rng.choice([0, 1, 5]), None),
    )


@pytest.fixture(scope="module", params=[230, 6000])
def mixed(request: pytest.FixtureRequest) -> Rows:
    rng = random.Random(request.param)
    return Rows([random_params(rng) for _ in range(250)], vocab=request.param)


def test_draws_equal_transformers_and_reference_noise(mixed: Rows) -> None:
    """Without ties at borders: transformers' top-k and top-p keep or drop equal logits together."""
    drawn = mixed.sample(list(range(250))).token_ids
    for row, params in enumerate(mixed.params):
        if params.greedy or (params.top_k is None and params.top_p == 1.0):
            assert drawn[row] == mixed.expected(row), params


def test_truncated_draws_equal_transformers(mixed: Rows) -> None:
    """With all logits of a row distinct, top-k and top-p mean the same in both."""
    rng = random.Random(5)
    rows = Rows([random_params(rng) for _ in range(250)], mixed.vocab, seed=5)
    rows.logits = torch.randn(250, mixed.vocab, generator=torch.Generator().manual_seed(5)) * 3
    drawn = rows.sample(list(range(250))).token_ids
    assert drawn.tolist() == [rows.expected(row) for row in range(250)]


def test_a_row_does_not_depend_on_its_batch(mixed: Rows) -> None:
    together = mixed.sample(list(range(250)))
    order = list(range(250))
    random.Random(1).shuffle(order)
    for group in [[row] for row in order[:60]] + [order[60:100], order[100:]]:
        apart = mixed.sample(group)
        for place, row in enumerate(group):
            assert apart.token_ids[place] == together.token_ids[row]
            assert apart.logprobs.get(place) == together.logprobs.get(row)


def test_threads_do_not_matter(restored_threads: None) -> None:
    """Rows long enough that torch divides its work among threads."""
    rng = random.Random(9)
    rows = Rows([replace(random_params(rng), logprobs=2) for _ in range(12)], vocab=120_000)
    outputs = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        outputs.append(rows.sample(list(range(12))))
    for output in outputs[1:]:
        assert output.token_ids.tolist() == outputs[0].token_ids.tolist()
        assert output.logprobs == outputs[0].logprobs


def test_rows_worked_on_in_parts_are_the_same(mixed: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch is sampled some rows at a time; here that is every 7 rows."""
    at_once = mixed.sample(list(range(250)))
    monkeypatch.setattr(NumpyOps, "elements_at_once", 7 * mixed.vocab)
    in_parts = mixed.sample(list(range(250)))
    assert in_parts.token_ids.tolist() == at_once.token_ids.tolist()
    assert in_parts.logprobs == at_once.logprobs


def test_logits_that_are_no_numbers_harm_no_other_row(mixed: Rows) -> None:
    """A model that overflows loses its sequence, which gets some token; the batch and the engine live on."""
    lost = range(3, 250, 4)
    rows = Rows(mixed.params, mixed.vocab, seed=0)
    expected = rows.sample(list(range(250)))
    rows.logits[lost] = torch.nan
    output = rows.sample(list(range(250)))
    assert ((output.token_ids >= 0) & (output.token_ids < mixed.vocab)).all()
    for row in set(range(250)) - set(lost):
        assert output.token_ids[row] == expected.token_ids[row]
        assert output.logprobs.get(row) == expected.logprobs.get(row)


def test_logprobs_are_of_the_raw_logits(mixed: Rows) -> None:
    output = mixed.sample(list(range(250)))
    asked = {row for row, params in enumerate(mixed.params) if params.logprobs is not None}
    assert set(output.logprobs) == asked
    for row in asked:
        [entry], token = output.logprobs[row], int(output.token_ids[row])
        values = mixed.logits[row].double().log_softmax(0).numpy()
        order = np.lexsort((np.arange(len(values)), -values))
        top = order[: mixed.params[row].logprobs]
        assert entry.top_ids == tuple(top)
        np.testing.assert_allclose(entry.top_logprobs, values[top], atol=1e-5)
        np.testing.assert_allclose(entry.logprob, values[token], atol=1e-5)
        assert order[entry.rank - 1] == token


def test_a_greedy_batch_runs_nothing_but_the_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a greedy batch does not ask for is not run: the functions behind every feature are broken here."""
    rows = Rows([SamplingParams(temperature=0.0, top_k=3, top_p=0.5)] * 8, vocab=500)
    monkeypatch.setattr("engine_core.sampling.sampler.position_keys", None)
    for name in ("sample", "logprobs", "ban", "change", "keep_only", "mask", "select_rows"):
        monkeypatch.setattr(NumpyOps, name, None)
    for processor in PROCESSORS:
        monkeypatch.setattr(processor, "apply", None)
    assert rows.sample(list(range(8))).token_ids.tolist() == rows.logits.argmax(dim=1).tolist()


@pytest.mark.parametrize(
    "truncation",
    [{}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 30, "top_p": 0.7, "min_p": 0.02}],
    ids=lambda t: "+".join(t) or "none",
)
def test_frequencies_match_the_probabilities(truncation: dict[str, float]) -> None:
    """10,000 positions of one seeded sequence draw from the truncated softmax: chi-square within 4 deviations."""
    vocab, draws = 400, 10_000
    params = SamplingParams(temperature=0.8, seed=77, **truncation)
    state = SamplingMetadata(ProcessorSetup(1, vocab, (EOS,)))
    state.add(0, params, 0, 0)
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(3)) * 2.5
    none, ones = np.zeros(draws, np.int64), np.ones(draws, np.int64)
    rows = SamplingRows(none, np.zeros((1, 1), np.int32), np.arange(draws), ones, none)
    drawn = Sampled(Sampler(state, NumpyOps(vocab)), logits.repeat(draws, 1), rows).token_ids
    scores = logits / 0.8
    for processor in processors(params, torch.zeros(1, 1, dtype=torch.int64), 1)[1:]:
        scores = processor(None, scores) if not isinstance(processor, hf.TemperatureLogitsWarper) else scores
    expected = scores.softmax(1)[0].double().numpy() * draws
    counts = np.bincount(drawn, minlength=vocab)
    assert (counts[expected == 0] == 0).all()
    likely = expected > 5
    cells = np.append(counts[likely], counts[~likely].sum())
    means = np.append(expected[likely], expected[~likely].sum())
    cells, means = cells[means > 0], means[means > 0]
    statistic = ((cells - means) ** 2 / means).sum()
    degrees = len(cells) - 1
    assert abs(statistic - degrees) < 4 * (2 * degrees) ** 0.5


def test_extreme_temperatures() -> None:
    """The hottest is uniform noise, the coldest is greedy: neither overflows."""
    rows = Rows([SamplingParams(temperature=t, seed=i) for i, t in enumerate([1e-300, 1e-38, 1e-9, 1e30])], vocab=100)
    rows.logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)) * 1e4
    drawn = rows.sample([0, 1, 2, 3]).token_ids
    assert drawn[:3].tolist() == rows.logits[:3].argmax(dim=1).tolist()
    key = position_keys(np.array([sequence_key(3, 0)], np.uint64), rows.lengths[3:])[:, np.newaxis]
    assert drawn[3] == int(gumbel(key, np.arange(100)).argmax())
