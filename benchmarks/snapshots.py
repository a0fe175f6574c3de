"""What snapshots of states bring and cost: prompt tokens that an engine computes, and the time of a prompt.

    python -m benchmarks.snapshots MODEL

``MODEL`` is a checkpoint or a GGUF file whose layers keep states. Chats of 20 turns, and 64 prompts that share their
first 2,000 tokens, come one after the other; what an engine computes is compared with the least that blocks of the same
size allow. A prompt of 2,048 tokens is then computed in turns by an engine that leaves snapshots and by one that does
not.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

from benchmarks.report import Row, emit, output_options, print_table
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.request import Request, SamplingParams
from engine_core.startup import StartedEngine, start_engine

_LEAST_ID, _MOST_ID = 10, 1000
_BLOCK = 16
_GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
_FIRST = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=2 << 30, help="of each engine (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of the prompt (%(default)s)")
    output_options(parser)
    arguments = parser.parse_args()
    with_snapshots, without = (_engine(arguments, prefix_caching=caching) for caching in (True, False))
    cache = with_snapshots.executor.kv_cache_config
    states = cache.num_states * cache.bytes_per_state
    blocks = cache.num_blocks * cache.bytes_per_block
    rows: list[Row] = [
        {"what": "slots for states", "figure": f"{cache.num_states} of {cache.bytes_per_state / 2**20:.1f} MiB"},
        {"what": "their share of the cache", "figure": f"{states / (states + blocks):.2f}"},
        _reuse("20 turns of a chat", with_snapshots, _chat()),
        _reuse("64 prompts that share 2,000 tokens", with_snapshots, _shared()),
        _cost(with_snapshots, without, arguments.rounds),
    ]
    print_table(rows, f"snapshots of {arguments.model}")
    emit(arguments, "snapshots", rows)


def _engine(arguments: argparse.Namespace, *, prefix_caching: bool) -> StartedEngine:
    config = configure(
        model=arguments.model,
        enable_prefix_caching=prefix_caching,
        block_size=_BLOCK,
        max_model_len=4096,
        max_num_seqs=16,
        kv_cache_memory_bytes=arguments.kv_cache_memory_bytes,
    )
    return start_engine(config, StartupProgress())


def _answer(engine: StartedEngine, prompt: list[int], params: SamplingParams) -> tuple[list[int], int]:
    """The answer's tokens, and how many of the prompt's were cached."""
    engine.core.add(Request("0", tuple(prompt), params))
    answer, cached = list[int](), 0
    while engine.core.has_work():
        for output in engine.core.step():
            answer += output.token_ids
            cached += output.cached_tokens or 0
    return answer, cached


def _ids(count: int, seed: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(_LEAST_ID, _MOST_ID) for _ in range(count)]


def _chat() -> Iterator[tuple[list[int], bool]]:
    """A system prompt and 20 turns, each of which continues from the answer to the one before."""
    prompt = _ids(150, 1)
    for turn in range(20):
        prompt = prompt + _ids(40, 100 + turn)
        yield prompt, True


def _shared() -> Iterator[tuple[list[int], bool]]:
    prefix = _ids(2000, 2)
    return ((prefix + _ids(100, 200 + at), False) for at in range(64))


def _reuse(what: str, engine: StartedEngine, prompts: Iterator[tuple[list[int], bool]]) -> Row:
    """Tokens computed for ``prompts``, and the least for an engine that remembers every full block it has computed.

    A prompt that ``continues`` is extended by its answer, in place.
    """
    computed = least = 0
    known = set[tuple[int, ...]]()
    for prompt, continues in prompts:
        answer, cached = _answer(engine, prompt, _GREEDY)
        computed += len(prompt) - cached
        ends = range(_BLOCK, len(prompt), _BLOCK)
        least += len(prompt) - max((end for end in ends if tuple(prompt[:end]) in known), default=0)
        whole = prompt + answer[:-1]
        known |= {tuple(whole[:end]) for end in range(_BLOCK, len(whole) + 1, _BLOCK)}
        if continues:
            prompt += answer
    return {"what": what, "figure": f"{computed} tokens computed, at least {least}: {computed / least:.3f}"}


def _cost(with_snapshots: StartedEngine, without: StartedEngine, rounds: int) -> Row:
    ratios = []
    for number in range(rounds):
        order = [with_snapshots, without] if number % 2 else [without, with_snapshots]
        seconds = {id(engine): _prompt_seconds(engine, number) for engine in order}
        ratios.append(seconds[id(with_snapshots)] / seconds[id(without)])
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return {"what": "a prompt of 2,048 tokens, with / without", "figure": f"{statistics.median(ratios):.3f} ({spread})"}


def _prompt_seconds(engine: StartedEngine, number: int) -> float:
    prompt = _ids(2048, 1000 + number)
    start = time.perf_counter()
    _answer(engine, prompt, _FIRST)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
