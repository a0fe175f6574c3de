"""The sampling parameters of ``LLM``: the engine's, and those of text."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Self

from engine_core import request
from engine_core.errors import InvalidRequestError, written
from engine_core.offline.numpy_to_python import plain
from engine_core.request import NoRepeatNgram
from engine_core.validation import MAX_CHOICES

_OF_VLLM = {
    "bad_words": "bad_words_token_ids has the words as token ids",
    "logits_processors": "logit_bias, bad_words_token_ids and allowed_token_ids change what may be sampled",
    "output_kind": "results are whole; the ring's client streams",
    "spaces_between_special_tokens": "no spaces are put between special tokens",
    "use_beam_search": "beam_search=BeamSearch(width) searches with beams, as LLM.beam_search does",
    "detokenize": "results of prompts that are token ids have no text",
    "truncate_prompt_tokens": "a prompt may be a list of token ids, of which you leave out what you like",
    **dict.fromkeys(
        ("guided_decoding", "structured_outputs"),
        "the form of the text is json_schema, json_object, regex, choice or grammar",
    ),
}
"""Unsupported parameters of vLLM's class, with alternatives."""
_NO_LIMIT = 2**63 - 1
"""More tokens than any context has room for."""


@dataclass(frozen=True, slots=True)
class SamplingParams(request.SamplingParams):
    """The engine's parameters, how a choice becomes text, and the form of the text."""

    top_k: int | None = None
    """Keep the k most likely tokens; None, 0 or -1 keeps all."""
    seed: int | None = 0  # type: ignore[assignment]  # of more types than the engine's
    """64-bit unsigned: equal prompts with equal seeds give equal tokens. None: one is drawn for each prompt."""
    max_tokens: int | None = 16  # type: ignore[assignment]
    """≥ 1; output tokens per choice. None: as many as the context has room for."""
    stop_token_ids: Collection[int] | None = frozenset()  # type: ignore[assignment]
    """Tokens that end the choice with STOP: a list, a tuple or a set; the token is delivered and counted."""
    grammar: str | None = None
    """The text follows this grammar: Lark's notation with a rule ``start``, or GBNF with a rule ``root``."""

    stop: str | Sequence[str] | None = None
    """One string or several (at most 64, of at most 1,024 UTF-8 bytes each and 8,192 together): the choice ends with
    STOP as soon as its text contains one. The text ends before it, the ids with the token that completes it."""
    include_stop_str_in_output: bool = False
    """Keep the stop string in the text, or the text of the eos or stop token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    json_schema: Mapping[str, Any] | str | bool | None = None
    """The text is JSON that this schema accepts: a dict, a JSON text or a bool. A text has at most one form: this one,
    ``json_object``, ``regex``, ``choice`` or ``grammar``."""
    json_object: bool = False
    """The text is a JSON object."""
    regex: str | None = None
    """The whole text matches it."""
    choice: Sequence[str] | None = None
    """The text is one of these."""
    extra_args: Mapping[str, Any] | None = None
    """As vLLM's ``NGramPerReqLogitsProcessor`` takes them: ``ngram_size``, ``window_size`` (default: 100) and
    ``whitelist_token_ids`` are ``no_repeat_ngram``."""
    any_whitespace: bool = False
    """The model chooses JSON's white space. Default: one blank after each comma and colon."""
    best_of: int | None = None
    """At least ``n``: so many choices are generated, and the ``n`` whose tokens are the most likely on average are
    returned, the best first. None: ``n``. Not with ``beam_search``."""

    def __new__(cls, *args: Any, **params: Any) -> Self:
        """Raise TypeError for an unsupported parameter of vLLM's, naming the alternative."""
        for name in _OF_VLLM.keys() & params.keys():
            raise TypeError(f"parameter {name!r} is not supported: {_OF_VLLM[name]}")
        return object.__new__(cls)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def for_engine(self, grammar: str | None = None) -> request.SamplingParams:
        """The engine's parameters, which concern token ids alone; ``grammar`` is the form's, in the engine's format.

        Draws a seed where there is none.
        """
        values = {f.name: getattr(self, f.name) for f in fields(request.SamplingParams)}
        values |= {"grammar": grammar, "seed": secrets.randbits(64) if self.seed is None else self.seed}
        if self.best_of is not None:
            values |= {"n": self.best_of, "logprobs": self.logprobs or 0}
        return request.SamplingParams(**values)


def read_params(given: request.SamplingParams, place: str) -> SamplingParams:
    """``given`` with the engine's values for vLLM's and Python's numbers; text parameters are defaults if it has none.

    Raises ``InvalidRequestError``, naming ``place``, for a text parameter of the wrong type.
    """
    names = [f.name for f in fields(SamplingParams) if hasattr(given, f.name)]
    values = {name: plain(getattr(given, name)) for name in names}
    if type(values["top_k"]) is int and values["top_k"] in (0, -1):
        values["top_k"] = None
    if values["max_tokens"] is None:
        values["max_tokens"] = _NO_LIMIT
    stop = values["stop_token_ids"]
    if isinstance(stop, tuple | None):
        with suppress(TypeError):  # from what cannot be in a set, which the type check will refuse
            values["stop_token_ids"] = frozenset(stop or ())
    values["no_repeat_ngram"] = _no_repeat_ngram(values["no_repeat_ngram"], values.pop("extra_args", None), place)
    params = SamplingParams(**values)
    if not isinstance(params.stop, str | list | tuple | None):
        kind = type(params.stop).__name__
        raise InvalidRequestError(f"{place}: stop", f"is of type {kind}; expected a string, or a list of strings")
    for name in ("include_stop_str_in_output", "skip_special_tokens", "json_object", "any_whitespace"):
        if type(value := getattr(params, name)) is not bool:
            raise InvalidRequestError(f"{place}: {name}", f"is of type {type(value).__name__}; expected True or False")
    _check_best(params, place)
    return params


def _check_best(params: SamplingParams, place: str) -> None:
    """Refuse what cannot be with several beams or choices of which the best are returned."""
    best_of, n = params.best_of, params.n
    if best_of is not None and (type(best_of) is not int or (type(n) is int and not n <= best_of <= MAX_CHOICES)):
        problem = f"is {written(best_of)}; expected an integer from n ({written(n)}) to {MAX_CHOICES}, or none"
        raise InvalidRequestError(f"{place}: best_of", problem)
    if params.beam_search is None:
        return
    if best_of is not None:
        problem = "is given together with beam_search, whose width it would be; expected none"
        raise InvalidRequestError(f"{place}: best_of", problem)
    if params.stop_strings:
        problem = "is given together with beam_search, whose beams end with tokens; expected stop_token_ids"
        raise InvalidRequestError(f"{place}: stop", problem)
    if params.seed:
        problem = f"is {written(params.seed)}; expected none with beam_search, which draws nothing"
        raise InvalidRequestError(f"{place}: seed", problem)


_OF_NGRAM = {"ngram_size": "ngram_size", "window_size": "window_size", "whitelist_token_ids": "allowed_token_ids"}
_WINDOW_OF_VLLM = 100


def _no_repeat_ngram(given: Any, extra: object, place: str) -> Any:
    """The rule against repetitions, given as itself, as a dictionary, or as vLLM's ``extra_args``."""
    if isinstance(extra, Mapping) and extra:
        field = f"{place}: extra_args"
        if unknown := [key for key in extra if key not in _OF_NGRAM]:
            raise InvalidRequestError(field, f"has {unknown[0]!r}; expected {', '.join(_OF_NGRAM)}")
        if given is not None:
            raise InvalidRequestError(field, "is given beside no_repeat_ngram; expected one of them")
        if "ngram_size" in extra:  # vLLM's processor does nothing without it
            given = {"window_size": _WINDOW_OF_VLLM, **{_OF_NGRAM[key]: value for key, value in extra.items()}}
    elif extra:
        raise InvalidRequestError(f"{place}: extra_args", f"is of type {type(extra).__name__}; expected a dictionary")
    if isinstance(given, Mapping) and {"ngram_size", "window_size"} <= given.keys() <= set(_OF_NGRAM.values()):
        with suppress(TypeError):  # from ids that cannot be in a set
            return NoRepeatNgram(**{**given, "allowed_token_ids": frozenset(given.get("allowed_token_ids") or ())})
    return given  # the engine's check refuses what is of another type
