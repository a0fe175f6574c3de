"""Fields of requests, each declared once: what an endpoint does with it, how the ring calls it, what the docs say.

A request's body is a ``msgspec.Struct`` whose every field is ``Annotated`` with one of the functions below:

    class Request(Body):
        top_k: Annotated[int | None, passed("-1 and 0 keep all.")] = None          # goes to the ring under its name
        max_completion_tokens: Annotated[int | None, passed(option="max_tokens")] = None   # under another
        stream: Annotated[bool | None, supported()] = None                         # the endpoint's own work
        user: Annotated[Any, ignored("…")] = None                                  # harmless
        audio: Annotated[Any, refused("text is the only modality")] = None         # would change the result

Give it to ``checked`` when it is parsed, and to ``options_of`` for what goes to the ring. List its endpoint in
``tests.docs.api_fields.ENDPOINTS``: the tables in docs/openai.md are generated from there.

Every field is optional, for null means absent. A field that is not declared is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from services.gateway.http.api_error import invalid


class Support(StrEnum):
    """What becomes of a field."""

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """A field as it is declared."""

    support: Support
    note: str
    """For the docs; of a refused field also for the error: what there is instead."""
    option: str | None = None
    """What the ring calls it, if it goes there as it is."""
    neutral: tuple[object, ...] = ()
    """Values of a refused field that change nothing, and so are accepted."""


def passed(note: str = "", option: str = "") -> Field:
    """A field that goes to the ring as it is. ``option``: its name there, if it has another one."""
    return Field(Support.SUPPORTED, note, option)


def supported(note: str = "") -> Field:
    """A field that the endpoint works with."""
    return Field(Support.SUPPORTED, note)


def ignored(note: str) -> Field:
    """A field that changes nothing; ``note`` says why that is so."""
    return Field(Support.IGNORED, note)


def refused(instead: str, *neutral: object) -> Field:
    """A field that would change the result, and cannot. ``instead``: why, or what to do; begins in lower case."""
    return Field(Support.REFUSED, instead, None, neutral)


class Body(msgspec.Struct, kw_only=True):
    """The body of a request."""


_Body = TypeVar("_Body", bound=msgspec.Struct)


@cache
def declared(body: type[msgspec.Struct]) -> Mapping[str, Field]:
    """The fields of a body in the order of their declaration."""
    hints = get_type_hints(body, include_extras=True)
    names = {one.name: one.encode_name for one in msgspec.structs.fields(body)}
    fields: dict[str, Field] = {}
    for attribute, name in names.items():
        (field,) = (one for one in getattr(hints[attribute], "__metadata__", ()) if isinstance(one, Field))
        if field.option == "":
            field = Field(field.support, field.note, attribute, field.neutral)
        fields[name] = field
    return fields


@cache
def _refusals(body: type[msgspec.Struct]) -> tuple[tuple[str, Field], ...]:
    return tuple((name, field) for name, field in declared(body).items() if field.support is Support.REFUSED)


@cache
def _options(body: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((name, field.option) for name, field in declared(body).items() if field.option)


def checked(request: _Body, prefix: str = "") -> _Body:
    """The request again. Raises ``ApiError`` for a field that would change the result and is not supported."""
    for name, field in _refusals(type(request)):
        value = getattr(request, name)
        if value is not None and value not in field.neutral:
            raise invalid(prefix + name, f"not supported: {field.note}", code="unsupported_parameter")
    return request


_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_LEAST_TOP_P = 1e-7
"""Leaves the most likely token alone: of any vocabulary below ten million, that one has more."""


def options_of(request: msgspec.Struct) -> dict[str, Any]:
    """What goes to the ring as it is, under the ring's names, and what it does not take as what OpenAI means by it.

    Raises ``ApiError`` for the -1 that stands for no limit elsewhere.
    """
    for name in _TOKEN_LIMITS:
        if (limit := getattr(request, name, None)) is not None and limit < 0:
            raise invalid(name, f"{limit} is out of range: expected at least 1", "invalid_field")
    options = {name: value for of, name in _options(type(request)) if (value := getattr(request, of)) is not None}
    if options.get("top_p") == 0:
        options["top_p"] = _LEAST_TOP_P
    if options.get("stop") == "":
        del options["stop"]
    return options


_PARTS = ("generate.", "sampling.", "stopping.", "output.", "chat.", "constraint.")
"""Of the ring's request; HTTP's APIs have one level."""


def naming(bodies: Iterable[type[msgspec.Struct]], others: Mapping[str, str]) -> Callable[[str], str]:
    """What an API calls a field of the ring: as declared in ``bodies``, or as in ``others``, which counts first."""
    names = {option: name for body in bodies for name, option in _options(body) if option != name} | dict(others)

    def name_of(field: str) -> str:
        for part in _PARTS:
            field = field.removeprefix(part)
        end = min((at for at in (field.find("."), field.find("[")) if at > 0), default=len(field))
        return names.get(field[:end], field[:end]) + field[end:]

    return name_of
