"""Whatever the processor admits, the engine admits too: a client is never refused in the engine's words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ringline.inference.v1 import inference_pb2
from structlog.testing import capture_logs

from engine_core.request import Request
from engine_core.validation import validate_request
from services.engine.engine_messages import submission_of
from services.engine.grammar_queue import EngineRequest
from services.processor.admission.request_resolution import resolve_request
from services.processor.client_stream import ClientStream
from services.processor.dispatcher import next_submit
from services.processor.request import Request as ReceivedRequest
from services.ring.errors import Code, Refused
from services.ring.identity import PeerId
from services.ring.ledger import MAX_OUTPUT_CONTEXT_BYTES
from tests.services.processor.model_specs import MAX_MODEL_LEN, served_model, spec

MODEL, SPEC = served_model(), spec()
ME = PeerId("processor", 1)


LENGTHS = (0, 1, 2, MAX_MODEL_LEN - 2, MAX_MODEL_LEN - 1, MAX_MODEL_LEN, 2**32 - 1)
EOS = SPEC.eos_token_ids[0]
TOKENS = ([], [5], [EOS], [5, 6, EOS], [SPEC.vocab_size], list(range(SPEC.vocab_size)), [5] * (MAX_MODEL_LEN - 3))
WORDS = (["a"], [" "], ["&"], ["ab", "b" * 256], ["é" * 128] * 3, ["x" * 256] * 5, [""], ["x" * 300], ["a"] * 200)
PROMPTS = ("text", "ids", "chat", "nothing")
SAMPLING: dict[str, tuple[float, ...]] = {
    "temperature": (0.0, 1e-30, 1.0, float(2**31), -0.0, -1.0, math.nan, math.inf),
    "top_p": (1e-30, 0.5, 1.0, 0.0, 1.1, math.nan),
    "min_p": (0.0, 1.0, -0.1, math.nan),
    "frequency_penalty": (-2.0, 2.0, 2.1, math.nan),
    "presence_penalty": (-2.0, 2.0, -2.1, -math.inf),
    "repetition_penalty": (1e-38, 2.0**-31, 1.0, 1e9, 0.0, -1.0, math.inf, math.nan),
    "top_k": (0, 1, 2**32 - 1),
    "seed": (0, 2**64 - 1),
    "n": (1, 3, 128, 129, 0, 2**32 - 1),
}
STOPPING: dict[str, tuple[object, ...]] = {
    "max_tokens": LENGTHS,
    "min_tokens": LENGTHS,
    "stop": WORDS,
    "stop_token_ids": TOKENS,
    "ignore_eos": (True,),
    "bad_words": WORDS,
}
OUTPUT: dict[str, tuple[object, ...]] = {"logprobs": (0, 20, 21), "prompt_logprobs": (0, 20, 21)}
OTHER: dict[str, tuple[object, ...]] = {
    "truncate_prompt_tokens": LENGTHS,
    "priority": (-(2**31), 2**31 - 1),
    "cache_salt": ("salt", "é" * 128, "x" * 257),
    "timeout_ms": (0, 1, 2**64 - 1),
    "model": ("m",),
}

Part = Callable[[inference_pb2.GenerateRequest], Message]
FIELDS: list[tuple[Part, str, tuple[object, ...]]] = [
    *((lambda r: r.sampling, name, values) for name, values in SAMPLING.items()),
    *((lambda r: r.stopping, name, values) for name, values in STOPPING.items()),
    *((lambda r: r.output, name, values) for name, values in OUTPUT.items()),
    *((lambda r: r, name, values) for name, values in OTHER.items()),
]


@st.composite
def requests(draw: st.DrawFn) -> inference_pb2.GenerateRequest:
    """Some prompt, and a few fields at the border of what they may be, or beyond."""
    request = inference_pb2.GenerateRequest()
    match draw(st.sampled_from(PROMPTS)):
        case "text":
            request.text = draw(st.text(min_size=1, max_size=8) | st.sampled_from(["", "ab " * 12, "x" * 60]))
        case "ids":
            request.token_ids.ids.extend(draw(st.sampled_from([*TOKENS, [5] * (MAX_MODEL_LEN - 1)])))
        case "chat":
            request.chat.messages.add(role="user", content=draw(st.text("ab", max_size=4)))
    for part, name, values in draw(st.lists(st.sampled_from(FIELDS), max_size=4, unique_by=lambda field: field[1])):
        value = draw(st.sampled_from(values))
        if isinstance(value, list):
            getattr(part(request), name).extend(value)
        else:
            setattr(part(request), name, value)
    if draw(st.integers(0, 4)) == 0:
        for key in draw(st.sampled_from(TOKENS)):
            request.sampling.logit_bias[key] = draw(st.sampled_from([-100.0, 0.0, 100.0, 101.0, math.nan]))
    if draw(st.integers(0, 4)) == 0:
        request.sampling.allowed_token_ids.extend(draw(st.sampled_from(TOKENS)))
    if draw(st.integers(0, 4)) == 0:
        request.sampling.seed = 1
        for choice in draw(st.lists(st.integers(0, 3), max_size=3)):
            request.resume.choices.add(choice=choice, token_ids=draw(st.sampled_from(TOKENS)))
    return request


def submitted(request: inference_pb2.GenerateRequest) -> Request:
    """The core's request that the engine makes of what the processor sends for it; raises ``Refused``."""
    resolved = resolve_request(request, MODEL, "tenant", ME)
    assert len(resolved.output_context) <= MAX_OUTPUT_CONTEXT_BYTES
    received = ReceivedRequest("1-1", "", 1, "", ClientStream(""), 0.0)
    received.admit(resolved)
    submission = submission_of(next_submit(received, "detokenizer"), SPEC, 0.0)
    assert {choice: [*ids] for choice, ids in submission.choices.items()} == {
        choice: [*ids] for choice, ids in resolved.choices.items()
    }
    assert isinstance(submission.core_request, EngineRequest)
    return submission.core_request.core


OUTCOMES: Counter[str] = Counter()


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests())
def check_one(request: inference_pb2.GenerateRequest) -> None:
    try:
        taken = submitted(request)
    except Refused as refused:
        OUTCOMES["refused"] += 1
        field, separator, _ = refused.status.message.partition(": ")
        if refused.status.code is not Code.INVALID_ARGUMENT or not separator or " " in field:
            raise
        return
    OUTCOMES["taken"] += 1
    validate_request(taken, SPEC)


def test_what_the_processor_admits_the_engine_admits() -> None:
    with capture_logs():
        check_one()
    assert min(OUTCOMES.values()) > 60, OUTCOMES
