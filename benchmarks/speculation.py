"""What drafts bring: speed with and without them, in turns, and how often they are accepted.

    python -m benchmarks.speculation --peers ~/peers
    python -m benchmarks.speculation --models-of chains --batches 1 --rounds 2
    python -m benchmarks.speculation --acceptance

SmolLM2 answers questions whose answers are mostly in the prompt (copies, edits, summaries), or new at every word
(stories, at temperature 1); llama.cpp, with the drafts of llama-cpp-python, takes part on the same file at batch 1.
A model of Qwen3-0.6B's shape continues chains of tokens (``benchmarks.chains``), so that the drafts of a second model
are accepted for a known share. Answers of engines with and without drafts are compared, too: they must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import acceptance, chains, shapes, tasks
from benchmarks.contestants import (
    CHAINS,
    LLAMA_CPP,
    LLAMA_CPP_LOOKUP,
    OURS,
    OURS_DRAFT_MODEL,
    OURS_NGRAM,
    SMOLLM2,
    Peers,
)
from benchmarks.offline import start_all
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.work import Outcome, Work
from benchmarks.worker import Worker, WorkerSpec

_WITHOUT = {OURS_NGRAM: OURS, OURS_DRAFT_MODEL: OURS, LLAMA_CPP_LOOKUP: LLAMA_CPP}
"""The engine with which one that drafts is compared."""
_LOOKUP_DRAFTS = 10
"""Tokens that llama-cpp-python looks up unless told otherwise."""
_AGREEMENT = 0.8
"""Share of the tokens that the drafting model of the chains continues as the other does."""
_ANSWERS_ALONE = 4
"""Answers of a round at batch 1, one after the other."""
_CHAIN_TOKENS = {1: 96, 16: 48}
"""Tokens of each answer, by batch; 24 in larger ones."""
_BATCHED_TEXTS = ("copies", "stories")
"""What larger batches answer: where drafts help most, and not at all."""

_MODELS = ("bundled", "smollm2", "chains")
"""Of which the first is for ``--acceptance``, the last for speed."""
BATCHES = (1, 16, 64)
TEXTS = tuple(task.name for task in tasks.TASKS)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, the engines that compute it, and what it is asked."""

    name: str
    specs: list[WorkerSpec]
    texts: Mapping[str, Callable[[int, int, int], Work]]
    """By name: the work of a batch (first argument), with so many prompts (second), after as many others (third)."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A round of one engine."""

    seconds: float
    decode_seconds: float
    answers: list[list[int]]
    drafts: int
    accepted: int

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> _Taken:
        """All works of the round."""
        return cls(
            sum(each.seconds for each in outcomes),
            sum(each.decode_seconds for each in outcomes),
            [answer for each in outcomes for answer in each.token_ids],
            sum(each.draft_tokens for each in outcomes),
            sum(each.accepted_draft_tokens for each in outcomes),
        )

    @property
    def tokens(self) -> int:
        """All of the answers."""
        return sum(map(len, self.answers))

    @property
    def rate(self) -> float:
        """Tokens per second, prompts included in the time."""
        return self.tokens / self.seconds

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - len(self.answers)) / self.decode_seconds


def smollm2(file: Path, peers: Peers, twin: Path | None) -> Subject:
    """The published model in the GGUF ``file``; ``twin`` drafts for it."""
    drafts = {OURS_NGRAM: {"method": "ngram"}}
    if twin is not None:
        drafts[OURS_DRAFT_MODEL] = {"method": "draft_model", "model": str(twin)}
    specs = _ours(file, 1 << 30, drafts)
    if peers.interpreter is not None and peers.has("llama_cpp"):
        for name, count in ((LLAMA_CPP, 0), (LLAMA_CPP_LOOKUP, _LOOKUP_DRAFTS)):
            options = {"model": str(file), "drafts": count}
            specs.append(WorkerSpec(name, peers.interpreter, "llama_cpp_lookup_engine", options, {}))
    tokenizer = tasks.tokenizer_of(file)

    def works(task: tasks.Task) -> Callable[[int, int, int], Work]:
        def work(batch: int, count: int, skipped: int) -> Work:
            return _work(task.prompts(tokenizer, count, skipped), task.tokens, task.temperature, ends=True)

        return work

    return Subject(SMOLLM2, specs, {task.name: works(task) for task in tasks.TASKS})


def chains_of(shape: str, models: Path) -> Subject:
    """A model of ``shape`` that continues chains, and one that drafts for it."""
    directory, drafting = chains.find_chain(models, shape), chains.find_drafting_chain(models, _AGREEMENT, shape)
    drafts = {OURS_NGRAM: {"method": "ngram"}, OURS_DRAFT_MODEL: {"method": "draft_model", "model": str(drafting)}}

    def works(task: chains.ChainTask) -> Callable[[int, int, int], Work]:
        def work(batch: int, count: int, skipped: int) -> Work:
            tokens = _CHAIN_TOKENS.get(batch, min(_CHAIN_TOKENS.values()) // 2)
            return _work(task.prompts(directory, count, skipped), tokens, 0.0, ends=False)

        return work

    return Subject(shape, _ours(directory, 5 << 29, drafts), {task.name: works(task) for task in chains.TASKS})


def _work(prompts: list[list[int]], tokens: int, temperature: float, *, ends: bool) -> Work:
    return Work(len(prompts), max(map(len, prompts)), tokens, given=prompts, ends=ends, temperature=temperature)


def _ours(model: Path, kv_cache_bytes: int, drafts: Mapping[str, dict[str, Any]]) -> list[WorkerSpec]:
    """The engine without drafts, then those with them; no prefix cache, as all of them get the same prompts."""
    usual = {
        "model": str(model),
        "max_model_len": 1024,
        "kv_cache_memory_bytes": kv_cache_bytes,
        "enable_prefix_caching": False,
    }
    options = {OURS: usual} | {name: usual | {"speculative_config": json.dumps(of)} for name, of in drafts.items()}
    return [WorkerSpec(name, sys.executable, "ringline_engine", given, {}) for name, given in options.items()]


def measure(subject: Subject, batches: Sequence[int], texts: Sequence[str], rounds: int) -> list[Row]:
    """A row for each text, batch and engine."""
    rows: list[Row] = []
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
        workers, started = start_all(subject.specs, Path(logs), stack)
        print_table(started.rows, subject.name)
        for batch in batches:
            for text in texts:
                if batch == 1 or text in _BATCHED_TEXTS:
                    taking = {n: w for n, w in workers.items() if batch == 1 or n not in (LLAMA_CPP, LLAMA_CPP_LOOKUP)}
                    rows += _contest(subject, text, batch, taking, rounds)
    return rows


def _contest(subject: Subject, text: str, batch: int, workers: Mapping[str, Worker], rounds: int) -> list[Row]:
    works: dict[int, list[Work]] = {}

    def taker(worker: Worker) -> Callable[[int], _Taken]:
        def take(number: int) -> _Taken:
            if number not in works:
                works[number] = _round(subject, text, batch, number)
            return _Taken.of([worker.run(work) for work in works[number]])

        return take

    takers = {name: taker(worker) for name, worker in workers.items()}
    for name in takers:
        workers[name].run(_round(subject, text, batch, rounds)[0])  # warm-up
    taken = interleave(rounds, takers)
    for name in (OURS_NGRAM, OURS_DRAFT_MODEL):
        if name in taken and [each.answers for each in taken[name]] != [each.answers for each in taken[OURS]]:
            raise SystemExit(f"{subject.name}, {text}, batch {batch}: the answers of {name} are not those of {OURS}")
    return [_row(subject.name, text, batch, name, taken) for name in taken]


def _round(subject: Subject, text: str, batch: int, number: int) -> list[Work]:
    """The works of a round, with prompts of its own."""
    if batch > 1:
        return [subject.texts[text](batch, batch, number * batch)]
    return [subject.texts[text](1, 1, number * _ANSWERS_ALONE + place) for place in range(_ANSWERS_ALONE)]


def _row(model: str, text: str, batch: int, engine: str, taken: Mapping[str, list[_Taken]]) -> Row:
    rounds, without = taken[engine], taken.get(_WITHOUT.get(engine, ""))
    rate = Figure.of(each.rate for each in rounds)
    drafts = sum(each.drafts for each in rounds)
    row = {
        "model": model,
        "text": text,
        "batch": batch,
        "engine": engine,
        "tok/s": rate.median,
        "decode tok/s": Figure.of(each.decode_rate for each in rounds).median,
        "drafts per token": drafts / sum(each.tokens for each in rounds) if drafts else None,
        "accepted": sum(each.accepted for each in rounds) / drafts if drafts else None,
        "ratio": None,
        "low": None,
        "high": None,
        "decode ratio": None,
        "to llama.cpp lookup": None,
    }
    if without is not None:
        whole = ratio([each.rate for each in rounds], [each.rate for each in without])
        decode = ratio([each.decode_rate for each in rounds], [each.decode_rate for each in without])
        row |= {"ratio": whole.median, "low": whole.lowest, "high": whole.highest, "decode ratio": decode.median}
    if engine == OURS_NGRAM and LLAMA_CPP_LOOKUP in taken:
        row["to llama.cpp lookup"] = ratio(
            [each.rate for each in rounds], [e.rate for e in taken[LLAMA_CPP_LOOKUP]]
        ).median
    return row


@dataclass(frozen=True, slots=True)
class Choice:
    """What is measured."""

    peers: Peers
    models: Path
    """Where models are made and kept."""
    models_of: Sequence[str] = ("smollm2", "chains")
    smollm2: str = "smollm2"
    """Its GGUF file, or the name of the installed package's."""
    twin: Path | None = None
    """A model that drafts for SmolLM2; None: none does."""
    shape: str = CHAINS
    """Of the model that continues chains."""


def subjects(choice: Choice) -> Iterator[Subject]:
    """Those that are chosen and can be computed here."""
    if "smollm2" in choice.models_of and (file := shapes.find_smollm2(choice.smollm2)) is not None:
        yield smollm2(file, choice.peers, choice.twin)
    if "chains" in choice.models_of:
        yield chains_of(choice.shape, choice.models)


def main() -> None:
    """Run the command."""
    arguments = _parser().parse_args()
    if arguments.acceptance:
        wanted = acceptance.Choice(arguments.models, arguments.models_of, arguments.smollm2, arguments.twin)
        rows = acceptance.measure(wanted, arguments.answers)
    else:
        names = ("models", "models_of", "smollm2", "twin", "shape")
        rows, given = [], {name: getattr(arguments, name) for name in names}
        for subject in subjects(Choice(Peers.at(arguments.peers), **given)):
            own = measure(subject, arguments.batches, arguments.texts, arguments.rounds)
            print_table(own, subject.name)
            rows += own
    emit(arguments, "speculation", rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringline-benchmarks"
    parser.add_argument("--peers", default=os.environ.get("PEERS"), help="the virtual environment that has llama_cpp")
    parser.add_argument("--models-of", nargs="+", choices=_MODELS, default=_MODELS, help="(all)")
    parser.add_argument("--smollm2", default="smollm2", metavar="FILE", help="its GGUF file; default: the package's")
    parser.add_argument("--shape", choices=shapes.SHAPES, default=CHAINS, help="that continues chains (%(default)s)")
    parser.add_argument("--twin", type=Path, help="a model that drafts for SmolLM2 (benchmarks.twins)")
    parser.add_argument("--models", type=Path, default=cache, metavar="DIR", help="where others are kept (%(default)s)")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), help="(%(default)s)")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS), help="(all)")
    parser.add_argument("--rounds", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--acceptance", action="store_true", help="count accepted drafts instead of seconds")
    parser.add_argument("--answers", type=int, default=6, help="of each text, for --acceptance (%(default)s)")
    output_options(parser)
    return parser


if __name__ == "__main__":
    main()
