"""A ring whose engine guesses tokens ahead gives the same answers, and says how many of its guesses were right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ringline
from click.testing import CliRunner

from services.cli.commands.status import status
from tests.ring import Ring, running_ring

pytestmark = pytest.mark.long
PROMPT = "The fox and the dog. " * 6
GREEDY = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampled": {"temperature": 0.7, "seed": 5, "n": 2, "max_tokens": 40, "logprobs": 1},
    "form": {
        "json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "seed": 3,
        "max_tokens": 30,
    },
}


@pytest.fixture(scope="module")
def guessing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    flags = ("-sc.method", "ngram", "-sc.prompt_lookup_min", "1")
    with running_ring(tmp_path_factory.mktemp("guessing"), *flags) as running:
        yield running


def answers(ring: Ring, **options: Any) -> dict[str, ringline.Generation]:
    with ringline.Client(ring.address) as client:
        return {name: client.generate(PROMPT, **fields, **options) for name, fields in REQUESTS.items()}


def test_answers_are_the_same_and_guesses_are_counted(ring: Ring, guessing: Ring) -> None:
    before = guessing.load()
    plain, guessed, unguessed = answers(ring), answers(guessing), answers(guessing, speculation=False)
    for name in REQUESTS:
        assert plain[name].choices == guessed[name].choices == unguessed[name].choices, name
        for answer in (plain[name], unguessed[name]):
            assert (answer.usage.accepted_draft_tokens, answer.usage.rejected_draft_tokens) == (0, 0)
    usage = guessed["greedy"].usage
    assert 0 < usage.accepted_draft_tokens < usage.completion_tokens == 60
    load, usages = guessing.load(), [answer.usage for answer in guessed.values()]
    accepted = sum(each.accepted_draft_tokens for each in usages)
    assert load.accepted_draft_tokens - before.accepted_draft_tokens == accepted
    drafted = accepted + sum(each.rejected_draft_tokens for each in usages)
    assert load.draft_tokens - before.draft_tokens == drafted
    assert guessing.metric("engine", "vllm:spec_decode_num_accepted_tokens_total") == load.accepted_draft_tokens
    shown = CliRunner().invoke(status, ["--engine", guessing.engine_address]).output
    assert f"guessed tokens {load.draft_tokens}, right" in " ".join(shown.split())


def test_a_stop_string_does_not_hide_the_guesses_before_it(guessing: Ring) -> None:
    with ringline.Client(guessing.address) as client:
        whole = client.generate(PROMPT, **GREEDY)
        stop = whole.text[-8:]
        assert stop not in whole.text[:-8] or whole.text.index(stop) > 20
        stopped = client.generate(PROMPT, **GREEDY, stop=stop)
    assert stopped.stop == stop
    assert whole.text.startswith(stopped.text)
    assert 0 < stopped.usage.accepted_draft_tokens <= stopped.usage.completion_tokens
