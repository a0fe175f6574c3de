"""A request in flight is charged with at least the memory that it takes, however small its message was."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import sampling_pb2

from services.common.process.memory import resident_memory, trim_malloc
from services.processor.admission.request_resolution import resolve_request
from services.processor.client_stream import ClientStream
from services.processor.dispatcher import next_submit
from services.processor.request import Request
from services.processor.served_models import ModelLimits
from services.ring.identity import PeerId, ring_id
from tests.services.processor.model_specs import MAX_LOGPROBS, served_model

ROOT = Path(__file__).resolve().parents[3]
CONTEXT, WORDS = 32768, 151_000
CHARGED = 8 << 20
"""Bytes that the requests of a measurement are charged with together, or so many of them as follows."""
MOST = 40
NOISE = 3 << 20


def wide(kind: str) -> inference_pb2.GenerateRequest:
    """One whose message is small beside what it becomes."""
    request = inference_pb2.GenerateRequest(token_ids=sampling_pb2.TokenIds(ids=[5] * 8))
    match kind:
        case "prompt":
            request.token_ids.ids.extend([5] * (CONTEXT - 100))
            request.output.return_prompt_token_ids = True
        case "allowed":
            request.sampling.allowed_token_ids.extend([5] * WORDS)
        case "biases":
            request.sampling.logit_bias.update(dict.fromkeys(range(256), 1.0))
        case "bad words":
            request.stopping.bad_words.extend(f"a{letter}" for letter in "bcdefghijklmnop" * 8)
        case "choices":
            request.sampling.n = 128
        case "resumed":
            request.sampling.n, request.sampling.seed, request.resume.model_digest = 128, 1, "model"
            for choice in range(128):
                request.resume.choices.add(choice=choice, token_ids=[200] * 4000)
    return request


KINDS = ("prompt", "allowed", "biases", "bad words", "choices", "resumed")


def measure(kind: str) -> None:
    """Hold requests, and each once more on its way to an engine."""
    known = served_model()
    known.model.max_model_len, known.model.vocab_size, known.model.block_size = CONTEXT, 256, 16
    known = replace(known, limits=ModelLimits("m", WORDS, CONTEXT, MAX_LOGPROBS))
    request, stream = wide(kind), ClientStream("")
    held, charged = [], 0

    def hold() -> Request:
        number = len(held)
        admitted = Request(ring_id(1, number), str(number), 1, "", stream, time.monotonic())
        admitted.admit(resolve_request(request, known, "", PeerId("processor", 1)))
        command = engine_pb2.AttachRequest(commands=[engine_pb2.Command(submit=next_submit(admitted, "detokenizer"))])
        held.append((admitted, command.SerializeToString()))
        stream.add(admitted)
        return admitted

    hold()  # what is made once
    gc.collect()
    trim_malloc()
    before = resident_memory()
    while charged < CHARGED and len(held) < MOST:
        charged += hold().resolved.held_bytes
    gc.collect()
    trim_malloc()
    grown = resident_memory() - before
    assert grown <= charged + NOISE, f"{kind}: {len(held)} requests took {grown} bytes, and were charged {charged}"


def test_the_charge_covers_the_memory_of_a_request() -> None:
    """In a process of its own, which had nothing to reuse."""
    code = f"from {__name__} import KINDS, measure; [measure(kind) for kind in KINDS]"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
