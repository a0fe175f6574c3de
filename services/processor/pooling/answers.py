"""Composes answers of the results of inputs. Pure; that of many results takes a while, and is done in a thread."""

from __future__ import annotations

import math
import operator
import sys
from array import array
from collections.abc import Sequence

from ringline.inference.v1 import inference_pb2

from services.processor.pooling.plan import AnswerForm, AnswerPlan, PooledAnswer


def compose(plan: AnswerPlan, results: Sequence[bytes], report: inference_pb2.PoolingReport) -> PooledAnswer:
    """The answer. ``results``: of all inputs, in order, each of the plan's size."""
    return PooledAnswer(plan.form.event, _message(plan, results, report).SerializeToString())


def _message(
    plan: AnswerPlan, results: Sequence[bytes], report: inference_pb2.PoolingReport
) -> inference_pb2.EmbedResponse | inference_pb2.ScoreResponse | inference_pb2.ClassifyResponse:
    counts = plan.input_tokens if plan.per_token else ()
    match plan.form:
        case AnswerForm.VECTORS:
            return inference_pb2.EmbedResponse(
                values=b"".join(results), dimensions=plan.width, counts=counts, report=report
            )
        case AnswerForm.LABELS:
            return inference_pb2.ClassifyResponse(
                values=b"".join(results), labels=plan.labels, counts=counts, report=report
            )
        case AnswerForm.PAIR_SCORES:
            return inference_pb2.ScoreResponse(scores=floats(b"".join(results)), report=report)
        case AnswerForm.COSINES:
            return inference_pb2.ScoreResponse(scores=cosines(results, plan.num_queries), report=report)


def cosines(results: Sequence[bytes], num_queries: int) -> list[float]:
    """How near each document's vector is to its query's; the first ``num_queries`` vectors are queries.

    A vector of length 0 is near nothing.
    """
    queries = [floats(result) for result in results[:num_queries]]
    lengths = [math.hypot(*query) for query in queries]
    found = []
    for index, result in enumerate(results[num_queries:]):
        document, of = floats(result), index if num_queries > 1 else 0
        scale = lengths[of] * math.hypot(*document)
        found.append(math.fsum(map(operator.mul, queries[of], document)) / scale if scale else 0.0)
    return found


def floats(data: bytes) -> array[float]:
    """Little-endian float32 as numbers."""
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def input_tokens(plan: AnswerPlan) -> Sequence[int]:
    """Tokens of each input; of a pair that is compared, those of both."""
    if plan.form is not AnswerForm.COSINES:
        return plan.input_tokens
    queries, documents = plan.input_tokens[: plan.num_queries], plan.input_tokens[plan.num_queries :]
    return [queries[index if len(queries) > 1 else 0] + tokens for index, tokens in enumerate(documents)]
