"""The benchmarks measure what they say: on a model of random weights, with real engines, whatever the times."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import engine, overlap
from benchmarks.limits import Limits
from benchmarks.overlap import Steps
from benchmarks.report import document, write_json
from benchmarks.results_page import write_page
from benchmarks.roofline import ModelCost
from benchmarks.rounds import interleave, ratio
from benchmarks.routing import families
from benchmarks.served.routed import POLICIES
from benchmarks.shapes import SHAPES, describe_model
from benchmarks.work import Work
from benchmarks.worker import Worker, WorkerError, WorkerSpec
from services.ring.identity import PeerId
from services.ring.model_generations import Generation
from services.ring.prefixes import prefixes_of

GENERATION = Generation("m", "digest")
OPTIONS = {"load_format": "dummy", "max_num_seqs": 16, "dtype": "bfloat16"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration without weights."""
    config = SHAPES["tiny-llama"]()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(path := tmp_path_factory.mktemp("tiny-llama"))
    return path


class FixedGauge:
    def __init__(self, threads: int | None) -> None:
        self.threads = threads

    def take(self) -> Limits:
        return Limits(bandwidth=1e10, flops=1e11)


def test_the_prefix_sweep_has_the_hits_it_shows(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Gauge", FixedGauge)  # taking limits is the slow part
    rows = engine.run_sweep(model, "prefix", Work(batch=2, prompt=160, output=2), 1, 1, OPTIONS)
    assert [round(row["cached"], 2) for row in rows] == [0.0, 0.2, 0.5, 0.7, 0.9]  # whole blocks of 16
    assert all(row["prompt tok/s"] > 0 for row in rows)
    assert rows[-1]["prompt limit"] > rows[0]["prompt limit"]  # what is cached need not be computed


def test_the_policies_to_compare_with_look_at_no_prefix() -> None:
    def places(policy: str) -> Counter[str]:
        routes = POLICIES[policy](random.Random(0))
        routes.detokenizer_up(PeerId("d", 1))
        for name in ("e0", "e1", "e2"):
            routes.engine_up(PeerId(name, 1), GENERATION)
            routes.engine_peers(PeerId(name, 1), [PeerId("d", 1)])
        drawn = families(0, 90)
        common = Counter(ask.prompt[0] for ask in drawn).most_common(1)[0][0]
        asks = [ask for ask in drawn if ask.prompt[0] == common]
        found: Counter[str] = Counter()
        for number, ask in enumerate(asks):
            assert len(ask.prompt) == 512
            route = routes.choose(str(number), GENERATION, prefixes_of(ask.prompt, b"", 16))
            routes.release(str(number))
            found[route.engine.name if route is not None else ""] += 1
        assert len(asks) > 2, "a family comes again"
        return found

    assert len(places("ringline")) == 1
    assert max(places("round robin").values()) - min(places("round robin").values()) <= 1
    assert len(places("random")) > 1


def test_a_worker_tells_its_stages_and_runs_works(model: Path, tmp_path: Path) -> None:
    spec = WorkerSpec("ours", sys.executable, "ringline_engine", {"model": str(model), **OPTIONS, "num_threads": 1}, {})
    with Worker(spec, tmp_path) as worker:
        assert {"imports", "load weights", "profile", "first token"} <= worker.stages.keys()
        assert sum(worker.stages.values()) == pytest.approx(worker.start_seconds)
        assert worker.run(Work(batch=2, prompt=40, output=3, seed=1)).cached_tokens == 0
        assert worker.run(Work(batch=2, prompt=40, output=3, seed=1)).cached_tokens == 64  # two blocks of each


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    spec = WorkerSpec("nobody", sys.executable, "no_engine", {}, {})
    with pytest.raises(WorkerError, match="no_engine"), Worker(spec, tmp_path):
        pass


def test_pauses_between_steps_are_a_part_of_their_time(model: Path) -> None:
    steps = Steps(begun=[0.0, 1.0, 2.0, 3.0, 4.0], ended=[0.9, 1.9, 2.75, 3.75, 4.75])
    assert (steps.step_us(), steps.pause_us()) == (1e6, 0.25e6)
    rows = overlap.measure(model, Work(batch=2, prompt=16, output=8), 1, 1, load_format="dummy")
    assert [(row["tokens"], row["steps"]) for row in rows] == [
        (tokens, steps) for tokens in ("greedy", "sampled") for steps in ("one by one", "overlapping")
    ]
    assert all(0 < row["µs between"] < row["µs a step"] for row in rows if row["steps"] == "one by one")
    assert rows[0]["step / one by one"] == "1 (1 … 1)"


def test_rounds_alternate_and_ratios_are_of_one_round() -> None:
    order: list[str] = []
    measure = {name: lambda number, name=name: order.append(name) or number for name in "ab"}
    assert interleave(2, measure) == {"a": [0, 1], "b": [0, 1]}
    assert order == ["a", "b", "b", "a"]
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]).median == 3.0


def test_the_roofline_reads_every_weight_once_a_step(model: Path) -> None:
    cost = ModelCost.of(model)
    head = 16_000 * 256
    body = 4 * (256 * (256 + 2 * 128 + 256) + 3 * 256 * 688 + 2 * 256)
    assert (cost.head, cost.body) == (head, body)
    only_memory = Limits(bandwidth=1e9, flops=1e30)
    seen = 100 + 11 / 2
    expected = 10 * (2 * (head + body) + seen * 4 * 2 * 4 * 32 * 2) / 1e9
    assert cost.decode_seconds(Work(1, 100, 11), only_memory) == pytest.approx(expected)


def test_the_page_says_what_was_reached_and_what_was_not_measured(tmp_path: Path) -> None:
    cost = {
        "batch": 16,
        "offline tok/s": 100.0,
        "served tok/s": 95.0,
        "served / offline": 0.95,
        "low": 0.9,
        "high": 1.0,
    }
    write_json(tmp_path / "ring-cost.json", document("ring-cost", []) | {"figures": {"figures": [cost]}})
    write_page(tmp_path, page := tmp_path / "RESULTS.md")
    [verdict] = [line for line in page.read_text().splitlines() if "served / offline, batch 16" in line]
    assert "≥ 0.9" in verdict
    assert verdict.split("|")[-2].strip() == "reached"
    assert json.loads((tmp_path / "ring-cost.json").read_text())["machine"]["processor"] in page.read_text()


def test_shapes_without_weights_are_what_they_are_called(tmp_path: Path) -> None:
    directory = describe_model("llama-3.1-8b", tmp_path)
    assert not list(directory.glob("*.safetensors"))
    cost = ModelCost.of(directory)
    assert cost.body + 2 * cost.head == pytest.approx(8.03e9, rel=1e-3)
    assert cost.kv_bytes == 2 * 2 * 32 * 8 * 128
