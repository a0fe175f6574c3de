"""A sequence for which the model computes no numbers ends with an error that says so, and all others go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_core.engine import EngineCore
from engine_core.errors import CheckpointError
from engine_core.request import Finish, FinishReason, Request, SamplingParams
from engine_core.validation import validate_request
from tests.engine_core.drafters import ScriptedDrafter
from tests.engine_core.engines import Outcome, started
from tests.engine_core.models.tiny_models import CASES, make_model, save_model
from tests.engine_core.structured_output.grammars import PERSON, VOCAB, save_model_with_tokenizer
from tests.engine_core.worker.test_worker_stages import in_stages

BROKEN = 490
"""A token whose embedding is NaN: so is all that follows it."""
PROMPT, HIT = (5, 6, 7), (5, BROKEN, 7)
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
RANDOM = SamplingParams(seed=3, max_tokens=6, ignore_eos=True)
WAYS = {
    "greedy": GREEDY,
    "random": RANDOM,
    "nucleus": replace(RANDOM, top_p=0.9, n=2),
    "first few": replace(RANDOM, top_k=5, min_p=0.01),
    "logprobs": replace(GREEDY, logprobs=2),
    "penalties": replace(GREEDY, repetition_penalty=1.3, min_tokens=2),
    "listed": replace(RANDOM, allowed_token_ids=(8, 9)),
    "grammar": replace(GREEDY, grammar=PERSON),
    "random grammar": replace(RANDOM, grammar=PERSON),
}
SOUND = [Request(f"sound {name}", PROMPT, params) for name, params in WAYS.items()]
UNSOUND = [
    *(Request(name, HIT, params) for name, params in WAYS.items()),
    Request("resumed", PROMPT, GREEDY, resume={0: (8, BROKEN)}),
    Request("later", PROMPT, replace(GREEDY, allowed_token_ids=(BROKEN,))),
    Request("scored", HIT, replace(GREEDY, prompt_logprobs=1)),
    Request("scored long", (BROKEN, *[9] * 50), replace(GREEDY, prompt_logprobs=0)),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_model_with_tokenizer(tmp_path_factory.mktemp("model"))
    model = make_model(CASES["llama-gqa"].__class__.from_pretrained(directory))
    with torch.no_grad():
        model.model.embed_tokens.weight[BROKEN] = torch.nan
    return save_model(model, directory)


def run(core: EngineCore, requests: list[Request]) -> dict[tuple[str, int], tuple[list[int], Finish | None]]:
    outcomes: dict[tuple[str, int], Outcome] = {}
    for request in requests:
        validate_request(request, core.model, None)
        core.add(request)
    while core.has_work():
        for output in core.step():
            outcomes.setdefault((output.request_id, output.choice), Outcome()).outputs.append(output)
            assert output.prompt_logprobs is None
    return {key: (outcome.token_ids, outcome.outputs[-1].finish) for key, outcome in outcomes.items()}


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> dict[tuple[str, int], tuple[list[int], Finish | None]]:
    """What those become that ask for nothing unsound."""
    with started(checkpoint) as engine:
        return run(engine.core, SOUND)


@pytest.mark.parametrize("way", ["one process", "overlapped", "drafts", "ranks", "stages"])
def test_who_meets_a_nan_ends_with_an_error_and_nobody_else(
    way: str, checkpoint: Path, alone: dict[tuple[str, int], tuple[list[int], Finish | None]]
) -> None:
    requests = [each for pair in zip(SOUND, UNSOUND, strict=False) for each in pair] + UNSOUND[len(SOUND) :]
    texts = [[*PROMPT, *tokens] for tokens, _ in alone.values()]
    match way:
        case "ranks" | "stages":
            sizes = {"tensor_parallel_size": 2} if way == "ranks" else {}
            with in_stages(checkpoint, 2 if way == "stages" else 1, dtype="float32", **sizes) as (core, _):
                found = run(core, requests)
        case _:
            drafter = ScriptedDrafter(lambda: iter(texts), VOCAB, "mixed") if way == "drafts" else None
            with started(checkpoint, drafter, async_scheduling=way == "overlapped") as engine:
                found = run(engine.core, requests)
    assert {key: each for key, each in found.items() if key in alone} == alone
    ends = {key: each for key, each in found.items() if key not in alone}
    assert set(ends) == {(each.request_id, choice) for each in UNSOUND for choice in range(each.params.n)}
    for (name, _), (token_ids, finish) in ends.items():
        assert token_ids == ([BROKEN] if name == "later" else [])
        assert finish is not None
        assert (finish.finish_reason, finish.error_field) == (FinishReason.ERROR, None)
        what = "the prompt are not numbers" if name.startswith("scored") else "the next token hold a NaN"
        assert (finish.error or "").startswith(f"the model's logits for {what}")


def damaged(part: str, directory: Path) -> Path:
    model = make_model(CASES["llama-gqa"])
    with torch.no_grad():
        model.get_parameter(part).view(-1)[7] = torch.nan
    return save_model(model, directory)


LAST = "of 0 … 2"


@pytest.mark.parametrize(
    ("part", "named", "ranks"),
    [
        ("model.embed_tokens.weight", "the embedding", 1),
        ("model.layers.0.mlp.up_proj.weight", f"layer 0 {LAST}, or in the norm before the head", 1),
        ("model.layers.1.self_attn.v_proj.weight", f"layer 1 {LAST}", 2),
        ("model.layers.2.input_layernorm.weight", f"layer 2 {LAST}", 1),
        ("lm_head.weight", "the head", 2),
    ],
)
def test_a_start_names_the_part_in_which_a_nan_begins(part: str, named: str, ranks: int, tmp_path: Path) -> None:
    directory = damaged(part, tmp_path)
    refused = rf"NaN for its very first tokens, which begins in {named}: .*--dtype float32"
    with pytest.raises(CheckpointError, match=refused), in_stages(directory, 1, tensor_parallel_size=ranks):
        pass
