"""Frames of a stream as vLLM's chunks, or as whole choices."""

from __future__ import annotations

from typing import Any

import pytest
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import output_pb2
from smg_grpc_proto import vllm_engine_pb2

from services.processor.inference_messages import refusal
from services.processor.vllm_engine_api.answers import Answer, HeldBytes
from services.ring.errors import Code, Reason, Refused, Status

EOS, STOP_ID = 2, 0
"""Token 0 is an id like any other."""


def frame(*events: dict[str, Any]) -> inference_pb2.SessionResponse:
    return inference_pb2.SessionResponse(responses=[inference_pb2.GenerateResponse(**event) for event in events])


ADMITTED = {"admitted": {"prompt_tokens": 3, "prompt_token_ids": [7, 8, 9]}}
PREFILL = {"prefill": {"computed_tokens": 3, "cached_tokens": 2}}


def delta(ids: list[int], choice: int = 0, top: int = 0) -> dict[str, Any]:
    logprobs = {
        "logprobs": [-0.5] * len(ids),
        "ranks": [1] * len(ids),
        "top_count": top,
        "top_ids": list(range(top)) * len(ids),
        "top_logprobs": [-0.25] * (top * len(ids)),
    }
    return {"delta": {"choice": choice, "token_ids": ids, "logprobs": logprobs}}


def ended(reason: output_pb2.FinishReason.ValueType, choice: int = 0, **stop: Any) -> dict[str, Any]:
    return {"choice_finished": {"choice": choice, "finish_reason": reason, **stop}}


STOP, LENGTH = output_pb2.FINISH_REASON_STOP, output_pb2.FINISH_REASON_LENGTH


def answer(*, stream: bool = False, max_bytes: int = 1 << 20, held: HeldBytes | None = None, **params: Any) -> Answer:
    asked = vllm_engine_pb2.GenerateRequest(stream=stream, sampling_params=params)
    return Answer(asked, [EOS], max_bytes, held or HeldBytes(1 << 20))


def packed(given: Answer, *events: dict[str, Any]) -> tuple[list[Any], list[Status]]:
    """Its messages, without the oneof, and its errors."""
    both = list(given.pack(frame(*events)))
    messages = [vllm_engine_pb2.GenerateResponse.FromString(data) for data, _ in both if data is not None]
    parts = [getattr(message, message.WhichOneof("response")) for message in messages]
    return parts, [error for _, error in both if error is not None]


@pytest.mark.parametrize(
    ("params", "stop", "matched"),
    [
        ({}, {"stop_token_id": EOS}, None),
        ({"stop_token_ids": [EOS]}, {"stop_token_id": EOS}, None),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, {"stop_token_id": EOS}, EOS),
        ({"stop_token_ids": [STOP_ID]}, {"stop_token_id": STOP_ID}, STOP_ID),
        ({"stop_token_ids": [STOP_ID]}, {}, None),
        ({"stop": ["x"]}, {"stop_string": "x"}, "x"),
    ],
)
def test_only_stops_that_were_asked_for_are_named(
    params: dict[str, Any], stop: dict[str, Any], matched: object
) -> None:
    (end,), _ = packed(answer(**params), ADMITTED, delta([4]), ended(STOP, **stop))
    which = end.WhichOneof("matched_stop")
    assert (None if which is None else getattr(end, which)) == matched


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs(stream: bool) -> None:
    given = answer(stream=stream, logprobs=2)
    first, *_ = packed(given, ADMITTED, delta([4, 5], top=2), ended(LENGTH))[0]
    scores = first.output_logprobs
    assert (list(scores.token_logprobs), list(scores.token_ids)) == ([-0.5, -0.5], [4, 5])
    assert [(list(top.token_ids), list(top.values)) for top in scores.top_logprobs] == [([0, 1], [-0.25] * 2)] * 2
    (alone, *_), _ = packed(answer(stream=stream, logprobs=0), ADMITTED, delta([4]), ended(LENGTH))
    assert (list(alone.output_logprobs.token_ids), len(alone.output_logprobs.top_logprobs)) == ([4], 0)


@pytest.mark.parametrize("stream", [True, False])
def test_prompt_logprobs_come_once_and_leave_out_the_first_token(stream: bool) -> None:
    given = answer(stream=stream, prompt_logprobs=1)
    scores = {"logprobs": [-1.5], "ranks": [1], "top_count": 1, "top_ids": [8], "top_logprobs": [-1.0]}
    parts = [{"prompt_logprobs": {"offset": offset, "logprobs": scores}} for offset in (0, 1)]
    first, *others = packed(given, ADMITTED, *parts, delta([4]), delta([5]), ended(LENGTH))[0]
    shown = first.input_logprobs
    assert list(shown.token_ids) == [7, 8, 9]
    values = [one.value if one.HasField("value") else None for one in shown.token_logprobs]
    assert values == [None, -1.5, -1.5]
    assert [list(top.token_ids) for top in shown.top_logprobs] == [[], [8], [8]]
    assert not any(other.HasField("input_logprobs") for other in others)
    (beside,), _ = packed(given, *([delta([6], choice=1)] if stream else [ended(LENGTH, 1)]))
    assert beside.input_logprobs == shown, "of each choice"


def test_failures_are_the_calls_status_and_no_end() -> None:
    lost = {"error": {"code": 14, "message": "lost"}}
    parts, (error,) = packed(answer(), ADMITTED, delta([4]), ended(output_pb2.FINISH_REASON_ERROR, **lost))
    assert (parts, error.code, error.message) == ([], Code.UNAVAILABLE, "lost")
    parts, (error,) = packed(answer(), ADMITTED, delta([4]), ended(output_pb2.FINISH_REASON_DEADLINE))
    assert (parts, error.code) == ([], Code.DEADLINE_EXCEEDED)
    refused = refusal("r", 1, Status(Code.INVALID_ARGUMENT, "sampling.top_p: 2", field="sampling.top_p"))
    ((data, error),) = answer().pack(inference_pb2.SessionResponse(responses=[refused]))
    assert (data, error.field if error else "") == (None, "sampling_params.top_p")


def test_a_whole_answer_is_bounded() -> None:
    given = answer(max_bytes=1000, logprobs=2)
    list(given.pack(frame(ADMITTED, delta([4] * 10, top=2))))
    with pytest.raises(Refused, match="ask for stream") as refused:
        list(given.pack(frame(delta([4] * 20, top=2))))
    assert refused.value.status.reason is Reason.TOO_LARGE
    streamed = answer(stream=True, max_bytes=1000, logprobs=2)
    assert len(list(streamed.pack(frame(ADMITTED, *[delta([4] * 20, top=2)] * 4)))) == 4


def test_prompt_logprobs_are_bounded_in_a_stream_too() -> None:
    scores = {"logprobs": [-1.5] * 30, "ranks": [1] * 30}
    given = answer(stream=True, max_bytes=1000, prompt_logprobs=0)
    parts = [{"prompt_logprobs": {"offset": offset, "logprobs": scores}} for offset in (0, 30)]
    list(given.pack(frame(ADMITTED, parts[0])))
    with pytest.raises(Refused, match="prompt_logprobs of a shorter prompt") as refused:
        list(given.pack(frame(parts[1])))
    assert refused.value.status.reason is Reason.TOO_LARGE


def test_whole_answers_are_bounded_together() -> None:
    held = HeldBytes(1000)
    one, other = (answer(held=held) for _ in range(2))
    assert packed(one, ADMITTED, delta([4] * 40))[1] == []
    with pytest.raises(Refused, match="retry later") as refused:
        packed(other, ADMITTED, delta([4] * 40))
    assert (refused.value.status.reason, refused.value.status.retry_after_ms) == (Reason.OVERLOAD, 1000)
    other.close()
    one.close()
    assert packed(answer(held=held), ADMITTED, delta([4] * 40))[1] == []
