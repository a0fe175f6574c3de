"""``vllm bench serve``: its token counts are those of the ring. vLLM is too large for an environment of its own here:
the variable PEERS names one that has it, as for ``make bench``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.doors.benchmarks import OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS, STREAMS, counting
from tests.doors.clients import ENVIRONMENT
from tests.doors.door import Door
from tests.doors.environments import HERE
from tests.programs import output_of
from tests.ring import MODEL

pytestmark = [pytest.mark.doors, pytest.mark.long]


@pytest.fixture(scope="module")
def python() -> Path:
    """Of the environment that has vLLM."""
    python = Path(os.environ.get("PEERS", "")) / "bin" / "python"
    if not python.exists() or not list(python.parents[1].glob("lib/python3*/site-packages/vllm")):
        pytest.skip("PEERS names no environment with vLLM")
    return python


@pytest.mark.parametrize(
    ("backend", "path"), [("openai-chat", "chat/completions"), ("openai", "completions")], ids=["chat", "completions"]
)
def test_counts(backend: str, path: str, python: Path, door: Door, tmp_path: Path, tried) -> None:
    code = "import vllm; print(vllm.__version__)"
    tried(f"vllm {output_of(python, '-c', code, env=ENVIRONMENT).split()[-1]} (Python)")
    command = [python, HERE / "programs" / "vllm_bench.py", "--backend", backend, "--base-url", door.url]
    command += ["--endpoint", f"/v1/{path}", "--model", "tiny", "--tokenizer", MODEL, "--dataset-name", "random"]
    command += ["--random-input-len", PROMPT_TOKENS, "--random-output-len", OUTPUT_TOKENS, "--num-prompts", REQUESTS]
    command += ["--max-concurrency", STREAMS, "--ignore-eos", "--save-result", "--save-detailed"]
    command += ["--result-dir", tmp_path, "--result-filename", "result.json"]
    with counting(door) as counted:
        output_of(*map(str, command), env=ENVIRONMENT, timeout=280)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert result["output_lens"] == [OUTPUT_TOKENS] * REQUESTS
    assert counted.requests == REQUESTS
    assert counted.output_tokens == result["total_output_tokens"]
    assert counted.prompt_tokens == result["total_input_tokens"]
