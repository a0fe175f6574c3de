"""``python -m tests.answers CHECKPOINT``: greedy answers of a chat model to fifty questions, beside transformers.

In float32, by ``LLM`` and, through ``ringline serve``, by both clients. Each must have the prompt's ids, the answer's
ids and the text that transformers has. Exits 1 if one has not. Where two logits are closer than float32 can tell,
either token is right; the number of such ties is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ringline
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from engine_core.llm import LLM, SamplingParams
from tests.answers.questions import QUESTIONS
from tests.engine_core.models.greedy import NEAR
from tests.ring import running_ring

CACHE = 512 * 2**20
THREADS = 8
"""That share the blocking client."""


@dataclass(frozen=True)
class Answer:
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.answers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="directory of a model with a chat template")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, at most (default: 64)")
    given = parser.parse_args()
    if not given.checkpoint.is_dir():
        parser.error(f"there is no directory {given.checkpoint}")
    reference = Reference(given.checkpoint, given.tokens)
    asked = {"LLM": offline(given.checkpoint, given.tokens)} | served(given.checkpoint, given.tokens)
    problems = 0
    for way, answers in asked.items():
        found = [reference.problem(question, answer) for question, answer in zip(QUESTIONS, answers, strict=True)]
        tokens = sum(len(answer.token_ids) for answer in answers)
        equal = sum(problem is None for problem in found)
        print(f"{way}: {equal} of {len(QUESTIONS)} answers equal transformers', {tokens:,} tokens", flush=True)
        print("".join(f"  {problem}\n" for problem in found if problem), end="")
        problems += len(QUESTIONS) - equal
    print(f"ties: {len(reference.ties)}")
    return 1 if problems else 0


def offline(checkpoint: Path, tokens: int) -> list[Answer]:
    """By ``LLM``."""
    with LLM(checkpoint, dtype="float32", kv_cache_memory_bytes=CACHE) as llm:
        asked = [_asks(question) for question in QUESTIONS]
        results = llm.chat(asked, SamplingParams(temperature=0.0, max_tokens=tokens))
    return [
        Answer(tuple(each.prompt_token_ids), tuple(each.choices[0].token_ids), each.choices[0].text or "")
        for each in results
    ]


def served(checkpoint: Path, tokens: int) -> dict[str, list[Answer]]:
    """By both clients, from a ring."""
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": tokens, "return_prompt_token_ids": True}

    def blocking(address: str) -> list[ringline.Generation]:
        with ringline.Client(address) as client, ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda question: client.generate(messages=_asks(question), **options), QUESTIONS))

    async def asynchronous(address: str) -> list[ringline.Generation]:
        async with ringline.AsyncClient(address) as client:
            return await asyncio.gather(*(client.generate(messages=_asks(each), **options) for each in QUESTIONS))

    flags = ("--dtype", "float32", "--kv-cache-memory-bytes", str(CACHE))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_ring(Path(folder), *flags, model=checkpoint.resolve()) as ring,
    ):
        results = {"Client": blocking(ring.address), "AsyncClient": asyncio.run(asynchronous(ring.address))}
    return {
        way: [Answer(tuple(each.request.prompt_token_ids or ()), each.token_ids, each.text) for each in generations]
        for way, generations in results.items()
    }


class Reference:
    """What transformers answers."""

    def __init__(self, checkpoint: Path, tokens: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends) if isinstance(ends, list) else {ends}
        self._tokens = tokens
        self._checked: dict[tuple[tuple[int, ...], tuple[int, ...]], str | None] = {}
        self.ties: set[tuple[str, int]] = set()
        """Question and position."""

    def prompt(self, question: str) -> tuple[int, ...]:
        return tuple(
            self._tokenizer.apply_chat_template(_asks(question), add_generation_prompt=True, return_dict=False)
        )

    def text(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def problem(self, question: str, answer: Answer) -> str | None:
        """How the answer differs from transformers', or None."""
        where = f"{question!r}: "
        if answer.prompt != self.prompt(question):
            return f"{where}other ids of the prompt"
        if answer.text != self.text(answer.token_ids):
            return f"{where}the text is {answer.text!r}, not {self.text(answer.token_ids)!r}"
        ends = [index for index, token in enumerate(answer.token_ids, 1) if token in self._ends]
        if ends != [len(answer.token_ids)] and (ends or len(answer.token_ids) != self._tokens):
            return f"{where}{len(answer.token_ids)} tokens, with ends after {ends}"
        key = answer.prompt, answer.token_ids
        if key not in self._checked:
            self._checked[key] = self._other_token(question, answer)
        return self._checked[key] and f"{where}{self._checked[key]}"

    @torch.inference_mode()
    def _other_token(self, question: str, answer: Answer) -> str | None:
        """The first token that greedy decoding does not choose after those before it, which by induction are equal."""
        ids = torch.tensor([[*answer.prompt, *answer.token_ids]])
        logits = self._model(ids).logits[0, len(answer.prompt) - 1 : -1]
        for position, (row, token) in enumerate(zip(logits, answer.token_ids, strict=True)):
            best = int(row.argmax())
            if token != best and row[best] - row[token] >= NEAR:
                return f"token {position} is {token}, not {best}, whose logit is {row[best] - row[token]:.4f} greater"
            if token != best:
                self.ties.add((question, position))
        return None


def _asks(question: str) -> list[ringline.Message]:
    return [{"role": "user", "content": question}]


if __name__ == "__main__":
    sys.exit(main())
