"""How options are declared, parsed and checked.

An option is a dataclass field with metadata: its help and accepted values. Related options form a dataclass, and
dataclasses are composed into the settings of a process. One declaration yields the flag (``--max-num-seqs``), the
variable (``RINGLINE_MAX_NUM_SEQS``) and the documentation. The metadata are plain data, keyed by ``Setting``'s field
names: the engine declares its options without importing this module, and this module does not import the engine.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

VARIABLE_PREFIX = "RINGLINE_"
TYPO_SIMILARITY = 0.8
"""Least ``difflib`` similarity at which a name counts as a misspelling of another."""

_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")
_BYTES = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_BYTES |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*(?=@)")
"""A user and password in a URL."""
_MOST, _MOST_BYTES = 2**31 - 1, 2**63 - 1
"""Limits of every whole number, which messages to peers have room for."""
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")

T = TypeVar("T")


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes set the variable for a Service: RINGLINE_PORT=tcp://… for one named ringline."""
    return _SERVICE_LINK.search(name) is not None or (name.endswith("_PORT") and _LINK_VALUE.match(value) is not None)


class SettingError(Exception):
    """An option has an unusable value."""

    def __init__(self, option: str, value: object, accepted: str) -> None:
        """``option``: the field's name. ``accepted``: the accepted values, in words."""
        super().__init__(f"{option}={value!r} is not usable: expected {accepted}")
        self.option = option
        self.value = value
        self.accepted = accepted


def option(default: Any, help: str, **declared: Any) -> Any:
    """A field that declares an option. ``declared``: the fields of ``Setting`` from ``choices`` to ``secret``."""
    return field(default=default, metadata={"help": help, **declared})


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of a process, with its present value as the default."""

    section: type
    """The dataclass that declares it."""
    name: str
    kind: type
    """bool, int, float, str, or tuple (of strings)."""
    optional: bool
    """Whether None ("derive it") is a value."""
    default: Any
    help: str
    choices: tuple[str, ...] | tuple[int, ...] | None = None
    otherwise: str | None = None
    """Advice for values outside the choices."""
    minimum: float | None = None
    maximum: float | None = None
    unit: str | None = None
    """``bytes`` options also take suffixes (512MiB, 4GiB); other units, such as ``seconds``, are documentation."""
    secret: bool = False
    """Whether a value must not be seen: by children it is read from the variable, not from their command lines."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def negative_flag(self) -> str:
        """The flag that switches a bool off."""
        return "--no-" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return VARIABLE_PREFIX + self.name.upper()

    @property
    def accepted(self) -> str:
        """The accepted values, in words."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        noun = {
            bool: "true or false",
            int: "an integer",
            float: "a number",
            str: "a string",
            tuple: "a comma-separated list",
        }[self.kind]
        if self.unit == "bytes":
            noun = "a number of bytes (such as 1048576, 512MiB or 4GiB)"
        elif self.unit is not None:
            noun = f"{noun} of {self.unit}"
        low, high = (_bound(bound) for bound in (self.minimum, self.maximum))
        if low is not None and high is not None:
            return f"{noun} from {low} to {high}"
        if low is not None:
            return f"{noun}, at least {low}"
        return noun if high is None else f"{noun}, at most {high}"

    @property
    def _expected(self) -> str:
        return self.accepted if self.otherwise is None else f"{self.accepted}; {self.otherwise}"

    def check(self, value: Any) -> None:
        """Raise ``SettingError`` if ``value`` is out of range."""
        if value is None and self.optional:
            return
        # Negated, so that NaN, for which every comparison is false, is refused too.
        if (
            (self.choices is not None and value not in self.choices)
            or (self.minimum is not None and not value >= self.minimum)
            or (self.maximum is not None and not value <= self.maximum)
        ):
            raise SettingError(self.name, value, self._expected)
        if self.kind is int and value > (most := _MOST_BYTES if self.unit == "bytes" else _MOST):
            raise SettingError(self.name, value, f"{self._expected}, at most {most}")

    def parse(self, text: str) -> Any:
        """The value of a flag or variable; raises ``SettingError`` if it cannot be parsed or is out of range."""
        try:
            value = self._convert(text.strip())
            self.check(value)
        except (ValueError, SettingError):
            raise SettingError(self.name, text, self._expected) from None
        return value

    def _convert(self, text: str) -> Any:
        if self.kind is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError
            return text.lower() in _TRUE
        if self.kind is tuple:
            if self.secret and not text.strip():  # as of a variable that is not set, which would open the service
                raise ValueError
            return tuple(item.strip() for item in text.split(",") if item.strip())
        if self.unit == "bytes":
            match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
            if match is None or match[2].upper() not in _BYTES:
                raise ValueError
            return round(Fraction(match[1]) * _BYTES[match[2].upper()])
        return self.kind(text)

    def format(self, value: Any) -> str:
        """The text that ``parse`` reads as ``value``."""
        if self.kind is bool:
            return "true" if value else "false"
        if self.unit == "bytes" and value:  # with the largest suffix that leaves a whole number
            suffix = next((each for each in ("TiB", "GiB", "MiB", "KiB") if value % _BYTES[each.upper()] == 0), "")
            return f"{value // _BYTES[suffix.upper()]}{suffix}"
        return ",".join(value) if self.kind is tuple else str(value)


def settings_of(defaults: Any) -> list[Setting]:
    """All options of ``defaults``, a settings dataclass, and of its sections, in order of declaration."""
    settings: list[Setting] = []
    own = {setting.name: setting for setting in _own_settings(defaults)}
    for f in fields(defaults):
        value = getattr(defaults, f.name)
        if f.name in own:
            settings.append(own[f.name])
        elif is_dataclass(value):
            settings += settings_of(value)
    return settings


def build(defaults: T, values: Mapping[str, Any]) -> T:
    """A copy of ``defaults`` with the options named in ``values`` replaced.

    Raises the dataclasses' errors for values out of range. Names that are not options of ``defaults`` are ignored, so
    that one mapping can serve several settings.
    """
    changes: dict[str, Any] = {}
    for f in fields(defaults):  # type: ignore[arg-type]
        value = getattr(defaults, f.name)
        if f.metadata:
            if f.name in values:
                changes[f.name] = values[f.name]
        elif is_dataclass(value):
            changes[f.name] = build(value, values)
    return replace(defaults, **changes)  # type: ignore[type-var]


def check_section(section: Any) -> None:
    """Raise ``SettingError`` for the first option of ``section`` itself that is out of range."""
    for setting in _own_settings(section):
        setting.check(setting.default)


def arguments(settings: Iterable[Setting], values: Mapping[str, Any]) -> list[str]:
    """Command-line arguments for those ``settings`` that ``values`` names."""
    words: list[str] = []
    for setting in settings:
        if setting.name in values:
            value = values[setting.name]
            if setting.kind is bool:
                words.append(setting.flag if value else setting.negative_flag)
            else:
                words.append(f"{setting.flag}={setting.format(value)}")
    return words


def given_options(*settings: Any) -> list[str]:
    """Command-line arguments for the options that differ from their defaults, without secrets and passwords."""
    words: list[str] = []
    for section in settings:
        for default, setting in zip(settings_of(type(section)()), settings_of(section), strict=True):
            value = setting.default
            if value == default.default:
                continue
            if setting.secret or value is None:
                words.append(f"{setting.flag}={'...' if setting.secret else 'none'}")
            else:
                words += [_PASSWORD.sub("...", word) for word in arguments([setting], {setting.name: value})]
    return words


def _own_settings(section: Any) -> Iterator[Setting]:
    hints = get_type_hints(type(section))
    for f in fields(section):
        if f.metadata:
            kind, optional = _kind(hints[f.name])
            yield Setting(type(section), f.name, kind, optional, getattr(section, f.name), **f.metadata)


def _kind(hint: Any) -> tuple[type, bool]:
    """The type of an annotation without None, and whether it allows None."""
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        arms = [arm for arm in get_args(hint) if arm is not type(None)]
        if len(arms) != 1:
            raise TypeError(f"an option has one type, not {hint}")
        hint, optional = arms[0], True
    kind = get_origin(hint) or hint
    if kind not in (bool, int, float, str, tuple):
        raise TypeError(f"an option cannot be of type {hint}")
    return kind, optional


def _bound(value: float | None) -> str | None:
    """In digits, without an exponent."""
    return None if value is None else str(int(value)) if float(value).is_integer() else str(value)
