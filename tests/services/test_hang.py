"""An engine that hangs, in a step or as a whole, is replaced under a real supervisor, and its streams go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from ringline.inference.v1 import inference_pb2_grpc
from structlog.testing import capture_logs

from services.cli.commands.serve import ENGINE_SETTINGS
from services.cli.supervise.runtime_directory import RuntimeDirectory
from services.cli.supervise.stack import StackOptions, child_specs
from services.cli.supervise.supervisor import ChildSpec
from services.common.links.channels import Endpoint, wait_serving
from tests.ports import HeldPort
from tests.ring import MODEL, ROOT
from tests.services.cli.supervise.test_supervisor import Running
from tests.services.failing_engine import HANGS, PROCESS, STEP
from tests.services.streams import Transcript, generate, send
from tests.services.test_lifecycle import finish, long_request

pytestmark = pytest.mark.long

TOKENS = 200
SAID = {STEP: (1, "a step hangs"), PROCESS: (-9, "it was killed: it gave no sign of life")}
"""The exit code of an engine that hangs in one way, and what the log says of it."""


def specs(directory: Path, port: int) -> list[ChildSpec]:
    """Those of ``ringline serve``, but for the engine's program."""
    values = {"model": str(MODEL), "kv_cache_memory_bytes": 32 << 20, "max_crash_resubmits": 100, "patience": 250.0}
    options = StackOptions("127.0.0.1", port, None, ENGINE_SETTINGS, values)
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", HANGS: str(hangs(directory))}
    engine, *others = [
        replace(spec, env={**spec.env, **variables}) for spec in child_specs(options, RuntimeDirectory(directory))
    ]
    argv = ["tests.services.failing_engine" if word == "services.cli" else word for word in engine.argv]
    return [replace(engine, argv=argv), *others]


@pytest.mark.parametrize("ways", [[STEP], pytest.param([STEP, PROCESS], marks=pytest.mark.wide)], ids=len)
async def test_streams_survive_a_hung_step_and_a_stopped_engine(ways: list[str], tmp_path: Path) -> None:
    port = HeldPort()
    running = Running(*specs(tmp_path, port.number))
    address = f"127.0.0.1:{port.number}"
    await wait_serving(Endpoint(address))
    running.supervisor.allow_restarts()
    async with grpc.aio.insecure_channel(address) as channel:
        front = inference_pb2_grpc.InferenceServiceStub(channel)
        undisturbed = await generate(front, long_request("", TOKENS))
        hangs(tmp_path).write_text("\n".join(ways))
        call = front.Session(timeout=250)
        transcripts = {f"r{i}": Transcript() for i in range(2)}
        with capture_logs() as logs:
            await send(call, *(long_request(name, TOKENS) for name in transcripts))
            await finish(call, transcripts)
    for one in transcripts.values():
        assert (one.ids, one.texts, one.ends[0].finish_reason) == (
            undisturbed.ids,
            undisturbed.texts,
            undisturbed.ends[0].finish_reason,
        )
        assert one.usage.completion_tokens == TOKENS
    assert not hangs(tmp_path).read_text()
    died = {(record["code"], record["reason"].partition(" for ")[0]) for record in logs if record["event"] == "died"}
    assert died >= {SAID[way] for way in ways}
    await running.end()
    port.release()


def hangs(directory: Path) -> Path:
    return directory / "hangs"
