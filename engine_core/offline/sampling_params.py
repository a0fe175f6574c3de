"""Sampling parameters as callers of ``LLM`` set them: the engine's, and those of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from engine_core import request
from engine_core.errors import InvalidRequestError
from engine_core.offline.numpy_to_python import plain


@dataclass(frozen=True, slots=True)
class SamplingParams(request.SamplingParams):
    """The engine's parameters, and how a choice becomes text."""

    stop: str | Sequence[str] | None = None
    """One string or several (at most 64, of at most 1,024 UTF-8 bytes each and 8,192 together): the choice ends with
    STOP as soon as its text has one of them. The text ends before it, the ids with the token that completes it."""
    include_stop_str_in_output: bool = False
    """Keep the stop string in the text, or the text of the eos or stop token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def for_engine(self) -> request.SamplingParams:
        """The engine's part, which knows token ids alone."""
        return request.SamplingParams(**{f.name: getattr(self, f.name) for f in fields(request.SamplingParams)})


def read_params(given: request.SamplingParams, place: str) -> SamplingParams:
    """``given`` with Python's own numbers, and with the defaults of text where they are the engine's alone.

    Raises ``InvalidRequestError``, naming ``place``, for a parameter of text of the wrong type.
    """
    names = [f.name for f in fields(SamplingParams) if hasattr(given, f.name)]
    params = SamplingParams(**{name: plain(getattr(given, name)) for name in names})
    if not isinstance(params.stop, str | list | tuple | None):
        kind = type(params.stop).__name__
        raise InvalidRequestError(f"{place}: stop", f"is of type {kind}; expected a string, or a list of strings")
    for name in ("include_stop_str_in_output", "skip_special_tokens"):
        if type(value := getattr(params, name)) is not bool:
            raise InvalidRequestError(f"{place}: {name}", f"is of type {type(value).__name__}; expected True or False")
    return params
