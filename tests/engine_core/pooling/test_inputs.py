"""A request whose inputs are pooled, from the engine's side: it begins once, and each of its inputs ends once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine_core.errors import CheckpointError, ConfigError, InvalidRequestError, QueueFullError
from engine_core.pooling.params import PoolingInput, PoolingRequest
from engine_core.request import FinishReason
from engine_core.startup import StartedEngine
from engine_core.step import SequenceOutput
from tests.engine_core.engines import started

from .checkpoints import CONFIG, EMBED, lay_out, random_model, run, texts

INPUTS = texts([4, 9, 30, 12])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedEngine]:
    """One that computes two inputs at a time, and takes two requests in its queue."""
    directory = tmp_path_factory.mktemp("model")
    model = random_model(directory)
    with torch.no_grad():
        model.embed_tokens.weight[150] = torch.nan  # type: ignore[index]  # the warm-up has lower ids
    model.save_pretrained(directory)
    lay_out(directory, {"pooling_mode": "mean"})
    with started(directory, max_num_seqs=2, max_num_queued_reqs=2) as engine:
        yield engine


def request(name: str, count: int = 4, **fields: float) -> PoolingRequest:
    inputs = {place: PoolingInput(tokens) for place, tokens in enumerate(INPUTS[:count])}
    return PoolingRequest(name, inputs, EMBED, **fields)  # type: ignore[arg-type]


def finish(engine: StartedEngine) -> tuple[list[SequenceOutput], list[str]]:
    """All outputs, and the ids of the requests that began."""
    outputs, begun = list[SequenceOutput](), list[str]()
    while engine.core.has_work():
        outputs += engine.core.step(begun.extend)
    return outputs, begun


def ends(outputs: list[SequenceOutput], name: str) -> dict[int, FinishReason]:
    ended = [(output, output.finish) for output in outputs if output.request_id == name and output.finish]
    found = [(output.choice, finish.finish_reason) for output, finish in ended]
    assert len(found) == len(dict(found))
    return dict(found)


def test_each_input_ends_once_and_the_request_begins_once(engine: StartedEngine) -> None:
    engine.core.add(request("a"))
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        engine.core.add(request("a"))
    assert engine.core.stats().waiting_reqs == 1
    outputs, begun = finish(engine)
    assert begun == ["a"]
    assert ends(outputs, "a") == dict.fromkeys(range(4), FinishReason.STOP)
    assert all(output.pooled is not None and not output.token_ids for output in outputs if output.finish)
    assert engine.core.stats().running_seqs == engine.core.stats().waiting_reqs == 0
    engine.core.add(request("a"))
    finish(engine)


def test_the_queue_counts_requests_and_not_their_inputs(engine: StartedEngine) -> None:
    for name, tenant in (("a", "x"), ("b", "y")):
        engine.core.add(PoolingRequest(name, {7: PoolingInput((9,)), 8: PoolingInput((8,))}, EMBED, tenant=tenant))
    with pytest.raises(QueueFullError, match="limit of 2 waiting requests"):
        engine.core.add(request("c"))
    outputs, _ = finish(engine)
    assert set(ends(outputs, "b")) == {7, 8}


def test_inputs_are_cancelled_one_by_one_and_together(engine: StartedEngine) -> None:
    engine.core.add(request("a"))
    assert engine.core.cancel("a", 3)
    assert not engine.core.cancel("a", 3)
    assert not engine.core.cancel("a", 9)
    outputs = engine.core.step()
    assert engine.core.cancel("a")
    assert not engine.core.cancel("a")
    outputs += finish(engine)[0]
    reasons = ends(outputs, "a")
    assert reasons.pop(3) is reasons.pop(2) is FinishReason.CANCELLED
    assert set(reasons) == {0, 1}
    engine.core.add(request("a", deadline=0.0))
    assert ends(finish(engine)[0], "a") == dict.fromkeys(range(4), FinishReason.DEADLINE)


def test_numbers_that_are_none_end_their_input_alone(engine: StartedEngine) -> None:
    [good, bad, other] = run(engine, [(3, 4), (3, 150, 4), (4,)])
    assert good.pooled is not None
    assert other.pooled is not None
    assert bad.finish is not None
    assert (bad.pooled, bad.finish.finish_reason, bad.finish.error_field) == (None, FinishReason.ERROR, "inputs[1]")
    assert "the model's result for inputs[1] has numbers that are none" in str(bad.finish.error)


def test_a_head_with_damaged_weights_is_noticed_at_the_start(tmp_path: Path) -> None:
    model = random_model(tmp_path, "Qwen3ForSequenceClassification", CONFIG)
    with torch.no_grad():
        model.score.weight[1] = torch.inf  # type: ignore[index]
    model.save_pretrained(tmp_path)
    with (
        pytest.raises(CheckpointError, match=r"a NaN .* begins in what makes results of hidden states"),
        started(tmp_path),
    ):
        pass


def test_options_for_drafts_are_refused_by_name(tmp_path: Path) -> None:
    random_model(tmp_path)
    with (
        pytest.raises(ConfigError, match=r"speculative_config=.* expected no value for a model that pools"),
        started(tmp_path, speculative_config={"method": "ngram"}),
    ):
        pass
