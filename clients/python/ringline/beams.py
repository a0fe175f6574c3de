"""The option ``beam_search``, to and from the contract's message."""

from __future__ import annotations

from collections.abc import Mapping

from ringline.errors import invalid
from ringline.proto_fields import assign, expect
from ringline.types.v1 import sampling_pb2

_Message = sampling_pb2.BeamSearch
_KEYS = ("width", "length_penalty", "early_stopping")
_EARLY_STOPPING: dict[object, _Message.EarlyStopping.ValueType] = {
    False: _Message.EARLY_STOPPING_NO,
    True: _Message.EARLY_STOPPING_YES,
    "never": _Message.EARLY_STOPPING_NEVER,
}


def set_beam_search(target: _Message, value: object) -> None:
    """Write the option into ``target``. Raises TypeError for a wrong type, InvalidRequest for a value out of range."""
    expect(Mapping, "a dict such as {'width': 4}", value, "beam_search")
    given = {key: one for key, one in dict(value).items() if one is not None}  # type: ignore[call-overload]
    if unknown := given.keys() - set(_KEYS):
        raise TypeError(f"beam_search: unknown key {min(unknown)!r}: expected {', '.join(_KEYS)}")
    if "width" not in given:
        raise invalid("beam_search.width", "missing: expected the number of beams")
    early = given.pop("early_stopping", False)
    if not isinstance(early, bool | str):
        raise TypeError(f"beam_search.early_stopping: expected bool or 'never', got {type(early).__name__}")
    if early not in _EARLY_STOPPING:
        raise invalid("beam_search.early_stopping", f"{early[:40]!r}: expected True, False or 'never'")  # type: ignore[index]
    for key, one in given.items():
        assign(target, key, one, option=f"beam_search.{key}")
    target.early_stopping = _EARLY_STOPPING[early]


def beam_options(message: _Message) -> dict[str, object]:
    """The option that asks for the search again."""
    early = {number: value for value, number in _EARLY_STOPPING.items()}
    return {
        "width": message.width,
        "length_penalty": message.length_penalty,
        "early_stopping": early.get(message.early_stopping, False),
    }
