"""Resolves a search by beams: its defaults, the sampling that it leaves nothing to, and what cannot go with it."""

from __future__ import annotations

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import sampling_pb2

from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import BEAM_SEARCH
from services.ring.limits import MAX_BEAM_WIDTH, MAX_LENGTH_PENALTY

_FIELD = "beam_search"
_EarlyStopping = sampling_pb2.BeamSearch.EarlyStopping
_WITHOUT_NOISE = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""A search takes the most likely continuations: nothing is drawn, and none is left out."""


def resolve_beams(request: inference_pb2.GenerateRequest, served_model: ServedModel) -> sampling_pb2.BeamSearch | None:
    """The search with every field present; None if the request has none. Raises ``Refused`` naming the field."""
    if not request.HasField("beam_search"):
        return None
    if BEAM_SEARCH not in served_model.capabilities:
        problem = f"{_FIELD}: this model's engine cannot search (it lacks the capability {BEAM_SEARCH})"
        raise Refused(Code.FAILED_PRECONDITION, problem, reason=Reason.CAPABILITY_MISSING, field=_FIELD)
    given = request.beam_search
    _check_width(given.width, request.sampling.n if request.sampling.HasField("n") else 1, served_model)
    penalty = given.length_penalty if given.HasField("length_penalty") else 1.0
    if not -MAX_LENGTH_PENALTY <= penalty <= MAX_LENGTH_PENALTY:
        accepted = f"{-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}"
        raise refuse(f"{_FIELD}.length_penalty", f"{penalty:g} is out of range: expected {accepted}")
    if given.early_stopping not in _EarlyStopping.values():
        problem = f"{given.early_stopping} is unknown: expected {', '.join(_EarlyStopping.keys())}"
        raise refuse(f"{_FIELD}.early_stopping", problem)
    _check_others(request)
    early = given.early_stopping or sampling_pb2.BeamSearch.EARLY_STOPPING_NO
    return sampling_pb2.BeamSearch(width=given.width, length_penalty=penalty, early_stopping=early)


def sampling_for_beams(given: inference_pb2.SamplingParams) -> inference_pb2.SamplingParams:
    """What is ``given``, without what a model's own defaults say of drawing."""
    sampling = inference_pb2.SamplingParams()
    sampling.CopyFrom(given)
    for name, value in _WITHOUT_NOISE.items():
        setattr(sampling, name, value)
    return sampling


def check_beside_beams(
    request: inference_pb2.GenerateRequest, *, has_form: bool, has_budget: bool, stops_in_answer_only: bool
) -> None:
    """Refuse what only shows once ``request`` is resolved.

    ``has_form``: the answer must have one, be it that of calls. ``stops_in_answer_only``: stops count behind the
    reasoning alone, whose end only a detokenizer can tell.
    """
    if has_form and not request.HasField("constraint"):
        problem = "demanded, or strict, beside beam_search, whose beams have no form: expected neither"
        raise refuse("chat.tools", problem)
    if has_form:
        raise refuse("constraint", "set beside beam_search, whose beams have no form: leave it out")
    if has_budget:
        raise refuse("stopping.max_reasoning_tokens", "set beside beam_search, which has no such limit: leave it out")
    if stops_in_answer_only and request.stopping.stop_token_ids:
        problem = "set beside beam_search, whose beams they end within the reasoning, too: set stop_in_reasoning"
        raise refuse("stopping.stop_token_ids", problem)


def _check_width(width: int, n: int, served_model: ServedModel) -> None:
    rows = served_model.model.max_num_seqs or MAX_BEAM_WIDTH
    most = min(MAX_BEAM_WIDTH, rows)
    if not 1 <= width <= most:
        why = "" if most == MAX_BEAM_WIDTH else ", the choices that this model's engine computes in one step"
        raise refuse(f"{_FIELD}.width", f"{width} is out of range: expected 1 to {most}{why}")
    if n > width:
        raise refuse("sampling.n", f"{n} is out of range: expected at most beam_search.width, {width}")


def _check_others(request: inference_pb2.GenerateRequest) -> None:
    """Refuse what a search cannot keep."""
    sampling, stopping, output = request.sampling, request.stopping, request.output
    for name, value in _WITHOUT_NOISE.items():
        if sampling.HasField(name) and getattr(sampling, name) != value:  # type: ignore[arg-type]
            problem = f"set beside beam_search, which draws nothing: expected {value:g}, or leave it out"
            raise refuse(f"sampling.{name}", problem)
    asked = {
        "sampling.seed": (sampling.HasField("seed"), "which draws nothing"),
        "sampling.frequency_penalty": (sampling.frequency_penalty != 0, "which has repetition_penalty alone"),
        "sampling.presence_penalty": (sampling.presence_penalty != 0, "which has repetition_penalty alone"),
        "sampling.no_repeat_ngram": (sampling.HasField("no_repeat_ngram"), "which has repetition_penalty alone"),
        "stopping.stop": (bool(stopping.stop), "whose beams end with tokens (stop_token_ids) or at max_tokens"),
        "output.logprobs": (output.HasField("logprobs"), "which reports the score of each choice alone"),
        "output.prompt_logprobs": (output.HasField("prompt_logprobs"), "which reports the score of each choice alone"),
    }
    for field, (is_set, reason) in asked.items():
        if is_set:
            raise refuse(field, f"set beside beam_search, {reason}: leave it out")
