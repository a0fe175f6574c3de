"""Paths of Hugging Face's Text Embeddings Inference (TEI). ``/rerank`` is among ``rerank``'s."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from math import fsum
from operator import mul
from typing import Annotated, Any

import msgspec
from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.proto_fields import assign
from ringline.relay import Relay
from ringline.results import Pooling
from starlette.responses import Response

from services.gateway.fields import Body, passed, refused, supported
from services.gateway.http.api_error import invalid
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI
from services.gateway.openai.models import model_of
from services.gateway.operations import installed_version
from services.gateway.pooling.endpoint import PoolingEndpoint, pools
from services.gateway.pooling.fields import (
    MAX_INPUTS,
    Asked,
    Given,
    PoolingFields,
    add_inputs,
    build,
    check_number,
    is_single,
    missing,
    names_of,
    read_inputs,
    side_cut,
)
from services.gateway.pooling.floats import numbers_of, rows_of, shortest
from services.gateway.pooling.rerank import RERANK
from services.gateway.pooling.results import write_rows

_INPUTS = supported(f"A text, token ids, or a list of either: at most {MAX_INPUTS}.")
_NO_PAIRS = "/rerank and /score read two texts together"


class TeiFields(PoolingFields):
    """Fields of TEI's requests."""

    truncate: Annotated[
        bool | None, supported("Cut inputs that are longer than the model takes. Default: they are refused.")
    ] = None
    truncation_direction: Annotated[
        str | None, supported("With `truncate`: `left` cuts their beginning. Default: `right`.")
    ] = None


class VectorFields(TeiFields):
    """Fields of ``/embed`` and ``/embed_all``."""

    inputs: Annotated[Given | None, _INPUTS] = None
    prompt_name: Annotated[
        str | None, passed("One of the model's prompts, which is put before each text. Default: its default prompt.")
    ] = None


class EmbedRequest(VectorFields):
    """The body of ``/embed``."""

    normalize: Annotated[bool | None, passed("Scale vectors to a length of 1. Default: true.")] = None
    dimensions: Annotated[int | None, passed("So many leading numbers. Default: all.")] = None
    encoding_format: Annotated[Any, refused("/v1/embeddings has base64", "float")] = None


class PredictRequest(TeiFields):
    """The body of ``/predict``."""

    inputs: Annotated[
        str | list[str | list[str]] | None,
        supported(f"A text, or a list of lists of one text each: at most {MAX_INPUTS}. No pairs."),
    ] = None
    raw_scores: Annotated[bool | None, supported("The numbers before the head's activation. Default: false.")] = None


class _Sentences(Body):
    """``inputs`` of ``/similarity``."""

    source_sentence: Annotated[str | None, supported("What the others are compared with.")] = None
    sentences: Annotated[list[str] | None, supported(f"At most {MAX_INPUTS - 1} texts.")] = None


class _Cut(Body):
    """``parameters`` of ``/similarity``."""

    truncate: Annotated[bool | None, supported()] = None
    truncation_direction: Annotated[str | None, supported()] = None
    prompt_name: Annotated[str | None, supported()] = None


class SimilarityRequest(PoolingFields):
    """The body of ``/similarity``."""

    inputs: Annotated[_Sentences | None, supported()] = None
    parameters: Annotated[_Cut | None, supported("As in `/embed`.")] = None


def _cut(given: TeiFields | _Cut, asked: Asked, prefix: str = "") -> None:
    """Set what becomes of long inputs. Raises ``ApiError``."""
    cut = side_cut(given.truncation_direction or "right", f"{prefix}truncation_direction")
    if given.truncate:
        asked.options.truncation = cut


def _embed(body: VectorFields) -> pb.EmbedRequest:
    asked = build(pb.EmbedRequest, body)
    _cut(body, asked)
    add_inputs(asked.inputs, read_inputs(body.inputs, "inputs"), "inputs", single=is_single(body.inputs))
    return asked


def _vector(body: EmbedRequest, _model: Model | None) -> pb.EmbedRequest:
    asked = _embed(body)
    asked.normalize = body.normalize is not False
    return asked


def _all_vectors(body: VectorFields, _model: Model | None) -> pb.EmbedRequest:
    asked = _embed(body)
    asked.per_token, asked.normalize = True, False
    return asked


def _names(body: VectorFields | PredictRequest) -> Callable[[str], str]:
    names = {"truncation": "truncate", "activation": "raw_scores"}
    return names_of([type(body)], names, frozenset({"inputs"} if is_single(body.inputs) else ()))


def _write_vectors(_call: Call, _body: EmbedRequest, told: pb.EmbedResponse) -> Iterator[bytes]:
    yield from write_rows(rows_of(told.values, told.dimensions))


def _write_all_vectors(_call: Call, _body: VectorFields, told: pb.EmbedResponse) -> Iterator[bytes]:
    rows = rows_of(told.values, told.dimensions)
    yield b"["
    for index, count in enumerate(told.counts):
        yield b"," if index else b""
        yield from write_rows(islice(rows, count))
    yield b"]"


def _labels(body: PredictRequest, _model: Model | None) -> pb.ClassifyRequest:
    asked = build(pb.ClassifyRequest, body)
    _cut(body, asked)
    if body.raw_scores is not None:
        asked.activation = not body.raw_scores
    add_inputs(asked.inputs, _texts(body), "inputs", single=is_single(body.inputs))
    return asked


def _texts(body: PredictRequest) -> list[str]:
    """The texts. A list of two texts is a pair. Raises ``ApiError``."""
    if body.inputs is None or body.inputs == []:
        raise missing("inputs", body.inputs, "a text, or a list of lists of one text each")
    if isinstance(body.inputs, str):
        return [body.inputs]
    if all(isinstance(one, str) for one in body.inputs):
        if len(body.inputs) > 1:
            raise invalid("inputs", f"a pair: {_NO_PAIRS}", code="unsupported_parameter")
        return [one for one in body.inputs if isinstance(one, str)]
    check_number(body.inputs, "inputs")
    for index, one in enumerate(body.inputs):
        if isinstance(one, str) or len(one) != 1:
            raise invalid(f"inputs[{index}]", f"expected a list of one text; {_NO_PAIRS}")
    return [one[0] for one in body.inputs]


def _write_labels(_call: Call, body: PredictRequest, told: pb.ClassifyResponse) -> Iterator[bytes]:
    labels = list(told.labels)
    single = isinstance(body.inputs, str) or all(isinstance(one, str) for one in body.inputs or ())
    yield b"" if single else b"["
    for index, row in enumerate(rows_of(told.values, len(labels))):
        scores = zip(labels, shortest(numbers_of(row)), strict=True)
        ordered = sorted(({"score": score, "label": label} for label, score in scores), key=_by_score, reverse=True)
        yield (b"," if index else b"") + msgspec.json.encode(ordered)
    yield b"" if single else b"]"


def _by_score(prediction: dict[str, Any]) -> float:
    return float(prediction["score"])


def _similarity(body: SimilarityRequest, _model: Model | None) -> pb.EmbedRequest:
    given = body.inputs or _Sentences()
    if given.source_sentence is None:
        raise missing("inputs.source_sentence", None, "a text")
    if not given.sentences:
        raise missing("inputs.sentences", given.sentences, "a list of texts")
    if len(given.sentences) >= MAX_INPUTS:
        raise invalid("inputs.sentences", f"{len(given.sentences)}: expected at most {MAX_INPUTS - 1}")
    asked = build(pb.EmbedRequest, body)
    asked.normalize = True
    if body.parameters is not None:
        _cut(body.parameters, asked, "parameters.")
        if body.parameters.prompt_name is not None:
            assign(asked, "prompt_name", body.parameters.prompt_name, option="parameters.prompt_name")
    add_inputs(asked.inputs, [given.source_sentence], "inputs.source_sentence", single=True)
    add_inputs(asked.inputs, given.sentences, "inputs.sentences")
    return asked


def _names_of_similarity(_body: SimilarityRequest) -> Callable[[str], str]:
    parameters = {"truncation": "parameters.truncate", "prompt_name": "parameters.prompt_name"}
    name_of = names_of([SimilarityRequest], parameters)

    def name_in_request(field: str) -> str:
        if (found := re.match(r"inputs\[(\d+)\]", field)) is None:
            return name_of(field)
        place = int(found[1])
        return f"inputs.sentences[{place - 1}]" if place else "inputs.source_sentence"

    return name_in_request


def _write_similarities(_call: Call, _body: SimilarityRequest, told: pb.EmbedResponse) -> Iterator[bytes]:
    """The products of vectors with a length of 1: the cosines of their angles."""
    rows = rows_of(told.values, told.dimensions)
    source = numbers_of(next(rows))
    cosines = [fsum(map(mul, source, numbers_of(row))) for row in rows]
    yield msgspec.json.encode(shortest(cosines))


async def by_model(call: Call) -> Response:
    """What the served model is for: vectors, a ranking or labels."""
    pooling = await _pooling_of(call)
    if pooling.dimensions:
        return await EMBED.answer(call)
    return await (PREDICT if len(pooling.labels) > 1 else RERANK).answer(call)


async def _pooling_of(call: Call) -> Pooling:
    model = await model_of(call, None, pools)
    if model.pooling is None:
        raise invalid(None, f"{model.name!r} generates text: /v1/models describes it", "unsupported")
    return model.pooling


async def info(call: Call) -> Response:
    """What the served model is for."""
    pooling, model = await _pooling_of(call), await model_of(call, None, pools)
    kind: dict[str, Any]
    if pooling.labels:
        names = {str(index): label for index, label in enumerate(pooling.labels)}
        numbers = {label: index for index, label in enumerate(pooling.labels)}
        kind = {"reranker" if len(names) == 1 else "classifier": {"id2label": names, "label2id": numbers}}
    else:
        kind = {"embedding": {"pooling": "unknown"}}
    body = {
        "model_id": model.name,
        "model_sha": model.model_digest or None,
        "model_dtype": "unknown",
        "model_type": kind,
        "max_input_length": model.max_model_len,
        "max_client_batch_size": MAX_INPUTS,
        "auto_truncate": False,
        "version": installed_version(),
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


EMBED = PoolingEndpoint(EmbedRequest, Relay.embed, _vector, _write_vectors, _names)
EMBED_ALL = PoolingEndpoint(VectorFields, Relay.embed, _all_vectors, _write_all_vectors, _names)
PREDICT = PoolingEndpoint(PredictRequest, Relay.classify, _labels, _write_labels, _names)
SIMILARITY = PoolingEndpoint(SimilarityRequest, Relay.embed, _similarity, _write_similarities, _names_of_similarity)
ENDPOINTS = (
    Endpoint("POST", "/embed", EMBED.answer, OPENAI),
    Endpoint("POST", "/embed_all", EMBED_ALL.answer, OPENAI),
    Endpoint("POST", "/predict", PREDICT.answer, OPENAI),
    Endpoint("POST", "/similarity", SIMILARITY.answer, OPENAI),
    Endpoint("POST", "/", by_model, OPENAI),
    Endpoint("GET", "/info", info, OPENAI),
)
