"""Answers 200 seeded requests on each given model, and writes the bits of every answer.

``benchmarks.bits`` runs this file on the engines of two commits: by its path, with the commit's tree in PYTHONPATH. So
it uses only stable parts of the engine: ``LLM``, ``SamplingParams``, their results, and the two functions of the native
library that return the kernels of an instruction set.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from engine_core.llm import LLM, Result
    from engine_core.logprobs import TokenLogprobs
    from engine_core.offline.outputs import PositionLogprobs
    from engine_core.request import SamplingParams

_LENGTHS = (1, 1, 2, 7, 12, 15, 16, 17, 20, 24, 31, 33, 40, 64, 90, 200)
"""Prompt lengths: around the size of a block, and beyond that of a step."""
_KINDS = {"reported": 110, "greedy": 40, "sampled": 40, "alone": 10}
"""Number of requests of each kind. "reported" and "alone" request log probabilities; "alone" ones are not batched."""


class Library(ctypes.CDLL):
    """Withholds the kernels in ``denied``, and records in ``given`` which kernels it returned.

    So an engine that asks for the fastest kernels gets those of another instruction set, or computes with torch.
    """

    denied: ClassVar[set[str]] = set()
    given: ClassVar[set[str]] = set()

    def __getitem__(self, name: str) -> Any:
        function = super().__getitem__(name)
        return _HandOut(function, name) if name in ("ringline_kernels", "ringline_int8_kernels") else function


class _HandOut:
    """The address of the kernels for an instruction set; None if there are none."""

    restype: Any = None

    def __init__(self, function: Any, name: str) -> None:
        self._function, self._kind = function, name.removeprefix("ringline_")

    def __call__(self, instruction_set: bytes) -> int | None:
        self._function.restype = self.restype
        name = f"{self._kind} {instruction_set.decode()}"
        address: int | None = None if name in Library.denied else self._function(instruction_set)
        if address is not None:
            Library.given.add(name)
        return address


def _params(kind: str, rng: random.Random, ids: range) -> SamplingParams:
    from engine_core.request import SamplingParams

    def sometimes(value: Any, default: Any) -> Any:
        return value if rng.random() < 0.3 else default

    if kind == "greedy":
        return SamplingParams(temperature=0.0, max_tokens=rng.randint(1, 64), ignore_eos=True)
    few, most = rng.sample(ids, 10), rng.randint(1, 16)
    return SamplingParams(
        temperature=rng.choice((0.0, 0.3, 0.8, 1.0, 1.7)),
        top_k=sometimes(rng.choice((1, 5, 50)), None),
        top_p=sometimes(rng.choice((0.5, 0.9)), 1.0),
        min_p=sometimes(rng.choice((0.05, 0.3)), 0.0),
        frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.5, 2), 1.0),
        logit_bias=sometimes({token: rng.uniform(-9, 9) for token in rng.sample(ids, 5)}, {}),
        bad_words_token_ids=sometimes((few[:1], *([a, b] for a in few for b in few[1:5])), ()),
        allowed_token_ids=sometimes(tuple(few), None),
        seed=rng.getrandbits(64),
        n=rng.choice((1, 1, 1, 2, 3)),
        max_tokens=most,
        min_tokens=sometimes(rng.randint(0, most), 0),
        stop_token_ids=sometimes(frozenset(rng.sample(ids, len(ids) // 10)), frozenset()),
        ignore_eos=rng.random() < 0.5,
        logprobs=None if kind == "sampled" else rng.choice((20, 20, 20, 5, 0, None)),
        prompt_logprobs=None if kind == "sampled" else rng.choice((20, 20, 0, None)),
    )


def answers(llm: LLM, vocabulary: int) -> dict[str, list[str]]:
    """The lines that describe the whole answer of each request, keyed by the request's name."""
    found: dict[str, list[str]] = {}
    for kind, count in _KINDS.items():
        rng, ids = random.Random(kind), range(3, vocabulary)
        common = rng.choices(ids, k=48)
        prompts = [common * (rng.random() < 0.3) + rng.choices(ids, k=rng.choice(_LENGTHS)) for _ in range(count)]
        params = [_params(kind, rng, ids) for _ in prompts]
        size = 1 if kind == "alone" else count
        for begin in range(0, count, size):
            part = slice(begin, begin + size)
            for number, result in enumerate(llm.generate(prompts[part], params[part], use_tqdm=False), start=begin):
                found[f"{kind} {number}"] = list(_lines(result))
    return found | {"all": [f"{llm.stats().preemptions} preemptions"]}


def _lines(result: Result) -> Iterator[str]:
    yield f"{result.cached_tokens} prompt tokens cached"
    for place, entry in enumerate(result.prompt_logprobs or (), start=1):
        yield f"prompt token {place}: {_bits(entry)}"
    for number, choice in enumerate(result.choices):
        for place, token in enumerate(choice.token_ids):
            bits = "" if choice.logprobs is None else _bits(choice.logprobs[place])
            yield f"choice {number}, token {place}: id {token} {bits}"
        assert choice.finish is not None
        # Without names and absent values: fields are renamed, and new ones are added.
        end = [getattr(value, "value", value) for value in astuple(choice.finish) if value is not None]
        yield f"choice {number}: ended by {end}"


def _bits(entry: PositionLogprobs | TokenLogprobs) -> str:
    """The log probability, its float32 bits, and a digest of the likeliest tokens with their log probabilities."""
    count = len(entry.top_ids)
    top = hashlib.sha256(struct.pack(f"<{count}I{count}f", *entry.top_ids, *entry.top_logprobs)).hexdigest()[:12]
    return f"{entry.logprob:.7g} ({struct.pack('<f', entry.logprob).hex()}) rank {entry.rank}, {count} likeliest {top}"


def main() -> None:
    """Compute all jobs in the file given as first argument, and write which kernels each one used."""
    task = json.loads(Path(sys.argv[1]).read_text())
    Library.denied = set(task["denied"])
    ctypes.CDLL = Library  # type: ignore[misc]  # before the engine loads any library
    import engine_core.llm as engine

    if not Path(engine.__file__).is_relative_to(task["tree"]):
        raise SystemExit(f"{engine.__file__} is not of {task['tree']}")
    given: dict[str, list[str]] = {}
    for name, job in task["jobs"].items():
        Library.given = set()
        try:
            with engine.LLM(job["model"], **job["options"]) as llm:
                found = answers(llm, job["vocabulary"])
        except Exception as error:
            if type(error).__name__ != "ConfigError":  # the engine may refuse a model; other errors are defects
                raise
            found = {"refused": [str(error)]}
        given[name] = sorted(Library.given)
        (Path(task["out"]) / f"{name} ({', '.join(given[name]) or 'torch'}).json").write_text(json.dumps(found))
    (Path(task["out"]) / "given").write_text(json.dumps(given))


if __name__ == "__main__":
    main()
