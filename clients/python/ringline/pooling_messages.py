"""Requests for vectors, scores and labels as messages of bounded size, and one result of their answers."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral
from typing import Any, Generic, TypeVar

from ringline.errors import FailedPrecondition, InvalidRequest, ProtocolError, RingError, invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.options import ClassifyOptions, EmbedOptions, PoolingOptions, ScoreOptions
from ringline.outputs import Adapter, Usage
from ringline.pooling import Classifications, Embeddings, Input, PoolingReport, Ranked, Ranking, Scores
from ringline.proto_fields import assign, expect
from ringline.results import usage_from

CONCURRENT = 4
"""Messages of one call that are under way at once."""
_MOST_INPUTS = 512
"""Of a message; the contract allows 2048, and with fewer a lost server costs less."""
_MOST_BYTES = 1 << 20
"""Of the texts and ids of a message, but for one that is larger alone; a server takes 4 MiB by default."""
_MOST_BYTES_PER_TOKEN = 1 << 13
"""The same with a result for each token: a token has a byte or more, and its result thousands."""
_ID_BYTES = 3
"""Most bytes of a token id below 2**21 in a message."""
_OPTIONS = frozenset(PoolingOptions.__annotations__) - {"timeout"}
_OWN = {
    pb.EmbedRequest: EmbedOptions.__annotations__.keys() - _OPTIONS - {"timeout"},
    pb.ScoreRequest: ScoreOptions.__annotations__.keys() - _OPTIONS - {"timeout"},
    pb.ClassifyRequest: ClassifyOptions.__annotations__.keys() - _OPTIONS - {"timeout"},
}
_OF_OTHER_APIS = {
    **dict.fromkeys(("encoding_format", "output_dtype"), "vectors come as 32-bit floats"),
    "truncate_prompt_tokens": "give max_input_tokens, and truncate",
    **dict.fromkeys(("input_type", "task", "prompt"), "give prompt_name, one of the model's prompts"),
    "output_dimension": "it is called dimensions here",
    "output_dimensionality": "it is called dimensions here",
    "use_activation": "it is called activation here",
    **dict.fromkeys(("lora_request", "lora_path", "adapter_id"), "give the name of one of the server's: adapter='…'"),
    **dict.fromkeys(("batch_size", "show_progress_bar"), "the client divides long lists by itself"),
}
_TRUNCATIONS = {
    False: pb.TRUNCATION_NONE,
    True: pb.TRUNCATION_END,
    "end": pb.TRUNCATION_END,
    "start": pb.TRUNCATION_START,
}
_ADAPTERS = "adapters"
"""The capability without which a server would ignore the adapter's name."""
_PLACE = re.compile(r"\b(inputs|documents|queries)\[(\d+)\]")
_Kind = TypeVar("_Kind", pb.EmbedRequest, pb.ScoreRequest, pb.ClassifyRequest)
_OfInputs = TypeVar("_OfInputs", pb.EmbedRequest, pb.ClassifyRequest)
_Request = TypeVar("_Request")


@dataclass(frozen=True, slots=True)
class Piece(Generic[_Request]):
    """A message with some of a request's inputs."""

    request: _Request
    places: Mapping[str, int]
    """By the name of a list of inputs: the index, among all given, of the first one in the message."""
    inputs: int
    """Number of results."""

    def error(self, error: RingError) -> RingError:
        """``error`` with the places of inputs among all that were given."""
        if error.code.name == "UNIMPLEMENTED":
            name = type(self.request).__name__.removesuffix("Request")
            return FailedPrecondition(f"the server is too old to know {name}: it makes no vectors, scores or labels")

        def shifted(found: re.Match[str]) -> str:
            return f"{found[1]}[{int(found[2]) + self.places.get(found[1], 0)}]"

        error.args = (_PLACE.sub(shifted, str(error)).replace("options.truncation cuts", "truncate cuts"),)
        if isinstance(error, InvalidRequest) and error.field is not None:
            error.field = _PLACE.sub(shifted, error.field)
        return error


def embed_pieces(inputs: Input | Iterable[Input], options: Mapping[str, Any]) -> Iterator[Piece[pb.EmbedRequest]]:
    """The messages of ``embed``. Raises TypeError or InvalidRequest as ``build_request`` does, as far as they are read.

    Inputs of a wrong type, and options, are refused before the first message.
    """
    return _pieces_of_inputs(pb.EmbedRequest, inputs, options)


def classify_pieces(inputs: Input | Iterable[Input], options: Mapping[str, Any]) -> Iterator[Piece[pb.ClassifyRequest]]:
    """The messages of ``classify``; see ``embed_pieces``."""
    return _pieces_of_inputs(pb.ClassifyRequest, inputs, options)


def score_pieces(
    queries: Input | Iterable[Input], documents: Input | Iterable[Input], options: Mapping[str, Any]
) -> Iterator[Piece[pb.ScoreRequest]]:
    """The messages of ``score``; see ``embed_pieces``. One query goes with every message."""
    first, second = read_inputs(queries, "queries"), read_inputs(documents, "documents")
    if len(first) not in (1, len(second)):
        raise invalid("queries", f"{len(first)}: expected 1, or as many as documents, of which there are {len(second)}")
    common = _request(pb.ScoreRequest, options)
    paired = len(first) > 1
    sizes = [size + (_size(first[index]) if paired else 0) for index, size in enumerate(map(_size, second))]

    def build() -> Iterator[Piece[pb.ScoreRequest]]:
        for begin, end in _ranges(sizes, _MOST_BYTES):
            request = pb.ScoreRequest()
            request.CopyFrom(common)
            asked = range(begin, end) if paired else range(1)
            _add(request.queries, first, asked, "queries")
            _add(request.documents, second, range(begin, end), "documents")
            yield Piece(request, {"queries": begin if paired else 0, "documents": begin}, end - begin)

    return build()


def read_inputs(inputs: Input | Iterable[Input], name: str) -> list[Input]:
    """Inputs as a list: a text, or a list of token ids, is one. Raises TypeError or InvalidRequest for other things."""
    if isinstance(inputs, str):
        return [inputs]
    given = _listed(inputs, "a text, a list of token ids, or a list of these", name)
    if not given:
        raise invalid(name, "empty: expected at least one input")
    if isinstance(given[0], Integral):
        return [given]
    wanted = "a text or a list of token ids"
    return [
        one if isinstance(one, str) else _listed(one, wanted, f"{name}[{index}]") for index, one in enumerate(given)
    ]


def one_query(query: Input) -> list[Input]:
    """The query of a ranking. Raises TypeError or InvalidRequest for other things than one."""
    if len(queries := read_inputs(query, "query")) > 1:
        raise invalid("query", f"{len(queries)} of them: expected one; score() compares pairs")
    return queries


def embeddings_from(answers: Iterable[tuple[Piece[pb.EmbedRequest], pb.EmbedResponse]]) -> Embeddings:
    """One result of the answers to messages, in order. Raises ProtocolError if they do not fit together."""
    joined = _Joined()
    for piece, answer in answers:
        joined.add(piece.inputs, answer.values, answer.dimensions, answer.counts, answer.report)
    return Embeddings(joined.report(), joined.values, joined.counts, joined.width)


def classifications_from(
    answers: Iterable[tuple[Piece[pb.ClassifyRequest], pb.ClassifyResponse]],
) -> Classifications:
    """See ``embeddings_from``."""
    joined, labels = _Joined(), tuple[str, ...]()
    for piece, answer in answers:
        labels = tuple(answer.labels)
        joined.add(piece.inputs, answer.values, len(labels), answer.counts, answer.report)
    return Classifications(joined.report(), joined.values, joined.counts, labels)


def scores_from(answers: Iterable[tuple[Piece[pb.ScoreRequest], pb.ScoreResponse]]) -> Scores:
    """See ``embeddings_from``."""
    values: list[float] = []
    reports: list[pb.PoolingReport] = []
    for piece, answer in answers:
        if len(answer.scores) != piece.inputs:
            raise ProtocolError(f"the server sent {len(answer.scores)} scores of {piece.inputs} documents")
        values += answer.scores
        reports.append(answer.report)
    return Scores(_report(reports), tuple(values))


def check_top_n(top_n: int | None) -> None:
    """Raise TypeError or InvalidRequest for an unusable number of documents."""
    if top_n is not None:
        expect(int, "int", top_n, "top_n")
        if top_n < 1:
            raise invalid("top_n", f"{top_n} is out of range: expected at least 1")


def ranking_from(scores: Scores, documents: Sequence[Input], top_n: int | None) -> Ranking:
    """The best ``top_n`` documents; None: all."""
    best = sorted(range(len(documents)), key=lambda index: -scores[index])[:top_n]
    return Ranking(scores.report, tuple(Ranked(index, scores[index], documents[index]) for index in best))


def _listed(value: object, wanted: str, place: str) -> list[Any]:
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{place}: expected {wanted}, got {type(value).__name__}")
    return list(value)


def _pieces_of_inputs(
    kind: type[_OfInputs], inputs: Input | Iterable[Input], options: Mapping[str, Any]
) -> Iterator[Piece[_OfInputs]]:
    given, common = read_inputs(inputs, "inputs"), _request(kind, options)
    most = _MOST_BYTES_PER_TOKEN if options.get("per_token") else _MOST_BYTES

    def build() -> Iterator[Piece[_OfInputs]]:
        for begin, end in _ranges(map(_size, given), most):
            request = kind()
            request.CopyFrom(common)
            _add(request.inputs, given, range(begin, end), "inputs")
            yield Piece(request, {"inputs": begin}, end - begin)

    return build()


def _ranges(sizes: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs of inputs for a message each, by the first index and the one after the last. ``sizes``: bytes of inputs."""
    begin = end = filled = 0
    for size in sizes:
        if end > begin and (end - begin >= _MOST_INPUTS or filled + size > most):
            yield begin, end
            begin, filled = end, 0
        end, filled = end + 1, filled + size
    yield begin, end


def _size(one: Input) -> int:
    """About the bytes of an input in a message."""
    if isinstance(one, str):
        return len(one) if one.isascii() else len(one.encode(errors="replace"))
    return _ID_BYTES * len(one)


def _add(target: Any, inputs: Sequence[Input], places: Iterable[int], name: str) -> None:
    for place in places:
        one, message = inputs[place], target.add()
        if isinstance(one, str):
            assign(message, "text", one, option=f"{name}[{place}]")
        else:
            message.token_ids.SetInParent()
            assign(message.token_ids, "ids", one, option=f"{name}[{place}]")


def _request(kind: type[_Kind], options: Mapping[str, Any]) -> _Kind:
    """A request without inputs. Raises TypeError for an unknown option or a wrong type, InvalidRequest for a value."""
    request, own = kind(), _OWN[kind]
    for name, value in options.items():
        if name not in own and name not in _OPTIONS:
            raise _unknown(name, own)
        if value is None:
            continue
        if name == "truncate":
            if not isinstance(value, bool | str) or value not in _TRUNCATIONS:
                raise invalid("truncate", f"{value!r}: expected True, False, 'end' or 'start'")
            request.options.truncation = _TRUNCATIONS[value]
        else:
            assign(request if name in own or name == "model" else request.options, name, value)
    if request.options.adapter and _ADAPTERS not in request.options.requires:
        request.options.requires.append(_ADAPTERS)
    return request


def _unknown(name: str, own: Iterable[str]) -> TypeError:
    if (instead := _OF_OTHER_APIS.get(name)) is not None:
        return TypeError(f"option {name!r} is not supported: {instead}")
    near = get_close_matches(name, (*own, *_OPTIONS, "timeout"), 1, cutoff=0.8)
    return TypeError(f"unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


class _Joined:
    """Rows of numbers of several answers."""

    def __init__(self) -> None:
        self.values = array("f")
        self.width = 0
        """Numbers of a row."""
        self._counts: list[int] = []
        """Rows of each input; empty: one each."""
        self._reports: list[pb.PoolingReport] = []

    def add(self, inputs: int, values: bytes, width: int, counts: Sequence[int], report: pb.PoolingReport) -> None:
        """``values``: little-endian float32. Raises ProtocolError if they are not what the other numbers say."""
        is_first = not self._reports
        rows = sum(counts) if counts else inputs
        if len(values) != 4 * width * rows or not width or (counts and len(counts) != inputs):
            raise ProtocolError(
                f"the server sent {len(values)} bytes of values for {rows} rows of {width} numbers of {inputs} inputs"
            )
        if not is_first and (width != self.width or bool(self._counts) != bool(counts)):
            raise ProtocolError(f"the server sent rows of {self.width} numbers, and then others, of {width}")
        numbers = array("f")
        numbers.frombytes(values)
        if sys.byteorder == "big":
            numbers.byteswap()
        if is_first:
            self.values, self.width = numbers, width
        else:
            self.values += numbers
        self._counts += counts
        self._reports.append(report)

    @property
    def counts(self) -> tuple[int, ...] | None:
        """Rows of each input; None: one each."""
        return tuple(self._counts) or None

    def report(self) -> PoolingReport:
        return _report(self._reports)


def _report(reports: Sequence[pb.PoolingReport]) -> PoolingReport:
    usages = [usage_from(report.usage) for report in reports]
    total = {each.name: sum(getattr(usage, each.name) for usage in usages) for each in fields(Usage)}

    def common(of: Callable[[pb.PoolingReport], str]) -> str:
        found = {of(report) for report in reports}
        return found.pop() if len(found) == 1 else ""

    return PoolingReport(
        Usage(**total),
        tuple(tokens for report in reports for tokens in report.input_tokens),
        reports[0].model,
        common(lambda report: report.model_digest),
        common(lambda report: report.numerics),
        tuple(report.server_request_id for report in reports),
        _adapter(reports),
    )


def _adapter(reports: Sequence[pb.PoolingReport]) -> Adapter | None:
    if not reports[0].HasField("adapter"):
        return None
    digests = {report.adapter.digest for report in reports}
    return Adapter(reports[0].adapter.name, digests.pop() if len(digests) == 1 else "")
