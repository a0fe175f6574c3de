"""lm-eval's ``local-completions`` on tasks of our own: log likelihoods and answers are those of the native client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ringline import Client

from tests.doors.clients import ENVIRONMENT, versions
from tests.doors.door import Door
from tests.doors.environments import of_python
from tests.programs import output_of

pytestmark = [pytest.mark.doors, pytest.mark.long]
CLIENT = versions(of_python("lm-eval"))

QUESTIONS = [
    {"question": "Question: What is 3 plus 4?\nAnswer:", "choices": [" 7", " seventeen", " I do not know"], "gold": 0},
    {"question": "Once upon a time", "choices": [" there was a cat", " in the", " 12 + 30"], "gold": 0},
    {"question": "The sky is", "choices": [" blue", " a colour that nobody saw"], "gold": 1},
]
CHOICE, ANSWER, TEXT = "local_choice", "local_answer", "local_text"
COMMON: dict[str, Any] = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}"}
TASKS: dict[str, dict[str, Any]] = {
    CHOICE: {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "gold"},
    ANSWER: {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[gold]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 24},
    },
    TEXT: {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}} and so on",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, task in TASKS.items():
        whole = {"task": name, "dataset_kwargs": {"data_files": {"test": str(data)}}, **COMMON, **task}
        (folder / f"{name}.yaml").write_text(json.dumps(whole))  # JSON is YAML
    return folder


def samples(
    door: Door, tasks: Path, *names: str, batch_size: int = 1, **arguments: object
) -> dict[str, list[dict[str, Any]]]:
    """What lm-eval asked and was answered, by task."""
    environment, given = of_python("lm-eval"), {"model": "tiny", "base_url": f"{door.api}/completions", **arguments}
    assert environment.is_made, "run `python -m tests.doors`"
    out = tasks / f"out-{'-'.join(names)}-{'-'.join(map(str, arguments.values()))}"
    command = [environment.python, "-m", "lm_eval", "run", "--model", "local-completions", "--include_path", tasks]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in given.items())]
    command += ["--tasks", ",".join(names), "--output_path", out, "--log_samples", "--batch_size", str(batch_size)]
    output_of(*command, env={**ENVIRONMENT, "HF_HOME": str(tasks / "cache")}, timeout=280)
    found = {name: next(out.glob(f"**/samples_{name}_*.jsonl")) for name in names}
    return {name: [json.loads(line) for line in file.read_text().splitlines()] for name, file in found.items()}


def log_likelihood(native: Client, context: str, continuation: str) -> float:
    """Of what follows, by the native client, tokenized as lm-eval does it."""
    ids = native.tokenize(context + continuation, add_special_tokens=False).token_ids
    begin = len(native.tokenize(context, add_special_tokens=False).token_ids)
    generation = native.generate(token_ids=ids, max_tokens=1, temperature=0.0, prompt_logprobs=0)
    assert generation.prompt_logprobs is not None
    return sum(token.logprob for token in generation.prompt_logprobs[begin - 1 :])  # the first token has none


@pytest.fixture(scope="module")
def shown(door: Door, tasks: Path) -> dict[str, list[dict[str, Any]]]:
    return samples(door, tasks, CHOICE, ANSWER, TEXT, tokenizer_backend="remote")


def check_log_likelihoods(shown: list[dict[str, Any]], native: Client) -> None:
    assert len(shown) == len(QUESTIONS)
    for sample in shown:
        asked = [(one["arg_0"], one["arg_1"]) for one in sample["arguments"].values()]
        assert len(asked) == len(sample["doc"]["choices"])
        told = [float(answer[0][0]) for answer in sample["resps"]]
        assert told == pytest.approx([log_likelihood(native, *one) for one in asked], abs=1e-3)


def test_log_likelihoods(shown: dict[str, list[dict[str, Any]]], native: Client, tried) -> None:
    tried(CLIENT)
    check_log_likelihoods(shown[CHOICE], native)


def test_answers(shown: dict[str, list[dict[str, Any]]], native: Client, tried) -> None:
    tried(CLIENT)
    for sample in shown[ANSWER]:
        stop = ["\n", "<|im_end|>"]
        expected = native.generate(sample["doc"]["question"], temperature=0.0, max_tokens=24, stop=stop).text
        assert sample["resps"] == [[expected]]


def test_rolling_log_likelihoods(shown: dict[str, list[dict[str, Any]]], native: Client, tried) -> None:
    """Of whole texts, behind the token that ends one."""
    tried(CLIENT)
    for sample in shown[TEXT]:
        text = sample["doc"]["question"] + " and so on"
        assert float(sample["resps"][0][0]) == pytest.approx(log_likelihood(native, "<|im_end|>", text), abs=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"tokenizer_backend": "remote", "tokenized_requests": False}, id="text"),
        pytest.param({"num_concurrent": 4, "batch_size": 2}, id="batches"),  # and the tokenizer is found by itself
    ],
)
def test_log_likelihoods_asked_otherwise(
    arguments: dict[str, Any], door: Door, tasks: Path, native: Client, tried
) -> None:
    tried(CLIENT)
    check_log_likelihoods(samples(door, tasks, CHOICE, **arguments)[CHOICE], native)
