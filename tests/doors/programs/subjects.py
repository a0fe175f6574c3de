"""What the programs of clients share: what they ask, and how they print what they were shown."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ASKED = json.loads((Path(__file__).resolve().parent / "asked.json").read_text())


def show(*subjects: Callable[[], Any]) -> None:
    """Print a line of JSON for each subject: what it returned, or how it failed. Others are tried all the same."""
    with asyncio.Runner() as runner:  # one for all, since clients keep their connections
        for subject in subjects:
            try:
                shown = runner.run(subject()) if inspect.iscoroutinefunction(subject) else subject()
                line = {"shown": shown}
            except Exception:
                line = {"failed": traceback.format_exc()}
            print(json.dumps({"subject": subject.__name__, **line}, default=str, separators=(",", ":")), flush=True)


def computed_by(abandon: Callable[[], None], metrics: str) -> float:
    """How many tokens the engine computes of an answer that is abandoned, until it is idle and holds no blocks."""
    before = _metric(metrics, "ringline_generated_tokens_total")
    abandon()
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    end = time.monotonic() + 60
    seen, since = before, time.monotonic()
    # the engine's metrics lag behind by some steps: they must have come to rest
    while any(_metric(metrics, name) for name in busy) or seen == before or time.monotonic() < since + 0.5:
        if time.monotonic() > end:
            raise TimeoutError("the engine still works on it, or holds blocks for it")
        time.sleep(0.01)
        if (now := _metric(metrics, "ringline_generated_tokens_total")) != seen:
            seen, since = now, time.monotonic()
    return seen - before


def _metric(url: str, name: str) -> float:
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))
