"""Good messages that ask for vectors, scores and labels, of which the ring's kinds answer those that are for them."""

from __future__ import annotations

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import pooling_pb2, sampling_pb2
from smg_grpc_proto import vllm_engine_pb2

_TEXT = inference_pb2.PoolingInput(text="Once upon a time")
_IDS = inference_pb2.PoolingInput(token_ids=sampling_pb2.TokenIds(ids=[5, 6, 7]))
_BOTH = (_TEXT, _IDS)
_CUT = inference_pb2.PoolingOptions(
    truncation=inference_pb2.TRUNCATION_END,
    max_input_tokens=8,
    add_special_tokens=False,
    priority=1,
    cache_salt="s",
    timeout_ms=50_000,
)
EMBED = (
    inference_pb2.EmbedRequest(request_id="f", inputs=_BOTH),
    inference_pb2.EmbedRequest(
        request_id="f", inputs=_BOTH, dimensions=8, normalize=True, prompt_name="query", options=_CUT
    ),
    inference_pb2.EmbedRequest(request_id="f", inputs=[_TEXT] * 40, per_token=True, normalize=False),
)
SCORE = (
    inference_pb2.ScoreRequest(request_id="f", queries=[_TEXT], documents=[_TEXT] * 3),
    inference_pb2.ScoreRequest(request_id="f", queries=[_TEXT] * 2, documents=[_TEXT] * 2, activation=False),
    inference_pb2.ScoreRequest(request_id="f", queries=_BOTH, documents=_BOTH, instruction="x", options=_CUT),
)
CLASSIFY = (
    inference_pb2.ClassifyRequest(request_id="f", inputs=_BOTH),
    inference_pb2.ClassifyRequest(request_id="f", inputs=_BOTH, activation=False, options=_CUT),
    inference_pb2.ClassifyRequest(request_id="f", inputs=_BOTH, activation=False, per_token=True),
)
VLLM_EMBED = (vllm_engine_pb2.EmbedRequest(request_id="f", tokenized={"input_ids": [5, 6, 7]}),)


def _submit(task: pooling_pb2.PoolingTask.ValueType, inputs: int = 2, **params: int | bool) -> engine_pb2.Submit:
    return engine_pb2.Submit(
        request_id="f-1",
        epoch=1,
        requires=["pooling"],
        tenant="t",
        pooling=engine_pb2.Pooling(
            params=pooling_pb2.PoolingParams(task=task, **params),  # type: ignore[arg-type]
            inputs=[engine_pb2.PoolingInput(choice=choice, token_ids=[5, 6, 7]) for choice in range(inputs)],
        ),
    )


SUBMIT = (
    _submit(pooling_pb2.POOLING_TASK_EMBED, dimensions=8, normalize=True),
    _submit(pooling_pb2.POOLING_TASK_TOKEN_EMBED, 40),
    _submit(pooling_pb2.POOLING_TASK_CLASSIFY, activation=True),
    _submit(pooling_pb2.POOLING_TASK_TOKEN_CLASSIFY, 40),
)
SUBMIT[0].pooling.inputs[0].second_text = 1
