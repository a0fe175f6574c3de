"""The best of more choices than are returned: found by beams, or the most likely of those that were sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from ringline import Choice, Generation

from services.gateway.fields import passed, supported
from services.gateway.http.api_error import invalid, shown
from services.gateway.other_servers import OtherServers

_OF_BEAMS = {"length_penalty": 1, "early_stopping": False}
"""Fields that mean something with beams alone, and their values that change nothing."""


class BestFields(OtherServers):
    """Fields of chats and completions."""

    n: Annotated[int | None, passed("At most 128.")] = None
    best_of: Annotated[
        int | None,
        supported(
            "At least `n`, at most 128: so many choices are generated, and the `n` whose tokens are the most likely on "
            "average are returned, the best first; not with `stream`. With beams, their number."
        ),
    ] = None
    use_beam_search: Annotated[
        bool | None,
        supported(
            "Beams in place of sampling, as transformers has them: their number is `best_of`, else `n`, at most 64. "
            "The `n` best are returned, the best first, with `beam_score`; a stream has them at its end. Not with "
            "`seed`, `stop`, `logprobs` or a `temperature` above 0."
        ),
    ] = None
    num_beams: Annotated[int | None, supported("transformers' `use_beam_search` with so many beams; 1 is none.")] = None
    length_penalty: Annotated[
        float | None,
        supported("Of beams: the sum of log probabilities is divided by the length to this power. Default: 1."),
    ] = None
    early_stopping: Annotated[
        bool | str | None,
        supported("Of beams: true, false or `never`, as in transformers. Default: false."),
    ] = None


def searches(request: BestFields) -> bool:
    """Whether beams are asked for."""
    return bool(request.use_beam_search) or (request.num_beams or 1) > 1


def samples_more(request: BestFields) -> bool:
    """Whether more choices are sampled than are returned."""
    return not searches(request) and (request.best_of or 0) > _returned(request) > 0


def generated(request: BestFields) -> int:
    """Choices, or beams, that are computed for a prompt."""
    return max(_returned(request), request.best_of or 1, request.num_beams or 1)


def best_options(request: BestFields, options: dict[str, Any], *, stream: bool) -> None:
    """Add the ring's options for the choices to compute. Raises ``ApiError`` for contradictions."""
    if request.best_of is not None and request.best_of < _returned(request):
        raise invalid("best_of", f"{request.best_of} is less than n, {_returned(request)}")
    if request.num_beams is not None and request.num_beams < 1:
        raise invalid("num_beams", f"{request.num_beams} is out of range: expected at least 1")
    if searches(request):
        options["beam_search"] = _beam_search(request)
        return
    for name, neutral in _OF_BEAMS.items():
        if getattr(request, name) not in (None, neutral):
            raise invalid(name, "set without beams: give use_beam_search: true, too, or leave it out")
    if samples_more(request):
        if stream:
            raise invalid("best_of", f"not available in a stream: expected n, {_returned(request)}, or no stream")
        options["n"] = request.best_of
        if options.get("logprobs") is None:
            options["logprobs"] = 0


def best(request: BestFields, generation: Generation, *, logprobs: bool) -> Generation:
    """The answer with the choices to return, the best first; without log probabilities that only served to choose."""
    if not samples_more(request):
        return generation
    ranked = sorted(generation.choices, key=_mean_logprob, reverse=True)[: _returned(request)]
    kept = [replace(one, index=at, logprobs=one.logprobs if logprobs else None) for at, one in enumerate(ranked)]
    return replace(generation, choices=tuple(kept))


def best_naming(request: BestFields, name_of: Callable[[str], str], *, logprobs: bool) -> Callable[[str], str]:
    """``name_of`` with the request's names for what its best choices ask of the ring.

    ``logprobs``: whether the request asks for them itself.
    """
    names: dict[str, str] = {}
    if searches(request):
        names = {"beam_search": "use_beam_search", "beam_search.width": _width_name(request)}
        names |= {f"beam_search.{name}": name for name in _OF_BEAMS}
    elif samples_more(request):
        names = {"n": "best_of"} if logprobs else {"n": "best_of", "logprobs": "best_of"}
    return lambda field: names.get(field.removeprefix("sampling.").removeprefix("output.")) or name_of(field)


def score_members(score: float | None) -> dict[str, float]:
    """The further members of a choice with this score of its beam."""
    return {} if score is None else {"beam_score": score}


def _returned(request: BestFields) -> int:
    return 1 if request.n is None else request.n


def _width_name(request: BestFields) -> str:
    if (request.num_beams or 1) > 1:
        return "num_beams"
    return "n" if request.best_of is None else "best_of"


def _beam_search(request: BestFields) -> dict[str, Any]:
    name = _width_name(request)
    width = _returned(request) if name == "n" else getattr(request, name)
    if request.best_of is not None and request.best_of != width:
        raise invalid("best_of", f"{request.best_of}, but num_beams is {width}, and both set the same: give one")
    if width < _returned(request):
        raise invalid(name, f"{width} is less than n, {_returned(request)}")
    if isinstance(request.early_stopping, str) and request.early_stopping != "never":
        raise invalid("early_stopping", f"{shown(request.early_stopping)}: expected true, false or never")
    given = {"length_penalty": request.length_penalty, "early_stopping": request.early_stopping}
    return {"width": width, **{key: value for key, value in given.items() if value is not None}}


def _mean_logprob(choice: Choice) -> float:
    logprobs = choice.logprobs or ()
    return sum(one.logprob for one in logprobs) / max(1, len(logprobs))
