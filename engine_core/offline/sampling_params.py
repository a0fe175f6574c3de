"""Sampling parameters as callers of ``LLM`` set them: the engine's, and those of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from engine_core import request
from engine_core.errors import InvalidRequestError
from engine_core.offline.numpy_to_python import plain

_OF_VLLM = {
    "best_of": "n gives several choices",
    **dict.fromkeys(
        ("guided_decoding", "structured_outputs"),
        "the form of the text is json_schema, json_object, regex, choice or grammar",
    ),
}
"""Parameters of vLLM's class that there are not, with what there is instead."""


@dataclass(frozen=True, slots=True)
class SamplingParams(request.SamplingParams):
    """The engine's parameters, how a choice becomes text, and the form of the text."""

    grammar: str | None = None
    """The text is one of this grammar: Lark's notation with a rule ``start``, or GBNF with a rule ``root``."""

    stop: str | Sequence[str] | None = None
    """One string or several (at most 64, of at most 1,024 UTF-8 bytes each and 8,192 together): the choice ends with
    STOP as soon as its text has one of them. The text ends before it, the ids with the token that completes it."""
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
    """The text matches it as a whole."""
    choice: Sequence[str] | None = None
    """The text is one of these."""
    any_whitespace: bool = False
    """White space of JSON is where the model puts it. Default: one blank after each comma and colon."""

    def __new__(cls, *args: Any, **params: Any) -> Self:
        """Raises TypeError for a parameter of vLLM's that there is not, with what there is instead."""
        for name in _OF_VLLM.keys() & params.keys():
            raise TypeError(f"parameter {name!r} is not supported: {_OF_VLLM[name]}")
        return object.__new__(cls)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def for_engine(self, grammar: str | None = None) -> request.SamplingParams:
        """The engine's part, which knows token ids alone; ``grammar`` is that of the form, as the engine reads it."""
        names = [f.name for f in fields(request.SamplingParams) if f.name != "grammar"]
        return request.SamplingParams(**{name: getattr(self, name) for name in names}, grammar=grammar)


def read_params(given: request.SamplingParams, place: str) -> SamplingParams:
    """``given`` with Python's own numbers, and with the defaults of text where they are the engine's alone.

    Raises ``InvalidRequestError``, naming ``place``, for a parameter of text of the wrong type.
    """
    names = [f.name for f in fields(SamplingParams) if hasattr(given, f.name)]
    params = SamplingParams(**{name: plain(getattr(given, name)) for name in names})
    if not isinstance(params.stop, str | list | tuple | None):
        kind = type(params.stop).__name__
        raise InvalidRequestError(f"{place}: stop", f"is of type {kind}; expected a string, or a list of strings")
    for name in ("include_stop_str_in_output", "skip_special_tokens", "json_object", "any_whitespace"):
        if type(value := getattr(params, name)) is not bool:
            raise InvalidRequestError(f"{place}: {name}", f"is of type {type(value).__name__}; expected True or False")
    return params
