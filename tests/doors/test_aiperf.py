"""aiperf: its token counts are those of the ring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doors.benchmarks import OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS, STREAMS, counting
from tests.doors.clients import ENVIRONMENT, versions
from tests.doors.door import Door
from tests.doors.environments import of_python
from tests.programs import output_of
from tests.ring import MODEL

pytestmark = [pytest.mark.doors, pytest.mark.long]


def test_counts(door: Door, tmp_path: Path, tried) -> None:
    environment = of_python("aiperf")
    tried(versions(environment))
    assert environment.is_made, "run `python -m tests.doors`"
    command = [environment.python.parent / "aiperf", "profile", "-m", "tiny", "--url", door.url, "--tokenizer", MODEL]
    command += ["--endpoint-type", "chat", "--streaming", "--concurrency", STREAMS, "--request-count", REQUESTS]
    command += ["--synthetic-input-tokens-mean", PROMPT_TOKENS, "--output-tokens-mean", OUTPUT_TOKENS]
    command += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--per-chunk-usage"]
    command += ["--ui", "none", "--output-artifact-dir", tmp_path / "out"]
    # Where it may not ask the hub, it takes the folder for the hub's name of a model.
    environ = {name: value for name, value in ENVIRONMENT.items() if name != "HF_HUB_OFFLINE"}
    with counting(door) as counted:
        output_of(*map(str, command), env={**environ, "HF_HOME": str(tmp_path)}, timeout=280)
    result = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert result["request_count"]["avg"] == counted.requests == REQUESTS
    assert result["total_output_tokens"]["avg"] == counted.output_tokens == REQUESTS * OUTPUT_TOKENS
    assert result["total_isl"]["avg"] == counted.prompt_tokens
