"""Composes answers of the results of inputs. Pure; that of many results takes a while, and is done in a thread."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from ringline.inference.v1 import inference_pb2

from services.processor.pooling.plan import AnswerForm, AnswerPlan, PooledAnswer
from services.processor.pooling.wire import field
from text_core.comparison import similarities


def compose(plan: AnswerPlan, results: Sequence[bytes], report: inference_pb2.PoolingReport) -> PooledAnswer:
    """The answer. ``results``: of all inputs, in order, each of the plan's size."""
    return PooledAnswer(plan.form.event, _packed(plan, results, report))


def _packed(plan: AnswerPlan, results: Sequence[bytes], report: inference_pb2.PoolingReport) -> bytes:
    counts = plan.input_tokens if plan.per_token else ()
    match plan.form:
        case AnswerForm.VECTORS:
            rest = inference_pb2.EmbedResponse(dimensions=plan.width, counts=counts, report=report)
            return _with_values(results, rest)
        case AnswerForm.LABELS:
            return _with_values(
                results, inference_pb2.ClassifyResponse(labels=plan.labels, counts=counts, report=report)
            )
        case AnswerForm.PAIR_SCORES:
            return inference_pb2.ScoreResponse(scores=floats(b"".join(results)), report=report).SerializeToString()
        case AnswerForm.COMPARED:
            vectors = [floats(result) for result in results]
            scores = similarities(plan.similarity, vectors[: plan.num_queries], vectors[plan.num_queries :])
            return inference_pb2.ScoreResponse(scores=scores, report=report).SerializeToString()


def _with_values(results: Sequence[bytes], rest: inference_pb2.EmbedResponse | inference_pb2.ClassifyResponse) -> bytes:
    """``rest``, serialized behind its field ``values``."""
    return b"".join((*field(rest.DESCRIPTOR, "values", *results), rest.SerializeToString()))


def floats(data: bytes) -> array[float]:
    """Little-endian float32 as numbers."""
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def input_tokens(plan: AnswerPlan) -> Sequence[int]:
    """Tokens of each input; of a pair that is compared, those of both."""
    if plan.form is not AnswerForm.COMPARED:
        return plan.input_tokens
    queries, documents = plan.input_tokens[: plan.num_queries], plan.input_tokens[plan.num_queries :]
    return [queries[index if len(queries) > 1 else 0] + tokens for index, tokens in enumerate(documents)]
