"""guidellm: its token counts are those of the ring."""

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


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_counts(path: str, door: Door, tmp_path: Path, tried) -> None:
    environment = of_python("guidellm")
    tried(versions(environment))
    assert environment.is_made, "run `python -m tests.doors`"
    report = tmp_path / "report.json"
    command = [environment.python.parent / "guidellm", "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={door.url},model=tiny,request_format=/v1/{path}"]
    command += ["--profile", f"kind=concurrent,streams={STREAMS}"]
    command += ["--constraint", f"kind=max_requests,count={REQUESTS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={MODEL}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"]
    command += ["--output", f"kind=json,path={report}"]
    with counting(door) as counted:
        output_of(*command, env={**ENVIRONMENT, "HF_HOME": str(tmp_path)}, timeout=280)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), len(requests["errored"]), len(requests["incomplete"])) == (REQUESTS, 0, 0)
    assert {request["output_tokens"] for request in requests["successful"]} == {OUTPUT_TOKENS}
    assert counted.requests == REQUESTS
    assert counted.output_tokens == sum(request["output_tokens"] for request in requests["successful"])
    assert counted.prompt_tokens == sum(request["prompt_tokens"] for request in requests["successful"])
