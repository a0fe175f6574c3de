"""Request fields, declared once: what an endpoint does with each, its name in the ring, its note in the docs.

A body is a ``msgspec.Struct`` whose fields are all ``Annotated`` with one of the functions below:

    class Request(Body):
        top_k: Annotated[int | None, passed("-1 and 0 keep all.")] = None          # goes to the ring under its name
        max_completion_tokens: Annotated[int | None, passed(option="max_tokens")] = None   # under another
        stream: Annotated[bool | None, supported()] = None                         # handled by the endpoint
        user: Annotated[Any, ignored("…")] = None                                  # harmless
        audio: Annotated[Any, refused("text is the only modality")] = None         # would change the result
        n_predict: Annotated[int | None, same("max_tokens", note="…")] = None    # another server's name

Pass the parsed body to ``checked``, then to ``options_of`` for the ring's options. List the endpoint in
``tests.docs.api_fields.ENDPOINTS``, from which the tables in docs/reference/openai.md are generated.

Every field is optional, for null means absent. Undeclared fields are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from services.gateway.http.api_error import invalid, shown


class Support(StrEnum):
    """How a field is treated."""

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """A field's declaration."""

    support: Support
    note: str
    """For the docs, and a refused field's error: what to use instead."""
    option: str | None = None
    """Its name in the ring, if it goes there unchanged."""
    neutral: tuple[object, ...] = ()
    """Accepted values of a refused field: they change nothing."""
    below: float | None = None
    """Lesser numbers are neutral, too."""
    same_as: tuple[str, ...] = ()
    """Fields that it is another name of: those of them that the body has. The last is set."""

    def is_neutral(self, value: object) -> bool:
        """Whether a value changes nothing."""
        if value is None or value in self.neutral:
            return True
        return self.below is not None and isinstance(value, int | float) and value < self.below


def passed(note: str = "", option: str = "") -> Field:
    """A field that goes to the ring unchanged. ``option``: its name there, if different."""
    return Field(Support.SUPPORTED, note, option)


def supported(note: str = "") -> Field:
    """A field that the endpoint handles."""
    return Field(Support.SUPPORTED, note)


def ignored(note: str) -> Field:
    """A field without effect; ``note`` says why."""
    return Field(Support.IGNORED, note)


def refused(instead: str, *neutral: object, below: float | None = None) -> Field:
    """An unsupported field that would change the result. ``instead``: why, or what to do; in lower case.

    ``neutral`` values, and numbers less than ``below``, change nothing and are accepted.
    """
    return Field(Support.REFUSED, instead, None, neutral, below)


def same(*names: str, note: str, neutral: tuple[object, ...] = (), below: float | None = None) -> Field:
    """Another server's name of fields, of which a body has one at least.

    ``neutral`` values, and numbers less than ``below``, set nothing.
    """
    return Field(Support.SUPPORTED, note, None, neutral, below, names)


class Body(msgspec.Struct, kw_only=True):
    """A request's body."""


_Body = TypeVar("_Body", bound=msgspec.Struct)


@cache
def declared(body: type[msgspec.Struct]) -> Mapping[str, Field]:
    """A body's fields by name, in declaration order."""
    hints = get_type_hints(body, include_extras=True)
    names = {one.name: one.encode_name for one in msgspec.structs.fields(body)}
    fields: dict[str, Field] = {}
    for attribute, name in names.items():
        (field,) = (one for one in getattr(hints[attribute], "__metadata__", ()) if isinstance(one, Field))
        if field.option == "":
            field = replace(field, option=attribute)
        fields[name] = field
    return fields


@cache
def _aliases(body: type[msgspec.Struct]) -> tuple[tuple[str, Field], ...]:
    """Fields that are other names, each of those that the body has."""
    fields = declared(body)
    given = {name: field.same_as for name, field in fields.items() if field.same_as}
    own = {name: tuple(other for other in others if other in fields) for name, others in given.items()}
    return tuple((name, replace(fields[name], same_as=others)) for name, others in own.items())


@cache
def _refusals(body: type[msgspec.Struct]) -> tuple[tuple[str, Field], ...]:
    return tuple((name, field) for name, field in declared(body).items() if field.support is Support.REFUSED)


@cache
def _options(body: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((name, field.option) for name, field in declared(body).items() if field.option)


def checked(request: _Body, prefix: str = "") -> _Body:
    """Return the request, with fields set that it has by another name. Raises ``ApiError`` for refused fields."""
    for name, field in _refusals(type(request)):
        value = getattr(request, name)
        if value is not None and not field.is_neutral(value):
            raise invalid(prefix + name, f"not supported: {field.note}", code="unsupported_parameter")
    for name, field in _aliases(type(request)):
        value = getattr(request, name)
        if not field.is_neutral(value):
            _set_same(request, name, field, value)
    return request


def _set_same(request: msgspec.Struct, name: str, field: Field, value: object) -> None:
    for other in field.same_as:
        if (given := getattr(request, other)) is not None:
            if given != value:
                raise invalid(name, f"{value}, but {other} is {given}, and both set the same: give one")
            return
    setattr(request, field.same_as[-1], value)


def names_given(request: msgspec.Struct) -> dict[str, str]:
    """The names that the request has for the ring's options, where they are those of other servers."""
    fields = declared(type(request))
    given = [(name, field) for name, field in _aliases(type(request)) if not field.is_neutral(getattr(request, name))]
    return {fields[field.same_as[-1]].option or field.same_as[-1]: name for name, field in given}


_TOKEN_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_SWITCHES = {"on": True, "off": False}
_LEAST_TOP_P = 1e-7
"""Keeps only the most likely token, which is likelier in any vocabulary below ten million."""


def options_of(request: msgspec.Struct) -> dict[str, Any]:
    """The ring's options of passed fields, with OpenAI's values that the ring refuses translated.

    Raises ``ApiError`` for -1 as a token limit, which means no limit elsewhere.
    """
    for name in _TOKEN_LIMITS:
        if (limit := getattr(request, name, None)) is not None and limit < 0:
            raise invalid(name, f"{limit} is out of range: expected at least 1", "invalid_field")
    options = {name: value for of, name in _options(type(request)) if (value := getattr(request, of)) is not None}
    if options.get("top_p") == 0:
        options["top_p"] = _LEAST_TOP_P
    if options.get("stop") == "":
        del options["stop"]
    if isinstance(names := options.get("adapter"), list):
        options["adapter"] = _one_adapter(names)
    if isinstance(given := options.get("speculation"), str):
        if given not in _SWITCHES:
            raise invalid("speculation", f"{shown(given)}: expected on, off, true or false")
        options["speculation"] = _SWITCHES[given]
    return options


def _one_adapter(names: list[str | None]) -> str:
    """The adapter of all prompts (empty: none), of which SGLang's clients name one for each. Raises ``ApiError``."""
    if len(set(names)) > 1:
        problem = "a list of different adapters: expected one for all prompts; send a request for each adapter"
        raise invalid("lora_path", problem)
    return names[0] or ""


_PARTS = ("generate.", "sampling.", "stopping.", "output.", "chat.", "constraint.", "options.")
"""Levels of the ring's request; HTTP APIs have one."""
PARSERS = {"output.parse.tool_calls": "tool_call_parser", "output.parse.reasoning": "reasoning_parser"}
"""The ring's fields of formats, to those of requests."""


def naming(bodies: Iterable[type[msgspec.Struct]], others: Mapping[str, str]) -> Callable[[str], str]:
    """Map the ring's field names to an API's: by ``others``, else as declared in ``bodies``."""
    names = {option: name for body in bodies for name, option in _options(body) if option != name} | dict(others)

    def name_of(field: str) -> str:
        option, rest = _divided(field)
        return names.get(option, option) + rest

    return name_of


def naming_given(given: Mapping[str, str], name_of: Callable[[str], str]) -> Callable[[str], str]:
    """``name_of``, but with the names that a request has ``given`` to the ring's options."""
    if not given:
        return name_of

    def name_of_given(field: str) -> str:
        option, rest = _divided(field)
        return given[option] + rest if option in given else name_of(field)

    return name_of_given


def _divided(field: str) -> tuple[str, str]:
    """An option of the ring, and the place within it."""
    for part in _PARTS:
        field = field.removeprefix(part)
    end = min((at for at in (field.find("."), field.find("[")) if at > 0), default=len(field))
    return field[:end], field[end:]
